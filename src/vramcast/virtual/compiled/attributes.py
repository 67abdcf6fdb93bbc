"""What a forward leaves on its modules, `self.last_loss = loss`: results of a compiled function like those it returns.

In come modules, out come the attributes that changed since they were looked at. Lists and dicts that a forward appends
to are not followed, nor what it leaves elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

BOOKKEEPING = ("_parameters", "_buffers", "_modules", "_compiled_call_impl", "forward", "training")
_ABSENT = object()
_PLAIN = (int, float, bool, str, type(None))

Place = tuple[int, str, str]  # which module, which part of it, which attribute


class Attributes:
    """The attributes of modules at one moment."""

    def __init__(self, modules: tuple[torch.nn.Module, ...]) -> None:
        self._parts = {
            (index, name): part
            for index, module in enumerate(modules)
            for name, part in module.named_modules()
        }
        self._before = {key: dict(vars(part)) for key, part in self._parts.items()}

    def take_changed(self) -> dict[Place, Any]:
        """What was set since then; the modules are as they were before."""
        changed: dict[Place, Any] = {}
        for (index, name), part in self._parts.items():
            before = self._before[index, name]
            for attribute, value in list(vars(part).items()):
                old = before.get(attribute, _ABSENT)
                if old is value or attribute in BOOKKEEPING:
                    continue
                if _is_result(value):
                    changed[index, name, attribute] = value
                if old is _ABSENT:
                    del part.__dict__[attribute]
                else:
                    part.__dict__[attribute] = old
        return changed


def set_attributes(modules: tuple[torch.nn.Module, ...], values: dict[Place, Any]) -> None:
    for (index, name, attribute), value in values.items():
        modules[index].get_submodule(name).__dict__[attribute] = value


def _is_result(value: Any) -> bool:
    """Tensors, numbers and words, also inside tuples, lists and dicts."""
    return all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in pytree.tree_leaves(value))
