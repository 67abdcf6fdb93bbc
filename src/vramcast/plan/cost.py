"""What a step costs in time: FLOPs, recomputation, bytes through memory and over PCIe. Ranges, never bare numbers.

Every constant is an assumption with a low and a high end, and where it comes from stands beside it (docs/planning.md).
Number-like as the engine is: whole numbers for one job, NumPy grids for many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.engine import is_paged, recompute_rule, state_bytes
from vramcast.job import Job
from vramcast.models.params import Params
from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Op, PlacedSection
from vramcast.plan.bandwidth import NETWORK_BYTES_PER_S, Rates, link_rates, pcie_rates
from vramcast.setup import Setup
from vramcast.setup.precision import Recipe
from vramcast.setup.records import Checkpointing

# Of the dense 16-bit peak, as torchtitan's docs/performance.md reports it: 29.0 % (405B, FSDP2 and TP, 128 H100) to
# 58.2 % (8B, FSDP2, 64 A100); Megatron-LM (arXiv 2104.04473, table 1) lies between with 44–52 %.
UTILISATION = (0.29, 0.58)
# Of the card's memory bandwidth. High: A800 1,727 of 1,935 GB/s (mli/transformers-benchmarks#4); RTX A5000 660 of 768
# (86 %). Low, assumed: kernels that are small or strided.
BANDWIDTH_SHARE = (0.6, 0.89)
CPU_FLOPS = (
    0.3e12,
    2e12,
)  # assumed: a desktop's AVX2 cores to a server's AVX-512 ones, in fp32 GEMMs
DEFAULT_TFLOPS, DEFAULT_BANDWIDTH_GB_S = 150.0, 1000.0  # a card of which neither is known

PRODUCTS = ("linear", "bmm")  # what selective checkpointing keeps

Range = tuple[Number, Number]  # seconds, at the high and at the low end of the assumptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedSpeeds:
    """What the seconds of a job rest on, one direction each; None where the job has no such link."""

    peak_share: Rates  # of the card's dense 16-bit FLOP/s
    pcie: Rates
    between_gpus: Rates | None
    between_machines: Rates | None


def assumed_speeds(job: Job, gpu: Gpu | None) -> AssumedSpeeds:
    has_many_machines = job.gpus > job.gpus_per_node
    return AssumedSpeeds(
        peak_share=UTILISATION,
        pcie=pcie_rates(gpu),
        between_gpus=link_rates(gpu) if job.gpus > 1 else None,
        between_machines=NETWORK_BYTES_PER_S if has_many_machines else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of an optimizer step, low and high: micro-batches and one update."""

    pass_s: tuple[float, float]  # one micro-batch
    update_s: tuple[float, float]
    tokens: int  # of one micro-batch
    passes: int = 1

    @property
    def seconds(self) -> tuple[float, float]:
        (fast, slow), (update_fast, update_slow) = self.pass_s, self.update_s
        return (fast * self.passes + update_fast, slow * self.passes + update_slow)

    @property
    def seconds_per_token(self) -> tuple[float, float]:
        fast, slow = self.seconds
        return (fast / (self.tokens * self.passes), slow / (self.tokens * self.passes))

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        fast, slow = self.seconds_per_token
        return (1 / slow, 1 / fast)


def slowdown_of(cost: StepCost, base: StepCost) -> tuple[float, float]:
    """Time per token against another step's, at both ends of the assumptions."""
    (fast, slow), (base_fast, base_slow) = cost.seconds_per_token, base.seconds_per_token
    return (fast / base_fast, slow / base_slow)


# ---- one micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a pass over a recorded model handles, however it is run."""

    forward_flops: Number
    weights: int  # elements
    unpacked_bytes: int  # quantised weights: read, written as 16 bit, read again
    block_inputs_bytes: Number


def work_of(program: Program) -> Work:
    times = Counter(placed.section for placed in program.sections)
    params = [
        (param, n)
        for section, n in times.items()
        for param in section.params
        if param.tied_to is None
    ]
    return Work(
        forward_flops=_summed(program, _forward_flops, lambda placed: "none"),
        weights=sum(param.numel * n for param, n in params),
        unpacked_bytes=sum(
            (p.stored_bytes + 4 * p.numel) * n for p, n in params if p.stored_bytes is not None
        ),
        block_inputs_bytes=sum(
            (p.section.inputs[0].nbytes for p in program.sections if p.section.is_block), 0
        ),
    )


