"""Parts of a layer that are computed again in backward or kept on the host, as Megatron's recompute-modules and
offload-modules are.

In come ops as they were recorded; they leave without what backward will make anew or fetch. Recomputation has two
forms: a part that keeps only its inputs (tensor_parallel.checkpoint), and a result that is let go once it was used
(CheckpointWithoutOutput). What is needed before the part's own backward, and copies that are still under way to the
host or early from it, are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from vramcast.models.record.tape import Op, Tape, Value

LEAST = 1 << 20  # elements: min_offloaded_tensor_size, smaller tensors stay


@contextmanager
def module(t: Tape, name: str) -> Iterator[None]:
    """A part of a layer whose saved tensors may be kept on the host (fine_grained_activation_offload.py)."""
    start = len(t.ops())
    yield
    if name in t.regime.away:
        ops = t.ops()[start:]
        for op in ops:
            op.away = tuple(value for value in op.saved if _is_large(value))
        _lend(ops, {id(value) for op in ops for value in op.away})


def _is_large(value: Value) -> bool:
    numel = prod(value.shape)
    return not isinstance(numel, int) or numel >= LEAST  # of a grid of sizes: all that is worth a thought


def compute_again(t: Tape, start: int, *inputs: Value) -> None:
    """Of the ops from `start` on only `inputs` stay; all else that they kept is there again when backward begins."""
    ops = t.ops()[start:]
    held = {id(value.storage): value.storage for value in inputs}
    if not any(op.saved for op in ops):
        return  # no gradient passes
    gone = {id(value): value for op in ops for value in op.saved if id(value) not in held}
    for op in ops:
        op.borrowed = (*op.borrowed, *(value for value in op.saved if id(value) in gone))
        op.saved = ()
    ops[0].saved = tuple(held.values())
    ops[-1].returning = (*ops[-1].returning, *gone.values())


def let_go(t: Tape, start: int, *values: Value) -> None:
    """Ops from `start` on do not keep `values`, which backward makes again where it needs them first."""
    _lend(t.ops()[start:], {id(value.storage) for value in values})


def _lend(ops: Sequence[Op], ids: set[int]) -> None:
    """Values that are saved no more come back for the last op that used them, which is the first in backward."""
    missing = set(ids)
    for op in reversed(ops):
        lent = tuple(value for value in op.saved if id(value) in ids)
        op.borrowed = (*op.borrowed, *lent)
        op.saved = tuple(value for value in op.saved if id(value) not in ids)
        op.returning = (*op.returning, *(value for value in lent if id(value) in missing))
        missing -= {id(value) for value in lent}
