"""What a step costs in time: FLOPs, recomputation, bytes through memory and over PCIe. Ranges, never bare numbers.

Utilisation is an assumption: 30 to 55 % of a card's dense 16-bit peak is what published fine-tuning runs reach
(torchtitan and Megatron-LM reports: 35 to 55 %; single consumer cards: 30 to 45 %).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu
from vramcast.formulas.checkpointing import recompute_rule
from vramcast.formulas.optimizers import implementation, state_bytes
from vramcast.formulas.recipe import RECIPES
from vramcast.job import Job
from vramcast.models.dims import Number
from vramcast.models.program import Program
from vramcast.models.tape import Op, Param

Seconds = NDArray[numpy.float64]

UTILISATION = (0.30, 0.55)
PCIE_BYTES_PER_S = (12e9, 25e9)  # PCIe 4.0 x16: 32 GB/s nominal, pageable to pinned copies in practice
BANDWIDTH_SHARE = (0.6, 0.9)  # of the card's memory bandwidth that an element-wise optimizer step reaches
DEFAULT_TFLOPS, DEFAULT_BANDWIDTH_GB_S = 150.0, 1000.0


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


def step_flops(program: Program, job: Job) -> Number:
    """Forward, backward (gradients of inputs, and of weights where they are trained) and what is recomputed."""
    rule = recompute_rule(job)
    known: dict[tuple[int, str], Number] = {}
    total: Number = 0.0
    for placed in program.placed:
        key = (id(placed.section), rule(placed))
        if key not in known:
            known[key] = sum((_op_flops(op, rule(placed)) for op in placed.section.ops), 0.0)
        total = total + known[key]
    return total


def _op_flops(op: Op, recomputed: str) -> Number:
    passes = 1.0 + sum(value.requires_grad for value in op.inputs[:2])
    product = op.name in ("linear", "bmm") or op.name.endswith("attention")
    again = recomputed == "full" or (recomputed == "selective" and not product)
    return op.flops * (passes + (1.0 if again and op.output.requires_grad else 0.0))


def pass_seconds(program: Program, job: Job, gpu: Gpu | None, shape: tuple[int, ...]) -> tuple[Seconds, Seconds]:
    """One micro-batch forward and backward, at the low and the high end, at every point of a grid."""
    flops = numpy.broadcast_to(numpy.asarray(step_flops(program, job), float), shape)
    moved = numpy.broadcast_to(numpy.asarray(_moved_bytes(program, job), float), shape)
    peak, unpacking = _peak_flops(job, gpu), _dequantized_bytes(program, job) / _bandwidth(gpu)
    fast: Seconds = flops / (peak * UTILISATION[1]) + moved / PCIE_BYTES_PER_S[1] + unpacking / BANDWIDTH_SHARE[1]
    slow: Seconds = flops / (peak * UTILISATION[0]) + moved / PCIE_BYTES_PER_S[0] + unpacking / BANDWIDTH_SHARE[0]
    return fast, slow


def _bandwidth(gpu: Gpu | None) -> float:
    return ((gpu.bandwidth_gb_s if gpu else None) or DEFAULT_BANDWIDTH_GB_S) * 1e9


def _dequantized_bytes(program: Program, job: Job) -> float:
    """Quantised weights are read, written as 16-bit and read again, in forward, in backward and when recomputed."""
    runs = 3 if job.checkpointing in ("full", "offload") else 2
    stored = sum(param.stored_bytes + 4 * param.numel for param in program.params() if param.stored_bytes is not None)
    return float(runs * stored)


def update_seconds(params: tuple[Param, ...], job: Job, gpu: Gpu | None) -> tuple[float, float]:
    """The optimizer's own time: bytes through the card's memory."""
    bandwidth, update = _bandwidth(gpu), _update_bytes(params, job)
    return (update / (bandwidth * BANDWIDTH_SHARE[1]), update / (bandwidth * BANDWIDTH_SHARE[0]))


def _peak_flops(job: Job, gpu: Gpu | None) -> float:
    recipe = RECIPES[job.precision]
    tflops = ((gpu.bf16_tflops or gpu.fp16_tflops) if gpu else None) or DEFAULT_TFLOPS
    if recipe.autocast is None and recipe.weights.nbytes == 4:
        tflops = (gpu.fp32_tflops if gpu else None) or tflops / 8
    return tflops * 1e12


def _update_bytes(params: tuple[Param, ...], job: Job) -> float:
    """The optimizer reads and writes weights and states and reads gradients; in lists it does so about 1.5 times."""
    recipe = RECIPES[job.precision]
    item = recipe.states.nbytes if recipe.states else None
    trained = [param for param in params if param.trainable]
    touched = sum(3 * param.nbytes + 2 * state_bytes(param, job, item) for param in trained)
    return touched * (1.5 if implementation(job) == "foreach" else 1.0)


def _moved_bytes(program: Program, job: Job) -> Number:
    """Over PCIe, there and back, with activation offload; half of it hides behind computation."""
    if job.checkpointing != "offload":
        return 0.0
    return sum((placed.section.inputs[0].nbytes for placed in program.placed if placed.section.is_block), 0)
