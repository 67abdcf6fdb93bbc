"""Which tensors one layer of each stack saves for backward: for `vramcast estimate --explain`.

In: a Job whose model has a config, and names of activation lines. Out: LayerTensors, one per kind of layer that these
lines count. The model is recorded again, with the names of its sizes kept, so that each tensor has its formula.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.lines.training_step import stack_name
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.stream.checkpointing import recompute_rule
from vramcast.engine.stream.saved_tensors import Kept, kept
from vramcast.job import Job
from vramcast.models.record.dims import product_text
from vramcast.models.record.program import Program
from vramcast.models.record.tape import PlacedSection, Value
from vramcast.setup import complete, model_of, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    name: str  # empty: statistics of a kernel
    dtype: str
    nbytes: int
    formula: str
    needed_by: tuple[str, ...]  # ops of the backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """What one layer saves, and how many layers of its kind there are."""

    layer: str
    count: int
    is_recomputed: bool  # the tensors exist only while the layer is recomputed
    tensors: tuple[SavedTensor, ...]


def list_saved_tensors(job: Job, components: frozenset[str]) -> tuple[LayerTensors, ...]:
    """Saved tensors per kind of layer; empty if the model is only a count or a table of parameters."""
    config = None if job.model is None else model_of(complete(job)).config
    if config is None:
        return ()
    gpu = find_gpu(job.gpu) if job.gpu else None
    program = record_job(resolve(job), config, gpu, sizes_of(resolve(job).data, config))
    recomputation_of = recompute_rule(resolve(job).checkpointing)
    return tuple(
        LayerTensors(
            layer=placed.section.name,
            count=count,
            is_recomputed=recomputation_of(placed) != "none",
            tensors=tuple(_saved_tensor(item) for item in kept(placed.section)),
        )
        for placed, count in _count_layers(program)
        if stack_name(placed) in components
    )


def _count_layers(program: Program) -> list[tuple[PlacedSection, int]]:
    """Each recorded section once, with its number of occurrences."""
    counts: dict[int, tuple[PlacedSection, int]] = {}
    for placed in program.sections:
        first, count = counts.get(id(placed.section), (placed, 0))
        counts[id(placed.section)] = (first, count + 1)
    return list(counts.values())


def _saved_tensor(item: Kept) -> SavedTensor:
    value = item.value
    return SavedTensor(
        name=value.label,
        dtype=value.dtype.name,
        nbytes=int(value.nbytes),
        formula=_formula(value),
        needed_by=item.needed_by,
    )


def _formula(value: Value) -> str:
    """`b·s·h·4 = 2·256·3072·4`: the names, then the numbers put in."""
    names = product_text(value.shape, value.dtype.nbytes)
    numbers = product_text([int(dim) for dim in value.shape], value.dtype.nbytes)
    return numbers if names == numbers else f"{names} = {numbers}"
