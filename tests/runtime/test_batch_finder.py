"""Predict, confirm with a real step, survive running out of real memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from live_bytes import LiveBytes

from vramcast.errors import InputError
from vramcast.job import Job
from vramcast.runtime import find_batch_size

MiB = 1 << 20


def step_of(live_bytes_per_sample):
    return lambda batch: torch.zeros(
        batch * live_bytes_per_sample, dtype=torch.uint8, device="cpu:1"
    )


def test_a_right_prediction_needs_one_probe():
    with LiveBytes() as live:
        choice = find_batch_size(
            step_of(MiB),
            Job(model="llama-3.2-1b", seq=128),
            predict=lambda b: b * MiB,
            budget_bytes=10 * MiB + 5,
            device="cpu:1",
            counters=live,
        )
    assert choice.batch == choice.job.batch == 10
    assert choice.job.seq == 128
    assert [(p.batch, p.fits, p.peak_bytes) for p in choice.probes] == [(10, True, 10 * MiB)]


def test_a_prediction_that_is_too_low_is_corrected_by_what_was_measured():
    with LiveBytes() as live:
        choice = find_batch_size(
            step_of(2 * MiB),
            predict=lambda b: b * MiB,
            budget_bytes=10 * MiB,
            device="cpu:1",
            counters=live,
        )
    assert choice.batch == 5
    assert [probe.batch for probe in choice.probes] == [10, 5]


def test_running_out_is_an_answer():
    def step(batch):
        if batch > 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    choice = find_batch_size(step, predict=lambda b: b * MiB, budget_bytes=10 * MiB, device="cpu:1")
    assert choice.batch == 6
    assert [(probe.batch, probe.fits) for probe in choice.probes] == [
        (10, False),
        (5, True),
        (7, False),
        (6, True),
    ]


def test_memory_that_only_the_second_step_needs_is_seen():
    """As with optimizer states: made at the end of the first step, beside the activations in the second."""
    states = []

    def step(batch):
        activations = torch.zeros(batch * MiB, dtype=torch.uint8, device="cpu:1")
        states[:] = [torch.zeros(3 * MiB, dtype=torch.uint8, device="cpu:1")]
        del activations

    with LiveBytes() as live:
        choice = find_batch_size(
            step, predict=lambda b: b * MiB, budget_bytes=10 * MiB, device="cpu:1", counters=live
        )
    assert choice.probes[0].peak_bytes >= 13 * MiB
    assert choice.batch <= 7


def test_another_error_is_not_swallowed():
    def step(batch):
        raise ValueError("shapes do not match")

    with pytest.raises(ValueError, match="shapes"):
        find_batch_size(step, predict=lambda b: b, budget_bytes=10, device="cpu")


def test_nothing_fits_says_so_with_figures():
    with pytest.raises(
        InputError, match=r"no batch fits 1.00 GiB: one sample is predicted at 2.00 GiB"
    ):
        find_batch_size(
            lambda b: None, predict=lambda b: b << 31, budget_bytes=1 << 30, device="cpu"
        )

    def always(batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(InputError, match="Tried: 3, 1"):
        find_batch_size(always, predict=lambda b: b, budget_bytes=3, device="cpu")


REAL = """
import resource, torch
from vramcast.runtime import find_batch_size
def step(batch):
    x = torch.zeros(batch << 20, requires_grad=True)  # 4 MiB per sample, as much for its square and its gradient
    (x * x).sum().backward()
step(1)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
choice = find_batch_size(step, predict=lambda batch: batch << 20, budget_bytes=1 << 30, device="cpu")
print(choice.batch, len(choice.probes), choice.probes[0].fits)
step(choice.batch // 2)
"""


def test_a_real_allocation_failure_in_the_probe_is_survived():
    """The process may take 512 MiB more; the prediction wrongly says that 1024 samples of 1 MiB fit."""
    out = subprocess.run(
        [sys.executable, "-c", REAL], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    batch, probes, first_fits = out.split()
    assert first_fits == "False"
    assert int(probes) > 1
    assert (
        16 <= int(batch) <= 64
    )  # 512 MiB at 8 to 16 MiB per sample, and what the allocator cannot reuse
