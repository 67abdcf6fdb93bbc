"""What a user did not say, from the framework's profile.

`complete` fills these values into a Job. It asks the model's config in which dtype the checkpoint is stored, and the
card whether it computes in bf16; everything else is decided by `setup.resolve`.

Example: `vramcast estimate qwen2.5-7b --lora-rank 16 --gpu rtx4090` says no precision. The checkpoint is stored in
bf16, transformers 5 loads it as it is stored, the card computes in bf16: bf16-autocast. On a T4, which has no bf16,
it is fp16-autocast; with transformers 4.57, which loads in fp32, bf16-mixed.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from vramcast.catalog.gpus import find_gpu
from vramcast.errors import UnsupportedError
from vramcast.job import LLAMA_PRO, TRAINED_OVER, Job, Precision, check_sizes
from vramcast.models.read.config import Config
from vramcast.sample_lengths import read_sample_lengths
from vramcast.setup.adapters import (
    BY_PEFT,
    check_adapter,
    defaults_of_kind,
    is_listed,
    targets_by_peft,
)
from vramcast.setup.checkpoint import config_of
from vramcast.setup.profile import Profile, Versions, at, versions_of
from vramcast.setup.profiles import PROFILES, profile_of
from vramcast.setup.tasks import task_of_job, with_task

# Loops that convert a checkpoint and read none that is quantised.
OWN_WEIGHTS = ("litgpt", "torchtitan", "torchtune", "megatron")
FSDP = ("fsdp1", "fsdp2")
ZERO = ("zero1", "zero2", "zero3")
MIXED = {True: Precision.BF16_MIXED, False: Precision.FP16_MIXED}
AUTOCAST = {True: Precision.BF16_AUTOCAST, False: Precision.FP16_AUTOCAST}
MASTER = {True: Precision.BF16_MASTER, False: Precision.FP16_MASTER}


def complete(job: Job) -> Job:
    """The job with what its framework does where nothing was said; the same job if all was said."""
    if job.engine is not None:
        raise UnsupportedError(
            f"engine {job.engine} serves a model and trains nothing: estimate, check, fit, compare, plan and sweep "
            "answer for it"
        )
    if job.quantize not in TRAINED_OVER:
        raise UnsupportedError(
            f"quantize {job.quantize} is a format that serving engines read: give --engine, or train over "
            f"{', '.join(TRAINED_OVER[1:])}"
        )
    if job.task in ("generate", "score", "encode"):
        raise UnsupportedError(
            f"task {job.task} trains nothing: estimate, check, fit, compare, plan and sweep answer for it"
        )
    if job.lengths is not None and job.seq is None:
        job = replace(job, seq=max(read_sample_lengths(job.lengths)))
        check_sizes(job)
    return _complete(job)


@functools.lru_cache(maxsize=4096)  # searches ask for the same jobs again and again
def _complete(job: Job) -> Job:
    profile, versions = profile_of(job), versions_of(job)
    job = _as_stored(job)
    tuned = with_task(_with_adapters(job, profile))
    decided: dict[str, Any] = {
        "optimizer": profile.optimizer,
        "checkpointing": _checkpointing(tuned, profile, versions),
        "loss": _loss(tuned, profile, versions),
        "kernels": profile.kernels,
        "alloc_conf": profile.alloc_conf,
    }
    changes = {
        name: value
        for name, value in decided.items()
        if getattr(tuned, name) in OPEN and value not in OPEN
    }
    if tuned.precision is None:
        changes["precision"] = _precision(tuned, profile, versions)
        if changes["precision"] == Precision.BF16_AUTOCAST and _keeps_fp16(
            tuned, profile, versions
        ):
            changes["frozen_dtype" if tuned.has_adapters else "weights_dtype"] = "fp16"
    return replace(tuned, **changes) if changes else tuned


def _keeps_fp16(job: Job, profile: Profile, versions: Versions) -> bool:
    """A checkpoint in fp16 is loaded in fp16; autocast then computes in bf16."""
    if at(profile.loads, versions) != "stored" or job.model is None or job.quantize != "none":
        return False
    if job.weights_dtype is not None or job.frozen_dtype is not None:
        return False
    config = config_of(job)
    return config is not None and stored_dtype(config) == "float16"


def _as_stored(job: Job) -> Job:
    """transformers loads a checkpoint that bitsandbytes has quantised as its config says."""
    if job.quantize != "none" or job.model is None or job.framework in OWN_WEIGHTS:
        return job
    config = config_of(job)
    said = config.sub("quantization_config") if config is not None else Config({})
    if said.word("quant_method", "") != "bitsandbytes":
        return job
    if said.flag("load_in_8bit", False):
        return replace(job, quantize="int8")
    if said.flag("load_in_4bit", False):
        is_double = said.flag("bnb_4bit_use_double_quant", False)
        return replace(job, quantize="nf4-double" if is_double else "nf4")
    return job


OPEN: tuple[Any, ...] = (None, (), "")  # values of fields about which nothing was said


def _with_adapters(job: Job, profile: Profile) -> Job:
    """What is trained. Who says a rank or 4-bit weights has adapters, who names what to edit or freeze has none."""
    check_adapter(job)
    tuning = job.tuning
    if tuning is None:
        tuning = "lora" if job.has_adapters or job.quantize != "none" else profile.tuning
        if job.params is not None or job.edit or job.freeze:
            tuning = "lora" if job.has_adapters else "full"
        if job.adapter == LLAMA_PRO:
            tuning = "full"
    if tuning == "full" and not job.has_adapters:
        return job
    changes: dict[str, Any] = {}
    if tuning == "qlora" and job.quantize == "none":
        changes["quantize"] = profile.four_bit
    if job.adapter not in (None, "lora"):
        return replace(job, **changes, **defaults_of_kind(job))
    if job.lora_rank is None:
        changes["lora_rank"] = profile.lora_rank
    if not job.lora_targets:
        stored = replace(job, quantize=changes.get("quantize", job.quantize))
        by_peft = profile.lora_targets == BY_PEFT
        changes["lora_targets"] = targets_by_peft(stored) if by_peft else profile.lora_targets
    if job.lora_dropout is None:
        changes["lora_dropout"] = profile.lora_dropout
    return replace(job, **changes) if changes else job


def has_no_targets(job: Job) -> bool:
    """Would PEFT refuse LoRA that names no modules? It lists them by model type; QLoRA's guide names all of them."""
    by_peft = PROFILES[job.framework].lora_targets == BY_PEFT
    return by_peft and job.quantize == "none" and not is_listed(job)


