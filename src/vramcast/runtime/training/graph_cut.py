"""Cut an autograd graph at chosen tensors, finish one side, then replay the other side once.

In: tensors that some upstream graph produced. Out: leaves with the same values, and, after any number of losses were
run backward on them one at a time, one backward pass through the upstream graph with the sum of their gradients.
The result is that of a joint backward, but only one loss's graph is alive at a time. Does not know what the tensors
are: gate inputs and edited weights are both cut here.

Example: two losses whose graphs hold 3 GiB each use tensors that an editor made with a graph of 1 GiB. One joint
backward holds 1 + 3 + 3 = 7 GiB; with a cut it is 1 + 3 = 4 GiB, because the first graph is freed before the second
one is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from vramcast.errors import InputError


def as_leaf(
    tensor: Tensor, *, device: torch.device | str | None = None, requires_grad: bool = True
) -> Tensor:
    """The tensor's values without its graph, sharing storage where that keeps nothing else alive."""
    leaf = tensor.detach()
    if leaf.untyped_storage().nbytes() > leaf.numel() * leaf.element_size():
        leaf = leaf.clone()  # a view would keep its larger storage alive
    if device is not None:
        leaf = leaf.to(device)
    return leaf.requires_grad_(requires_grad and leaf.is_floating_point())


def without_graph(value: Any) -> Any:
    """A tensor as a leaf without a gradient; any other value as it is."""
    return as_leaf(value, requires_grad=False) if isinstance(value, Tensor) else value


class GraphCut:
    """Named tensors as leaves, optionally on another device.

    with GraphCut(edited, device="cuda:1") as cut:
        for loss_of in losses:
            loss_of(cut.leaves).backward()   # this loss's graph is freed here
        cut.replay()                         # one pass through whatever produced `edited`
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], *, device: torch.device | str | None = None
    ) -> None:
        constant = [name for name, tensor in tensors.items() if not tensor.requires_grad]
        if constant or not tensors:
            raise InputError(
                f"a graph can only be cut at tensors that carry a gradient; {constant or 'none'} given do not. "
                "Compute them outside torch.no_grad() from parameters that require gradients."
            )
        self._tensors = dict(tensors)
        self.leaves = {name: as_leaf(tensor, device=device) for name, tensor in tensors.items()}

    def __enter__(self) -> GraphCut:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def replay(self) -> None:
        """Send the leaves' gradients through the upstream graph, and release both."""
        reached = [name for name, leaf in self.leaves.items() if leaf.grad is not None]
        if not reached:
            raise InputError(
                "no gradient reached the cut: run at least one loss that uses `cut.leaves` backward before replay()."
            )
        tensors = [self._tensors[name] for name in reached]
        gradients = [_like(self.leaves[name].grad, self._tensors[name]) for name in reached]
        self.release()
        torch.autograd.backward(tensors, gradients)

    def release(self) -> None:
        self._tensors.clear()
        self.leaves.clear()


def _like(gradient: Tensor | None, tensor: Tensor) -> Tensor:
    assert gradient is not None
    return gradient.to(device=tensor.device, dtype=tensor.dtype)
