"""The tensors that a section saves for backward, each storage once."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.models.record.dims import Number
from vramcast.models.record.tape import Section, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One storage that autograd holds, and the ops whose backward needs it."""

    value: Value
    needed_by: tuple[str, ...]
    is_input: bool  # the section's own input, made by the section before

    @property
    def is_weight_copy(self) -> bool:
        return self.value.copy_of is not None


def kept(section: Section) -> tuple[Kept, ...]:
    """Every storage once, in the order of first use. Tensors from outside (masks, tables, encoder states) are left out:
    they are alive anyway."""
    inputs = {id(value.storage) for value in section.inputs}
    outside = _outside_ids(section) - inputs
    found: dict[int, tuple[Value, list[str]]] = {}
    for op in section.ops:
        for value in op.saved:
            if id(value) not in outside:
                needs = found.setdefault(id(value), (value, []))[1]
                needs.append(f"{op.module.rpartition('.')[2]} {op.name}".strip())
    return tuple(
        Kept(value=value, needed_by=tuple(dict.fromkeys(needs)), is_input=key in inputs)
        for key, (value, needs) in found.items()
    )


def _outside_ids(section: Section) -> set[int]:
    """Ids of values that the section's ops use but did not make."""
    made = {id(op.output.storage) for op in section.ops if op.output.owner is None}
    used = {id(value) for op in section.ops for value in op.inputs}
    return used - made


def kept_bytes(section: Section, *, weight_copies: bool = False) -> Number:
    return sum(
        item.value.nbytes for item in kept(section) if weight_copies or not item.is_weight_copy
    )
