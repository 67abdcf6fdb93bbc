"""The host side of many ranks: what offloading moves there, per node; what loading and saving need for a while.

Pinned memory is rounded up to the next power of two for each tensor (CachingHostAllocator.h), and every rank of a node
takes its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from vramcast.engine.lines.host import host_side
from vramcast.engine.lines.optimizers import state_bytes
from vramcast.engine.lines.states import States
from vramcast.engine.parallel.sharding import KEPT_WHOLE, RankStates
from vramcast.engine.parallel.topology import GATHERING, Topology
from vramcast.engine.stream.checkpointing import pinned_line
from vramcast.errors import InputError
from vramcast.ledger import HOST, PHASES, PINNED, SAVE, Category, Entry, Origin
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Param
from vramcast.setup import Setup
from vramcast.setup.records import Checkpointing, Offload

# DeepSpeed zero/offload_config.py: numbers of buffers, elements of one, elements kept in host memory; zero/config.py
OPTIMIZER_BUFFERS, PARAM_BUFFERS, PARAM_BUFFER, MAX_IN_CPU = 4, 5, 100_000_000, 1_000_000_000
SUB_GROUP = 1_000_000_000
ON_THEIR_WAY = "gradients on their way to the optimizer"
ROUNDING = "c10 CachingHostAllocator.h: pinned blocks are powers of two"


def pinned_bytes(nbytes: int) -> int:
    return 1 << max(nbytes - 1, 0).bit_length() if nbytes else 0


def offloads_optimizer(offload: Offload) -> bool:
    return offload.what in ("optimizer", "params", "all")


def offloads_params(offload: Offload) -> bool:
    return offload.what in ("params", "all")


OWN_PART = ("torchtitan", "megatron", "torchtune")  # each rank builds and loads only what it keeps


def node_entries(
    setup: Setup,
    config: Config,
    whole: States,
    states: RankStates,
    topology: Topology,
    sizes: Sizes,
) -> Iterator[Entry]:
    """Lines for one node: every rank is a process with its own libraries, loader and model on its way to the GPU."""
    ranks = topology.ranks_per_node
    in_parts = setup.versions.framework in OWN_PART or topology.tp * topology.pp > 1
    loaded = States(params=states.weights, setup=setup) if in_parts else whole
    yield from host_side(setup, config, loaded, sizes, ranks)
    if setup.offload.device == "nvme":
        yield from swap_entries(setup.offload, states, ranks)
    elif offloads_optimizer(setup.offload):
        yield from _optimizer(setup, states, topology, ranks)
    if offloads_params(setup.offload) and setup.offload.device == "cpu":
        yield from _weights(states, topology, ranks)
    if topology.strategy in GATHERING and setup.versions.framework not in OWN_PART:
        yield _line(
            "whole state dict on rank 0 while saving",
            HOST,
            (SAVE,),
            sum(param.nbytes for param in whole.params),
            Category.WEIGHTS,
            "a full state dict gathered to the host; sharded checkpoints avoid it",
        )


def swap_entries(offload: Offload, states: RankStates, ranks: int) -> Iterator[Entry]:
    """What DeepSpeed holds in pinned memory on the way to NVMe; the rest is in files."""
    trained = sum(param.numel for param in states.params if param.trainable)
    group = min(trained, SUB_GROUP)
    yield _line(
        f"NVMe swap buffers of the optimizer, {OPTIMIZER_BUFFERS} × {group:,} × 4 B",
        PINNED,
        PHASES,
        _pinned([4 * group] * OPTIMIZER_BUFFERS) * ranks,
        Category.OPTIMIZER,
        "deepspeed/runtime/swap_tensor/optimizer_utils.py: buffer_count buffers as large as a sub-group",
    )
    yield _line(
        "gradients of the ranks' shares, and of one sub-group in fp32",
        HOST,
        PHASES,
        (trained * states.recipe.weights.nbytes + 4 * group) * ranks,
        Category.GRADIENTS,
        "deepspeed/runtime/zero/stage3.py: grad_partitions_flat_buffer, gradient_buffer; only states are swapped",
    )
    if not offloads_params(offload):
        return
    shares = _shares(states)
    largest = max((param.numel for param in shares), default=0)
    if largest >= PARAM_BUFFER:
        raise InputError(
            f"a rank's share of one parameter has {largest:,} elements, and DeepSpeed's swap buffers {PARAM_BUFFER:,} "
            "(offload_param.buffer_size): more GPUs make shares smaller, or keep weights in host memory"
        )
    item = states.recipe.weights.nbytes
    yield _line(
        f"NVMe swap buffers of weights, {PARAM_BUFFERS} × {PARAM_BUFFER:,} × {item} B",
        PINNED,
        PHASES,
        _pinned([PARAM_BUFFERS * PARAM_BUFFER * item]) * ranks,
        Category.WEIGHTS,
        "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py: one block of buffer_count × buffer_size",
    )
    yield _line(
        "weights that stay in host memory before NVMe (max_in_cpu)",
        PINNED,
        PHASES,
        _pinned([item * min(sum(param.numel for param in shares), MAX_IN_CPU)]) * ranks,
        Category.WEIGHTS,
        "deepspeed/runtime/zero/stage3.py: _create_param_groups_fp16_flat_cpu_memory, up to max_params_in_cpu",
    )


def offloaded_inputs(
    checkpointing: Checkpointing, program: Program, topology: Topology
) -> Iterator[Entry]:
    """Block inputs that recomputation fetches back, of all ranks of the node."""
    if checkpointing.how == "offload":
        for entry in pinned_line(checkpointing, program).entries():
            yield replace(entry, nbytes=entry.nbytes * topology.ranks_per_node)


def offloaded_modules(
    program: Program, topology: Topology, chunks: int, of: int
) -> Iterator[Entry]:
    """Saved tensors of offload-modules, of `chunks` passes through one of the rank's `of` model chunks."""
    each = [
        int(value.nbytes)
        for placed in program.sections
        for op in placed.section.ops
        for value in op.offloaded
    ]
    if each:
        yield _line(
            "saved tensors of offload-modules",
            PINNED,
            PHASES[1:],
            _pinned(each) * chunks // of * topology.ranks_per_node,
            Category.ACTIVATIONS,
            ROUNDING,
        )


