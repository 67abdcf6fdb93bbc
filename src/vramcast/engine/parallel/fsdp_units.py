"""Units: parameters that are gathered and reduced together, and what each of their tensors weighs on the way.

A rank's Program goes in, a list of Units in the order forward uses them comes out. Sizes only: when they are made and
dropped is `windows`' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vramcast.engine.parallel.host import offloads_params
from vramcast.engine.parallel.sharding import packed_bytes, ranks_of, shard_axis
from vramcast.engine.parallel.topology import Topology
from vramcast.engine.recording.regime import adapter_dtype
from vramcast.models.record.program import Program
from vramcast.models.record.tape import F32, Param
from vramcast.setup import Setup
from vramcast.setup.records import Versions

MIXED_VECTORS = (
    "litgpt",
    "lightning",
)  # they wrap blocks whole, adapters included (use_orig_params); PEFT's policy not


NO_SYNC = (
    "litgpt",
    "lightning",
    "hf",
    "trl",
    "accelerate",
)  # these skip the reduction between micro-batches


def accumulates_unsharded(setup: Setup) -> bool:
    """Between micro-batches; pipeline schedules reduce after the last one, whatever the framework."""
    return setup.data.accumulate > 1 and (
        setup.versions.framework in NO_SYNC or setup.parallel.pp > 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Parameters that are gathered together, and the sections that use them."""

    number: int
    sections: tuple[int, ...]
    elements: int
    gathered_bytes: int
    reduced_bytes: int  # of the reduce-scatter's input
    share_bytes: int  # of the sharded gradient
    reshards: bool
    vector_bytes: int = 0  # of the gradient of a vector that holds frozen parameters too
    arriving_bytes: int = 0  # of an offloaded shard that is copied to the GPU before it is gathered
    input_bytes: int = 0  # of the shards that are cast before they are gathered
    uncast_bytes: int = 0  # of an offloaded shard that FSDP1 casts when it has come
    scattered_bytes: int = 0  # of the reduce-scatter's output, where the gradient has another dtype
    leaving_bytes: int = (
        0  # of its cast to the gradient's dtype, where that goes to the host at once
    )
    fetched: tuple[
        tuple[int, int], ...
    ] = ()  # offloaded shards as FSDP2 fetches them, and their casts (0: none)
    pieces: tuple[int, ...] = ()  # gathered bytes, parameter by parameter
    numels: tuple[
        int, ...
    ] = ()  # of the parameters that are trained, in the order forward uses them
    whole_bytes: int = 0  # of gradients that wait unsharded for the last micro-batch
    is_root: bool = (
        False  # the parts around the blocks, gathered together: finished last in forward
    )


def units_of(setup: Setup, program: Program, topology: Topology) -> list[Unit]:
    """One unit per block; embedding, last norm and head are one root unit, or units of their own."""
    asked = (
        setup.precision,
        setup.adapter.dtype,
        setup.offload.what,
        setup.versions.framework,
        setup.versions.torch,
        setup.parallel.reshard,
        setup.parallel.units,
    )
    key = (units_of, topology, *asked, accumulates_unsharded(setup))
    return program.once(key, lambda: _units(setup, program, topology))


def _units(setup: Setup, program: Program, topology: Topology) -> list[Unit]:
    ends = setup.parallel.units or ("ends" if _fetches_ends(setup.versions, topology) else "root")
    groups: list[list[int]] = []
    root: list[int] = []
    for index, placed in enumerate(program.sections):
        if placed.section.is_block or (ends == "ends" and placed.section.params):
            groups.append([index])
        elif placed.section.params:
            root.append(index)
    groups = sorted([*groups, *([root] if root else [])])
    return _alike(setup, program, topology, [tuple(group) for group in groups])


def _alike(
    setup: Setup, program: Program, topology: Topology, groups: list[tuple[int, ...]]
) -> list[Unit]:
    """Blocks of one kind are one unit in other places; the last block may differ."""
    last = max(
        (index for index, placed in enumerate(program.sections) if placed.section.is_block),
        default=-1,
    )
    made: dict[tuple[object, ...], Unit] = {}
    units = []
    for number, sections in enumerate(groups):
        key = (*(id(program.sections[index].section) for index in sections), sections[0] == last)
        if key not in made:
            made[key] = _unit(setup, program, topology, number, sections)
        units.append(replace(made[key], number=number, sections=sections))
    return units


def _fetches_ends(versions: Versions, topology: Topology) -> bool:
    """ZeRO-3 fetches module by module; torchtitan wraps embedding and head since 2025."""
    titan = versions.framework == "torchtitan" and versions.torch >= (2, 8)
    return (topology.strategy == "zero3" and versions.framework != "megatron") or titan


