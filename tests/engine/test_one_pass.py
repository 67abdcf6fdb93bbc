"""One pass without graph: beside the same pass of transformers' models on the virtual GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.engine import estimate
from vramcast.job import job_from
from vramcast.ledger import Category

LAYERS = 4


def test_logits_of_all_positions_decide_a_scoring_pass() -> None:
    job = job_from({"model": "qwen3-0.6b", "task": "score", "batch": 8, "seq": 512, "gpu": "t4"})
    entries = estimate(job).ledger.entries
    working = sum(e.nbytes for e in entries if e.category == Category.TEMPORARY)
    logits = 8 * 512 * 151936 * 2
    cache = 8 * 512 * 28 * 2 * 8 * 128 * 2
    assert logits + cache < working < 1.1 * (logits + cache)


def test_a_pass_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "qwen3-0.6b", "--task", "score", "--lora-rank", "8"]) == 2
    assert "leave out lora-rank" in capsys.readouterr().err
    assert main(["plan", "qwen3-0.6b", "--task", "encode", "--gpu", "t4"]) == 0
    assert "checkpointing" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "task", "batch", "seq"),
    [
        ("qwen3-0.6b", "score", 4, 512),
        ("qwen3-0.6b", "encode", 8, 512),
        ("gpt2", "score", 4, 512),
        ("gemma-3-1b", "score", 2, 700),
        ("bert-base-uncased", "encode", 16, 256),
        ("roberta-base", "encode", 4, 384),
        ("t5-small", "score", 4, 256),
    ],
)
def test_the_peak_is_that_of_the_real_pass(
    model: str, task: str, batch: int, seq: int, tmp_path: Path
) -> None:
    config = small_config(model)
    config.save_pretrained(tmp_path)
    peak = pass_on_virtual_gpu(config, task, batch, seq)
    said = {
        "model": str(tmp_path),
        "task": task,
        "batch": batch,
        "seq": seq,
        "precision": "bf16-true",
    }
    forecast = estimate(job_from({**said, "gpu": "a100-80gb"}))
    assert forecast.ledger.peak("cuda:0").allocated_bytes == pytest.approx(peak, rel=0.015)


def small_config(model: str) -> Any:
    from transformers import AutoConfig

    from vramcast.models.read.model import read_model

    described = read_model(model).config
    assert described is not None
    values = dict(described.data)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    for name in ("num_hidden_layers", "num_layers", "num_decoder_layers"):
        if getattr(config, name, None):
            setattr(config, name, LAYERS)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:LAYERS]
    return config


def pass_on_virtual_gpu(config: Any, task: str, batch: int, seq: int) -> int:
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from vramcast.virtual.gpu import virtual_gpu

    head = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    kind = AutoModel if task == "encode" else head
    with virtual_gpu("a100-80gb"):
        model = kind.from_config(config, dtype=torch.bfloat16).to("cuda").eval()
        ids = torch.randint(3, 1000, (batch, seq), device="cuda")
        more = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
        with torch.no_grad():
            kept = model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
        peak = int(torch.cuda.max_memory_allocated())
        del kept
    return peak
