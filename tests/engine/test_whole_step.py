"""Peaks of whole steps, forward to backward, against real steps of small models on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from live import real_step

from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import BF16, F32, Regime

BATCH, SEQ = 3, 130
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 6, "vocab_size": 3000,
    "tie_word_embeddings": False,
}  # fmt: skip
TIED = {
    **LLAMA,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "tie_word_embeddings": True,
    "head_dim": 32,
}
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_head": 8, "n_layer": 6,
    "vocab_size": 3000, "n_positions": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
WIDE_HEAD = {**LLAMA, "vocab_size": 20000, "num_hidden_layers": 2}
MODELS = {"llama": LLAMA, "tied": TIED, "gpt2": GPT2, "wide head": WIDE_HEAD}


def ours(
    data: dict[str, Any], precision: str, attention: str, checkpointing: bool
) -> dict[str, int]:
    regime = Regime(
        weights=BF16 if precision == "bf16-true" else F32, autocast=BF16 if precision == "bf16-mixed" else None,
        attention="eager" if attention == "eager" else "flash", cuda=False,
    )  # fmt: skip
    program = record(Config(data), regime, Sizes(batch=BATCH, seq=SEQ))
    add_loss(program, transformers=(5, 0))
    how = "full" if checkpointing else "none"
    mode = Mode(
        recompute=lambda placed: how if placed.section.is_block else "none", keep_logits=True
    )
    peaks = peak_by_phase(program, mode)
    return {
        "forward": max(int(peaks["forward"]), int(peaks["loss"])),
        "backward": int(peaks["backward"]),
    }


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("name", MODELS)
def test_peaks_of_a_real_step(
    name: str, precision: str, attention: str, checkpointing: bool
) -> None:
    torch.manual_seed(0)
    real = real_step(
        MODELS[name],
        precision=precision,
        attention=attention,
        batch=BATCH,
        seq=SEQ,
        checkpointing=checkpointing,
    )
    predicted = ours(MODELS[name], precision, attention, checkpointing)
    errors = {phase: predicted[phase] / real[phase] - 1 for phase in real}
    assert all(abs(error) <= 0.02 for error in errors.values()), f"{errors} of {real}"
