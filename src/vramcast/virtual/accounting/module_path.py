"""Which module's forward is running, by its path in the model; for an op of backward, the one that recorded it.

In come calls of `nn.Module`, which `install` patches. Out come the path ("GPT.blocks.3.mlp"), the models seen so far,
and the beginning and end of forward for `phases`. Does not know modules that are called around `Module.__call__`.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from vramcast.patches import Patches
from vramcast.virtual.accounting.phases import Phases

_MAX_REMEMBERED = 1 << 20  # autograd nodes; beyond, the oldest half is dropped


class _Stack(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


COMPILED = "_orig_mod"  # where torch.compile's wrapper keeps the module


def without_wrapper(path: str) -> str:
    """The name of a module or weight as it was before torch.compile wrapped its model."""
    return path.removeprefix(COMPILED).removeprefix(".").replace(f".{COMPILED}", "")


class ModulePath:
    """The stack of running modules, and the models they belong to."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._module_of_node: dict[int, str] = {}  # by the sequence number of the autograd node
        # The models, in the order of their first call: a WeakSet's order would differ from run to run.
        self.roots: weakref.WeakKeyDictionary[torch.nn.Module, None] = weakref.WeakKeyDictionary()
        self._of_thread = _Stack()

    @property
    def stack(self) -> list[str]:
        """The modules that run in this thread, outermost first."""
        return self._of_thread.names

    def install(self, patches: Patches) -> None:
        path = self
        original = torch.nn.Module.__call__

        def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            """Torch's profiler reads the local `self` of whatever is Module.__call__."""
            path.enter(self)
            try:
                return original(self, *args, **kwargs)
            finally:
                path.leave()

        patches.set(torch.nn.Module, "__call__", call)

    def enter(self, module: torch.nn.Module) -> None:
        name = self._names.get(module)
        stack = self.stack
        outermost = not stack
        if name is None or (outermost and module not in self.roots):
            name = self._name_root(module) if outermost else self._name_stranger(module)
        if outermost:
            self._begin_forward(module)
        stack.append(name)

    def leave(self) -> None:
        stack = self.stack
        stack.pop()
        if not stack:
            self._phases.end_forward()

    def current(self) -> str:
        """The module that runs, or that ran when the backward node now running was made."""
        node = torch._C._current_autograd_node()
        stack = self.stack
        if not stack:
            return "" if node is None else self._module_of_node.get(node._sequence_nr(), "")
        if torch.is_grad_enabled():
            # The node of this op exists already: autograd makes it before it calls the kernel.
            self._remember(torch.autograd._get_sequence_nr() - 1)
        return stack[-1]

    def _remember(self, node_number: int) -> None:
        self._module_of_node[node_number] = self.stack[-1]
        if len(self._module_of_node) > _MAX_REMEMBERED:
            for number in list(self._module_of_node)[: _MAX_REMEMBERED // 2]:
                del self._module_of_node[number]

    def _begin_forward(self, module: torch.nn.Module) -> None:
        trainable = any(parameter.requires_grad for parameter in module.parameters())
        with_gradients = torch.is_grad_enabled() and trainable
        self._phases.begin_forward(with_gradients=with_gradients, trainable=trainable)

    def _name_root(self, module: torch.nn.Module) -> str:
        """A module that no other one called: a model. The second one of a class is called "GPT#2"."""
        self.roots[module] = None
        same_class = sum(type(root) is type(module) for root in self.roots)
        root = type(getattr(module, COMPILED, module)).__name__
        if same_class > 1:
            root = f"{root}#{same_class}"
        for path, child in module.named_modules():
            path = without_wrapper(path)
            self._names[child] = f"{root}.{path}" if path else root
        return root

    def _name_stranger(self, module: torch.nn.Module) -> str:
        """A module that is called inside a model without being registered in it."""
        name = f"{self.stack[-1]}.{type(module).__name__}"
        self._names[module] = name
        return name