def _optimizer(setup: Setup, states: RankStates, topology: Topology, ranks: int) -> Iterator[Entry]:
    """Master weights, moments and gradients of the rank's share: fp32, in flat tensors under ZeRO."""
    trained = [param for param in states.params if param.trainable]
    item = states.recipe.states.nbytes if states.recipe.states else None
    moments = sum(state_bytes(param, setup, item) for param in trained)
    yield _line(
        f"{setup.optimizer.name} states",
        HOST,
        PHASES,
        moments * ranks,
        Category.OPTIMIZER,
        "offloaded optimizer",
    )
    if states.recipe.master:
        master = 4 * sum(param.numel for param in trained)
        yield _line(
            "fp32 master weights",
            HOST,
            PHASES,
            master * ranks,
            Category.MASTER,
            "offloaded optimizer",
        )
    if topology.strategy in ("zero1", "zero2", "zero3"):
        yield from _zero_gradients(states, topology, ranks)
    else:
        each = [param.nbytes for param in trained]
        yield _line(
            ON_THEIR_WAY, PINNED, PHASES, _pinned(each) * ranks, Category.GRADIENTS, ROUNDING
        )


def _zero_gradients(states: RankStates, topology: Topology, ranks: int) -> Iterator[Entry]:
    """DeepSpeed's gradients on the host: in fp32 for the optimizer, and those that come from the GPU."""
    numel = sum(param.numel for param in states.params if param.trainable)
    fp32 = [4 * min(SUB_GROUP, numel - start) for start in range(0, numel, SUB_GROUP)]
    yield _line(
        "fp32 gradients of the optimizer",
        PINNED,
        PHASES,
        _pinned(fp32) * ranks,
        Category.GRADIENTS,
        "deepspeed/runtime/zero: `.grad` of the flat fp32 partitions; pinned with offload_optimizer.pin_memory",
    )
    if topology.strategy == "zero3":
        moved = numel * states.recipe.weights.nbytes
        where = "stage3.py: grad_partitions_flat_buffer"
    else:
        moved = max((param.nbytes for param in states.weights if param.trainable), default=0)
        where = (
            "stage_1_and_2.py: temp_grad_buffer_for_cpu_offload, as large as the largest parameter"
        )
    yield _line(
        ON_THEIR_WAY,
        PINNED,
        PHASES,
        _pinned([moved]) * ranks,
        Category.GRADIENTS,
        f"deepspeed/runtime/zero/{where}",
    )


def _weights(states: RankStates, topology: Topology, ranks: int) -> Iterator[Entry]:
    """ZeRO-3 puts the shares of what is trained into one pinned vector, whatever pin_memory says, and leaves the others
    as they are; FSDP pins each parameter's shard."""
    flat, shares = topology.strategy == "zero3", _shares(states)
    trained = [param.nbytes for param in shares if param.trainable or not flat]
    where = (
        "deepspeed/runtime/zero/stage3.py: _create_param_groups_fp16_flat_cpu_memory"
        if flat
        else ROUNDING
    )
    pinned = _pinned([sum(trained)] if flat else trained)
    yield _line(
        "sharded weights of the ranks", PINNED, PHASES, pinned * ranks, Category.WEIGHTS, where
    )
    frozen = sum(param.nbytes for param in shares) - sum(trained)
    if frozen:
        yield _line(
            "frozen weights' shares of the ranks",
            HOST,
            PHASES,
            frozen * ranks,
            Category.WEIGHTS,
            where,
        )


def _shares(states: RankStates) -> list[Param]:
    return [param for param in states.weights if not param.name.endswith(KEPT_WHOLE)]


def _pinned(sizes: Iterable[int]) -> int:
    return sum(pinned_bytes(nbytes) for nbytes in sizes)


def _line(
    component: str,
    place: str,
    phases: tuple[str, ...],
    nbytes: int,
    category: Category,
    source: str,
) -> Entry:
    return Entry(
        category=category,
        component=component,
        place=place,
        phases=phases,
        nbytes=nbytes,
        origin=Origin.FORMULA,
        formula="per node",
        source=source,
    )
