"""No plan that the estimate says fits is refused by the virtual GPU: over 140 plans on small models, 7 families."""

from __future__ import annotations

import bisect
import json
import random
from pathlib import Path
from typing import Any

import pytest

from vramcast.engine.estimate import estimate
from vramcast.job import Job, job_from
from vramcast.plan.moves import Kind
from vramcast.plan.ranking import Limits, Moves, applied, fits_surely
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
QWEN = {
    **LLAMA,
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "tie_word_embeddings": True,
}
MISTRAL = {
    **LLAMA,
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": None,
}
PHI3 = {
    **LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "num_key_value_heads": 8, "pad_token_id": 0,
    "original_max_position_embeddings": 2048,
}  # fmt: skip
MIXTRAL = {
    **LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
    "num_experts_per_tok": 2, "num_hidden_layers": 2, "sliding_window": None,
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 256, "d_kv": 32, "d_ff": 704,
    "num_layers": 2, "num_decoder_layers": 2, "num_heads": 8, "vocab_size": 6000, "dropout_rate": 0.0,
    "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (LLAMA, {}),
    "trainer": (LLAMA, {"framework": "hf", "precision": "fp32"}),
    "lightning": (GPT2, {"framework": "lightning"}),
    "bf16": (QWEN, {"precision": "bf16-true", "framework": "hf"}),
    "reference": (GPT2, {"reference": "same", "precision": "fp32"}),
    "adapters": (LLAMA, {"lora-rank": 8, "precision": "bf16-true", "framework": "hf", "batch": 32}),
    "scaler": (MISTRAL, {"precision": "fp16-mixed", "seq": 1024, "batch": 8}),
    "momentum": (PHI3, {"optimizer": "sgd-momentum", "precision": "bf16-true"}),
    "eager": (PHI3, {"attention": "eager", "framework": "hf"}),
    "experts": (MIXTRAL, {"precision": "bf16-true"}),
    "two stacks": (T5, {"target-seq": 128, "batch": 48}),
}
WIDE = {
    **LLAMA,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}
RANKS: dict[str, dict[str, Any]] = {
    "two": {"gpus": 2},
    "eight": {"gpus": 8, "precision": "fp32"},
    "sharded": {"gpus": 8, "strategy": "fsdp2"},
    "sharded adapters": {"gpus": 8, "strategy": "fsdp2", "lora-rank": 8, "precision": "bf16-true"},
}
SHARES = (0.9, 0.75, 0.6)  # cards as large as this part of what the job as given needs
EACH = 4


def tight_plans(job: Job) -> list[Job]:
    """Plans that surely fit and leave the card full, each with changes of its own beside the free ones."""
    gpu, config = about(job)
    found = [
        candidate
        for candidate in Table(job, config, gpu, Limits()).ranked(gpu.capacity_bytes())
        if candidate.moves
    ]
    random.Random(str(job.gpu)).shuffle(found)
    found.sort(key=lambda candidate: candidate.allocated_bytes // 2**24)
    fullest = bisect.bisect_left(
        range(len(found)), True, key=lambda index: not _fits(job, found[index].moves)
    )
    chosen: dict[frozenset[str], Job] = {}
    for candidate in reversed(found[: fullest + 1]):
        costly = frozenset(move.name for move in candidate.moves if move.kind != Kind.FREE)
        changed = applied(job, candidate.moves)
        if costly not in chosen and changed is not None and fits_surely(estimate(changed)):
            chosen[costly] = changed
        if len(chosen) == EACH:
            break
    return list(chosen.values())


def _fits(job: Job, moves: Moves) -> bool:
    changed = applied(job, moves)
    return changed is not None and fits_surely(estimate(changed))


def card(given: dict[str, Any], share: float) -> str:
    needed = estimate(job_from({**given, "gpu": "80GiB"})).verdict().process_bytes or 0
    return f"{round(needed * share / 2**20)}MiB"


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_no_fitting_plan_is_refused(name: str, tmp_path: Path) -> None:
    """Eleven kinds of jobs on three cards, four tight plans each."""
    config, values = JOBS[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    given = {"framework": "plain", "model": str(tmp_path), "batch": 16, "seq": 512, **values}
    tried = 0
    for share in SHARES:
        for job in tight_plans(job_from({**given, "gpu": card(given, share)})):
            seen = trace(estimate(job))
            assert seen.fits is not False, (job, seen.reason)
            tried += seen.fits is True
    assert (
        tried >= (len(SHARES) - 1) * EACH
    )  # on the smallest card little may fit beside the context


@pytest.mark.slow
@pytest.mark.parametrize("name", RANKS)
def test_no_fitting_plan_of_many_gpus_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(WIDE), encoding="utf-8")
    given = {"framework": "plain", "model": str(tmp_path), "batch": 8, "seq": 1024, **RANKS[name]}
    tried = 0
    for share in SHARES[::2]:
        for found in plan(job_from({**given, "gpu": card(given, share)})).fitting:
            seen = trace(found.forecast)
            untraced = found.job.tp > 1 or (
                found.job.optimizer == "adamw-8bit" and found.job.strategy == "fsdp2"
            )
            assert seen.fits or untraced, (found.job, seen.reason)
            tried += bool(seen.fits)
    assert tried >= 4


def test_what_cannot_be_traced_is_named() -> None:
    job = job_from(
        {
            "framework": "plain",
            "model": "gpt2",
            "batch": 8,
            "seq": 512,
            "gpu": "24GiB",
            "gpus": 2,
            "strategy": "zero3",
        }
    )
    seen = trace(estimate(job))
    assert seen.fits is None
    assert "strategy zero3 cannot be traced from a job" in seen.reason
