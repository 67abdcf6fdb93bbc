"""What Transformer Engine and Megatron hold in addition to the tensors of a step: workspaces of products, stand-ins for
gradients, and a buffer for what is gathered.

In come a recorded program of Megatron's and the card, out come Entries. cuBLAS workspaces of torch itself are in
`overheads`: these are others, made with torch.empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import prod

from vramcast.catalog.gpus import Gpu
from vramcast.engine.parallel.megatron_fsdp import is_megatron_fsdp
from vramcast.engine.parallel.topology import Topology
from vramcast.ledger import BACKWARD, PHASES, Category, Entry, Origin
from vramcast.models.families.megatron_moe import TOKENS_GATHERED
from vramcast.models.record.dims import Number, maximum, unnamed
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Value
from vramcast.setup.records import Versions
from vramcast.units import MiB

STREAMS = (
    4  # nvte_get_num_compute_streams: a grouped product runs on that many, each with a workspace
)
NORM_GATHERED = "final_layernorm gathered"
SOURCE = "transformer_engine/pytorch/cpp_extensions/gemm.py get_cublas_workspace"
STAND_INS = (
    "transformer_engine/pytorch/module/base.py get_dummy_wgrad: one for each shape, kept for good"
)


def engine_entries(program: Program, gpu: Gpu | None, place: str) -> Iterator[Entry]:
    if program.regime.code != "megatron":
        return
    grouped = program.regime.experts == "grouped" and any(
        param.kind == "experts" for param in program.params()
    )
    one, count = _workspace_bytes(gpu), 1 + STREAMS * grouped
    yield Entry(
        category=Category.WORKSPACE,
        component="Transformer Engine's workspaces",
        place=place,
        phases=PHASES[1:],
        nbytes=count * one,
        origin=Origin.FORMULA,
        formula=f"{count} × {one / MiB:g} MiB",
        source=SOURCE,
    )
    gathered = unnamed(reduce(maximum, _gathered(program), 0))  # a grid where sizes are
    if not isinstance(gathered, int) or gathered:
        yield Entry(
            category=Category.COMMUNICATION,
            component="Megatron's buffer for gathered tokens",
            place=place,
            phases=PHASES[1:],
            nbytes=gathered,
            origin=Origin.FORMULA,
            formula="the largest of them, kept for good",
            source="megatron/core/utils.py GlobalMemoryBuffer: of the output layer, of the allgather dispatcher",
        )
    shapes = set(_stood_in(program))
    if shapes:
        nbytes = sum(prod(shape) for shape in shapes) * program.regime.weights.nbytes
        yield Entry(
            category=Category.GRADIENTS,
            component="stand-ins for weight gradients",
            place=place,
            phases=PHASES[PHASES.index(BACKWARD) :],
            nbytes=nbytes,
            origin=Origin.FORMULA,
            formula=f"{len(shapes)} shapes of weights",
            source=STAND_INS,
        )


def engine_texts(versions: Versions, topology: Topology, program: Program) -> Iterator[str]:
    """What was taken for granted about a job of Megatron's."""
    regime = program.regime
    if regime.code != "megatron":
        return
    if any(param.kind == "experts" for param in program.params()):
        how = "one grouped product" if regime.experts == "grouped" else "one after the other"
        yield f"rows reach experts by {regime.dispatch} (expert-dispatch), which run as {how} (expert-gemm)"
    if any(placed.name == "mtp" for placed in program.sections):
        yield "multi-token prediction after the last layer, with its own loss (num_nextn_predict_layers)"
    if regime.grad_fusion:
        yield "products add weight gradients to main gradients themselves (grad-fusion)"
    if is_megatron_fsdp(versions, topology):
        kind = "optim_grads_params" if topology.strategy == "zero3" else "optim_grads"
        yield f"{topology.strategy} under megatron is Megatron-FSDP ({kind})"


def _workspace_bytes(gpu: Gpu | None) -> int:
    """32 MiB and a page of scales from Hopper on, 4 MiB before."""
    major = gpu.compute_capability[0] if gpu and gpu.compute_capability else 8
    return 32 * MiB + 1024 if major >= 9 else 4 * MiB


def _gathered(program: Program) -> Iterator[Number]:
    """What goes into the buffer: the output layer's input along the whole sequence, and all tokens that a dispatcher
    shows to every rank."""
    for placed in program.sections:
        for op in placed.section.ops:
            before_logits = op.name == "all gather" and (
                placed.name == "head" or op.output.label == NORM_GATHERED
            )
            if before_logits or op.output.label == TOKENS_GATHERED:
                yield op.output.nbytes


def _stood_in(program: Program) -> Iterator[tuple[int, ...]]:
    """Shapes of weights whose gradients are summed by the product itself; an expert's weights one by one."""
    for placed in program.sections:
        for op in placed.section.ops:
            if op.adds_weight_grad:
                yield from (
                    _matrix(value)
                    for value in op.inputs
                    if value.param is not None and len(value.shape) > 1
                )


def _matrix(value: Value) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape[-2:])
