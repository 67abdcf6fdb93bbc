"""The monitor: peaks per device, phase and step from counters that really count."""

from __future__ import annotations

import csv
import json
import mmap
import warnings
from dataclasses import replace

import pytest
import torch
from live_bytes import LiveBytes

from vramcast.ledger import Category, Entry, Ledger, Origin
from vramcast.runtime import Csv, JsonLines, MemoryMonitor, to_wandb
from vramcast.runtime.monitor.process_memory import host_use, reset_host_peak

MiB = 1 << 20
MAIN, SUB = "cpu:2", "cpu:1"


def mebibytes(count, device):
    return torch.zeros(count * MiB, dtype=torch.uint8, device=device)


def test_peaks_belong_to_their_device_phase_and_step():
    with LiveBytes() as live, MemoryMonitor(MAIN, SUB, counters=live) as monitor:
        kept = mebibytes(1, MAIN)
        with monitor.phase("forward"):
            mebibytes(4, MAIN)
        with monitor.phase("backward"):
            mebibytes(2, SUB)
        first = monitor.end_step()
        second = monitor.end_step()
        del kept
    assert first.of(MAIN, "forward").allocated_bytes == 5 * MiB
    assert first.of(MAIN, "backward").allocated_bytes == 1 * MiB
    assert first.of(SUB, "backward").allocated_bytes == 2 * MiB
    assert first.of(MAIN).allocated_bytes == 5 * MiB
    # Reset per step: the second one saw only what was still held.
    assert second.of(MAIN).allocated_bytes == 1 * MiB
    assert second.of(SUB).allocated_bytes == 0
    assert monitor.metrics["memory/alloc_max"] == 1 * MiB
    assert monitor.metrics["memory/alloc_max_sub"] == 0


def test_metrics_have_the_published_names():
    with LiveBytes() as live, MemoryMonitor(MAIN, SUB, counters=live) as monitor:
        mebibytes(1, MAIN)
        monitor.end_step()
    expected = {"memory/alloc_max", "memory/res_max", "memory/alloc_max_sub", "memory/res_max_sub"}
    assert expected | {"memory/host_rss", "memory/host_rss_max", "memory/host_pss"} <= set(
        monitor.metrics
    )


def test_a_window_of_steps_is_logged_by_its_maximum():
    written = []
    monitor = MemoryMonitor(
        MAIN,
        counters=(live := LiveBytes()),
        log_every=3,
        writers=[lambda s, m: written.append((s, m))],
    )
    with live, monitor:
        for size in (1, 5, 2, 1):
            mebibytes(size, MAIN)
            monitor.end_step()
    assert [(step, metrics["memory/alloc_max"]) for step, metrics in written] == [(3, 5 * MiB)]


