"""Where in the model the script is: the path of the module whose forward runs, also for ops of its backward."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu

_BACKWARD_MEMORY = 1 << 20  # sequence numbers remembered before the oldest half is dropped


class ModulePath:
    """The stack of running modules, and the models they belong to."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._by_sequence: dict[int, str] = {}
        self.roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.stack: list[str] = []

    def install(self, patches: Patches) -> None:
        path = self
        original = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            path.enter(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                path.leave()

        patches.set(torch.nn.Module, "__call__", call)

    def enter(self, module: torch.nn.Module) -> None:
        name = self._names.get(module)
        outermost = not self.stack
        if name is None or (outermost and module not in self.roots):
            name = self._name(module, outermost)
        if outermost:
            self._gpu.forward_begins(module)
        self.stack.append(name)

    def leave(self) -> None:
        self.stack.pop()
        if not self.stack:
            self._gpu.phases.forward_ends()

    def current(self) -> str:
        """The module that runs, or that ran when the backward node now running was made."""
        node = torch._C._current_autograd_node()
        if node is not None and not self.stack:
            return self._by_sequence.get(node._sequence_nr(), "")
        if not self.stack:
            return ""
        if torch.is_grad_enabled():
            # the node of this op exists already: autograd makes it before it calls the kernel
            self._by_sequence[torch.autograd._get_sequence_nr() - 1] = self.stack[-1]
            if len(self._by_sequence) > _BACKWARD_MEMORY:
                for number in list(self._by_sequence)[: _BACKWARD_MEMORY // 2]:
                    del self._by_sequence[number]
        return self.stack[-1]

    def _name(self, module: torch.nn.Module, outermost: bool) -> str:
        if not outermost:
            name = f"{self.stack[-1]}.{type(module).__name__}"
            self._names[module] = name
            return name
        self.roots.add(module)
        same = sum(type(root) is type(module) for root in self.roots)
        root = type(module).__name__ + (f"#{same}" if same > 1 else "")
        for path, child in module.named_modules():
            self._names[child] = f"{root}.{path}" if path else root
        return root
