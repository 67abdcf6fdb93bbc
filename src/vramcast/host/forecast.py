"""Host entries held against what the machine allows.

In: entries of one node and its limits. Out: the most that must be there, phase by phase, whether RAM and shared memory
suffice, and which part follows the batch size. Limits that are unknown give no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.host.limits import Limits
from vramcast.ledger import FORWARD, SHM, Category, Entry, Ledger, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class HostForecast:
    """The node's bill and the room there is."""

    ledger: Ledger
    limits: Limits

    def needed_bytes(self, phase: str) -> int:
        """Memory that cannot be dropped: everything but mapped file pages."""
        return sum(
            self.ledger.moment(phase, place).allocated_bytes for place in self.ledger.places()
        )

    def shown_bytes(self, phase: str) -> int:
        """What PSS summed over the processes shows, mapped file pages included."""
        return sum(self.ledger.moment(phase, place).process_bytes for place in self.ledger.places())

    @property
    def peak_phase(self) -> str:
        return max(self.ledger.phases(), key=self.needed_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.needed_bytes(self.peak_phase)

    @property
    def range_bytes(self) -> tuple[int, int]:
        """The peak with every line at its low and at its high end."""
        alive = [entry for entry in self.at_peak() if entry.level == Level.ALLOCATED]
        ranges = [entry.range_bytes or (entry.nbytes, entry.nbytes) for entry in alive]
        return sum(low for low, _ in ranges), sum(high for _, high in ranges)

    @property
    def shm_bytes(self) -> int:
        return max(
            (self.ledger.moment(phase, SHM).allocated_bytes for phase in self.ledger.phases()),
            default=0,
        )

    @property
    def fits(self) -> bool | None:
        """Against RAM and the container's limit, and shared memory against its own; None where neither is known."""
        answers = [
            need <= room
            for need, room in (
                (self.peak_bytes, self.limits.capacity_bytes),
                (self.shm_bytes, self.limits.shm_bytes),
            )
            if room is not None
        ]
        return all(answers) if answers else None

    def at_peak(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.ledger.entries if self.peak_phase in entry.phases)

    def batch_bytes(self) -> int:
        """The part of what training needs that grows with the batch."""
        return sum(
            e.nbytes
            for e in self.ledger.entries
            if e.category == Category.INPUT and FORWARD in e.phases
        )
