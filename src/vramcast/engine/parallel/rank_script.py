"""One rank's step, tensor by tensor, as the allocator is asked for it: what is loaded, wrapped, sent, stepped.

A rank's states and the stream of its step go in, a RankScript comes out. Sums are the bill's business (see `ranks`);
here each tensor is a block of its own, because that is what decides which cached block fits the next one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.batch import batch_values
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
    lying: Iterable[Entry],
    streams: Streams,
    resident: tuple[int, ...],
    gpu: Gpu | None,
) -> RankScript:
    """`states` are those on the GPU; `resident` are companions' weights, which come when the model has been wrapped."""
    setup, program = step.setup, step.program
    item = states.recipe.states.nbytes if states.recipe.states else None
    halves = (
        state_bytes(param, setup, item) // 2
        for param in states.trained
        if not is_paged(setup.optimizer, param)
    )
    wrapping = tuple(_wrapping(step, states, topology))
    bucketed = is_bucketed(setup.versions, topology)
    waiting = any(
        unit.whole_bytes for unit in units_of(setup, program, topology)
    )  # in the stream of each micro-batch
    first, later = (streams[0], streams[0]) if waiting else streams
    strategy = (
        BEFORE_25 if topology.strategy == "fsdp2" and copies_aside(setup) else topology.strategy
    )
    return RankScript(
        strategy=strategy,
        first=first,
        later=later,
        wrapping=wrapping,
        tried=tuple(_tried(step, topology, wrapping)),
        weights=(
            *(() if wrapping else _weights(step, states)),
            *_beside(step, states, lying, bucketed=bucketed),
        ),
        small=tuple(int(value.nbytes) for value in batch_values(program, setup.versions)),
        workspaces=workspaces(setup.versions, gpu),
        last_section=len(program.sections) - 1,
        states=tuple(half for each in halves for half in (each, each)),
        step_temporaries=()
        if setup.optimizer.implementation == "in-backward"
        else (
            *copied_rows(setup.optimizer, states.tables),
            *temporary_lists(states.trained, setup, item),
        ),
        old_until=LOSS if loss_apart(setup) else BACKWARD,
        accumulates=setup.data.accumulate > 1 and not waiting,
        zero_grad_first=not step.grads_in_forward,
        resident=resident,
        pieces=_pieces(step, topology) if topology.strategy == "fsdp2" else {},
        broadcast=tuple(sent_vectors(states)) if bucketed else (),
        buckets=(states.gradient_bytes,) if bucketed else (),
        rebuilt=tuple(filled(_as_they_come(step), (FIRST_BUCKET, BUCKET))) if bucketed else (),
    )


def _weights(step: Step, states: RankStates) -> Iterator[int]:
    if not offloads_params(step.setup.offload):
        yield from (param.nbytes for param in states.weights)


def _beside(
    step: Step, states: RankStates, lying: Iterable[Entry], *, bucketed: bool
) -> Iterator[int]:
    """What lies there all the time beside weights: statistics, master weights, an average, buffers, gradients' own."""
    yield states.statistics_bytes
    always = (Category.MASTER, Category.COMPANION, *(() if bucketed else (Category.COMMUNICATION,)))
    here = (entry for entry in lying if entry.place == step.place and entry.phases == PHASES)
    yield from (entry.nbytes for entry in here if entry.category in always)
    if step.accumulates_apart and not bucketed:
        yield states.gradient_bytes


def _wrapping(step: Step, states: RankStates, topology: Topology) -> Iterator[Wrapping]:
    """FSDP1 wraps a model with data in it, a plain loop calls fully_shard or parallelize_module on one."""
    setup, stays = step.setup, not offloads_params(step.setup.offload)
    if topology.strategy == "fsdp1":
        for sizes, ranks in wrapped_vectors(setup, step.program, topology):
            yield Wrapping(params=sizes, shards=(-(-sum(sizes) // ranks),), stays=stays)
    elif topology.strategy == "fsdp2" and setup.versions.framework not in ON_META:
        shares = {param.name: param.nbytes for param in states.weights}
        for unit in sorted(
            units_of(setup, step.program, topology), key=lambda unit: (unit.is_root, unit.number)
        ):
            params = [
                p
                for at in unit.sections
                for p in step.program.sections[at].params()
                if p.name in shares
            ]
            whole = tuple(param.numel * states.recipe.weights.nbytes for param in params)
            cut = tuple(shares[param.name] for param in params)
            yield Wrapping(params=whole, shards=cut, joins=False, stays=stays, ranks=topology.tp)
    elif divides_itself(setup.versions, topology) and setup.versions.framework not in ON_META:
        for param in states.weights:
            ranks = topology.tp if len(param.shape) > 1 else 1  # norms and most biases stay whole
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
