"""What a precision means: in which dtypes weights, gradients and states are stored, and whose recipe that is."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.job import Precision
from vramcast.models.record.tape import BF16, F16, F32, Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The dtypes of one way of training."""

    name: Precision
    weights: Dtype  # of what is trained, and of what is frozen unless that is said apart
    gradients: Dtype
    states: Dtype | None  # None: torch optimizers make states like the parameter
    whose: str
    autocast: Dtype | None = None
    master: bool = False  # an fp32 copy of 16-bit weights that the optimizer updates
    fp8_cache: bool = False  # Transformer Engine keeps fp8 weights and their transposes
    fp8_weights: bool = False  # and nothing else of them (fp8 parameter gather)
    frozen: Dtype | None = None  # of frozen weights beside trained ones of another dtype
    main_gradients: bool = (
        False  # gradients are added up in buffers of their own (Megatron's main_grad)
    )


def _mixed(name: Precision, compute: Dtype) -> Recipe:
    return Recipe(
        name=name,
        weights=F32,
        gradients=F32,
        states=None,
        autocast=compute,
        whose=f"torch.autocast({compute.name}): fp32 weights and gradients, {compute.name} matmuls",
    )


def _true(name: Precision, dtype: Dtype) -> Recipe:
    return Recipe(
        name=name,
        weights=dtype,
        gradients=dtype,
        states=None,
        whose=f"everything in {dtype.name}, no master copy",
    )


def _autocast(name: Precision, dtype: Dtype) -> Recipe:
    return Recipe(
        name=name,
        weights=dtype,
        gradients=dtype,
        states=None,
        autocast=dtype,
        whose=f"Hugging Face Trainer's {dtype.name}=True over a model loaded in {dtype.name}: "
        f"autocast, all stored in {dtype.name}",
    )


def _master(name: Precision, dtype: Dtype) -> Recipe:
    return Recipe(
        name=name,
        weights=dtype,
        gradients=dtype,
        states=F32,
        master=True,
        whose=f"Apex O2 / DeepSpeed: {dtype.name} weights and gradients, fp32 master weights and states",
    )


_RECIPES = (
    Recipe(name=Precision.FP32, weights=F32, gradients=F32, states=None, whose="plain fp32"),
    _true(Precision.BF16_TRUE, BF16),
    _true(Precision.FP16_TRUE, F16),
    _autocast(Precision.BF16_AUTOCAST, BF16),
    _autocast(Precision.FP16_AUTOCAST, F16),
    _mixed(Precision.BF16_MIXED, BF16),
    _mixed(Precision.FP16_MIXED, F16),
    _master(Precision.BF16_MASTER, BF16),
    _master(Precision.FP16_MASTER, F16),
    Recipe(
        name=Precision.MEGATRON_BF16,
        weights=BF16,
        gradients=F32,
        states=F32,
        master=True,
        main_gradients=True,
        whose="Megatron-LM bf16: fp32 main gradients, fp32 master weights and states",
    ),
    Recipe(
        name=Precision.FP8,
        weights=BF16,
        gradients=F32,
        states=F32,
        master=True,
        fp8_cache=True,
        main_gradients=True,
        whose="Megatron-LM with Transformer Engine fp8: bf16 weights with an fp8 cache, fp32 main gradients",
    ),
)
RECIPES = {recipe.name: recipe for recipe in _RECIPES}


def card_warnings(recipe: Recipe, gpu: Gpu | None) -> tuple[str, ...]:
    """Where the card computes in another dtype than the job asks for."""
    if (
        gpu is None
        or gpu.supports_bf16 is not False
        or BF16 not in (recipe.weights, recipe.autocast)
    ):
        return ()
    numbers = ".".join(str(number) for number in gpu.compute_capability or ())
    return (
        f"{gpu.name} has no bf16 arithmetic (compute capability {numbers or 'unknown'}, bf16 needs 8.0): {recipe.name} "
        "is emulated, slowly, or refused. Take fp16-mixed, or fp16-autocast with adapters, and a GradScaler: "
        "the same memory.",
    )
