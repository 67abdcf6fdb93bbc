"""Timelines say what bills, replays and recordings say, to the byte; thinned ones have the same fullest moments."""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from recordings import record

from vramcast.engine import estimate, record_timeline
from vramcast.errors import UnsupportedError
from vramcast.job import job_from
from vramcast.ledger import Category
from vramcast.snapshot.reader import read_snapshot
from vramcast.timelines.of_snapshot import timeline_of_snapshot
from vramcast.timelines.of_trace import timeline_of_trace
from vramcast.timelines.record import Label, Recorder, Timeline
from vramcast.timelines.thin import MOST_LABELS, thin
from vramcast.traces import record as traces

JOBS: dict[str, dict[str, Any]] = {
    "full": {"model": "gpt2", "gpu": "rtx4090", "batch": 2},
    "qlora": {"model": "llama-3.2-1b", "tuning": "qlora", "gpu": "rtx4090", "checkpointing": "full"},
    "lightning, accumulating": {"model": "gpt2", "framework": "lightning", "accumulate": 4},
    "dpo": {"model": "llama-3.2-1b", "task": "dpo", "tuning": "lora", "gpu": "h100-80gb"},
    "grpo": {"model": "llama-3.2-1b", "task": "grpo", "gpu": "h100-80gb"},
    "too large": {"model": "llama-3.1-8b", "gpu": "rtx3060"},
    "ddp": {"model": "gpt2", "gpus": 8, "strategy": "ddp", "gpu": "rtx4090"},
    "fsdp2": {"model": "llama-3.2-1b", "gpus": 8, "strategy": "fsdp2", "gpu": "rtx4090"},
    "fsdp1": {"model": "llama-3.2-1b", "gpus": 8, "strategy": "fsdp1", "gpu": "rtx4090"},
    "zero3": {"model": "llama-3.2-1b", "gpus": 8, "strategy": "zero3", "gpu": "rtx4090"},
    "tp and pp": {"model": "llama-3.1-8b", "gpus": 16, "tp": 2, "pp": 2, "gpu": "h100-80gb"},
}  # fmt: skip


@pytest.mark.parametrize("values", JOBS.values(), ids=JOBS)
def test_the_peak_is_the_bills(values: dict[str, Any]) -> None:
    forecast = estimate(job_from(values), with_scaling=False)
    assert forecast.job is not None
    verdict, timeline = forecast.verdict(), record_timeline(forecast.job)
    event, peak = timeline.peak()
    assert peak == verdict.allocated_bytes
    assert max(nbytes for _, nbytes in timeline.reserved) == verdict.reserved_bytes
    assert timeline.phase_at(event) == verdict.peak.phase
    assert min(timeline.totals()) >= 0


def test_who_is_alive_at_the_peak_is_named_as_in_the_bill() -> None:
    forecast = estimate(job_from(JOBS["full"]), with_scaling=False)
    assert forecast.job is not None
    timeline = record_timeline(forecast.job)
    event, _ = timeline.peak()
    alive = {
        category: nbytes
        for category, nbytes, _ in timeline.holders_at(event, lambda label: label.category)
    }
    peak = forecast.verdict().peak
    billed = forecast.ledger.grouped(
        lambda entry: str(entry.category), phase=peak.phase, place=peak.place
    )
    # a block may be larger than its tensor; the bill has a line of its own for that
    for category in (Category.WEIGHTS, Category.OPTIMIZER, Category.ACTIVATIONS, Category.LOGITS):
        assert billed[category] <= alive[category] < 1.02 * billed[category]
    modules = {
        label.module for label, _, _ in timeline.holders_at(event) if label.category == "weights"
    }
    assert "transformer.h.11.mlp.c_fc" in modules


def test_what_has_no_layers_has_no_timeline() -> None:
    with pytest.raises(UnsupportedError, match="layers"):
        record_timeline(job_from({"params": "7B", "gpu": "rtx4090"}))


# ---- thinning


