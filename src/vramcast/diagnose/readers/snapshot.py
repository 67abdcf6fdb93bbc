"""A memory snapshot as a Reading: its refused requests are failures, its peak is an observation like any other.

In: an Analysis of one device. Out: a Reading. A snapshot does not say how
large the card is; a refused request says how much was free.
"""

from __future__ import annotations

from vramcast.diagnose.observation import Moment, Observation
from vramcast.diagnose.readers.log import Reading
from vramcast.errors import SnapshotError
from vramcast.snapshot.analysis import Analysis
from vramcast.snapshot.record import Snapshot


def fullest_device(snapshot: Snapshot) -> int:
    devices = snapshot.devices()
    if not devices:
        raise SnapshotError("the snapshot is empty: it holds no segments and no events.")
    return max(
        devices,
        key=lambda device: (sum(segment.size for segment in snapshot.segments_of(device)), -device),
    )


def reading_of(analysis: Analysis) -> Reading:
    return Reading(observations=(*_failures(analysis), _peak(analysis)))


def _failures(analysis: Analysis) -> tuple[Observation, ...]:
    return tuple(
        Observation(
            kind="snapshot_oom",
            moment=Moment.FAILURE,
            line=event.index + 1,
            place=f"cuda:{analysis.device}",
            requested_bytes=event.requested_bytes,
            free_bytes=event.device_free_bytes,
            allocated_bytes=event.allocated_bytes,
            reserved_bytes=event.reserved_bytes,
            unallocated_bytes=event.reserved_bytes - event.allocated_bytes,
            derived=("unallocated_bytes",),
        )
        for event in analysis.ooms
    )


def _peak(analysis: Analysis) -> Observation:
    peak = analysis.peak_allocated
    return Observation(
        kind="snapshot_peak",
        moment=Moment.PEAK,
        line=max(0, peak.index + 1),
        place=f"cuda:{analysis.device}",
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        unallocated_bytes=peak.reserved_bytes - peak.allocated_bytes,
        derived=("unallocated_bytes",),
        peak_allocated_bytes=peak.allocated_bytes,
        peak_reserved_bytes=analysis.peak_reserved.reserved_bytes,
    )
