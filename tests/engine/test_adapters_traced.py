"""Adapters of every kind: the formulas against the same job run on the virtual GPU with PEFT's own modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.engine.estimate import estimate
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecasting import estimate as estimate_any
from vramcast.forecasting import find_undescribed
from vramcast.job import job_from
from vramcast.plan.verify import trace

DENSE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_hidden_layers": 4, "vocab_size": 2000, "head_dim": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA = {**DENSE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN2 = {**DENSE, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
MIXTRAL = {
    **DENSE, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
KINDS: list[dict[str, Any]] = [
    {"adapter": "ia3"},
    {"adapter": "ln-tuning"},
    {"adapter": "prompt", "virtual-tokens": 20},
    {"adapter": "p-tuning", "virtual-tokens": 20},
    {"adapter": "vera", "lora-rank": 64},
    {"adapter": "loha"},
    {"adapter": "lokr"},
    {"adapter": "adalora"},
    {"adapter": "oft"},
    {"adapter": "boft"},
    {"lora-rank": 8, "modules-to-save": "embed_tokens,lm_head"},
    {"lora-rank": 8, "layers-to-transform": "1,3"},
    {"lora-rank": 8, "lora-targets": r".*layers\.[0-2]\..*(q|v)_proj"},
]


def job_values(folder: Path, data: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return {"model": str(path), "gpu": "a100-80gb", "batch": 4, "seq": 256, **values}


def assert_agree(folder: Path, data: dict[str, Any], **values: Any) -> None:
    found = estimate(job_from(job_values(folder, data, values)))
    traced = trace(found)
    assert traced.allocated_bytes is not None, traced.reason
    assert found.verdict().peak.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("values", KINDS, ids=str)
def test_as_the_trainer_runs_them(
    tmp_path: Path, values: dict[str, Any], checkpointing: str
) -> None:
    assert_agree(tmp_path, LLAMA, checkpointing=checkpointing, **values)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-true", "fp32"])
@pytest.mark.parametrize("values", KINDS[:10], ids=str)
def test_without_autocast(tmp_path: Path, values: dict[str, Any], precision: str) -> None:
    assert_agree(tmp_path, LLAMA, framework="plain", precision=precision, **values)


@pytest.mark.slow
@pytest.mark.parametrize("values", [KINDS[0], KINDS[2], KINDS[5], KINDS[8]], ids=str)
@pytest.mark.parametrize("data", [QWEN2, MIXTRAL], ids=["qwen2", "mixtral"])
def test_other_families(tmp_path: Path, data: dict[str, Any], values: dict[str, Any]) -> None:
    assert_agree(tmp_path, data, **values)


@pytest.mark.slow
def test_what_no_formula_describes_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMCAST_NO_CACHE", "1")
    values = job_values(tmp_path, LLAMA, {"adapter": "prefix", "virtual-tokens": 10})
    found = estimate_any(job_from(values))
    assert found.is_traced
    assert found.model is not None
    # 10 tokens × 4 layers × keys and values × 4 heads × 32
    assert found.model.params_trainable == 10 * 4 * 2 * 4 * 32


@pytest.mark.slow
def test_added_blocks_are_trained_alone(tmp_path: Path) -> None:
    """LLaMA-Pro: two blocks more, of which alone there are gradients and states."""
    found = estimate(
        job_from(job_values(tmp_path, LLAMA, {"adapter": "llama-pro", "expand-blocks": 2}))
    )
    assert found.model is not None
    assert found.model.num_layers == 6
    attention, mlp, norms = 256 * 256 * 2 + 256 * 128 * 2, 3 * 256 * 704, 2 * 256
    assert found.model.params_trainable == 2 * (attention + mlp + norms)
    traced = trace(found)
    assert traced.allocated_bytes is not None, traced.reason
    assert found.verdict().peak.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=0.02)


def test_layers_of_a_mixture_are_left_to_a_trace(tmp_path: Path) -> None:
    """PEFT 0.21 takes an expression there for the last parts of the names that it matches."""
    values = {"lora-rank": 8, "lora-targets": r".*layers\.[0-1]\..*(q|v)_proj"}
    assert find_undescribed(job_from(job_values(tmp_path, MIXTRAL, values))) is not None


@pytest.mark.parametrize(
    ("values", "is_described"),
    [
        ({"adapter": "ia3"}, True),
        ({"adapter": "prefix", "virtual-tokens": 10}, False),
        ({"adapter": "ia3", "quantize": "nf4"}, False),
        ({"adapter": "loha", "gpus": 2}, False),
        ({"lora-rank": 8, "quantize": "nf4"}, True),
    ],
    ids=str,
)
def test_formulas_know_what_they_do_not_know(
    tmp_path: Path, values: dict[str, Any], is_described: bool
) -> None:
    found = find_undescribed(job_from(job_values(tmp_path, LLAMA, values)))
    assert (found is None) == is_described


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"adapter": "ia3", "lora-rank": 8}, "lora-rank belongs to adapter lora"),
        ({"adapter": "prompt"}, "needs virtual-tokens"),
        ({"virtual-tokens": 5, "lora-rank": 8}, "virtual-tokens belongs to adapter prompt"),
        ({"adapter": "prefix", "virtual-tokens": 5, "checkpointing": "full"}, "PEFT refuses it"),
        ({"adapter": "ia3", "framework": "litgpt"}, "litgpt has adapters of its own"),
        ({"lora-rank": 8, "lora-targets": "(q_proj"}, "is no regular expression"),
        ({"lora-rank": 8, "lora-targets": ".*nothing"}, "match no module"),
        ({"lora-rank": 8, "modules-to-save": "nothing"}, "modules-to-save nothing match no module"),
        ({"lora-rank": 8, "layers-to-transform": "one"}, "must be numbers of layers"),
        ({"adapter": "boft", "adapter-block": 7}, "must divide"),
        ({"adapter": "llama-pro"}, "needs expand-blocks"),
        ({"adapter": "llama-pro", "expand-blocks": 3}, "must divide the 4 layers"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_said(
    tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    with pytest.raises((InputError, UnsupportedError), match=said.replace("(", r"\(")):
        estimate(job_from(job_values(tmp_path, LLAMA, values)))


def test_names_of_the_same_memory_are_accepted() -> None:
    for word in ("rslora", "pissa", "LORA"):
        assert job_from({"model": "gpt2", "adapter": word}).adapter == "lora"
    assert job_from({"model": "gpt2", "adapter": "dora"}).dora
    assert job_from({"model": "gpt2", "adapter": "PROMPT_TUNING"}).adapter == "prompt"
