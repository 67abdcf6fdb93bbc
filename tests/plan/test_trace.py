"""No plan that the estimate says fits is refused by the virtual GPU: over a hundred tight plans on small models."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from vramcast.formulas.estimate import estimate
from vramcast.job import Job, job_from
from vramcast.plan.order import Limits, applied, fits_surely
from vramcast.plan.search import about, plan
from vramcast.plan.table import Table
from vramcast.plan.verify import trace

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "vocab_size": 6000,
    "tie_word_embeddings": False, "max_position_embeddings": 2048,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_head": 8, "n_layer": 4,
    "vocab_size": 6000, "n_positions": 1024, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
QWEN = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (LLAMA, {}),
    "trainer": (LLAMA, {"framework": "hf", "precision": "fp32"}),
    "lightning": (GPT2, {"framework": "lightning"}),
    "bf16": (QWEN, {"precision": "bf16-true", "framework": "hf"}),
    "reference": (GPT2, {"reference": "same", "precision": "fp32"}),
    "adapters": (LLAMA, {"lora-rank": 8, "precision": "bf16-true", "framework": "hf"}),
}
SHARES = (0.9, 0.75, 0.6)  # cards as large as this part of what the job as given needs
EACH = 6
NOT_TRACED = (
    "8-bit AdamW", "paged 8-bit AdamW", "optimizer states paged to the host", "selective checkpointing",
    "checkpointing with offload", "expandable segments",
)  # fmt: skip


def tight_plans(job: Job) -> list[Job]:
    """Plans that surely fit, those that leave the card fullest first."""
    gpu, config = about(job)
    table = Table(job, config, gpu, Limits(keep=frozenset({"loss", "quantize", "seq"})))
    found = [c for c in table.ranked(gpu.capacity_bytes()) if not {m.name for m in c.moves} & set(NOT_TRACED)]
    random.Random(str(job.gpu)).shuffle(found)
    found.sort(key=lambda candidate: -(candidate.allocated_bytes // 2**24))
    jobs = (applied(job, candidate.moves) for candidate in found if candidate.moves)
    fitting = (changed for changed in jobs if changed is not None and fits_surely(estimate(changed)))
    return [changed for changed, _ in zip(fitting, range(EACH), strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_no_fitting_plan_is_refused(name: str, tmp_path: Path) -> None:
    config, values = JOBS[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    given = {"model": str(tmp_path), "batch": 16, "seq": 512, **values}
    needed = estimate(job_from({**given, "gpu": "80GiB"})).verdict().process_bytes or 0
    tried = 0
    for share in SHARES:
        for job in tight_plans(job_from({**given, "gpu": f"{round(needed * share / 2**20)}MiB"})):
            seen = trace(estimate(job))
            assert seen.fits is not False, (job, seen.reason)
            tried += seen.fits is True
    assert tried >= len(SHARES) * EACH - 1  # six kinds of jobs, over a hundred plans in all


def test_what_cannot_be_traced_is_named() -> None:
    plans = plan(job_from({"model": "gpt2", "batch": 8, "seq": 512, "gpu": "6GiB", "framework": "hf"}))
    reasons = [trace(found.forecast) for found in plans.fitting]
    assert any(seen.fits for seen in reasons)
    for found, seen in zip(plans.fitting, reasons, strict=True):
        if {"8-bit AdamW", "QLoRA", "fused linear cross entropy"} & {move.name for move in found.moves}:
            assert seen.fits is None
            assert "cannot be traced" in seen.reason
