"""A move makes the job that dataclasses.replace would make, and refuses what the job refuses."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from vramcast.engine.estimate import estimate
from vramcast.errors import VramcastError
from vramcast.job import Job
from vramcast.plan.moves import available


def test_a_changed_job_is_a_job_like_any_other() -> None:
    job = Job(
        model="qwen2.5-7b", gpu="rtx4090", seq=4096, batch=4, reference="same", attention="eager"
    )
    moved = [move.apply(job) for move in available(job, frozenset())]
    assert len(moved) > 10
    for after in filter(None, moved):
        changes = {
            f.name: getattr(after, f.name)
            for f in fields(job)
            if getattr(after, f.name) != getattr(job, f.name)
        }
        assert changes
        assert after == replace(job, **changes)
        assert hash(after) == hash(replace(job, **changes))


@pytest.mark.parametrize(
    "changes", [{"batch": 0}, {"optimizer": "adamx"}, {"checkpointing": "sometimes", "seq": -1}]
)
def test_what_a_job_refuses_a_change_refuses(changes: dict[str, object]) -> None:
    job = Job(model="gpt2")
    with pytest.raises(VramcastError) as whole:
        replace(job, **changes)  # type: ignore[arg-type]
    with pytest.raises(VramcastError) as changed:
        job.changed(**changes)
    assert str(whole.value) == str(changed.value)


@pytest.mark.parametrize(
    "lengths", [{"seq": 2048, "mean_seq": 900}, {"seq": 900, "longest_seq": 2048}]
)
def test_a_shorter_sequence_leaves_no_length_longer_than_the_longest(
    lengths: dict[str, int],
) -> None:
    job = Job(model="pythia-14m", gpu="rtx4090", **lengths)  # type: ignore[arg-type]
    shorter = {move.name: move.apply(job) for move in available(job, frozenset())}["sequence ÷ 4"]
    assert shorter is not None
    assert {name: getattr(shorter, name) for name in lengths} == dict.fromkeys(lengths, 512)
    assert estimate(shorter).verdict().fits
