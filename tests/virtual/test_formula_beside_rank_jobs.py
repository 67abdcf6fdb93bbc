"""The formulas beside one traced rank of a Job: weights on the host, tensor parallelism, FSDP1, each with real widths
and few layers. The bar is that of the other ranks: 2 % of what is allocated and of what is reserved at the peak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.formulas.estimate import estimate
from vramcast.job import job_from
from vramcast.plan.verify import trace

ALLOWED = 0.02
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 128256,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
JOBS: dict[str, dict[str, Any]] = {
    "offloaded": {"gpus": 2, "strategy": "fsdp2", "offload": "params", "checkpointing": "full"},
    "offloaded in bf16": {
        "gpus": 8, "strategy": "fsdp2", "offload": "params", "precision": "bf16-true", "checkpointing": "full",
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_traced_rank_takes_what_the_formulas_say(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    job = job_from({"model": str(tmp_path), "batch": 2, "seq": 2048, "gpu": "h100-80gb", **JOBS[name]})
    forecast = estimate(job)
    seen, said = trace(forecast), forecast.ledger
    moments = [said.moment(phase, "cuda:0") for phase in said.phases("cuda:0")]
    assert seen.allocated_bytes is not None, seen.reason
    assert seen.reserved_bytes is not None
    allocated, reserved = (max(getattr(m, f"{what}_bytes") for m in moments) for what in ("allocated", "reserved"))
    for what, ours, theirs in (
        ("allocated", allocated, seen.allocated_bytes), ("reserved", reserved, seen.reserved_bytes),
    ):  # fmt: skip
        assert abs(ours / theirs - 1) <= ALLOWED, (
            f"{what}: formula {ours:,}, traced {theirs:,} ({ours / theirs - 1:+.1%})"
        )
