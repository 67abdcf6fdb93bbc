"""Lines of the breakdown whose bytes differ from phase to phase, divided into Entries of constant size.

`Amounts` holds bytes per phase for one line. The first entry is the part that exists in every phase with bytes, the
next the part on top of it that exists in fewer phases, and so on. In each phase the entries add up to the line's bytes;
all entries together add up to its largest value. Example: forward 30, backward 100 → an entry of 30 in both phases and
one of 70 in backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from vramcast.ledger import Category, Entry, Level, Origin
from vramcast.models.record.dims import Number


@dataclass(slots=True, kw_only=True)
class Amounts:
    category: Category
    component: str
    place: str
    origin: Origin = Origin.FORMULA
    level: Level = Level.ALLOCATED
    formula: str = ""
    source: str = ""
    needed_by: str = ""
    by_phase: dict[str, Number] = field(
        default_factory=dict
    )  # numpy arrays in a sweep, ints in a breakdown
    # Proportions of the tensors that the line consists of: each is a block of its own in the replay.
    tensors: Sequence[int] = (1,)
    depends_on_optimizer: bool = False  # prices of searches keep such lines apart from all others

    def add(self, phase: str, nbytes: Number) -> None:
        self.by_phase[phase] = self.by_phase.get(phase, 0) + nbytes

    def entries(self) -> Iterator[Entry]:
        below = 0
        for height in sorted({int(nbytes) for nbytes in self.by_phase.values() if nbytes}):
            phases = tuple(phase for phase, nbytes in self.by_phase.items() if nbytes >= height)
            yield Entry(
                category=self.category,
                component=self.component,
                place=self.place,
                phases=phases,
                nbytes=height - below,
                origin=self.origin,
                level=self.level,
                formula=self.formula,
                source=self.source,
                needed_by=self.needed_by,
            )
            below = height
