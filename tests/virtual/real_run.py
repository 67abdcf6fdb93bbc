"""The truth on a CPU: peak bytes of a real run, from the allocator events that torch.profiler records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], Any]) -> int:
    """The highest sum of live bytes while `work` runs, counted from zero at its start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        work()
    events = recording.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak
