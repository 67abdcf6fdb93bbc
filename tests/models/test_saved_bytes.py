"""Bytes that one real layer, at full width, saves for backward on the CPU, against the fold over our description.

A row names a config and the layers to look at; add rows for new families. Batch and length are chosen so that no
activation has the shape of a weight (copies of weights under autocast are told by their shape).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from configs import config, shallow
from real import autocast, real_model, savings_of

from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import BF16, F32, Regime

BATCH, SEQ, TARGET_SEQ = 2, 61, 37


@dataclass(frozen=True, slots=True)
class Row:
    config: str
    layers: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 1

    @property
    def data(self) -> dict[str, Any]:
        return {**shallow(config(self.config), self.depth), **self.changes}

    def __str__(self) -> str:
        return "-".join((self.config, *(f"{key}={value}" for key, value in self.changes.items())))


T5_BLOCKS = ("encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1")

ROWS = (
    Row("llama-3.2-1b", ("model.layers.0",)),
    Row("gpt2", ("transformer.h.0",), {"attn_pdrop": 0.0}),
    Row("gpt2", ("transformer.h.0",)),
    Row("gpt-neo-125m", ("transformer.h.0",)),
    Row("gpt-j-6b", ("transformer.h.0",), {"n_embd": 1024}),
    Row("codegen-350m", ("transformer.h.0",)),
    Row("opt-125m", ("model.decoder.layers.0",)),
    Row("opt-350m", ("model.decoder.layers.0",)),
    Row("starcoderbase-1b", ("transformer.h.0",), {"attn_pdrop": 0.0}),
    Row("pythia-410m", ("gpt_neox.layers.0",)),
    Row("pythia-410m", ("gpt_neox.layers.0",), {"use_parallel_residual": False, "hidden_dropout": 0.1}),
    Row("phi-2", ("model.layers.0",), {"qk_layernorm": True, "resid_pdrop": 0.1}),
    Row("stablelm-3b-4e1t", ("model.layers.0",)),
    Row("stablelm-2-12b", ("model.layers.0",), {"hidden_size": 1280, "intermediate_size": 3456}),
    Row("starcoder2-3b", ("model.layers.0",), {"attention_dropout": 0.0}),
    Row("bloom-560m", ("transformer.h.0",)),
    Row("bloom-560m", ("transformer.h.0",), {"hidden_dropout": 0.1, "attention_dropout": 0.1}),
    Row("falcon-7b", ("transformer.h.0",), {"hidden_size": 1136}),
    Row("falcon-40b", ("transformer.h.0",), {"hidden_size": 2048}),
    Row("falcon-rw-1b", ("transformer.h.0",)),
    Row("bert-base-uncased", ("bert.encoder.layer.0",), {"attention_probs_dropout_prob": 0.0}),
    Row("bert-base-uncased", ("bert.encoder.layer.0",)),
    Row("roberta-base", ("roberta.encoder.layer.0",)),
    Row("distilbert-base", ("distilbert.transformer.layer.0",), {"attention_dropout": 0.0}),
    Row("electra-small", ("electra.encoder.layer.0",)),
    Row("t5-small", T5_BLOCKS, depth=2),
    Row("t5-small", T5_BLOCKS, {"dropout_rate": 0.0}, depth=2),
    Row("flan-t5-base", T5_BLOCKS, depth=2),
    Row("umt5-small", T5_BLOCKS, depth=2),
    Row("bart-large", ("model.encoder.layers.0", "model.decoder.layers.0")),
    Row("mbart-large", ("model.encoder.layers.0", "model.decoder.layers.0"), {"attention_dropout": 0.0}),
    Row("pegasus-large", ("model.encoder.layers.0", "model.decoder.layers.0")),
    Row("opus-mt-en-de", ("model.encoder.layers.0", "model.decoder.layers.0")),
    Row("whisper-tiny", ("model.encoder.layers.0", "model.decoder.layers.0"), {"max_source_positions": 53}),
)  # fmt: skip


def inputs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    ids = {"input_ids": torch.ones(BATCH, SEQ, dtype=torch.long)}
    if model.main_input_name == "input_features":
        frames = 2 * model.config.max_source_positions
        ids = {
            "input_features": torch.ones(
                BATCH, model.config.num_mel_bins, frames, dtype=model.dtype
            )
        }
    if model.config.is_encoder_decoder:
        ids["decoder_input_ids"] = torch.ones(BATCH, TARGET_SEQ, dtype=torch.long)
    return ids


def described(row: Row, precision: str, attention: str, kv_cache: str = "none") -> Program:
    regime = Regime(
        weights=BF16 if precision == "bf16-true" else F32, autocast=BF16 if precision == "bf16-mixed" else None,
        attention="eager" if attention == "eager" else "flash", kv_cache=kv_cache, cuda=False,
    )  # fmt: skip
    return record(Config(row.data), regime, Sizes(batch=BATCH, seq=SEQ, target_seq=TARGET_SEQ))


def saved(row: Row, model: torch.nn.Module, precision: str) -> dict[str, int]:
    with ExitStack() as stack:
        savings = {
            name: stack.enter_context(savings_of(model.get_submodule(name))) for name in row.layers
        }
        stack.enter_context(autocast(precision))
        model(**inputs(model))
    return {name: savings[name][0].nbytes for name in row.layers}


def predicted(row: Row, program: Program) -> dict[str, int]:
    sections = {placed.name: placed.section for placed in program.sections}
    return {name: int(kept_bytes(sections[name])) for name in row.layers}


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_layer_saves_what_the_description_says(row: Row, attention: str, precision: str) -> None:
    model = real_model(row.data, precision=precision, attention=attention)
    assert predicted(row, described(row, precision, attention)) == saved(row, model, precision)


CACHED = (
    "llama-3.2-1b",
    "gpt2",
    "pythia-410m",
    "falcon-7b",
    "bloom-560m",
    "t5-small",
    "bart-large",
    "whisper-tiny",
)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize(
    "row", [next(row for row in ROWS if row.config == name) for name in CACHED], ids=str
)
def test_a_key_value_cache_in_training_changes_what_is_saved(row: Row, precision: str) -> None:
    model = real_model(row.data, precision=precision, attention="sdpa", use_cache=True)
    assert predicted(row, described(row, precision, "sdpa", "copy")) == saved(row, model, precision)
