"""Attributes set for a while, and put back exactly as they were, whatever happens in between.

Knows nothing about torch: an owner is any object that takes attributes.
"""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Remembers what stood in the owner's own namespace, so that an inherited attribute is inherited again."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Set, and give back what the name meant before (None where it meant nothing)."""
        before = getattr(owner, name, None)
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)
        return before

    def replaced(self) -> list[tuple[Any, Any]]:
        """What stood before and what stands now, in the order of setting."""
        return [(before, getattr(owner, name, None)) for owner, name, before in self._undo]

    def restore(self) -> None:
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
