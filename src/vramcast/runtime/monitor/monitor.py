"""Measure the memory peaks of a running job per device, phase and step, and compare them with a prediction.

In: the devices to watch, and calls where steps and phases begin and end. Out: one StepPeaks per step, metrics under
fixed names, and a comparison with a Ledger. Devices are always named, counters are reset whenever the phase changes,
and ranks are combined by maximum: an average of peaks is no rank's peak. A failure of the monitor is reported once, and
the run goes on without it. The host's peak comes from the kernel's high-water mark, which is reset per step (Linux);
elsewhere only the current RSS is known. What is unknown is left out of the metrics. Does not know what holds the bytes.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist

from vramcast.ledger import BACKWARD, FORWARD, STEP, Ledger
from vramcast.runtime.monitor.comparison import Comparison, Observed, Peak, compare
from vramcast.runtime.monitor.process_memory import (
    HostUse,
    host_use,
    process_bytes,
    reset_host_peak,
)
from vramcast.runtime.ranks import largest, world_size
from vramcast.runtime.training.placement import normalise_device

Writer = Callable[[int, dict[str, float]], None]
_UNKNOWN = -1  # on the wire between ranks only
BETWEEN = "between"


class Counters(Protocol):
    """Peak allocated and reserved bytes of a device since the last reset; None where nobody counts."""

    def peak(self, device: torch.device) -> tuple[int, int] | None: ...

    def reset(self, device: torch.device) -> None: ...


class TorchCounters:
    """torch's own CUDA counters."""

    def peak(self, device: torch.device) -> tuple[int, int] | None:
        if device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)

    def reset(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeaks:
    """Everything seen in one step on this rank."""

    step: int
    peaks: tuple[Peak, ...]
    host: HostUse
    process_bytes: dict[str, int] = field(default_factory=dict)

    def of(self, device: str, phase: str | None = None) -> Peak | None:
        """The device's peak in a phase, or over the whole step."""
        seen = [
            peak for peak in self.peaks if peak.device == device and phase in (None, peak.phase)
        ]
        if not seen:
            return None
        return Peak(
            device=device,
            phase=phase or "step total",
            allocated_bytes=max(peak.allocated_bytes for peak in seen),
            reserved_bytes=max(peak.reserved_bytes for peak in seen),
        )


class MemoryMonitor:
    """with MemoryMonitor("cuda:0", "cuda:1", ledger=ledger, writers=[JsonLines("memory.jsonl")]) as monitor:
    for batch in loader:
        with monitor.phase("forward"): ...
        with monitor.phase("backward"): ...
        monitor.end_step()
    """

    def __init__(
        self,
        *devices: int | str | torch.device,
        ledger: Ledger | None = None,
        writers: Sequence[Writer] = (),
        phases: Sequence[str] = (FORWARD, BACKWARD, STEP),
        log_every: int = 1,
        keep_steps: int = 1024,
        slow_every_s: float = 10.0,
        counters: Counters | None = None,
        group: dist.ProcessGroup | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.devices = tuple(normalise_device(device) for device in devices or _current())
        self.ledger = ledger
        self.steps: deque[StepPeaks] = deque(maxlen=keep_steps)
        self.failure: str | None = None
        self.metrics: dict[str, float] = {}
        self._writers = tuple(writers)
        self._phases = tuple(phases)
        self._log_every = log_every
        self._slow_every_s = slow_every_s
        self._counters = counters or TorchCounters()
        self._group = group
        self._clock = clock
        self._slow_at = -float("inf")
        self._number = 0
        self._phase = BETWEEN
        self._peaks: dict[tuple[str, str], Peak] = {}
        self._window: list[int] = []
        self._observed = Observed()
        self._predicted: dict[str, int] = {}
        if ledger is not None:
            self._predicted = {place: _max_allocated(ledger, place) for place in ledger.places()}

    def __enter__(self) -> MemoryMonitor:
        self._guarded(self._restart)
        return self

    def __exit__(self, *_: object) -> None:
        self._guarded(self._close_writers)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Peaks inside belong to this phase."""
        before = self._phase
        self.mark(name)
        try:
            yield
        finally:
            self.mark(before)

    def mark(self, name: str) -> None:
        """From here on another phase, for frameworks that call hooks instead of nesting blocks."""
        self._guarded(lambda: self._switch(name))

    def end_step(self) -> StepPeaks | None:
        """Close the step, write its metrics and start the next one from fresh counters."""
        done = self._guarded(self._close)
        self._number += 1
        # A rank whose monitor failed still takes part: the others are waiting in the same collective.
        self._window = _larger(self._window, self._wire(done))
        if self._number % self._log_every == 0:
            self._guarded_always(self._publish)
        return done

    def compare(self) -> Comparison:
        """Predicted and observed bytes, on every device, for the phases of the first step, for those of later steps and
        for whole steps. Prints as lines.
        """
        return compare(
            self.ledger, self._observed, [str(device) for device in self.devices], self._phases
        )

    def _close_writers(self) -> None:
        for writer in self._writers:
            if hasattr(writer, "close"):
                writer.close()

    def _restart(self) -> None:
        for device in self.devices:
            self._counters.reset(device)
        reset_host_peak()

    def _switch(self, name: str) -> None:
        self._collect()
        self._phase = name

    def _collect(self) -> None:
        """Add what was seen since the last change of phase to the phase that just ended."""
        for device in self.devices:
            seen = self._counters.peak(device)
            if seen is not None:
                self._record(str(device), *seen)
            self._counters.reset(device)

    def _record(self, device: str, allocated_bytes: int, reserved_bytes: int) -> None:
        known = self._peaks.get((device, self._phase))
        self._peaks[device, self._phase] = Peak(
            device=device,
            phase=self._phase,
            allocated_bytes=max(allocated_bytes, known.allocated_bytes if known else 0),
            reserved_bytes=max(reserved_bytes, known.reserved_bytes if known else 0),
        )

    def _close(self) -> StepPeaks:
        self._collect()
        slow = self._clock() - self._slow_at >= self._slow_every_s
        if slow:
            self._slow_at = self._clock()
        done = StepPeaks(
            step=self._number,
            peaks=tuple(self._peaks.values()),
            host=host_use(with_pss=slow),
            process_bytes=process_bytes(self.devices) if slow else {},
        )
        self.steps.append(done)
        self._observed.add(done.peaks)
        self._peaks.clear()
        reset_host_peak()
        return done

    def _wire(self, done: StepPeaks | None) -> list[int]:
        """The step as one row of integers with the same columns on every rank."""
        row: list[int | None] = []
        for device in (str(device) for device in self.devices):
            for phase in (None, *self._phases):
                peak = done.of(device, phase) if done else None
                row += [peak.allocated_bytes, peak.reserved_bytes] if peak else [None, None]
            row.append(done.process_bytes.get(device) if done else None)
        host = done.host if done else HostUse(rss_bytes=None, rss_max_bytes=None, pss_bytes=None)
        row += [host.rss_bytes, host.rss_max_bytes, host.pss_bytes]
        return [_UNKNOWN if value is None else value for value in row]

    def _names(self) -> list[str]:
        names = []
        for index in range(len(self.devices)):
            suffix = ("", "_sub")[index] if index < 2 else f"_{index}"
            for phase in ("", *(f"{phase}/" for phase in self._phases)):
                names += [f"memory/{phase}alloc_max{suffix}", f"memory/{phase}res_max{suffix}"]
            names.append(f"memory/process{suffix}")
        return [*names, "memory/host_rss", "memory/host_rss_max", "memory/host_pss"]

    def _publish(self) -> None:
        row, self._window = largest(self._window, self._group), []
        self.metrics = {
            name: value for name, value in zip(self._names(), row, strict=True) if value != _UNKNOWN
        }
        for index, device in enumerate(self.devices[:2]):
            suffix = ("", "_sub")[index]
            predicted = self._predicted.get(str(device))
            seen = self.metrics.get(f"memory/alloc_max{suffix}")
            if predicted and seen is not None:
                self.metrics[f"memory/alloc_over_predicted{suffix}"] = seen / predicted
        if world_size(self._group) == 1 or dist.get_rank(self._group) == 0:
            for writer in self._writers:
                writer(self._number, self.metrics)

    def _guarded(self, action: Callable[[], StepPeaks | None]) -> StepPeaks | None:
        if self.failure is not None:
            return None
        return self._guarded_always(action)

    def _guarded_always(self, action: Callable[[], StepPeaks | None]) -> StepPeaks | None:
        """The one place that catches broadly: watching must not end what is watched."""
        try:
            result = action()
        except Exception as error:
            if self.failure is None:
                self.failure = f"{type(error).__name__}: {error}"
                warnings.warn(
                    f"memory monitor stopped: {self.failure}", RuntimeWarning, stacklevel=3
                )
            return None
        return result if isinstance(result, StepPeaks) else None


def _current() -> tuple[torch.device, ...]:
    return (torch.device("cuda", torch.cuda.current_device()),) if torch.cuda.is_available() else ()


def _max_allocated(ledger: Ledger, place: str) -> int:
    return max(ledger.moment(phase, place).allocated_bytes for phase in ledger.phases(place))


def _larger(window: list[int], row: list[int]) -> list[int]:
    return [max(pair) for pair in zip(window, row, strict=True)] if window else row
