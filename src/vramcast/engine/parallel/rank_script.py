"""One rank's step, tensor by tensor, as the allocator is asked for it: what is loaded, wrapped, sent, stepped.

A rank's states and the stream of its step go in, a RankScript comes out. Sums are the bill's business (see `ranks`);
here each tensor is a block of its own, because that is what decides which cached block fits the next one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.batch import batch_sizes
from vramcast.engine.lines.optimizers import is_paged, state_bytes, temporary_lists
from vramcast.engine.lines.overheads import workspaces
from vramcast.engine.lines.training_step import Step, loss_apart
from vramcast.engine.parallel.comm_buffers import filled, is_bucketed, sent_vectors
from vramcast.engine.parallel.dtensor import copied_rows, divides_itself
from vramcast.engine.parallel.fsdp_units import units_of
from vramcast.engine.parallel.gathering import GATHERED, copies_aside
from vramcast.engine.parallel.host import offloads_params
from vramcast.engine.parallel.rank_replay import BEFORE_25, RankScript, Wrapping
from vramcast.engine.parallel.sharding import RankStates, wrapped_vectors
from vramcast.engine.parallel.topology import Topology
from vramcast.engine.stream.timeline import Stamped, step_events
from vramcast.ledger import BACKWARD, LOSS, PHASES, Category, Entry
from vramcast.setup import Setup
from vramcast.units import MiB

Streams = tuple[list[Stamped], list[Stamped]]  # of a first step and of a later one

FIRST_BUCKET, BUCKET = MiB, 25 * MiB  # its _DEFAULT_FIRST_BUCKET_BYTES and bucket_cap_mb
ON_META = (
    "torchtitan",
    "torchtune",
    "hf",
    "trl",
    "accelerate",
)  # they shard a model without data, then fill it


def rank_script(
    step: Step,
    states: RankStates,
    topology: Topology,
    persistent: Iterable[Entry],
    streams: Streams,
    resident: tuple[int, ...],
    gpu: Gpu | None,
) -> RankScript:
    """`states` are those on the GPU; `resident` are companions' weights, which come when the model has been wrapped."""
    setup, program = step.setup, step.program
    wrapping = tuple(_wrapping(step, states, topology))
    buckets = _buckets_of(step, states, topology)
    units = units_of(setup, program, topology)
    waiting = any(unit.whole_bytes for unit in units)  # in the stream of each micro-batch
    first, later = (streams[0], streams[0]) if waiting else streams
    weights = () if wrapping else _weights(step, states)
    return RankScript(
        strategy=_replayed_strategy(setup, topology),
        first=first,
        later=later,
        wrapping=wrapping,
        tried=tuple(_tried(step, topology, wrapping)),
        weights=(*weights, *_other_states(step, states, persistent, bucketed=buckets is not None)),
        small=batch_sizes(program, setup),
        workspaces=workspaces(setup.versions, gpu),
        last_section=len(program.sections) - 1,
        states=tuple(_optimizer_states(setup, states)),
        step_temporaries=tuple(_step_temporaries(setup, states)),
        old_until=LOSS if loss_apart(setup) else BACKWARD,
        accumulates=setup.data.accumulate > 1 and not waiting,
        zero_grad_first=not step.grads_in_forward,
        resident=resident,
        pieces=_pieces(step, topology) if topology.strategy == "fsdp2" else {},
        broadcast=buckets.broadcast if buckets else (),
        buckets=buckets.first if buckets else (),
        rebuilt=buckets.rebuilt if buckets else (),
    )


def _replayed_strategy(setup: Setup, topology: Topology) -> str:
    """Older FSDP2 uses streams in another way."""
    is_older = topology.strategy == "fsdp2" and copies_aside(setup)
    return BEFORE_25 if is_older else topology.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buckets:
    """Vectors in which DDP sends the model, and those in which it reduces gradients."""

    broadcast: tuple[int, ...]
    first: tuple[int, ...]  # until the order of gradients is known
    rebuilt: tuple[int, ...]


def _buckets_of(step: Step, states: RankStates, topology: Topology) -> _Buckets | None:
    """None where gradients are not reduced in buckets."""
    if not is_bucketed(step.setup.versions, topology):
        return None
    return _Buckets(
        broadcast=tuple(sent_vectors(states)),
        first=(states.gradient_bytes,),
        rebuilt=tuple(filled(_as_they_come(step), (FIRST_BUCKET, BUCKET))),
    )


def _state_item(states: RankStates) -> int | None:
    """Bytes per element of an optimizer's state, where the recipe says so."""
    return states.recipe.states.nbytes if states.recipe.states else None


def _optimizer_states(setup: Setup, states: RankStates) -> Iterator[int]:
    """Two tensors per parameter, unless they are paged."""
    item = _state_item(states)
    for param in states.trained:
        if not is_paged(setup.optimizer, param):
            half = state_bytes(param, setup, item) // 2
            yield half
            yield half


