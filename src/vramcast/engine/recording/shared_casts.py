"""One 16-bit copy of a block's input, where autocast caches it for all products that read it.

autocast keeps copies of fp32 leaves that require grad (aten/src/ATen/autocast_mode.cpp, can_try_cache). Weights are
such leaves, and so is the input of a block that reentrant checkpointing runs again: torch/utils/checkpoint.py detaches
it first. The query, key and value projections of a post-norm encoder (BERT), which read it as it comes, then share a
copy; without reentrant checkpointing each makes its own.
"""

from __future__ import annotations

from vramcast.models.record.program import Program
from vramcast.models.record.tape import F32, Dtype, Op, Section, Value
from vramcast.setup import Setup


def shares_casts(setup: Setup) -> bool:
    """Are blocks run again from a detached input, under autocast?"""
    checkpointing = setup.checkpointing
    runs_again = checkpointing.how != "none" and checkpointing.is_reentrant
    return runs_again and setup.precision.autocast is not None


def share_casts(program: Program, setup: Setup) -> None:
    """Leave out all but the first copy, block by block."""
    compute = program.regime.autocast
    if compute is None or not shares_casts(setup):
        return
    blocks = (placed.section for placed in program.sections if placed.section.is_block)
    for section in {id(section): section for section in blocks}.values():
        _share(section, compute)


def _share(section: Section, compute: Dtype) -> None:
    entry = section.inputs[0]
    first: Value | None = None
    again: dict[int, Value] = {}
    kept: list[Op] = []
    for op in section.ops:
        if entry.dtype == F32 and _is_cast(op, entry, compute):
            if first is not None:
                again[id(op.output)] = first
                continue
            first = op.output
        _read(op, again)
        kept.append(op)
    section.ops[:] = kept


def _is_cast(op: Op, entry: Value, compute: Dtype) -> bool:
    return op.name == "to" and op.inputs[0] is entry and op.output.dtype == compute


def _read(op: Op, again: dict[int, Value]) -> None:
    """The op reads and keeps the first copy."""
    if not again:
        return
    op.inputs = tuple(again.get(id(value), value) for value in op.inputs)
    op.saved = tuple(again.get(id(value), value) for value in op.saved)
    op.held_by_locals = tuple(again.get(id(value), value) for value in op.held_by_locals)
    if op.output.owner is not None and id(op.output.owner) in again:
        op.output.owner = again[id(op.output.owner)]
