"""What torch.compile saves of a section: AOTAutograd's partitioner recomputes chains of element-wise ops.

A recorded Section goes in and is rewritten in place: which values its ops save. The partitioner's rules as of torch 2.4
(functorch `_partitioners.py`, `min_cut_rematerialization_partition` with its defaults): products, reductions and
attention are never recomputed; a value that a product or an attention needs in backward is saved as it is, for
recomputing it would make it again in memory; everything else is recomputed from what is saved. Dropout is recomputed
from its seed.

Example: in down(silu(gate) · up), eager torch saves gate, silu(gate), up and the product. Compiled, gate and up stay
(products made them), the product stays (down needs it as it is), and silu(gate) is recomputed from gate.
"""

from __future__ import annotations

from vramcast.models.record.program import Program
from vramcast.models.record.tape import Op, Section, Value

NEEDS_INPUTS_AS_THEY_ARE = (
    "linear",
    "bmm",
    "flash attention",
    "efficient attention",
    "cudnn attention",
)
NEVER_RECOMPUTED = (
    *NEEDS_INPUTS_AS_THEY_ARE,
    "softmax",
    "embedding",
    "pow mean",
    "log_softmax",
    "nll_loss",
    "index_copy",
)


def compile_program(program: Program) -> None:
    """Blocks only, or every section, as the regime says."""
    if program.regime.compiled == "none":
        return
    sections = {id(placed.section): placed.section for placed in program.sections}
    for section in sections.values():
        if section.is_block or program.regime.compiled == "model":
            compile_section(section)


def compile_section(section: Section) -> None:
    maker_of = {id(op.output): op for op in section.ops}
    products = [op for op in section.ops if op.name in NEEDS_INPUTS_AS_THEY_ARE]
    saved_anyway = {id(value) for op in products for value in op.saved}
    for op in section.ops:
        if op.name not in NEEDS_INPUTS_AS_THEY_ARE and op.saved:
            op.saved = _sources_of_saved(op, maker_of, saved_anyway)


def _sources_of_saved(op: Op, maker_of: dict[int, Op], saved_anyway: set[int]) -> tuple[Value, ...]:
    """What the op's saved values are recomputed from: the nearest values that are saved."""
    sources: dict[int, Value] = {}
    waiting = list(op.saved)
    seen: set[int] = set()
    while waiting:
        value = waiting.pop().storage
        if id(value) in seen or value.param is not None:
            continue
        seen.add(id(value))
        maker = maker_of.get(id(value))
        if maker is None:  # it comes from outside of the section
            if not _is_dropout_mask(op, value):
                sources[id(value)] = value
        elif id(value) in saved_anyway or maker.name in NEVER_RECOMPUTED:
            sources[id(value)] = value
        else:
            waiting.extend(maker.inputs)
    return tuple(sources.values())


def _is_dropout_mask(op: Op, value: Value) -> bool:
    return op.name == "native_dropout" and value.dtype.name == "bool"