def random_timeline(seed: int, steps: int = 4000, labels: int = 40) -> Timeline:
    rng, recorder, live = random.Random(seed), Recorder(), list[int]()
    for step in range(steps):
        if step % 500 == 0:
            recorder.begin_phase(f"phase {step // 500}")
        if live and rng.random() < 0.5:
            recorder.free(live.pop(rng.randrange(len(live)) if rng.random() < 0.2 else -1))
        else:
            live.append(step)
            label = Label("activations", f"module {rng.randrange(labels)}", "", "")
            recorder.allocate(step, rng.randrange(1, 1000), label)
        recorder.reserve(step // 100)
    return recorder.timeline("random", "cuda:0", "measured")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [300, 600, 2000])
def test_a_thinned_timeline_has_the_same_fullest_moments(seed: int, most: int) -> None:
    whole = random_timeline(seed)
    short = thin(whole, most)
    assert len(short.events) <= most
    assert short.is_thinned
    assert (short.peak()[1], short.phase_at(short.peak()[0])) == (
        whole.peak()[1],
        whole.phase_at(whole.peak()[0]),
    )
    there, here = (
        Counter({label: nbytes for label, nbytes, _ in each.holders_at(each.peak()[0])})
        for each in (whole, short)
    )
    assert there == here
    # no moment becomes fuller than it was, and none that stays is invented
    assert max(short.totals()) == max(whole.totals())
    assert min(accumulate(1 if event >= 0 else -1 for event in short.events)) >= 0
    assert max(nbytes for _, nbytes in short.reserved) == max(n for _, n in whole.reserved)


def test_many_labels_become_few() -> None:
    recorder = Recorder()
    for number in range(MOST_LABELS * 2):
        recorder.allocate(number, 512 + number, Label("weights", f"module {number}", "", "weight"))
    timeline = recorder.timeline("wide", "cuda:0", "formula")
    short = thin(timeline, 10**6)
    assert len(short.labels) <= MOST_LABELS
    assert short.peak() == timeline.peak()


# ---- from files


def test_a_snapshot_is_followed(tmp_path: Path) -> None:
    recording = record(seed=3, steps=600, keep=350, delays=True)
    snapshot = read_snapshot(recording.write(tmp_path / "s.pickle"))
    timeline = timeline_of_snapshot(snapshot, 0, "s.pickle")
    assert timeline.peak()[1] == recording.peak_allocated
    assert max(nbytes for _, nbytes in timeline.reserved) == recording.peak_reserved
    assert {label.source.split(":")[0] for label in timeline.labels} >= {"/home/user/train.py"}


def test_a_trace_is_followed(tmp_path: Path) -> None:
    data = {
        "format": traces.FORMAT, "version": traces.VERSION, "command": ["train.py"], "card": "24GiB",
        "capacity_bytes": 24 << 30, "context_bytes": 0, "allocator": "", "steps": 1, "ending": "ran to its end",
        "entries": [
            {"category": "weights", "component": "w", "place": "cuda:0", "phases": ["load"], "nbytes": 1000,
             "origin": "traced", "level": "allocated", "source": "train.py:3", "range_bytes": None},
        ],
        "cards": {"cuda:0": {
            "labels": [["weights", "w", "train.py:3", "aten::empty", "load"],
                       ["activations", "net", "train.py:5", "aten::mm", "forward"]],
            "bytes": [1000, 4 << 20, 100], "label": [0, 1, 1], "stream": [0, 0, 0], "events": [0, 1, -2, 2],
        }},
    }  # fmt: skip
    traces.write(tmp_path / "a.trace", data)
    timeline = timeline_of_trace(traces.read(tmp_path / "a.trace"))
    assert list(timeline.totals()) == [1024, 1024 + (4 << 20), 1024, 1536]
    assert timeline.phases == ((0, "load"), (1, "forward"))
    assert timeline.reserved == ((0, 2 << 20), (1, 22 << 20))
    assert timeline.labels[1] == Label("activations", "net", "train.py:5", "aten::mm")
