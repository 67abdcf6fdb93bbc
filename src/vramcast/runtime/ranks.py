"""Numbers on which all ranks agree. Without a process group every function is the identity.

Integers travel as int64 on the device the backend needs. Knows nothing about what is reduced.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


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


def _reduce(values: Sequence[int], op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None) -> list[int]:
    if world_size(group) == 1:
        return list(values)
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend(group) else None
    wire = torch.tensor(list(values), dtype=torch.int64, device=device)
    dist.all_reduce(wire, op=op, group=group)
    return [int(value) for value in wire.tolist()]
