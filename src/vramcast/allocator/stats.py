"""The allocator's counters, and the dict that `torch.cuda.memory_stats()` would return.

In: blocks that become allocated, freed, split or merged, and segments. Out: current value, peak and total of each
counter, for both size classes together and for each. Does not know addresses.
"""

from __future__ import annotations

_METRICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
# Every block that becomes allocated becomes active, so the two have one total.
_TOTAL_OF = {"active": "allocation", "active_bytes": "allocated_bytes"}


class Tally:
    """Counters of one statistics type: all, small_pool or large_pool. `peak_` and `total_` follow a counter upwards."""

    __slots__ = tuple(prefix + metric for metric in _METRICS for prefix in ("", "peak_", "total_"))

    allocation: int
    segment: int
    active: int
    inactive_split: int
    allocated_bytes: int
    reserved_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    requested_bytes: int
    peak_allocation: int
    peak_segment: int
    peak_active: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    peak_inactive_split: int
    peak_inactive_split_bytes: int
    total_allocation: int
    total_segment: int
    total_reserved_bytes: int
    total_allocated_bytes: int
    total_requested_bytes: int
    total_inactive_split: int
    total_inactive_split_bytes: int

    def __init__(self) -> None:
        for name in Tally.__slots__:
            setattr(self, name, 0)

    def raise_by(self, metric: str, amount: int) -> None:
        """Count `amount` more. For the rare metrics; the hot ones are written out in `core`."""
        current = getattr(self, metric) + amount
        setattr(self, metric, current)
        setattr(self, "total_" + metric, getattr(self, "total_" + metric) + amount)
        if current > getattr(self, "peak_" + metric):
            setattr(self, "peak_" + metric, current)

    def change(self, metric: str, amount: int) -> None:
        """Count up or down; torch keeps a downward step out of `total_`, as part of `freed`."""
        if amount > 0:
            self.raise_by(metric, amount)
        elif amount:
            setattr(self, metric, getattr(self, metric) + amount)

    def add_allocated_bytes(self, nbytes: int) -> None:
        """Without the other counters, for an allocator without statistics."""
        self.allocated_bytes = value = self.allocated_bytes + nbytes
        if value > self.peak_allocated_bytes:
            self.peak_allocated_bytes = value

    def add_segment(self, nbytes: int) -> None:
        """`raise_by` of segment and reserved_bytes, written out: a replay asks for thousands."""
        self.segment = value = self.segment + 1
        self.total_segment += 1
        if value > self.peak_segment:
            self.peak_segment = value
        self.reserved_bytes = value = self.reserved_bytes + nbytes
        self.total_reserved_bytes += nbytes
        if value > self.peak_reserved_bytes:
            self.peak_reserved_bytes = value

    def reset_peaks(self) -> None:
        for metric in _METRICS:
            setattr(self, "peak_" + metric, getattr(self, metric))

    def rows(self, type_name: str) -> dict[str, int]:
        rows = {}
        for metric in _METRICS:
            current = getattr(self, metric)
            total = getattr(self, "total_" + _TOTAL_OF.get(metric, metric))
            name = f"{metric}.{type_name}"
            rows[f"{name}.current"] = current
            rows[f"{name}.peak"] = getattr(self, "peak_" + metric)
            rows[f"{name}.allocated"] = total
            rows[f"{name}.freed"] = total - current
        return rows


# One call for both tallies of a pool, with every counter written out: this is where a replay spends its time.


def count_allocated(tallies: tuple[Tally, Tally], size: int, requested_bytes: int) -> None:
    """A block becomes allocated, hence active."""
    for tally in tallies:
        tally.total_allocation += 1
        tally.total_allocated_bytes += size
        tally.total_requested_bytes += requested_bytes
        tally.allocation = value = tally.allocation + 1
        if value > tally.peak_allocation:
            tally.peak_allocation = value
        tally.active = value = tally.active + 1
        if value > tally.peak_active:
            tally.peak_active = value
        tally.allocated_bytes = value = tally.allocated_bytes + size
        if value > tally.peak_allocated_bytes:
            tally.peak_allocated_bytes = value
        tally.active_bytes = value = tally.active_bytes + size
        if value > tally.peak_active_bytes:
            tally.peak_active_bytes = value
        tally.requested_bytes = value = tally.requested_bytes + requested_bytes
        if value > tally.peak_requested_bytes:
            tally.peak_requested_bytes = value


def count_freed(tallies: tuple[Tally, Tally], size: int, requested_bytes: int) -> None:
    """A block stops being active."""
    for tally in tallies:
        tally.active -= 1
        tally.active_bytes -= size
        tally.requested_bytes -= requested_bytes


def count_splits(tallies: tuple[Tally, Tally], change: int, bytes_change: int) -> None:
    """The number and the bytes of free blocks whose segment also has other blocks change."""
    for tally in tallies:
        tally.inactive_split = value = tally.inactive_split + change
        if change > 0:
            tally.total_inactive_split += change
            if value > tally.peak_inactive_split:
                tally.peak_inactive_split = value
        tally.inactive_split_bytes = value = tally.inactive_split_bytes + bytes_change
        if bytes_change > 0:
            tally.total_inactive_split_bytes += bytes_change
            if value > tally.peak_inactive_split_bytes:
                tally.peak_inactive_split_bytes = value


class Count:
    """One counter without size classes, such as the oversize blocks."""

    __slots__ = ("current", "peak", "total")

    def __init__(self) -> None:
        self.current = self.peak = self.total = 0

    def up(self) -> None:
        self.current += 1
        self.total += 1
        self.peak = max(self.peak, self.current)

    def down(self) -> None:
        self.current -= 1

    def rows(self, name: str) -> dict[str, int]:
        return {
            f"{name}.current": self.current,
            f"{name}.peak": self.peak,
            f"{name}.allocated": self.total,
            f"{name}.freed": self.total - self.current,
        }
