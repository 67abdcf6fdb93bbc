"""What torch.compile keeps of a section: AOTAutograd's partitioner recomputes chains of element-wise ops.

A recorded Section goes in and is rewritten in place: which values its ops keep. The partitioner's rules as of torch 2.4
(functorch `_partitioners.py`, `min_cut_rematerialization_partition` with its defaults): products, reductions and
attention are never recomputed; a value that a product or an attention needs in backward is kept as it is, for
recomputing it would make it again in memory; everything else is recomputed from what is kept. Dropout is recomputed
from its seed.
"""

from __future__ import annotations

from vramcast.models.record.program import Program
from vramcast.models.record.tape import Op, Section, Value

NEEDS_AS_IS = ("linear", "bmm", "flash attention", "efficient attention", "cudnn attention")
NEVER_AGAIN = (*NEEDS_AS_IS, "softmax", "embedding", "pow mean", "log_softmax", "nll_loss", "index_copy")


def compile_program(program: Program) -> None:
    """Blocks only, or every section, as the regime says."""
    if program.regime.compiled == "none":
        return
    sections = {id(placed.section): placed.section for placed in program.placed}
    for section in sections.values():
        if section.is_block or program.regime.compiled == "model":
            compile_section(section)


def compile_section(section: Section) -> None:
    made = {id(op.output): op for op in section.ops}
    stays = {id(value) for op in section.ops if op.name in NEEDS_AS_IS for value in op.saved}
    for op in section.ops:
        if op.name not in NEEDS_AS_IS and op.saved:
            op.saved = _sources(op, made, stays)


def _sources(op: Op, made: dict[int, Op], stays: set[int]) -> tuple[Value, ...]:
    """What the op's saved values are recomputed from."""
    found: dict[int, Value] = {}
    waiting, seen = list(op.saved), set()
    while waiting:
        value = waiting.pop().storage
        if id(value) in seen or value.param is not None:
            continue
        seen.add(id(value))
        maker = made.get(id(value))
        if maker is None:
            if not _is_mask(op, value):
                found[id(value)] = value
        elif id(value) in stays or maker.name in NEVER_AGAIN:
            found[id(value)] = value
        else:
            waiting.extend(maker.inputs)
    return tuple(found.values())


def _is_mask(op: Op, value: Value) -> bool:
    return op.name == "native_dropout" and value.dtype.name == "bool"
