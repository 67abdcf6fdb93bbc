"""Parts of a layer that are computed again in backward, as Megatron's recompute-modules do.

In come ops as they were recorded; they leave without what backward will make anew. Two forms: a part that keeps only
its inputs (tensor_parallel.checkpoint), and a result that is let go once it was used (CheckpointWithoutOutput). What
comes back is counted at the op whose backward asks for it; how it overlaps with later ones is not followed.
"""

from __future__ import annotations

from vramcast.models.dims import Number
from vramcast.models.tape import Op, Tape, Value


def compute_again(t: Tape, start: int, *inputs: Value) -> None:
    """Of the ops from `start` on only `inputs` stay; all else that they kept is there again when backward begins."""
    ops = t.ops()[start:]
    held = {id(value.storage) for value in inputs}
    gone = {id(value): value for op in ops for value in op.saved if id(value) not in held}
    if not any(op.saved for op in ops):
        return  # no gradient passes
    for op in ops:
        op.saved = ()
    ops[0].saved = tuple({id(value.storage): value.storage for value in inputs}.values())
    _needs(ops[-1], sum(value.nbytes for value in gone.values()))


def let_go(t: Tape, start: int, *values: Value) -> None:
    """Ops from `start` on do not keep `values`, which backward makes again where it needs them."""
    gone = {id(value.storage) for value in values}
    for op in t.ops()[start:]:
        missed = [value for value in op.saved if id(value) in gone]
        if missed:
            op.saved = tuple(value for value in op.saved if id(value) not in gone)
            _needs(op, sum(value.nbytes for value in missed))


def _needs(op: Op, nbytes: Number) -> None:
    if op.backward_temps:
        op.backward_temps = (*op.backward_temps, nbytes)
    op.backward_temp_bytes = op.backward_temp_bytes + nbytes
