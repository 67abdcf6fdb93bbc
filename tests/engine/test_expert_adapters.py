"""Adapters on experts that are one tensor: parameters as PEFT makes them, and the formulas beside traces."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from vramcast.engine.assumptions import list_assumptions
from vramcast.engine.estimate import estimate
from vramcast.engine.recording.regime import regime_of
from vramcast.errors import InputError
from vramcast.job import Job, Precision, job_from
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.plan.verify import trace
from vramcast.setup import resolve

ALLOWED = 0.02  # of the allocated peak: formula and trace describe the same loop
SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": False, "num_experts_per_tok": 2,
}  # fmt: skip
ROUTED: dict[str, Any] = {**SMALL, "moe_intermediate_size": 32, "num_experts": 4}
LATENT: dict[str, Any] = {
    **SMALL, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_group": 2, "topk_group": 1,
}  # fmt: skip
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralForCausalLM", {**SMALL, "num_local_experts": 8}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**ROUTED, "head_dim": 16, "mlp_only_layers": [1]}),
    "olmoe": ("OlmoeForCausalLM", {**SMALL, "num_experts": 4, "num_key_value_heads": 4}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**ROUTED, "shared_expert_intermediate_size": 48}),
    "phimoe": ("PhimoeForCausalLM", {**SMALL, "num_local_experts": 4}),
    "gpt_oss": ("GptOssForCausalLM", {**SMALL, "num_local_experts": 4, "head_dim": 16}),
}
Shapes = dict[str, tuple[tuple[int, ...], bool]]


def config_of(name: str) -> dict[str, Any]:
    architecture, facts = MIXTURES[name]
    return {"model_type": name, "architectures": [architecture], **facts}


def theirs(name: str, targets: Any) -> Shapes:
    architecture, facts = MIXTURES[name]
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, architecture)(
            transformers.AutoConfig.for_model(name, **facts)
        )
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    return {
        key.removeprefix("base_model.model."): (tuple(p.shape), p.requires_grad)
        for key, p in adapted.named_parameters()
    }


EVERYWHERE = {"precision": Precision.BF16_MIXED, "lora_targets": ("all-linear",)}


def ours(name: str, **values: Any) -> Shapes:
    config = Config(config_of(name))
    job = Job(model="mixtral", lora_rank=4, **{**EVERYWHERE, **values})
    params = record(config, regime_of(resolve(job), config, None), Sizes()).params()
    return {p.name: (tuple(map(int, p.shape)), p.trainable) for p in params if p.tied_to is None}


@pytest.mark.parametrize("name", [name for name in MIXTURES if name != "phimoe"])
def test_all_linear_adapts_what_peft_adapts(name: str) -> None:
    assert ours(name) == theirs(name, "all-linear")


NAMED = {
    "mixtral": ("q_proj", "w1", "w2", "w3"),
    "qwen3_moe": ("v_proj", "down_proj"),
    "olmoe": ("gate", "o_proj"),
    "phimoe": (
        "q_proj",
        "o_proj",
    ),  # its router is an nn.Linear that returns a tuple: all-linear fails in PEFT's forward
}


@pytest.mark.parametrize("name", NAMED)
def test_names_of_former_layers_stand_for_parameters(name: str) -> None:
    assert ours(name, lora_targets=NAMED[name]) == theirs(name, list(NAMED[name]))


def test_half_of_a_joined_tensor_is_refused_as_peft_refuses_it() -> None:
    with pytest.raises(ValueError, match="without also targeting"):
        theirs("mixtral", ["q_proj", "w1"])
    with pytest.raises(InputError, match="w1 and w3"):
        ours("mixtral", lora_targets=("q_proj", "w1"))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "one tensor as large as the experts"),
        ({"lora_dropout": 0.05}, "refuses lora-dropout 0.05"),
        ({"transformers_version": "4.57"}, "on each expert's linear layers"),
        ({"lora_targets": ("q_proj", "v_proj")}, None),
    ],
)
def test_what_is_assumed_about_experts_is_said(values: dict[str, Any], told: str | None) -> None:
    config = Config(config_of("mixtral"))
    job = Job(model="mixtral", lora_rank=4, **{**EVERYWHERE, **values})
    texts = [text for text in list_assumptions(job, config) if text.startswith("adapters on")]
    assert texts == [text for text in texts if told is not None and told in text]
    assert len(texts) == (told is not None)


WIDE: dict[str, dict[str, Any]] = {
    "mixtral": {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 8000},
    "qwen3_moe": {
        "hidden_size": 512, "moe_intermediate_size": 256, "num_experts": 16, "num_hidden_layers": 4, "head_dim": 64,
        "vocab_size": 8000, "mlp_only_layers": [],
    },
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "kept": {},
    "checkpointed": {"checkpointing": "full"},
    "autocast": {"precision": "bf16-autocast"},
    "sharded": {"checkpointing": "full", "gpus": 8, "strategy": "fsdp2"},
    "4-bit": {"checkpointing": "full", "quantize": "nf4-double"},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WIDE)
def test_formula_and_trace_agree(name: str, way: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**config_of(name), **WIDE[name]}), encoding="utf-8"
    )
    values = {
        "batch": 2,
        "seq": 256,
        "gpu": "24GiB",
        "lora-rank": 16,
        "lora-targets": "all-linear",
        "precision": "bf16-true",
        **WAYS[way],
    }
    forecast = estimate(job_from({"model": str(tmp_path), **values}))
    seen = trace(forecast)
    assert seen.allocated_bytes is not None, seen.reason
    error = (forecast.verdict().allocated_bytes or 0) / seen.allocated_bytes - 1
    assert abs(error) <= ALLOWED, f"{name}, {way}: {error:+.1%}"
