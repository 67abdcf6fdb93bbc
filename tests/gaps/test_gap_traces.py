"""Two tiny jobs for real: loops of libraries on the virtual GPU, with the installed transformers and an older one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.accuracy.gaps import trace_side
from vramcast.accuracy.gaps.draw import GapJob
from vramcast.accuracy.gaps.mechanisms import Cell
from vramcast.accuracy.gaps.run import Failure, run_cell, run_grid
from vramcast.accuracy.gaps.trace_side import INSTALLED, Places

ROOT = Path(__file__).parents[2]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 8000,
    "tie_word_embeddings": False, "max_position_embeddings": 1024,
}  # fmt: skip
JOB = GapJob(
    seed=0, number=0, family="llama", config=CONFIG, framework="plain", batch=2, seq=128, target_seq=None, accumulate=1,
    attention="sdpa", precision="bf16-mixed", optimizer="adamw", checkpointing="none", lora_rank=None,
    lora_targets=("all-linear",), lora_dropout=0.0, zero_grad=None,
)  # fmt: skip
TRAINER = replace(JOB, number=1, framework="hf", precision="bf16-autocast", lora_rank=8)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(
        scripts=ROOT / "benchmarks" / "gaps",
        environments=ROOT / "build" / "environments",
        jobs=tmp_path,
    )


@pytest.mark.slow
def test_two_jobs_under_two_versions(places: Places) -> None:
    told: list[str] = []
    grid = run_grid(
        [JOB, TRAINER],
        ["4.57.6", INSTALLED],
        places,
        workers=1,
        reuse=False,
        tell=told.append,
    )
    assert grid.failures == ()
    assert len(told) == 4
    for cell in grid.cells:
        assert abs(cell.error) < 0.05
        traced, formula = cell.phases[cell.phase]
        assert sum(each.nbytes for each in cell.differences) == formula - traced
    assert [cell.versions["transformers"] for cell in grid.cells[::2]] == ["4.57.6", "4.57.6"]


@pytest.mark.slow
def test_kept_traces_are_taken_again_only_for_the_same_job(places: Places) -> None:
    first = run_cell(JOB, INSTALLED, places, reuse=True)
    answer = places.jobs / "seed-0" / "job-0" / f"{INSTALLED}.json"
    written = answer.stat().st_mtime_ns
    again = run_cell(JOB, INSTALLED, places, reuse=True)
    assert answer.stat().st_mtime_ns == written
    assert again == first
    other = run_cell(replace(JOB, batch=4), INSTALLED, places, reuse=True)
    assert isinstance(first, Cell)
    assert isinstance(other, Cell)
    assert other.traced_bytes > first.traced_bytes


def test_a_trace_beyond_its_time_is_a_failure_that_says_so(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_side, "LIMIT_S", 0.01)
    failed = run_cell(JOB, INSTALLED, places, reuse=False)
    assert isinstance(failed, Failure)
    assert (failed.side, failed.reason) == ("trace", "was not done after 0.01 s")