def _step_temporaries(setup: Setup, states: RankStates) -> Iterator[tuple[int, ...]]:
    """Lists of tensors that the optimizer's step makes; an optimizer that steps in backward makes none."""
    if setup.optimizer.implementation != "in-backward":
        yield from copied_rows(setup.optimizer, states.tables)
        yield from temporary_lists(states.trained, setup, _state_item(states))


def _weights(step: Step, states: RankStates) -> Iterator[int]:
    if not offloads_params(step.setup.offload):
        yield from (param.nbytes for param in states.weights)


def _other_states(
    step: Step, states: RankStates, persistent: Iterable[Entry], *, bucketed: bool
) -> Iterator[int]:
    """What is allocated all the time in addition to weights: statistics, master weights, an average, buffers,
    gradients' own."""
    yield states.statistics_bytes
    always = (Category.MASTER, Category.COMPANION, *(() if bucketed else (Category.COMMUNICATION,)))
    here = (entry for entry in persistent if entry.place == step.place and entry.phases == PHASES)
    yield from (entry.nbytes for entry in here if entry.category in always)
    if step.accumulates_apart and not bucketed:
        yield states.gradient_bytes


def _wrapping(step: Step, states: RankStates, topology: Topology) -> Iterator[Wrapping]:
    """FSDP1 wraps a model with data in it, a plain loop calls fully_shard or parallelize_module on one."""
    versions = step.setup.versions
    if topology.strategy == "fsdp1":
        return _wrapped_vectors(step, topology)
    if versions.framework in ON_META:
        return iter(())
    if topology.strategy == "fsdp2":
        return _wrapped_units(step, states, topology)
    return _divided_params(states, topology) if divides_itself(versions, topology) else iter(())


def _wrapped_vectors(step: Step, topology: Topology) -> Iterator[Wrapping]:
    """FSDP1 joins a unit's parameters in a vector and cuts that."""
    stays = not offloads_params(step.setup.offload)
    for sizes, ranks in wrapped_vectors(step.setup, step.program, topology):
        yield Wrapping(params=sizes, shards=(-(-sum(sizes) // ranks),), stays=stays)


def _wrapped_units(step: Step, states: RankStates, topology: Topology) -> Iterator[Wrapping]:
    """FSDP2 cuts parameter by parameter, and the root's last."""
    stays = not offloads_params(step.setup.offload)
    shares = {param.name: param.nbytes for param in states.weights}
    units = units_of(step.setup, step.program, topology)
    for unit in sorted(units, key=lambda unit: (unit.is_root, unit.number)):
        placed = (step.program.sections[index] for index in unit.sections)
        params = [param for place in placed for param in place.params() if param.name in shares]
        whole = tuple(param.numel * states.recipe.weights.nbytes for param in params)
        cut = tuple(shares[param.name] for param in params)
        yield Wrapping(params=whole, shards=cut, joins=False, stays=stays, ranks=topology.tp)


def _divided_params(states: RankStates, topology: Topology) -> Iterator[Wrapping]:
    """parallelize_module cuts matrices; norms and most biases stay whole."""
    for param in states.weights:
        ranks = topology.tp if len(param.shape) > 1 else 1
        yield Wrapping(params=(param.nbytes * ranks,), shards=(param.nbytes,), joins=False)


def _tried(step: Step, topology: Topology, wrapping: tuple[Wrapping, ...]) -> Iterator[int]:
    """`_flat_param.py` init_flat_param_attributes: where it computes in another dtype, a shard in that, a whole vector
    in that and one in its own; else a whole vector. The root's come first."""
    recipe = step.states.recipe
    low = recipe.autocast.nbytes if recipe.autocast else recipe.weights.nbytes
    for unit in (*wrapping[-1:], *wrapping[:-1]) if topology.strategy == "fsdp1" else ():
        whole = sum(unit.params)
        cast = whole * low // recipe.weights.nbytes
        shard = sum(unit.shards) * low // recipe.weights.nbytes
        yield from (shard, cast, whole) if recipe.autocast else (whole,)


def _pieces(step: Step, topology: Topology) -> dict[object, tuple[int, ...]]:
    """Gathered parameters are copied out of the all-gather's output one by one."""
    return {
        ("outer", GATHERED, unit.number): unit.pieces
        for unit in units_of(step.setup, step.program, topology)
    }


def _as_they_come(step: Step) -> Iterator[int]:
    """Gradients in the order backward makes them, which is that of DDP's buckets from the second step on. The first
    share of a tied parameter's is none yet: what is added into it comes last."""
    shares: dict[Hashable, int] = {}
    for item in step_events(step.program, replace(step.mode(fresh=True), fresh_grads=True)):
        sign, key, nbytes, _, _ = item.event
        if isinstance(key, tuple) and key[:2] == ("outer", "gradient"):
            shares[key] = int(nbytes) if sign > 0 else 0
        elif isinstance(key, tuple) and key[0] == "gradient" and sign > 0:
            yield int(nbytes)
    yield from filter(None, shares.values())