def _unit(
    setup: Setup, program: Program, topology: Topology, number: int, sections: tuple[int, ...]
) -> Unit:
    params = [
        p for index in sections for p in program.sections[index].section.params if p.tied_to is None
    ]
    trained = [param for param in params if param.trainable]
    pieces = tuple(_padded(param, topology) for param in params)
    gathered, share = sum(pieces), _shared_bytes(trained, setup, topology, _gradient_item)
    scattered = _shared_bytes(trained, setup, topology, _reduce_item)
    offloaded = offloads_params(setup.offload)
    leaving = _shared_bytes(trained, setup, topology, _stored_item) if offloaded else 0
    fetched = tuple(_fetched(param, setup, topology) for param in params) if offloaded else ()
    casts, flat = setup.precision.autocast is not None, topology.strategy == "fsdp1"
    last_block = max(
        (i for i, placed in enumerate(program.sections) if placed.section.is_block), default=-1
    )
    is_root = not program.sections[sections[0]].section.is_block
    kept = (
        is_root
        or topology.pp > 1
        or (setup.versions.framework == "torchtitan" and sections[0] == last_block)
    )
    return Unit(
        number=number,
        sections=sections,
        elements=sum(param.numel for param in params),
        gathered_bytes=gathered,
        reduced_bytes=sum(_reduced(param, setup, topology) for param in trained),
        share_bytes=share,
        scattered_bytes=scattered if scattered != share else 0,
        pieces=pieces,
        leaving_bytes=leaving if leaving != scattered else 0,
        input_bytes=gathered // topology.shard if casts and (flat or not offloaded) else 0,
        arriving_bytes=gathered // topology.shard if offloaded else 0,
        uncast_bytes=sum(stored for stored, _ in fetched) if casts and flat and offloaded else 0,
        fetched=() if flat else fetched,
        vector_bytes=gathered
        if setup.versions.framework in MIXED_VECTORS and 0 < len(trained) < len(params)
        else 0,
        whole_bytes=_whole(setup, topology, trained, gathered),
        numels=tuple(param.numel for param in trained),
        reshards=setup.parallel.reshard and not kept,
        is_root=is_root and len(sections) > 1,
    )


def _whole(setup: Setup, topology: Topology, trained: list[Param], gathered: int) -> int:
    """Under no_sync gradients pile up unsharded. FSDP1's are flat: as large as a unit, however little of it trains."""
    if (
        not trained
        or topology.strategy not in ("fsdp1", "fsdp2")
        or not accumulates_unsharded(setup)
    ):
        return 0
    return (
        gathered
        if topology.strategy == "fsdp1"
        else sum(_reduced(param, setup, topology) for param in trained)
    )


def _shared_bytes(
    params: list[Param], setup: Setup, topology: Topology, item: Callable[[Param, Setup], int]
) -> int:
    """Of the rank's part of gradients."""
    shares = (
        (param, -(-_padded(param, topology) // ranks_of(param, topology))) for param in params
    )
    return sum(nbytes // param.dtype.nbytes * item(param, setup) for param, nbytes in shares)


def _padded(param: Param, topology: Topology) -> int:
    """Gathered bytes: rows rounded up to a multiple of the ranks."""
    packed = packed_bytes(param)
    if packed is not None:
        return packed
    n, rows = (
        ranks_of(param, topology),
        int(param.shape[shard_axis(param, topology)]) if param.shape else 1,
    )
    return param.numel // max(rows, 1) * (-(-rows // n) * n) * param.dtype.nbytes


def _reduced(param: Param, setup: Setup, topology: Topology) -> int:
    return _padded(param, topology) // param.dtype.nbytes * _reduce_item(param, setup)


def _reduce_item(param: Param, setup: Setup) -> int:
    """torchtitan and Hugging Face's trainers reduce in fp32 under mixed precision; else in the gradient's dtype."""
    mixed = setup.precision.autocast is not None
    return (
        F32.nbytes
        if mixed and setup.versions.framework in ("torchtitan", "torchtune")
        else param.dtype.nbytes
    )


def _gradient_item(param: Param, setup: Setup) -> int:
    """A sharded gradient has its parameter's dtype; with an offloaded optimizer it goes to the host at once."""
    return 0 if setup.offload.what in ("optimizer", "params", "all") else _stored_item(param, setup)


def _stored_item(param: Param, setup: Setup) -> int:
    return (
        adapter_dtype(setup).nbytes if param.kind == "adapter" else setup.precision.weights.nbytes
    )


def _fetched(param: Param, setup: Setup, topology: Topology) -> tuple[int, int]:
    """`_fsdp_param.py` all_gather_inputs: the shard as it is stored, and as it is gathered."""
    gathered = _padded(param, topology) // ranks_of(param, topology)
    if param.stored_bytes is not None:
        return gathered, 0
    stored = gathered // param.dtype.nbytes * _stored_item(param, setup)
    return stored, gathered if stored != gathered else 0