def explain_precision(job: Job) -> str:
    """Whose habit the precision is that the user left open."""
    if job.gpus > 1 and job.strategy in ZERO:
        return PROFILES["deepspeed"].source
    return PROFILES[job.framework].source


def _checkpointing(job: Job, profile: Profile, versions: Versions) -> str:
    """peft/utils/other.py prepare_model_for_kbit_training: use_gradient_checkpointing is on unless switched off."""
    if job.quantize != "none" and profile.quantised_checkpointing is not None:
        return profile.quantised_checkpointing
    return at(profile.checkpointing, versions)


def _loss(job: Job, profile: Profile, versions: Versions) -> str:
    """A teacher's logits are compared with the model's own, which only a full loss has."""
    if job.framework == "trl" and task_of_job(job).loss is not None:
        return task_of_job(job).loss or "full"
    needs_no_more = task_of_job(job).scores_tokens and job.teacher == "none"
    return at(profile.loss, versions) if needs_no_more else "full"


def _precision(job: Job, profile: Profile, versions: Versions) -> Precision:
    if job.quantize != "none" and profile.quantised_precision is not None:
        return profile.quantised_precision
    if profile.precision is not None:
        return profile.precision
    is_new = has_bf16(job.gpu)
    if profile.uses_accelerate and job.gpus > 1 and job.strategy in ZERO:
        return MASTER[is_new]
    kinds = AUTOCAST if _is_16bit(job, profile, versions, has_bf16=is_new) else MIXED
    return kinds[is_new]


def _is_16bit(job: Job, profile: Profile, versions: Versions, *, has_bf16: bool) -> bool:
    """Are the weights that the model is loaded with in 16 bit?"""
    if job.quantize != "none":  # transformers/quantizers: the rest is loaded in 16 bit by default
        return not profile.passes_dtype or at(profile.loads, versions) != "fp32"
    if job.has_adapters:
        return _loads_16bit(job, at(profile.loads, versions))
    raises = profile.raises_trained or (
        profile.uses_accelerate and job.gpus > 1 and job.strategy in FSDP
    )
    # A GradScaler refuses gradients in fp16, so full training on cards without bf16 keeps fp32 weights.
    return has_bf16 and not raises and _loads_16bit(job, at(profile.loads, versions))


def _loads_16bit(job: Job, loads: str) -> bool:
    """Are weights that are loaded in this way in 16 bit?"""
    if job.model is None or loads != "stored":
        return loads == "16-bit"
    config = config_of(job)
    return config is not None and stored_dtype(config) in ("bfloat16", "float16")


def stored_dtype(config: Config) -> str:
    """The dtype of the checkpoint as its config names it, float32 if it does not. Composite models name it inside."""
    inner = (config.data.get(name) for name in ("text_config", "llm_config"))
    places = (config.data, *(data for data in inner if isinstance(data, dict)))
    found = (data.get(name) for data in places for name in ("dtype", "torch_dtype"))
    named = next((value for value in found if isinstance(value, str)), "float32")
    return named.removeprefix("torch.")


def has_bf16(gpu: str | None) -> bool:
    return gpu is None or find_gpu(gpu).supports_bf16 is not False