def test_observed_beside_predicted():
    line = {
        "category": Category.ACTIVATIONS,
        "component": "x",
        "place": MAIN,
        "origin": Origin.FORMULA,
    }
    ledger = Ledger(entries=(
        Entry(phases=("forward", "backward"), nbytes=2 * MiB, **line),
        Entry(phases=("backward",), nbytes=2 * MiB, **line),
    ))  # fmt: skip
    with LiveBytes() as live, MemoryMonitor(MAIN, counters=live, ledger=ledger) as monitor:
        with monitor.phase("forward"):
            mebibytes(3, MAIN)
        with monitor.phase("backward"):
            mebibytes(4, MAIN)
        monitor.end_step()
    found = {
        c.phase: (c.predicted_bytes // MiB, c.observed_bytes // MiB) for c in monitor.compare()
    }
    assert found == {None: (4, 4), "forward": (2, 3), "backward": (4, 4)}
    assert monitor.metrics["memory/alloc_over_predicted"] == 1.0


def predicted(**by_phase):
    """A ledger with so many MiB per phase; "next_" stands for "next "."""
    line = {
        "category": Category.ACTIVATIONS,
        "component": "x",
        "place": MAIN,
        "origin": Origin.FORMULA,
    }
    names = {phase: phase.replace("_", " ") for phase in by_phase}
    return Ledger(
        entries=tuple(
            Entry(phases=(names[p],), nbytes=size * MiB, **line) for p, size in by_phase.items()
        )
    )


def run_steps(ledger, steps, **options):
    """Each step as {phase: MiB allocated in it}."""
    with (
        LiveBytes() as live,
        MemoryMonitor(MAIN, counters=live, ledger=ledger, **options) as monitor,
    ):
        for step in steps:
            for phase, size in step.items():
                with monitor.phase(phase):
                    mebibytes(size, MAIN)
            monitor.end_step()
    return monitor.compare()


def figures(comparison):
    return {
        (c.phase, c.steps): (c.predicted_bytes // MiB, c.observed_bytes // MiB) for c in comparison
    }


PREDICTED = {
    "load": 2, "forward": 3, "backward": 4, "step": 9,
    "next_forward": 6, "next_backward": 7, "next_step": 9, "save": 20,
}  # fmt: skip
FIRST_STEP, LATER_STEP = (
    {"forward": 3, "backward": 4, "step": 9},
    {"forward": 6, "backward": 7, "step": 9},
)


@pytest.mark.parametrize("keep_steps", [1024, 1])
def test_the_first_step_and_later_ones_stand_beside_their_own_predictions(keep_steps):
    comparison = run_steps(
        predicted(**PREDICTED), [FIRST_STEP, LATER_STEP, LATER_STEP], keep_steps=keep_steps
    )
    assert figures(comparison) == {
        ("forward", "first step"): (3, 3), ("backward", "first step"): (4, 4), ("step", "first step"): (9, 9),
        ("next forward", "later steps"): (6, 6), ("next backward", "later steps"): (7, 7),
        ("next step", "later steps"): (9, 9), (None, "all steps"): (9, 9),
    }  # fmt: skip


def test_after_one_step_only_the_first_steps_phases_are_compared():
    ledger = predicted(**{**PREDICTED, "next_step": 12})
    found = figures(run_steps(ledger, [FIRST_STEP]))
    assert found[None, "first step"] == (9, 9)
    assert {steps for _, steps in found} == {"first step"}


def test_micro_batches_before_the_first_optimizer_step_belong_to_the_first_step():
    micro = {"forward": 3, "backward": 4}
    found = figures(run_steps(predicted(**PREDICTED), [micro, FIRST_STEP, LATER_STEP]))
    assert found["backward", "first step"] == (4, 4)
    assert found["next backward", "later steps"] == (7, 7)
    unmarked = figures(run_steps(predicted(**PREDICTED), [micro, {"forward": 6, "backward": 7}]))
    assert unmarked["backward", "first step"] == (4, 4)
    assert unmarked["next backward", "later steps"] == (7, 7)


def test_a_phase_that_nobody_marks_counts_to_the_one_it_lies_in():
    ledger = predicted(forward=3, loss=5, backward=4, step=9)
    assert figures(run_steps(ledger, [{"forward": 5, "backward": 4}]))["forward", "first step"] == (
        5,
        5,
    )
    assert figures(run_steps(ledger, [{"backward": 5, "step": 9}]))["backward", "first step"] == (
        5,
        5,
    )
    marked = run_steps(
        ledger, [{"forward": 3, "loss": 5, "backward": 4}], phases=("forward", "loss", "backward")
    )
    assert figures(marked)["forward", "first step"] == (3, 3)
    assert figures(marked)["loss", "first step"] == (5, 5)


def test_a_ledger_that_knows_no_next_step_speaks_for_all():
    found = figures(run_steps(predicted(forward=3, backward=4), [{"forward": 3}, {"forward": 2}]))
    assert found == {
        ("forward", "first step"): (3, 3), ("forward", "later steps"): (3, 2), (None, "all steps"): (4, 3),
    }  # fmt: skip


def test_a_comparison_prints_in_words():
    comparison = run_steps(predicted(**PREDICTED), [FIRST_STEP, {"backward": 14, "forward": 3}])
    assert str(comparison).splitlines() == [
        "cpu:2, forward, first step: predicted 3.00 MiB, observed 3.00 MiB (as predicted)",
        "cpu:2, backward, first step: predicted 4.00 MiB, observed 4.00 MiB (as predicted)",
        "cpu:2, step, first step: predicted 9.00 MiB, observed 9.00 MiB (as predicted)",
        "cpu:2, forward, later steps: predicted 6.00 MiB, observed 3.00 MiB (50.0 % less)",
        "cpu:2, backward, later steps: predicted 7.00 MiB, observed 14.00 MiB (100.0 % more)",
        "cpu:2, the whole step, all steps: predicted 9.00 MiB, observed 14.00 MiB (55.6 % more)",
    ]
    assert "no prediction. Give it one" in str(MemoryMonitor(MAIN).compare())
    assert "no step was seen" in str(MemoryMonitor(MAIN, ledger=predicted(forward=1)).compare())
    elsewhere = Ledger(
        entries=tuple(replace(e, place="cuda:5") for e in predicted(forward=1).entries)
    )
    assert "the prediction is for cuda:5, the monitor watches cpu:2" in str(
        run_steps(elsewhere, [FIRST_STEP])
    )


def test_a_failing_counter_is_reported_once_and_the_run_goes_on():
    class Broken:
        def peak(self, device):
            raise RuntimeError("no such device")

        def reset(self, device):
            pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with MemoryMonitor(MAIN, counters=Broken()) as monitor:
            for _ in range(3):
                with monitor.phase("forward"):
                    pass
                assert monitor.end_step() is None
    assert monitor.failure == "RuntimeError: no such device"
    assert sum("memory monitor stopped" in str(w.message) for w in caught) == 1


def test_a_gpu_that_is_not_there_is_reported_and_the_host_is_not_lost_to_an_exception():
    with (
        pytest.warns(RuntimeWarning, match="memory monitor stopped"),
        MemoryMonitor("cuda:7") as monitor,
    ):
        monitor.end_step()
    assert monitor.failure is not None


def test_a_failing_writer_does_not_end_the_run():
    def full(step, metrics):
        raise OSError("disk full")

    with MemoryMonitor(writers=[full]) as monitor:
        with pytest.warns(RuntimeWarning, match="disk full"):
            monitor.end_step()
        monitor.end_step()


def test_what_the_watched_code_raises_is_not_swallowed():
    with MemoryMonitor() as monitor, pytest.raises(ZeroDivisionError), monitor.phase("forward"):
        1 / 0  # noqa: B018


def test_the_ring_of_steps_is_bounded():
    with MemoryMonitor(keep_steps=4) as monitor:
        for _ in range(10):
            monitor.end_step()
    assert [step.step for step in monitor.steps] == [6, 7, 8, 9]


def test_the_hosts_peak_within_a_step_is_seen_and_reset():
    with MemoryMonitor() as monitor:
        monitor.end_step()
        with mmap.mmap(
            -1, 200 * MiB
        ) as block:  # malloc might serve a tensor from pages that are resident already
            block[:: mmap.PAGESIZE] = bytes(200 * MiB // mmap.PAGESIZE)
        big, small = monitor.end_step(), monitor.end_step()
    assert big.host.rss_max_bytes - big.host.rss_bytes > 150 * MiB
    assert small.host.rss_max_bytes - small.host.rss_bytes < 50 * MiB


def test_pss_is_asked_only_now_and_then():
    now = [0.0]
    with MemoryMonitor(slow_every_s=10, clock=lambda: now[0]) as monitor:
        seen = []
        for now[0] in (0.0, 5.0, 11.0, 12.0):
            seen.append(monitor.end_step().host.pss_bytes is not None)
    assert seen == [True, False, True, False]


def test_host_figures_are_the_kernels():
    import psutil

    reset_host_peak()
    use = host_use(with_pss=True)
    rss = psutil.Process().memory_info().rss
    assert abs(use.rss_bytes - rss) < 8 * MiB
    assert 0 < use.pss_bytes <= rss + 8 * MiB
    assert use.rss_max_bytes >= use.rss_bytes


def test_without_a_gpu_and_without_devices_only_the_host_is_reported():
    with MemoryMonitor() as monitor:
        monitor.end_step()
    assert monitor.devices == ()
    assert set(monitor.metrics) == {"memory/host_rss", "memory/host_rss_max", "memory/host_pss"}


def test_json_lines_and_csv_hold_every_step(tmp_path):
    writers = [JsonLines(tmp_path / "m.jsonl"), Csv(tmp_path / "m.csv")]
    with LiveBytes() as live, MemoryMonitor(MAIN, counters=live, writers=writers) as monitor:
        for size in (1, 2):
            mebibytes(size, MAIN)
            monitor.end_step()
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    with (tmp_path / "m.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [line["memory/alloc_max"] for line in lines] == [MiB, 2 * MiB]
    assert [int(row["memory/alloc_max"]) for row in rows] == [MiB, 2 * MiB]
    assert [row["step"] for row in rows] == ["1", "2"]


def test_wandb_is_called_as_its_log_is():
    logged = []

    class Run:
        def log(self, data, step=None):
            logged.append((step, sorted(data)))

    with MemoryMonitor(writers=[to_wandb(Run())]) as monitor:
        monitor.end_step()
    assert logged == [(1, ["memory/host_pss", "memory/host_rss", "memory/host_rss_max"])]