def pass_seconds(program: Program, work: Work, setup: Setup, gpu: Gpu | None) -> Range:
    """Forward and backward, recomputation and companions included. Never less than reading the weights takes."""
    runs = 2 + (setup.checkpointing.how not in ("none", "selective"))
    frozen = (setup.companions.reference, setup.companions.teacher, setup.companions.reward)
    on_gpu = step_flops(program, setup.checkpointing) + work.forward_flops * frozen.count("same")
    on_cpu = work.forward_flops * frozen.count("cpu")
    moved = (
        2 * work.block_inputs_bytes if setup.checkpointing.how == "offload" else 0.0
    )  # there and back
    again = recomputed_bytes(program, setup.checkpointing)
    ends = []
    for end in (1, 0):
        bandwidth = _bandwidth(gpu) * BANDWIDTH_SHARE[end]
        computing = maximum(
            on_gpu / (_peak_flops(setup.precision, gpu) * UTILISATION[end]),
            runs * 2 * work.weights / bandwidth,
        )
        crossing = moved / pcie_rates(gpu)[end] + on_cpu / CPU_FLOPS[end]
        ends.append(computing + crossing + (runs * work.unpacked_bytes + again) / bandwidth)
    return (ends[0], ends[1])


def step_flops(program: Program, checkpointing: Checkpointing) -> Number:
    """Forward, backward (gradients of inputs, and of weights where they are trained) and what is recomputed."""
    return _summed(program, _op_flops, recompute_rule(checkpointing))


def recomputed_bytes(program: Program, checkpointing: Checkpointing) -> Number:
    """Read and written by what is recomputed beside matrix products: norms, activations, casts."""
    return _summed(program, _op_traffic, recompute_rule(checkpointing))


def _op_traffic(op: Op, recomputed: str) -> Number:
    if (
        recomputed == "none"
        or _is_product(op)
        or not op.output.requires_grad
        or op.output.owner is not None
    ):
        return 0.0
    return sum((value.nbytes for value in (*op.inputs, op.output) if value.param is None), 0.0)


def _is_product(op: Op) -> bool:
    return op.name in PRODUCTS or op.name.endswith("attention")


def _summed(
    program: Program, of_op: Callable[[Op, str], Number], rule: Callable[[PlacedSection], str]
) -> Number:
    """Over the ops of all sections, each of which is summed once for every way of running it."""
    times = Counter((placed.section, rule(placed)) for placed in program.sections)
    total: Number = 0.0
    for (section, how), count in times.items():
        key = (of_op, section, how)
        if key not in program.cache:
            program.cache[key] = sum((of_op(op, how) for op in section.ops), 0.0)
        total = total + count * program.cache[key]
    return total


def _forward_flops(op: Op, recomputed: str) -> Number:
    return op.flops


def _op_flops(op: Op, recomputed: str) -> Number:
    passes = 1.0 + sum(value.requires_grad for value in op.inputs[:2])
    again = recomputed == "full" or (recomputed == "selective" and not _is_product(op))
    return op.flops * (passes + (1.0 if again and op.output.requires_grad else 0.0))


# ---- one update


def update_seconds(params: Params, setup: Setup, gpu: Gpu | None) -> tuple[float, float]:
    """The optimizer's own time: bytes through the card's memory, and over PCIe where states are paged."""
    touched, paged = _update_bytes(params, setup), _paged_bytes(params, setup)
    ends = [
        touched / (_bandwidth(gpu) * BANDWIDTH_SHARE[end]) + paged / pcie_rates(gpu)[end]
        for end in (1, 0)
    ]
    return (ends[0], ends[1])


def _update_bytes(params: Params, setup: Setup) -> float:
    """The optimizer reads and writes weights and states and reads gradients; in lists it does so about 1.5 times."""
    item = _state_item(setup.precision)
    touched = params.trained.total(
        lambda param: 3 * param.nbytes + 2 * state_bytes(param, setup, item)
    )
    return touched * (1.5 if setup.optimizer.implementation == "foreach" else 1.0)


def _paged_bytes(params: Params, setup: Setup) -> float:
    """There and back, as if the card had no room to spare: the most that paging can cost."""
    item = _state_item(setup.precision)
    paged = params.trained.total(
        lambda param: state_bytes(param, setup, item) if is_paged(setup.optimizer, param) else 0
    )
    return 2.0 * paged


def _state_item(precision: Recipe) -> int | None:
    recipe = precision
    return recipe.states.nbytes if recipe.states else None


# ---- the card


def _bandwidth(gpu: Gpu | None) -> float:
    return ((gpu.bandwidth_gb_s if gpu else None) or DEFAULT_BANDWIDTH_GB_S) * 1e9


def _peak_flops(precision: Recipe, gpu: Gpu | None) -> float:
    recipe = precision
    tflops = ((gpu.bf16_tflops or gpu.fp16_tflops) if gpu else None) or DEFAULT_TFLOPS
    if recipe.autocast is None and recipe.weights.nbytes == 4:
        tflops = (gpu.fp32_tflops if gpu else None) or tflops / 8
    return tflops * 1e12
