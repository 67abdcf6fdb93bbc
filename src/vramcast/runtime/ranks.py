"""Numbers and failures on which all ranks agree. Without a process group every function concerns this process alone.

In: values of this rank. Out: the same answer on every rank. Integers are sent as int64 on the device the backend needs.
Does not know what is reduced.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from vramcast.errors import InputError


def world_size(group: dist.ProcessGroup | None = None) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def largest(values: Sequence[int], group: dist.ProcessGroup | None = None) -> list[int]:
    """Elementwise maximum over ranks."""
    return _reduce(values, dist.ReduceOp.MAX, group)


def smallest(values: Sequence[int], group: dist.ProcessGroup | None = None) -> list[int]:
    """Elementwise minimum over ranks."""
    return _reduce(values, dist.ReduceOp.MIN, group)


def average_(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Mean over ranks, in place. A sum and a division, because gloo has no average."""
    if (size := world_size(group)) > 1:
        dist.all_reduce(tensor, group=group)
        tensor.div_(size)
    return tensor


def raise_on_all_ranks(error: Exception | None) -> None:
    """Wait for all ranks; if any of them failed, raise on every rank, so that none waits for one that has ended.

    A rank that failed raises its own error; the others raise one line that names the first rank that did.
    """
    lines: list[str | None] = [None]
    if world_size() > 1:
        lines = [None] * world_size()
        dist.all_gather_object(lines, None if error is None else _first_line(error))
    if error is not None:
        raise error
    for rank, line in enumerate(lines):
        if line is not None:
            raise InputError(f"rank {rank} failed: {line}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _reduce(
    values: Sequence[int], op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
) -> list[int]:
    if world_size(group) == 1:
        return list(values)
    device = None
    if "nccl" in dist.get_backend(group):
        device = torch.device("cuda", torch.cuda.current_device())
    reduced = torch.tensor(list(values), dtype=torch.int64, device=device)
    dist.all_reduce(reduced, op=op, group=group)
    return [int(value) for value in reduced.tolist()]
