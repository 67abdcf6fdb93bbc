"""How the GPUs of a job are divided: sizes that multiply to the world, checked against the model and the framework.

In comes a Job and the model's config, out comes a Topology or an error that names the sizes. Knows nothing about bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from vramcast.errors import InputError
from vramcast.job import MOST_GPUS
from vramcast.models.read.config import LARGEST_DIM, Config
from vramcast.setup import Setup
from vramcast.setup.records import Experts, Offload, Parallel

SHARDED = ("fsdp1", "fsdp2", "zero1", "zero2", "zero3")
GATHERING = ("fsdp1", "fsdp2", "zero3")  # parameters themselves are sharded
OFFLOADS_STATES = ("optimizer", "params", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`data` counts data-parallel groups; with context parallelism, FSDP and ZeRO shard over data × cp ranks."""

    gpus: int
    gpus_per_node: int
    tp: int
    pp: int
    cp: int
    ep: int
    expert_tp: int
    data: int
    shard: int  # ranks that share one copy of the sharded states
    strategy: str
    cuts_into_experts: bool = (
        False  # FSDP2 shards experts along their width where they are fewer than the ranks
    )

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    @property
    def ranks_per_node(self) -> int:
        return min(self.gpus, self.gpus_per_node)

    @property
    def replicas(self) -> int:
        """Copies of the sharded states (HSDP): over them gradients are summed."""
        return self.data * self.cp // self.shard

    @property
    def expert_shard(self) -> int:
        """Ranks that share the states of the same experts."""
        return max(self.shard * self.tp // (self.ep * self.expert_tp), 1)

    @property
    def text(self) -> str:
        """`dp 64 · tp 8 · pp 16 · cp 2`, largest first only where there is more than one."""
        sizes = {"dp": self.data, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        return " · ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "1 GPU"


def topology_of(setup: Setup) -> Topology:
    """The division that the job asks for; every size must divide what is left."""
    tp, pp, cp, gpus = (
        setup.parallel.tp,
        setup.parallel.pp,
        setup.parallel.cp,
        setup.parallel.gpus,
    )
    model = tp * pp * cp
    if gpus % model:
        raise InputError(
            f"tp {tp} × pp {pp} × cp {cp} = {model} does not divide the {gpus} GPUs. "
            f"Take gpus {_multiples(gpus, model)}, or sizes whose product is one of {listed(divisors(gpus))}."
        )
    data = setup.parallel.gpus // model
    strategy = _strategy(setup.parallel, data)
    return Topology(
        gpus=setup.parallel.gpus,
        gpus_per_node=setup.parallel.gpus_per_node,
        tp=setup.parallel.tp,
        pp=setup.parallel.pp,
        cp=setup.parallel.cp,
        ep=setup.experts.ep,
        expert_tp=_expert_tp(setup),
        data=data,
        shard=_shard(setup.parallel, data, strategy),
        strategy=strategy,
        cuts_into_experts=setup.versions.framework == "torchtitan",
    )


def _strategy(parallel: Parallel, data: int) -> str:
    if parallel.strategy is None:
        return "ddp" if data * parallel.cp > 1 else "none"
    if parallel.strategy == "none" and data * parallel.cp > 1:
        raise InputError(
            f"strategy none leaves {data * parallel.cp} copies of the model that do not know of each other. "
            "Say ddp, fsdp1, fsdp2, zero1, zero2 or zero3; or raise tp, pp or cp until one copy is left."
        )
    return parallel.strategy


def _shard(parallel: Parallel, data: int, strategy: str) -> int:
    """Ranks over which states are split: all that hold the same part of the model, or the asked number (HSDP)."""
    if strategy not in SHARDED:
        return 1
    ranks = data * parallel.cp
    if parallel.shard_size is None:
        return ranks
    if ranks % parallel.shard_size:
        raise InputError(
            f"shard-size {parallel.shard_size} does not divide the {ranks} ranks "
            f"(dp {data} × cp {parallel.cp}). Sizes that do: {listed(divisors(ranks))}."
        )
    return parallel.shard_size


def _expert_tp(setup: Setup) -> int:
    """Megatron splits experts over tp unless told otherwise; the others keep an expert whole."""
    size = setup.experts.tp or (setup.parallel.tp if setup.versions.framework == "megatron" else 1)
    ranks = setup.parallel.gpus // setup.parallel.pp
    if ranks % (setup.experts.ep * size):
        raise InputError(
            f"ep {setup.experts.ep} × expert-tp {size} does not divide the {ranks} GPUs of a pipeline stage. "
            f"Experts are spread over dp × cp × tp: choose an ep that divides {ranks // size}."
        )
    return size


# ---- against the model


Refusals = Iterator[tuple[bool, str]]  # what is wrong with a job, if it is, and how that is said


def check_model(topology: Topology, config: Config, setup: Setup) -> None:
    """Refuse what no framework can run: heads, experts and layers that cannot be divided; and what would be left
    undone in silence."""
    _check_divisions(topology, config, setup.parallel)
    refusals = chain(
        _sharing_refusals(topology, config, setup),
        _offload_refusals(topology, setup.offload),
        _expert_refusals(topology, config, setup),
        _nvme_refusals(topology, setup.offload),
        _pipeline_refusals(topology, config, setup.parallel),
    )
    for is_wrong, message in refusals:
        if is_wrong:
            raise InputError(message)


def _check_divisions(topology: Topology, config: Config, parallel: Parallel) -> None:
    """Refuse sizes that do not divide what they are to divide."""
    is_ulysses = parallel.cp_style == "ulysses"
    for name, size, by, why in _divisions(topology, config, ulysses=is_ulysses):
        if size is not None and size % by:
            raise InputError(
                f"{config.where}: {name} {size} does not divide by {why}. Sizes that do: {listed(divisors(size))}."
            )


def _sharing_refusals(topology: Topology, config: Config, setup: Setup) -> Refusals:
    """Ranks that would have nothing to share."""
    yield (
        topology.ep > 1 and _experts(config) is None,
        f"ep {topology.ep} divides experts, and {config.where} has none: leave ep out",
    )
    yield (
        topology.cp > 1 and setup.kernels.attention in ("eager", "math"),
        f"attention {setup.kernels.attention} writes out whole rows of scores, "
        f"which cp {topology.cp} cannot divide. Take sdpa, flash, efficient or cudnn.",
    )


def _offload_refusals(topology: Topology, offload: Offload) -> Refusals:
    """Offloading that the strategy does not do."""
    needed = GATHERING if offload.what in ("params", "all") else SHARDED
    is_left_undone = topology.gpus > 1 and topology.strategy not in needed
    yield (
        is_left_undone and offload.what in OFFLOADS_STATES,
        f"offload {offload.what} is not something that strategy {topology.strategy} does. "
        f"Strategies that do: {', '.join(needed)}.",
    )


def _expert_refusals(topology: Topology, config: Config, setup: Setup) -> Refusals:
    """Settings about experts that mean nothing here."""
    experts, framework = setup.experts, setup.versions.framework
    has_none = _experts(config) is None
    yield (
        has_none and (experts.capacity is not None or experts.pad),
        f"expert-capacity and pad-experts are about experts, and {config.where} has none",
    )
    said = {
        "expert-dispatch": experts.dispatch,
        "expert-gemm": experts.gemm,
        "overlap-experts": experts.overlap,
    }
    about_experts = [name for name, value in said.items() if value]
    yield (
        has_none and bool(about_experts),
        f"{', '.join(about_experts)}: {config.where} has no experts",
    )
    yield (
        experts.dispatch is not None and framework != "megatron",
        f"expert-dispatch names Megatron's dispatchers, and framework is {framework}: leave it out",
    )
    yield (
        experts.overlap and topology.ep == 1,
        "overlap-experts hides the communication of expert parallelism: it needs ep of at least 2",
    )
    yield (
        experts.pad and experts.capacity is None,
        "pad-experts needs expert-capacity: that is what rows are padded to",
    )


def _nvme_refusals(topology: Topology, offload: Offload) -> Refusals:
    """Only ZeRO-3 writes to disks, and only states."""
    uses_nvme = offload.device == "nvme"
    yield (
        uses_nvme and topology.strategy != "zero3",
        f"offload-device nvme is something that zero3 does, not strategy {topology.strategy}",
    )
    yield (
        uses_nvme and offload.what not in OFFLOADS_STATES,
        f"offload-device nvme needs offload optimizer, params or all, not {offload.what}",
    )


def _pipeline_refusals(topology: Topology, config: Config, parallel: Parallel) -> Refusals:
    """Stages that no layer would fill, and schedules that do not go with their number."""
    layers = _first(config, "num_hidden_layers", "n_layer", "num_layers")
    virtual_stages, schedule = parallel.virtual_stages, parallel.schedule
    is_too_deep = layers is not None and layers < topology.pp * virtual_stages
    yield (
        topology.pp > 1 and is_too_deep,
        f"{layers} layers cannot fill pp {topology.pp} × virtual-stages {virtual_stages} stages. "
        f"Take pp × virtual-stages of at most {layers}.",
    )
    yield (
        virtual_stages > 1 and schedule != "interleaved",
        f"virtual-stages {virtual_stages} needs schedule interleaved, not {schedule}",
    )
    yield (
        schedule == "interleaved" and topology.pp > 1 and virtual_stages == 1,
        "schedule interleaved needs virtual-stages of at least 2, not 1; or say schedule 1f1b",
    )


def expert_load(experts: Experts) -> int:
    """Rows on the fullest GPU's experts in percent of an even share. Capacity bounds them (Megatron
    moe_expert_capacity_factor, DeepSpeed capacity_factor); padding fills them up to it."""
    if experts.capacity is None:
        return experts.load
    return experts.capacity if experts.pad else min(experts.load, experts.capacity)


def most_expert_load(topology: Topology, config: Config) -> int | None:
    """In percent of an even share, if all tokens of an expert-parallel group chose experts of one GPU."""
    chosen = _first(config, "num_experts_per_tok", "moe_topk", "num_experts_per_token")
    experts = _experts(config)
    if topology.ep == 1 or experts is None or not chosen:
        return None
    return 100 * topology.ep * min(chosen, experts // topology.ep) // chosen


def divisors(number: int) -> list[int]:
    """As far as GPUs go."""
    return [size for size in range(1, min(number, MOST_GPUS) + 1) if number % size == 0]


def listed(sizes: list[int]) -> str:
    """At most a dozen of them: small ones are what people choose."""
    return ", ".join(map(str, sizes[:12])) + (", …" if len(sizes) > 12 else "")


def _multiples(gpus: int, model: int) -> str:
    below, above = gpus // model * model, -(-gpus // model) * model
    return f"{below} or {above}" if below else str(above)


def _divisions(
    topology: Topology, config: Config, *, ulysses: bool
) -> Iterator[tuple[str, int | None, int, str]]:
    heads = _first(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    kv = _first(config, "num_key_value_heads")
    yield "heads", heads, topology.tp, f"tp {topology.tp}"
    if kv is not None and kv % topology.tp and topology.tp % kv:
        yield "key/value heads", kv, topology.tp, f"tp {topology.tp}, nor the other way round"
    if ulysses and heads is not None and heads % topology.tp == 0:
        yield (
            "heads per tensor-parallel GPU",
            heads // topology.tp,
            topology.cp,
            f"cp {topology.cp} (ulysses)",
        )
    yield "experts", _experts(config), topology.ep, f"ep {topology.ep}"


def _experts(config: Config) -> int | None:
    return _first(config, "num_local_experts", "num_experts", "n_routed_experts")


def _first(config: Config, *names: str) -> int | None:
    for name in names:
        value = config.data.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_DIM:
            return value
    return None  # or absurd, which the model's description refuses


def hints(topology: Topology) -> Iterator[str]:
    """What must stay within a node to be fast, where it does not."""
    node = topology.gpus_per_node
    if topology.tp > node:
        yield f"tp {topology.tp} spans nodes of {node} GPUs: every layer then waits for the network. Keep tp ≤ {node}."
    elif topology.tp > 1 and node % topology.tp:
        yield f"tp {topology.tp} does not divide a node's {node} GPUs: some groups span nodes."
    if topology.ep > 1 and topology.ep * topology.expert_tp > node:
        yield f"ep {topology.ep} spans nodes of {node} GPUs: tokens travel the network twice per layer."
    if (
        topology.strategy in GATHERING
        and topology.shard > node
        and topology.tp == 1
        and topology.shard > 512
    ):
        yield (
            f"{topology.strategy} over {topology.shard} ranks gathers every layer across the network: "
            "consider shard-size (HSDP)."
        )
