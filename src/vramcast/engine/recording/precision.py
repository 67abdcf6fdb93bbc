"""What a precision means: in which dtypes weights, gradients and states are stored, and whose recipe that is."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.job import Precision
from vramcast.models.record.tape import BF16, F16, F32, Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    weights: Dtype
    gradients: Dtype
    states: Dtype | None  # None: torch optimizers make states like the parameter
    whose: str
    autocast: Dtype | None = None
    master: bool = False  # an fp32 copy of 16-bit weights that the optimizer updates
    fp8_cache: bool = False  # Transformer Engine keeps fp8 weights and their transposes


def _mixed(compute: Dtype) -> Recipe:
    return Recipe(
        weights=F32, gradients=F32, states=None, autocast=compute,
        whose=f"torch.autocast({compute.name}): fp32 weights and gradients, {compute.name} matmuls",
    )  # fmt: skip


def _true(dtype: Dtype) -> Recipe:
    return Recipe(weights=dtype, gradients=dtype, states=None, whose=f"everything in {dtype.name}, no master copy")


def _autocast(dtype: Dtype) -> Recipe:
    name = dtype.name
    return Recipe(
        weights=dtype, gradients=dtype, states=None, autocast=dtype,
        whose=f"Hugging Face Trainer's {name}=True over a model loaded in {name}: autocast, all stored in {name}",
    )  # fmt: skip


def _master(dtype: Dtype) -> Recipe:
    return Recipe(
        weights=dtype, gradients=dtype, states=F32, master=True,
        whose=f"Apex O2 / DeepSpeed: {dtype.name} weights and gradients, fp32 master weights and states",
    )  # fmt: skip


RECIPES = {
    Precision.FP32: Recipe(weights=F32, gradients=F32, states=None, whose="plain fp32"),
    Precision.BF16_TRUE: _true(BF16),
    Precision.FP16_TRUE: _true(F16),
    Precision.BF16_AUTOCAST: _autocast(BF16),
    Precision.FP16_AUTOCAST: _autocast(F16),
    Precision.BF16_MIXED: _mixed(BF16),
    Precision.FP16_MIXED: _mixed(F16),
    Precision.BF16_MASTER: _master(BF16),
    Precision.FP16_MASTER: _master(F16),
    Precision.MEGATRON_BF16: Recipe(
        weights=BF16,
        gradients=F32,
        states=F32,
        master=True,
        whose="Megatron-LM bf16: fp32 main gradients, fp32 master weights and states",
    ),
    Precision.FP8: Recipe(
        weights=BF16,
        gradients=F32,
        states=F32,
        master=True,
        fp8_cache=True,
        whose="Megatron-LM with Transformer Engine fp8: bf16 weights with an fp8 cache, fp32 main gradients",
    ),
}


def card_warnings(precision: Precision, gpu: Gpu | None) -> tuple[str, ...]:
    """Where the card computes in another dtype than the job asks for."""
    recipe = RECIPES[precision]
    if gpu is None or gpu.supports_bf16 is not False or BF16 not in (recipe.weights, recipe.autocast):
        return ()
    numbers = ".".join(str(number) for number in gpu.compute_capability or ())
    return (
        f"{gpu.name} has no bf16 arithmetic (compute capability {numbers or 'unknown'}, bf16 needs 8.0): {precision} "
        "is emulated, slowly, or refused. Take fp16-mixed, or fp16-autocast with adapters, and a GradScaler: "
        "the same memory.",
    )
