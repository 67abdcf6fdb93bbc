"""The allocator's counters, and the dict that `torch.cuda.memory_stats()` would return."""

from __future__ import annotations

_METRICS = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
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

    def change_splits(self, amount: int) -> None:
        """`change` of inactive_split, written out: every third free is one."""
        self.inactive_split = value = self.inactive_split + amount
        if amount > 0:
            self.total_inactive_split += amount
            if value > self.peak_inactive_split:
                self.peak_inactive_split = value

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
            current, total = getattr(self, metric), getattr(self, "total_" + _TOTAL_OF.get(metric, metric))
            name = f"{metric}.{type_name}"
            rows[f"{name}.current"] = current
            rows[f"{name}.peak"] = getattr(self, "peak_" + metric)
            rows[f"{name}.allocated"] = total
            rows[f"{name}.freed"] = total - current
        return rows


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
            f"{name}.current": self.current, f"{name}.peak": self.peak,
            f"{name}.allocated": self.total, f"{name}.freed": self.total - self.current,
        }  # fmt: skip
