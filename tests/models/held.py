"""What autograd still holds of a layer when the model's forward pass is over.

Stricter than adding up what was saved on the way: a router's choice of experts leaves a graph that nobody keeps.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from real import autocast


class Holder:
    """Stands for a saved tensor in the graph; gone when the graph is."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def held_bytes(
    model: torch.nn.Module, names: tuple[str, ...], inputs: dict[str, Any], precision: str
) -> dict[str, int]:
    """Of each named module, without parameters, their 16-bit copies (told by shape) and tensors that came with the
    call, such as masks and tables."""
    with ExitStack() as stack:
        logs = {name: stack.enter_context(_watched(model.get_submodule(name))) for name in names}
        stack.enter_context(autocast(precision))
        output = model(**inputs)
    sizes = {name: _sum(model.get_submodule(name), *log) for name, log in logs.items()}
    del output
    return sizes


@contextmanager
def _watched(layer: torch.nn.Module) -> Iterator[tuple[list[Any], list[torch.Tensor]]]:
    references: list[Any] = []
    outside: list[torch.Tensor] = []
    hooks: list[Any] = []

    def pack(tensor: torch.Tensor) -> Holder:
        holder = Holder(
            tensor.detach()
        )  # the tensor itself would hold its graph, and the graph the holder
        references.append(weakref.ref(holder))
        return holder

    def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs["hidden_states"]
        outside.extend(x for x in _tensors((args, kwargs)) if x.data_ptr() != stream.data_ptr())
        hooks.append(torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor))
        hooks[-1].__enter__()

    def after(*ignored: Any) -> None:
        hooks.pop().__exit__(None, None, None)

    handles = [
        layer.register_forward_pre_hook(before, with_kwargs=True),
        layer.register_forward_hook(after),
    ]
    yield references, outside
    for handle in handles:
        handle.remove()


def _sum(module: torch.nn.Module, references: list[Any], outside: list[torch.Tensor]) -> int:
    known = {
        x.untyped_storage().data_ptr() for x in (*module.parameters(), *module.buffers(), *outside)
    }
    shapes = {tuple(p.shape) for p in module.parameters()}
    shapes |= {shape[1:] for shape in shapes if len(shape) == 3}  # one expert's slice
    shapes |= {shape[::-1] for shape in shapes}
    alive = [holder.tensor for reference in references if (holder := reference()) is not None]
    found = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in alive
        if not (tuple(x.shape) in shapes and x.dtype == torch.bfloat16)
    }
    return sum(nbytes for pointer, nbytes in found.items() if pointer not in known)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from _tensors(tuple(tree.values()))
    elif isinstance(tree, tuple | list):
        for branch in tree:
            yield from _tensors(branch)
