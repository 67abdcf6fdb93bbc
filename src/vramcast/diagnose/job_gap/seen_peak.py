"""The highest memory reading of a log in which nothing failed.

In: a Reading. Out: a SeenPeak from a log, nvidia-smi or a counter. Does not know what happened before the log began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.diagnose.observation import Moment, Observation
from vramcast.diagnose.readers.log import Reading
from vramcast.ledger import Level

# From the level that tells most about the job to the one that tells least.
LEVELS = (Level.ALLOCATED, Level.RESERVED, Level.PROCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPeak:
    """The highest reading of a device, on the most telling level that was printed."""

    level: Level
    nbytes: int
    observation: Observation


def seen_peak(reading: Reading) -> SeenPeak | None:
    """None if something failed on a device, or if no counter tells the peak."""
    on_device = [item for item in reading.observations if not item.is_host()]
    if any(item.is_failure() for item in on_device):
        return None
    measured = [item for item in on_device if item.moment is not Moment.THEORY]
    for level in LEVELS:
        peaks = _peaks_on_level(measured, level)
        if peaks:
            return max(peaks, key=lambda peak: peak.nbytes)
    return None


def _peaks_on_level(observations: Sequence[Observation], level: Level) -> list[SeenPeak]:
    peaks = []
    for item in observations:
        nbytes = _peak_bytes(item, level)
        if nbytes is not None:
            peaks.append(SeenPeak(level=level, nbytes=nbytes, observation=item))
    return peaks


def _peak_bytes(item: Observation, level: Level) -> int | None:
    if level is Level.ALLOCATED:
        at_peak = item.allocated_bytes if item.moment is Moment.PEAK else None
        return item.peak_allocated_bytes or at_peak
    if level is Level.RESERVED:
        return item.peak_reserved_bytes or item.reserved_bytes
    return _peak_process_bytes(item)


def _peak_process_bytes(item: Observation) -> int | None:
    """What nvidia-smi shows counts as a peak, because PyTorch keeps its cache."""
    processes = [use.nbytes for use in item.other_processes or () if use.nbytes is not None]
    return max(processes, default=None) or item.process_bytes or item.used_bytes
