"""Whole jobs of small models: the formulas against the same job run on the virtual GPU, with CUDA's kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.engine.estimate import estimate
from vramcast.job import job_from
from vramcast.plan.verify import trace

T5: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 256, "d_ff": 512, "d_kv": 32,
    "num_heads": 8, "num_layers": 3, "num_decoder_layers": 3, "vocab_size": 2000, "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
UMT5 = {**T5, "model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]}
PRECISIONS = ("fp32", "bf16-true", "bf16-mixed")


def assert_agree(folder: Path, data: dict[str, Any], **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    found = estimate(job_from({"model": str(path), "gpu": "a100-80gb", **values}))
    traced = trace(found)
    assert traced.allocated_bytes is not None, traced.reason
    assert found.verdict().peak.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("data", [T5, UMT5], ids=["t5", "umt5"])
def test_t5_with_its_position_bias_as_a_mask(
    tmp_path: Path, data: dict[str, Any], precision: str
) -> None:
    """transformers 5.15 gave T5 SDPA: scores are no longer kept."""
    shape = {"batch": 8, "seq": 384, "target-seq": 128}
    assert_agree(tmp_path, data, precision=precision, **shape)


DENSE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_hidden_layers": 6, "vocab_size": 2000, "head_dim": 32, "sliding_window": 128, "pad_token_id": 0,
}  # fmt: skip
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {**DENSE, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "gemma3": {**DENSE, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
    "phi3": {
        **DENSE,
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
@pytest.mark.parametrize("name", WINDOWED)
def test_beyond_a_window_kernels_take_a_mask(tmp_path: Path, name: str, precision: str) -> None:
    assert_agree(tmp_path, WINDOWED[name], precision=precision, batch=4, seq=512)


def test_grouped_heads_in_fp32_run_as_math(tmp_path: Path) -> None:
    """Since transformers 4.54 SDPA repeats the heads itself, which only flash kernels and math can."""
    llama = {**DENSE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    assert_agree(tmp_path, llama, precision="fp32", batch=4, seq=512)
