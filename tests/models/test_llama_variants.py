"""Decoders near Llama: parameters tensor by tensor, bytes a layer saves, peaks of a whole step; against real torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from real import autocast, real_model, savings_of
from test_parameters import ours, theirs

from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.engine.stream.timeline import Mode
from vramcast.errors import UnsupportedError
from vramcast.models.families import MODULE_OF, family_of, record
from vramcast.models.read.config import Config
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import BF16, F32, Regime

sys.path.append(str(Path(__file__).parents[1] / "formulas"))
from live import Live

BATCH, SEQ = 2, 61
SMALL: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 4, "vocab_size": 3000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CLASSES = {
    "arcee": "Arcee", "cwm": "Cwm", "ernie4_5": "Ernie4_5", "exaone4": "Exaone4", "helium": "Helium",
    "hunyuan_v1_dense": "HunYuanDenseV1", "hyperclovax": "HyperCLOVAX", "jais2": "Jais2", "ministral3": "Ministral3",
    "nemotron": "Nemotron", "seed_oss": "SeedOss", "vaultgemma": "VaultGemma",
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "seed_oss": {"attention_dropout": 0.0}, "exaone4": {"sliding_window": 40}, "cwm": {"sliding_window": 40},
}  # fmt: skip


def model_of(kind: str, **changes: Any) -> dict[str, Any]:
    names = {"model_type": kind, "architectures": [f"{CLASSES[kind]}ForCausalLM"]}
    return {**names, **SMALL, **OWN.get(kind, {}), **changes}


CHANGED = [
    *((kind, {}) for kind in CLASSES),
    ("arcee", {"attention_bias": True, "mlp_bias": True}), ("nemotron", {"attention_bias": True, "head_dim": 24}),
    ("ernie4_5", {"use_bias": True, "tie_word_embeddings": False}), ("seed_oss", {"attention_out_bias": True}),
    ("hyperclovax", {"use_post_norm": False}), ("jais2", {"attention_bias": False, "tie_word_embeddings": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes"), CHANGED)
def test_parameters(kind: str, changes: dict[str, Any]) -> None:
    assert ours(model_of(kind, **changes)) == theirs(model_of(kind, **changes))


@pytest.mark.parametrize("precision", ["fp32", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", CLASSES)
def test_layers_and_a_step(kind: str, attention: str, precision: str) -> None:
    torch.manual_seed(0)
    data = model_of(kind)
    model = real_model(data, precision=precision, attention=attention)
    program = described(data, precision, model.config._attn_implementation)
    ids = torch.ones(BATCH, SEQ, dtype=torch.long)
    blocks = [placed for placed in program.sections if placed.section.is_block]
    for index in (0, 3):
        with savings_of(model.model.layers[index]) as made, autocast(precision):
            model(input_ids=ids)
        assert int(kept_bytes(blocks[index].section)) == pytest.approx(made[0].nbytes, rel=0.02)
    peaks = peak_by_phase(program, Mode(recompute=lambda placed: "none", keep_logits=True))
    with Live(ids, *model.parameters(), *model.buffers()) as live:
        with autocast(precision):
            outputs = model(input_ids=ids, labels=ids)
        assert max(int(peaks["forward"]), int(peaks["loss"])) == pytest.approx(live.peak, rel=0.02)
        live.restart()
        outputs.loss.backward()
        assert int(peaks["backward"]) == pytest.approx(live.peak, rel=0.02)


def described(data: dict[str, Any], precision: str, attention: str) -> Program:
    regime = Regime(
        weights=BF16 if precision == "bf16-true" else F32, autocast=BF16 if precision == "bf16-mixed" else None,
        attention="eager" if attention == "eager" else "flash", cuda=False,
    )  # fmt: skip
    program = record(Config(data), regime, Sizes(batch=BATCH, seq=SEQ))
    add_loss(program, transformers=(5, 22))
    return program


@pytest.mark.parametrize(
    "kind", ["mpt", "albert", "deberta-v2", "mamba", "segformer", "granitemoe", "modernbert"]
)
def test_what_is_not_described_names_what_is_and_the_way_forward(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{kind}.*Known: .*arcee.*llama.*vramcast trace"):
        family_of(Config({"model_type": kind}))
    assert kind not in MODULE_OF
