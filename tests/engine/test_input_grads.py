"""Gradient checkpointing asks frozen embeddings for a gradient: frozen layers then keep their inputs. Real steps."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
import transformers
from live import Live

from vramcast.engine.recording.regime import regime_of
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode
from vramcast.job import job_from
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import F32, Lora, Regime
from vramcast.setup import resolve

BATCH, SEQ = 3, 130
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 12, "vocab_size": 1000,
    "tie_word_embeddings": False,
}  # fmt: skip
PREFIX = ("model.embed_tokens", *(f"model.layers.{index}." for index in range(9)))


def real(*, lora: bool, asked: bool) -> dict[str, int]:
    """What is held behind forward, and the peak of backward."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**LLAMA)
    config.use_cache = False
    model: Any = transformers.LlamaForCausalLM._from_config(
        config, attn_implementation="sdpa"
    ).train()
    model.gradient_checkpointing_enable()
    if not asked:
        model.disable_input_require_grads()
    if lora:
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.0)
        )
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(PREFIX))
    ids = torch.randint(0, 1000, (BATCH, SEQ))
    with Live(ids, *model.parameters(), *model.buffers()) as live:
        outputs = model(input_ids=ids, labels=ids)
        held = live.now
        live.restart()
        outputs.loss.backward()
        return {"held": held, "backward": live.peak}


def ours(*, lora: bool, asked: bool) -> dict[str, int]:
    adapters = (
        Lora(rank=8, matches=lambda name, kind: kind == "linear", dtype=F32) if lora else None
    )
    regime = Regime(
        weights=F32, attention="flash", cuda=False, input_grads=asked, lora=adapters,
        trainable=lambda name: lora or not name.startswith(PREFIX),
    )  # fmt: skip
    program = record(Config(LLAMA), regime, Sizes(batch=BATCH, seq=SEQ))
    add_loss(program, transformers=(5, 0))
    mode = Mode(
        recompute=lambda placed: "full" if placed.section.is_block else "none", keep_logits=True
    )
    return {"backward": int(peak_by_phase(program, mode)["backward"])}


@pytest.mark.slow
@pytest.mark.parametrize(("lora", "asked"), [(False, True), (False, False), (True, True)])
def test_peaks_of_real_steps(lora: bool, asked: bool) -> None:
    measured, predicted = real(lora=lora, asked=asked), ours(lora=lora, asked=asked)
    assert predicted["backward"] == pytest.approx(measured["backward"], rel=0.02)


@pytest.mark.slow
def test_a_frozen_prefix_keeps_the_input_of_every_block() -> None:
    more = real(lora=False, asked=True)["held"] - real(lora=False, asked=False)["held"]
    assert more == pytest.approx(9 * BATCH * SEQ * 256 * 4, rel=0.02)


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ({"transformers-version": "5.0"}, True),
        ({"transformers-version": "4.57"}, False),
        ({"transformers-version": "4.57", "lora-rank": 8}, True),  # PEFT asks
        ({"transformers-version": "5.0", "checkpointing": "none"}, False),
        ({"transformers-version": "5.0", "framework": "torchtune"}, False),
    ],
    ids=str,
)
def test_who_asks(values: dict[str, Any], asked: bool) -> None:
    job = job_from({"model": "llama-3.2-1b", "checkpointing": "full", **values})
    assert regime_of(resolve(job), Config(LLAMA), None).input_grads == asked
    assert not regime_of(
        resolve(job_from({"framework": "plain", "model": "llama-3.2-1b", "checkpointing": "full"})),
        Config({"model_type": "vit"}),
        None,
    ).input_grads
