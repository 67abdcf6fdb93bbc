"""Units: parameters that are gathered and reduced together, and what each of their tensors weighs on the way.

A rank's Program goes in, a list of Units in the order forward uses them comes out. Sizes only: when they are made and
dropped is `windows`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    has_ends = _fetches_ends(setup.versions, topology) or _carves_ends(setup, program, topology)
    ends = setup.parallel.units or ("ends" if has_ends else "root")
    groups: list[list[int]] = []
    root: list[int] = []
    for index, placed in enumerate(program.sections):
        if placed.section.is_block or (ends == "ends" and placed.section.params):
            groups.append([index])
        elif placed.section.params:
            root.append(index)
    groups = sorted([*groups, *([root] if root else [])])
    return _units_of_groups(setup, program, topology, [tuple(group) for group in groups])


def _units_of_groups(
    setup: Setup, program: Program, topology: Topology, groups: list[tuple[int, ...]]
) -> list[Unit]:
    """Identical blocks are one unit in other places; the last block may differ."""
    last = _last_block(program)
    made: dict[tuple[object, ...], Unit] = {}
    units = []
    for number, sections in enumerate(groups):
        key = (*(id(program.sections[index].section) for index in sections), sections[0] == last)
        if key not in made:
            made[key] = _unit(setup, program, topology, number, sections)
        units.append(replace(made[key], number=number, sections=sections))
    return units


def _last_block(program: Program) -> int:
    """The index of the last block; -1 where there is none."""
    blocks = (index for index, placed in enumerate(program.sections) if placed.section.is_block)
    return max(blocks, default=-1)


def _fetches_ends(versions: Versions, topology: Topology) -> bool:
    """ZeRO-3 fetches module by module; torchtitan wraps embedding and head since 2025."""
    titan = versions.framework == "torchtitan" and versions.torch >= (2, 8)
    return (topology.strategy == "zero3" and versions.framework != "megatron") or titan


def _carves_ends(setup: Setup, program: Program, topology: Topology) -> bool:
    """Whether FSDP2 makes units of embedding and head: accelerate does, unless they share a weight."""
    return (
        setup.versions.carves_ends
        and topology.strategy == "fsdp2"
        and not any(param.tied_to for placed in program.sections for param in placed.section.params)
    )


def _unit(
    setup: Setup, program: Program, topology: Topology, number: int, sections: tuple[int, ...]
) -> Unit:
    """One unit, with the bytes of every tensor that gathering and reducing it needs."""
    params = tuple(_params_of(program, sections))
    is_root = not program.sections[sections[0]].section.is_block
    sizes = _Sizes(
        setup=setup,
        topology=topology,
        params=params,
        trained=[param for param in params if param.trainable],
        pieces=tuple(_padded(param, topology) for param in params),
    )
    return Unit(
        number=number,
        sections=sections,
        elements=sum(param.numel for param in params),
        gathered_bytes=sizes.gathered_bytes,
        reduced_bytes=sizes.reduced_bytes,
        share_bytes=sizes.share_bytes,
        scattered_bytes=sizes.scattered_bytes,
        pieces=sizes.pieces,
        leaving_bytes=sizes.leaving_bytes,
        input_bytes=sizes.input_bytes,
        arriving_bytes=sizes.arriving_bytes,
        uncast_bytes=sizes.uncast_bytes,
        fetched=() if sizes.is_flat else sizes.fetched,
        vector_bytes=sizes.vector_bytes,
        whole_bytes=sizes.whole_bytes,
        numels=tuple(param.numel for param in sizes.trained),
        reshards=setup.parallel.reshard and not _stays_gathered(setup, program, topology, sections),
        is_root=is_root and len(sections) > 1,
    )


def _params_of(program: Program, sections: tuple[int, ...]) -> Iterator[Param]:
    """The sections' parameters; a tied one belongs to the section that declares it."""
    for index in sections:
        for param in program.sections[index].section.params:
            if param.tied_to is None:
                yield param


