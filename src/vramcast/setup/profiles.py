"""What a framework does where the user says nothing: the dtypes it trains in, and whether it checkpoints.

`complete` fills these values into a Job. It asks the model's config in which dtype the checkpoint is stored, and the
card whether it computes in bf16; everything else is decided by `setup.resolve`.

Example: `vramcast estimate qwen2.5-7b --lora-rank 16 --gpu rtx4090` says no precision. The checkpoint is stored in
bf16, transformers 5 loads it as it is stored, the card computes in bf16: bf16-autocast. On a T4, which has no bf16,
it is fp16-autocast; with transformers 4.57, which loads in fp32, bf16-mixed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import find_gpu
from vramcast.job import Job, Precision
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.setup.versions import (
    LOADS_STORED_DTYPE_FROM,
    TRL_TILES_LOSS_FROM,
    Version,
    parse_version,
)

# Loops whose users call PEFT's prepare_model_for_kbit_training, as its documentation says.
PREPARES_QUANTISED = ("plain", "hf", "accelerate", "lightning")
FSDP = ("fsdp1", "fsdp2")
ZERO = ("zero1", "zero2", "zero3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One framework's habits, as read in its source."""

    precision: Precision | None = None  # the same for every model; None: it follows the weights
    loads_stored: bool = (
        False  # full training keeps the dtype in which transformers loads the checkpoint
    )
    adapters_load_stored: bool = False  # and so do frozen weights under adapters
    checkpointing: str = "none"
    keeps_outputs: bool = False  # a variable holds the model's outputs until the next forward
    # What its users spread a job over GPUs with: the first that fits.
    strategies: tuple[str, ...] = ("ddp", "fsdp2")
    source: str


FROM_PRETRAINED = (
    "transformers modeling_utils.py from_pretrained: the checkpoint's dtype since 5.0, fp32 before"
)
PROFILES = {
    "plain": Profile(
        adapters_load_stored=True,
        keeps_outputs=True,
        source=f"a loop that trains fp32 weights under autocast; adapters: {FROM_PRETRAINED}",
    ),
    "hf": Profile(
        loads_stored=True,
        adapters_load_stored=True,
        source=f"{FROM_PRETRAINED}; Trainer(bf16=True) runs it under autocast",
    ),
    "accelerate": Profile(
        loads_stored=True,
        adapters_load_stored=True,
        keeps_outputs=True,
        source=f"{FROM_PRETRAINED}; Accelerator(mixed_precision='bf16') runs it under autocast",
    ),
    "trl": Profile(
        checkpointing="full",
        source="trl/trainer/utils.py create_model_from_path: fp32 where no dtype is given; "
        "its configs have bf16 and gradient_checkpointing on",
    ),
    "lightning": Profile(source="a LightningModule of fp32 weights with precision='bf16-mixed'"),
    "litgpt": Profile(keeps_outputs=True, source="litgpt: precision bf16-mixed where the card has bf16"),
    "torchtitan": Profile(strategies=("fsdp2",), source="torchtitan: fp32 weights, mixed_precision_param bfloat16"),
    "torchtune": Profile(
        precision=Precision.BF16_TRUE, strategies=("fsdp2",), source="torchtune's recipes: dtype bf16",
    ),
    "megatron": Profile(
        strategies=("ddp",),
        precision=Precision.MEGATRON_BF16,
        source="Megatron-LM --bf16: main gradients, master weights and states in fp32",
    ),
    "deepspeed": Profile(
        strategies=("zero1", "zero2", "zero3"),
        precision=Precision.BF16_MASTER,
        source="DeepSpeed bf16.enabled: fp32 master weights and states",
    ),
}  # fmt: skip
MIXED = {True: Precision.BF16_MIXED, False: Precision.FP16_MIXED}
AUTOCAST = {True: Precision.BF16_AUTOCAST, False: Precision.FP16_AUTOCAST}


@functools.lru_cache(maxsize=4096)  # searches ask for the same jobs again and again
def complete(job: Job) -> Job:
    """The job with what its framework does where nothing was said; the same job if all was said."""
    profile = PROFILES[job.framework]
    changes: dict[str, object] = {}
    if job.precision is None:
        changes["precision"] = _precision(job, profile)
    if job.checkpointing is None:
        changes["checkpointing"] = _checkpointing(job, profile)
    if job.loss is None:
        changes["loss"] = _loss(job)
    return replace(job, **changes) if changes else job  # type: ignore[arg-type]


def explain_precision(job: Job) -> str:
    """Whose habit the precision is that the user left open."""
    if job.gpus > 1 and job.strategy in ZERO and job.framework != "deepspeed":
        return PROFILES["deepspeed"].source
    return PROFILES[job.framework].source


def _checkpointing(job: Job, profile: Profile) -> str:
    """peft/utils/other.py prepare_model_for_kbit_training: use_gradient_checkpointing is on unless switched off."""
    prepares = job.quantize != "none" and job.framework in PREPARES_QUANTISED
    return "full" if prepares else profile.checkpointing


def _loss(job: Job) -> str:
    """TRL replaced the head of causal language models in 1.15."""
    is_tiled = job.framework == "trl" and trl_version(job) >= TRL_TILES_LOSS_FROM
    return "tiled" if is_tiled and job.teacher == "none" else "full"


def trl_version(job: Job) -> Version:
    """TRL before 1.0 was released for transformers before 5.0."""
    if job.trl_version is not None:
        return parse_version(job.trl_version)
    return (1, 16) if parse_version(job.transformers_version) >= (5, 0) else (0, 26)


def _precision(job: Job, profile: Profile) -> Precision:
    if profile.precision is not None:
        return profile.precision
    has_bf16 = _has_bf16(job.gpu)
    if job.framework in ("hf", "accelerate", "trl") and job.gpus > 1 and job.strategy in ZERO:
        return Precision.BF16_MASTER if has_bf16 else Precision.FP16_MASTER
    return AUTOCAST[has_bf16] if _is_16bit(job, profile, has_bf16=has_bf16) else MIXED[has_bf16]


def _is_16bit(job: Job, profile: Profile, *, has_bf16: bool) -> bool:
    """Are the weights that the model is loaded with in 16 bit?"""
    if job.quantize != "none":
        return (
            True  # transformers/quantizers: what bitsandbytes does not quantise is loaded in 16 bit
        )
    if job.lora_rank is not None:
        return profile.adapters_load_stored and _loads_16bit(job)
    raises = job.gpus > 1 and job.strategy in FSDP  # accelerate: what is trained becomes fp32
    # A GradScaler refuses gradients in fp16, so full training on cards without bf16 keeps fp32 weights.
    return profile.loads_stored and has_bf16 and not raises and _loads_16bit(job)


def _loads_16bit(job: Job) -> bool:
    """Does `from_pretrained` without a dtype give 16-bit weights?"""
    if job.model is None or parse_version(job.transformers_version) < LOADS_STORED_DTYPE_FROM:
        return False
    config = read_model(job.model).config
    return config is not None and stored_dtype(config) in ("bfloat16", "float16")


def stored_dtype(config: Config) -> str:
    """The dtype of the checkpoint as its config names it, float32 if it does not. Composite models name it inside."""
    inner = (config.data.get(name) for name in ("text_config", "llm_config"))
    places = (config.data, *(data for data in inner if isinstance(data, dict)))
    found = (data.get(name) for data in places for name in ("dtype", "torch_dtype"))
    named = next((value for value in found if isinstance(value, str)), "float32")
    return named.removeprefix("torch.")


def _has_bf16(gpu: str | None) -> bool:
    return gpu is None or find_gpu(gpu).supports_bf16 is not False
