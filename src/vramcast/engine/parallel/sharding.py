"""One rank's states: what of weights, gradients, master weights and optimizer states it stores, by framework.

In come the parameters of the rank's part of the model (tensor- and pipeline-parallel division done), out come lists of
Params with this rank's shapes. The first rank of a group is meant: padding makes it the largest.

Rules: FSDP2 cuts each parameter along its first axis into rows of ⌈rows / n⌉ (torch.chunk); FSDP1 flattens the
parameters of a unit and pads the whole to a multiple of n; ZeRO-3 cuts each flattened parameter and keeps those of up
to 100,000 elements whole on top; ZeRO-1 and 2 flatten all parameters into one vector; Megatron's distributed optimizer
shards its gradient buffer the same way, Megatron-FSDP the vectors of units as FSDP1 does. Experts are shared by fewer
ranks than the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from vramcast.engine.lines.optimizers import temporaries
from vramcast.engine.lines.states import States, gradient_bytes, unique
from vramcast.engine.parallel.dtensor import copied_rows, held_whole, whole_tables
from vramcast.engine.parallel.topology import GATHERING, Topology
from vramcast.engine.recording.regime import adapter_dtype
from vramcast.ledger import STEP
from vramcast.models.params import Params
from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Param
from vramcast.setup import Setup

KEPT_WHOLE = " (kept whole)"  # follows the name of a parameter that every rank holds whole in addition to its shard
PERSISTENT = 100_000  # DeepSpeed stage3_param_persistence_threshold, in elements


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStates(States):
    """`params` are what the optimizer updates on this rank; weights and gradients may be stored otherwise."""

    weights: Params
    gradients: Params
    statistics_bytes: int = 0  # of 4-bit weights: whole on every rank
    tables: tuple[Param, ...] = ()  # whose gradient is held whole (see `dtensor`)

    @property
    def gradient_bytes(self) -> int:
        return self.gradients.trained.total(lambda param: gradient_bytes(param, self.recipe))

    @property
    def temporary_bytes(self) -> int:
        """What the update adds."""
        if self.setup.optimizer.implementation == "in-backward":
            return 0
        item = self.recipe.states.nbytes if self.recipe.states else None
        rows = max(
            (sum(made) for made in copied_rows(self.setup.optimizer, self.tables)), default=0
        )
        return max(temporaries(self.trained, self.setup, item)[0], rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRest:
    """On a rank once optimizer states exist: persistent bytes by phase, its gradients, what the update adds."""

    by_phase: dict[str, int]
    gradient_bytes: int
    temporary_bytes: int

    def plus(self, nbytes: int) -> AtRest:
        """With so many more bytes in every phase."""
        return replace(
            self, by_phase={phase: held + nbytes for phase, held in self.by_phase.items()}
        )

    def peak(self, passes: dict[str, Number], *, with_gradients: bool) -> Number:
        """The largest allocated sum. `with_gradients`: they exist in every pass."""
        held = self.gradient_bytes if with_gradients else 0
        tops = (peak + held + self.by_phase[phase] for phase, peak in passes.items())
        return functools.reduce(
            maximum, tops, self.by_phase[STEP] + self.gradient_bytes + self.temporary_bytes
        )


def count_states(setup: Setup, params: Params, topology: Topology) -> RankStates:
    """Of parameters whose layers are unknown: an even part for each tp and pp rank, then sharded."""
    parts = topology.tp * topology.pp
    mine = Params(replace(param, shape=(-(-param.numel // parts),)) for param in params)
    share, strategy = _flat(mine, topology), topology.strategy
    if strategy in ("none", "ddp"):
        return RankStates(params=mine, setup=setup, weights=mine, gradients=mine)
    return RankStates(
        params=share,
        setup=setup,
        weights=share if strategy in GATHERING else mine,
        gradients=mine if strategy == "zero1" else share,
    )


Shard = Callable[[Param], Param]


def rank_states(setup: Setup, program: Program, topology: Topology) -> RankStates:
    """Made once for a stage's program, however many optimizers a search combines it with."""
    key = (rank_states, topology, setup.precision)
    found = program.once(key, lambda: _rank_states(setup, program, topology))
    return replace(found, setup=setup)


def _rank_states(setup: Setup, program: Program, topology: Topology) -> RankStates:
    whole = Params(_stored(param, setup, topology) for param in unique(program.params()))
    if topology.strategy not in GATHERING:
        return _shared(setup, program, topology, whole)
    packed = Params(_packed(param) for param in whole)
    statistics = whole.nbytes - packed.nbytes
    return replace(_shared(setup, program, topology, packed), statistics_bytes=statistics)


def _packed(param: Param) -> Param:
    return (
        param
        if param.stored_bytes is None
        else param.stored(param.dtype, param.shape, packed_bytes(param))
    )


def packed_bytes(param: Param) -> int | None:
    """What is sharded of a quantised parameter: its packed numbers. The statistics of 4-bit blocks are no parameter but
    an attribute of it (bitsandbytes QuantState), which every rank keeps whole, even with weights on the host."""
    four_bit = param.stored_bytes is not None and param.stored_bytes < param.numel
    return param.numel // 2 if four_bit else param.stored_bytes


def _shared(setup: Setup, program: Program, topology: Topology, whole: Params) -> RankStates:
    """The rank's part of each state, as the strategy shards it."""
    strategy = topology.strategy
    if strategy in ("none", "ddp"):
        return _replicated(setup, program, topology, whole)
    if strategy == "fsdp1" or (strategy == "zero3" and setup.versions.framework == "megatron"):
        flat = _flat_units(program, whole, topology)
        return RankStates(params=flat, setup=setup, weights=flat, gradients=flat)
    if strategy in ("fsdp2", "zero3"):
        return _cut_by_parameter(setup, topology, whole)
    flat = _flat(whole, topology)
    return RankStates(
        params=flat, setup=setup, weights=whole, gradients=flat if strategy == "zero2" else whole
    )