def _stays_gathered(
    setup: Setup, program: Program, topology: Topology, sections: tuple[int, ...]
) -> bool:
    """Backward needs the last parts at once, and a pipeline stage its parameters for every micro-batch."""
    first = sections[0]
    if first == 0 and topology.pp == 1 and _carves_ends(setup, program, topology):
        return False
    if topology.pp > 1 or not program.sections[first].section.is_block:
        return True
    return setup.versions.framework == "torchtitan" and first == _last_block(program)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """A unit's parameters, and the bytes of the tensors made of them."""

    setup: Setup
    topology: Topology
    params: tuple[Param, ...]
    trained: list[Param]
    pieces: tuple[int, ...]  # gathered bytes, parameter by parameter

    @property
    def is_flat(self) -> bool:
        """FSDP1 joins a unit's parameters in one vector."""
        return self.topology.strategy == "fsdp1"

    @property
    def casts(self) -> bool:
        """Are parameters gathered in another dtype than they are stored in?"""
        return self.setup.precision.autocast is not None

    @property
    def is_offloaded(self) -> bool:
        return offloads_params(self.setup.offload)

    @property
    def gathered_bytes(self) -> int:
        return sum(self.pieces)

    @property
    def shard_bytes(self) -> int:
        """Of the rank's part of what is gathered."""
        return self.gathered_bytes // self.topology.shard

    @property
    def reduced_bytes(self) -> int:
        """Of the reduce-scatter's input."""
        return sum(_reduced(param, self.setup, self.topology) for param in self.trained)

    @property
    def share_bytes(self) -> int:
        """Of the sharded gradient."""
        return self._shared(_gradient_item)

    @property
    def scattered_bytes(self) -> int:
        """Of the reduce-scatter's output, where it is not the gradient itself."""
        scattered = self._shared(_reduce_item)
        return 0 if scattered == self.share_bytes else scattered

    @property
    def leaving_bytes(self) -> int:
        """Of the gradient's cast before it goes to the host."""
        if not self.is_offloaded:
            return 0
        leaving = self._shared(_stored_item)
        return 0 if leaving == self._shared(_reduce_item) else leaving

    @property
    def input_bytes(self) -> int:
        """Of the cast shard; FSDP2 casts offloaded ones as it fetches them."""
        cast_apart = self.is_flat or not self.is_offloaded
        return self.shard_bytes if self.casts and cast_apart else 0

    @property
    def arriving_bytes(self) -> int:
        """Of the shard that comes from the host."""
        return self.shard_bytes if self.is_offloaded else 0

    @property
    def fetched(self) -> tuple[tuple[int, int], ...]:
        """Shards that come from the host, as they are stored and as they are gathered."""
        if not self.is_offloaded:
            return ()
        return tuple(_fetched(param, self.setup, self.topology) for param in self.params)

    @property
    def uncast_bytes(self) -> int:
        """Of the shard that FSDP1 casts when it has come from the host."""
        if not (self.casts and self.is_flat):
            return 0
        return sum(stored for stored, _ in self.fetched)

    @property
    def vector_bytes(self) -> int:
        """Of the gradient of a vector that holds frozen parameters too."""
        is_mixed = 0 < len(self.trained) < len(self.params)
        wraps_both = self.setup.versions.framework in MIXED_VECTORS
        return self.gathered_bytes if is_mixed and wraps_both else 0

    @property
    def whole_bytes(self) -> int:
        """Under no_sync gradients pile up unsharded. FSDP1's are flat: as large as a unit, however little of it
        trains."""
        if not self.trained or not accumulates_unsharded(self.setup):
            return 0
        if self.topology.strategy == "fsdp2":
            return self.reduced_bytes
        return self.gathered_bytes if self.is_flat else 0

    def _shared(self, item: Callable[[Param, Setup], int]) -> int:
        """Of the rank's part of gradients, at `item` bytes per element."""
        return _shared_bytes(self.trained, self.setup, self.topology, item)


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
