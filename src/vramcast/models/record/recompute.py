"""Parts of a layer that backward recomputes or fetches from the host: Megatron's recompute-modules and offload-modules.

In come ops as they were recorded; they leave without what backward will restore. Recomputation has two forms: a part
that saves only its inputs (tensor_parallel.checkpoint, here `checkpoint_part`), and a result that is dropped once
used (CheckpointWithoutOutput, here `discard_outputs`). What is needed before the part's own backward, and copies that
are still under way to the host or early from it, are not followed.

Example: three ops a, b, c that save u, v and w. `checkpoint_part` on an input x leaves x saved by a alone; u, v and w
become `restored` values of their ops, and all of them are `restored_here` at c, the first op that backward reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from vramcast.models.record.tape import Op, Tape, Value

MIN_OFFLOADED_ELEMENTS = 1 << 20  # min_offloaded_tensor_size: smaller tensors stay


@contextmanager
def offloadable(t: Tape, name: str) -> Iterator[None]:
    """A part of a layer whose saved tensors may be kept on the host (fine_grained_activation_offload.py)."""
    start = len(t.ops())
    yield
    if name in t.regime.offloaded:
        ops = t.ops()[start:]
        for op in ops:
            op.offloaded = tuple(value for value in op.saved if _is_large(value))
        _restore_where_needed(ops, {id(value) for op in ops for value in op.offloaded})


def _is_large(value: Value) -> bool:
    numel = prod(value.shape)
    if not isinstance(numel, int):  # a grid of sizes: all that matters is large
        return True
    return numel >= MIN_OFFLOADED_ELEMENTS


def checkpoint_part(t: Tape, start: int, *inputs: Value) -> None:
    """Of the ops from `start` on only `inputs` stay saved; all else is restored when backward reaches the last op."""
    ops = t.ops()[start:]
    if not any(op.saved for op in ops):
        return  # no gradient passes
    kept = {id(value.storage): value.storage for value in inputs}
    dropped = {id(value): value for op in ops for value in op.saved if id(value) not in kept}
    for op in ops:
        op.restored += tuple(value for value in op.saved if id(value) in dropped)
        op.saved = ()
    ops[0].saved = tuple(kept.values())
    ops[-1].restored_here += tuple(dropped.values())


def discard_outputs(t: Tape, start: int, *values: Value) -> None:
    """Ops from `start` on do not save `values`, which backward recomputes where it needs them first."""
    _restore_where_needed(t.ops()[start:], {id(value.storage) for value in values})


def _restore_where_needed(ops: Sequence[Op], ids: set[int]) -> None:
    """These values are saved no more: each is restored at the last op that used it, the first in backward."""
    missing = set(ids)
    for op in reversed(ops):
        restored = tuple(value for value in op.saved if id(value) in ids)
        op.restored += restored
        op.saved = tuple(value for value in op.saved if id(value) not in ids)
        op.restored_here += tuple(value for value in restored if id(value) in missing)
        missing -= {id(value) for value in restored}