def _replicated(setup: Setup, program: Program, topology: Topology, whole: Params) -> RankStates:
    """Every rank has all states; gradients of some tables are not even divided over tp."""
    tables = whole_tables(setup.versions, program, topology)
    names = {table.name for table in tables}
    gradients = Params(
        held_whole(param, topology) if param.name in names else param for param in whole
    )
    return RankStates(params=whole, setup=setup, weights=whole, gradients=gradients, tables=tables)


def _cut_by_parameter(setup: Setup, topology: Topology, whole: Params) -> RankStates:
    """FSDP2 and ZeRO-3 shard parameter by parameter; ZeRO-3 keeps small ones whole in addition."""
    cut = _cutter(topology)
    shares = Params(cut(param) for param in whole)
    kept: tuple[Param, ...] = ()
    if topology.strategy == "zero3":
        small = (param for param in whole if param.numel <= PERSISTENT)
        kept = tuple(replace(param, name=param.name + KEPT_WHOLE) for param in small)
    weights = Params((*shares, *kept)) if topology.strategy == "zero3" else shares
    return RankStates(params=shares, setup=setup, weights=weights, gradients=shares)


def _stored(param: Param, setup: Setup, topology: Topology) -> Param:
    """In the dtype it is stored in, which FSDP's mixed precision does not compute in."""
    recipe = setup.precision
    mixed = topology.strategy in ("fsdp1", "fsdp2") and recipe.autocast is not None
    if mixed and param.stored_bytes is None:
        weights = recipe.weights if param.trainable else recipe.frozen or recipe.weights
        dtype = adapter_dtype(setup) if param.kind == "adapter" else weights
        return param.stored(dtype, param.shape, None)
    return param


def ranks_of(param: Param, topology: Topology) -> int:
    return topology.expert_shard if param.kind == "experts" else topology.shard


def shard_axis(param: Param, topology: Topology) -> int:
    """The first, as fully_shard does unless told otherwise; torchtitan's apply_fsdp cuts experts fewer than the ranks
    that share them along the second."""
    few = (
        param.kind == "experts"
        and len(param.shape) > 1
        and int(param.shape[0]) < ranks_of(param, topology)
    )
    return 1 if few and topology.cuts_into_experts else 0


def _cutter(topology: Topology) -> Shard:
    """FSDP2's rows, or an even cut of the flattened parameter."""

    shapes: dict[tuple[tuple[int, ...], str], tuple[int, ...]] = {}  # the same for identical layers

    def rows(param: Param) -> Param:
        n, kind = ranks_of(param, topology), (param.shape, param.kind)
        if kind not in shapes:
            axis = shard_axis(param, topology)
            shapes[kind] = tuple(
                -(-int(size) // n) if at == axis else size for at, size in enumerate(param.shape)
            )
        return param.stored(param.dtype, shapes[kind], _share(param, n))

    def flat(param: Param) -> Param:
        n = ranks_of(param, topology)
        return param.stored(param.dtype, (-(-param.numel // n),), _share(param, n))

    return rows if topology.strategy == "fsdp2" else flat


def _share(param: Param, n: int) -> int | None:
    return None if param.stored_bytes is None else -(-param.stored_bytes // n)


def _flat(params: Iterable[Param], topology: Topology) -> Params:
    """One vector per way of storing, cut into n parts."""
    return Params(_joined(group, topology) for group in _groups(params))


def _groups(params: Iterable[Param]) -> Iterable[list[Param]]:
    groups: dict[tuple[bool, str, bool, bool], list[Param]] = {}
    for param in params:
        key = (
            param.trainable,
            param.dtype.name,
            param.kind == "experts",
            param.stored_bytes is not None,
        )
        groups.setdefault(key, []).append(param)
    return groups.values()


def _joined(group: list[Param], topology: Topology) -> Param:
    n, numel = ranks_of(group[0], topology), sum(param.numel for param in group)
    stored = sum(param.nbytes for param in group) if group[0].stored_bytes is not None else None
    return replace(
        group[0],
        name=f"{group[0].name} and {len(group) - 1} more",
        shape=(-(-numel // n),),
        stored_bytes=None if stored is None else -(-stored // n),
    )


def _flat_units(program: Program, stored: Params, topology: Topology) -> Params:
    """FSDP1's FlatParameters: one per block and one for the rest."""
    *blocks, root = _units(program, stored)
    return Params(
        (*_flat(root, topology), *(param for unit in blocks for param in _flat(unit, topology)))
    )


def _units(program: Program, stored: tuple[Param, ...]) -> Iterable[list[Param]]:
    """The parameters of each block, then those of the root, which is wrapped last."""
    by_name = {param.name: param for param in stored}
    root: list[Param] = []
    for placed in program.sections:
        params = [by_name[param.name] for param in placed.params() if param.tied_to is None]
        if placed.section.is_block:
            yield params
        else:
            root += params
    yield root


def wrapped_vectors(
    setup: Setup, program: Program, topology: Topology
) -> list[tuple[tuple[int, ...], int]]:
    """Bytes of the parameters that FSDP1 joins into each of its vectors, in the order they are wrapped, and how many
    ranks share it."""
    whole = (_stored(param, setup, topology) for param in unique(program.params()))
    packed = tuple(_packed(param) for param in whole)
    groups = (group for unit in _units(program, packed) for group in _groups(unit))
    return [
        (tuple(param.nbytes for param in group), ranks_of(group[0], topology)) for group in groups
    ]
