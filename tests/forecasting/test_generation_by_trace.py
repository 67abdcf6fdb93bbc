"""Models with states instead of keys and values, and others that no formula describes, generate on the virtual GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.forecast import Forecast
from vramcast.forecasting import estimate
from vramcast.job import job_from
from vramcast.ledger import DECODE, PREFILL, Category

TINY: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 256, "state_size": 16, "num_hidden_layers": 3},
    "lfm2": {
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "layer_types": ["conv", "full_attention", "conv"],
    },
    "qwen3_next": {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    },
}  # fmt: skip
PROMPT, NEW = 300, 12


def written(kind: str, folder: Path) -> str:
    values = {"model_type": kind, "vocab_size": 20000, "dtype": "bfloat16", **TINY[kind]}
    names = {"mamba": "Mamba", "lfm2": "Lfm2", "qwen3_next": "Qwen3Next"}
    values["architectures"] = [f"{names[kind]}ForCausalLM"]
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


def forecast_of(model: str, **said: Any) -> Forecast:
    asked = {
        "model": model,
        "task": "generate",
        "gpu": "a100-80gb",
        "prompt": PROMPT,
        "new-tokens": NEW,
    }
    return estimate(job_from({**asked, **said}))


def real_peaks(model: str) -> tuple[int, int]:
    """Of all tokens, one after the other: the pass over the prompt, and the passes after it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from vramcast.virtual.gpu import virtual_gpu

    config = AutoConfig.from_pretrained(model)
    with virtual_gpu("a100-80gb"):
        model_ = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()
        ids = torch.randint(3, 1000, (1, PROMPT), device="cuda")
        peaks: list[int] = []

        def stops(given: Any, scores: Any, **_: Any) -> Any:
            peaks.append(int(torch.cuda.max_memory_allocated()))
            torch.cuda.reset_peak_memory_stats()
            return torch.zeros(1, dtype=torch.bool, device="cuda")

        model_.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
            pad_token_id=0, eos_token_id=None, stopping_criteria=[stops],
        )  # fmt: skip
    return peaks[0], max(peaks[1:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY)
def test_the_peaks_are_those_of_all_tokens(kind: str, tmp_path: Path) -> None:
    model = written(kind, tmp_path)
    prefill, decode = real_peaks(model)
    ledger = forecast_of(model).ledger
    found = [ledger.moment(phase, "cuda:0").allocated_bytes for phase in (PREFILL, DECODE)]
    assert found[0] == pytest.approx(prefill, rel=0.005)
    assert found[1] == pytest.approx(decode, rel=0.005)


@pytest.mark.slow
def test_a_state_does_not_grow(tmp_path: Path) -> None:
    """Mamba: 3 layers × 512 × (16 of the recurrence in fp32 + 4 of the convolution in bf16), however long."""
    model = written("mamba", tmp_path)
    cached = [
        sum(
            e.nbytes
            for e in forecast_of(model, **{"new-tokens": new}).ledger.entries
            if e.category == Category.CACHE
        )
        for new in (2, 40)
    ]
    assert cached == [3 * 512 * (16 * 4 + 4 * 2)] * 2


def test_what_only_a_new_run_can_tell_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VRAMCAST_NO_NEW_TRACES", "1")
    monkeypatch.setenv("VRAMCAST_NO_CACHE", "1")
    assert main(["estimate", written("mamba", tmp_path), "--task", "generate"]) == 2
    error = capsys.readouterr().err
    assert "runs its generate() first" in error
    assert error.count("\n") == 1


def test_one_pass_of_such_a_model_is_asked_for_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", written("mamba", tmp_path), "--task", "score"]) == 2
    error = capsys.readouterr().err
    assert "--task generate --new-tokens 1" in error
    assert error.count("\n") == 1
