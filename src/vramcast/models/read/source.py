"""What a model is known by: a config that a family describes, or a bare table of parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vramcast.errors import InvariantError, UndescribedModelError
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import Param, PlacedSection, Regime, Section

COUNTED = "parameters"  # the one line of a table that knows a count and no tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model's parameters come from.

    Either the config's family describes everything, or there is only a table: weights, gradients and optimizer states
    can be computed, activations cannot. Where no family describes a config, `build` makes its table when it is asked
    for, which takes seconds.
    """

    name: str
    config: Config | None = None
    params: tuple[Param, ...] | None = None
    build: Callable[[], tuple[Param, ...]] | None = None
    # The same for a head that a family does not describe; None where it cannot be built here.
    rescue: Callable[[], tuple[Param, ...] | None] | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_described(self) -> bool:
        """Does a family describe the whole model, activations included?"""
        return self.config is not None and self.params is None and self.build is None

    @property
    def has_count_alone(self) -> bool:
        """Is no tensor known, only how many parameters there are in all?"""
        if self.is_described:
            return False
        table = self.bare_table()
        return len(table) == 1 and table[0].name == COUNTED

    def bare_table(self) -> tuple[Param, ...]:
        """The table of a model that no family describes."""
        if self.params is None and self.build is not None:
            return self.build()
        return self.params or ()

    def sections(self) -> tuple[PlacedSection, ...]:
        """The parameters by section: as the family places them, or by the names' common beginnings."""
        if not self.is_described and (self.params is not None or self.build is not None):
            return _group_by_name(self.bare_table())
        if self.config is None:
            raise InvariantError(f"{self.name}: neither a config nor a table")
        try:
            return tuple(record(self.config, Regime(), Sizes()).sections)
        except UndescribedModelError:
            params = None if self.rescue is None else self.rescue()
            if params is None:
                raise
            return _group_by_name(params)

    def table(self) -> tuple[Param, ...]:
        """Every tensor under its full name; a tied one appears again with `tied_to`."""
        return tuple(param for placed in self.sections() for param in placed.params())


def _group_by_name(params: tuple[Param, ...]) -> tuple[PlacedSection, ...]:
    """Sections from names alone: everything up to the first number is a stack, the number is the layer."""
    sections: dict[tuple[str, int | None], Section] = {}
    for param in params:
        words = param.name.split(".")
        position = _layer_position(words)
        if position is None:
            index = None
            section_name = ".".join(words[:-1]) or param.name
            template = param
        else:
            index = int(words[position])
            words[position] = "{i}"
            section_name = ".".join(words[: position + 1])
            template = replace(param, name=".".join(words))
        new = Section(name=section_name, inputs=(), is_block=index is not None)
        section = sections.setdefault((section_name, index), new)
        section.params.append(template)
    return tuple(PlacedSection(section, index) for (_, index), section in sections.items())


def _layer_position(words: list[str]) -> int | None:
    """Where the layer's number is among the words of a name: the first number of at most five digits."""
    numbers = (at for at, word in enumerate(words) if word.isdecimal() and len(word) < 6)
    return next(numbers, None)
