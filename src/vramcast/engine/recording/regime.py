"""A Job as a Regime: which tensors exist when this job runs this model."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.optimizers import version
from vramcast.engine.recording.library_versions import (
    ALWAYS_MASKED_BEFORE_THAT,
    BOOLEAN_MASKS_FROM,
    CACHE_COPIES_FROM,
    DECODER_DECIDES_FROM,
    GROUPED_EXPERTS_FROM,
    GROUPED_HEADS_FROM,
    GROUPED_HEADS_NEED_TORCH,
    INPUT_GRADS_FROM,
    TRAINER_WITHOUT_CACHE_FROM,
    raises_logits,
    supports_sdpa,
)
from vramcast.engine.recording.lora_targets import ALL_LINEAR, MOVED, NOTHING, lora_matches
from vramcast.engine.recording.precision import RECIPES
from vramcast.errors import InputError, UnsupportedError
from vramcast.job import Job
from vramcast.models.families.megatron import DESCRIBED as MEGATRON
from vramcast.models.read.config import Config
from vramcast.models.record.regime import everything
from vramcast.models.record.tape import BF16, DTYPES, F16, F32, Dtype, Lora, Quantized, Regime

# Frameworks whose modelling code is described apart from transformers\'.
OWN_CODE = ("litgpt", "torchtune", "torchtitan", "megatron")
PINS_INPUT_BEFORE = (0, 44)  # bitsandbytes: MatMul4Bit wrote its input into ctx.tensors and never needed it


def regime_of(job: Job, config: Config, gpu: Gpu | None) -> Regime:
    recipe = RECIPES[job.precision]
    transformers, torch = version(job.transformers_version), version(job.torch_version)
    return Regime(
        weights=recipe.weights, autocast=recipe.autocast, attention=attention_kernel(job, config, gpu),
        mask=job.longest_seq is not None, fused=frozenset(job.kernels) | _fused_loss(job, config),
        gqa_in_kernel=transformers >= GROUPED_HEADS_FROM and torch >= GROUPED_HEADS_NEED_TORCH,
        loss_sums_copies=_liger(job) < (0, 8, 1), loss_chunks=1 if _liger(job) >= (0, 8, 3) else 2,
        kv_cache=kv_cache(job, config),
        experts=_expert_gemm(job, transformers), dispatch=job.expert_dispatch or "allgather",
        recompute=_modules(job, config, "recompute"), away=_modules(job, config, "offload_modules"),
        deterministic=job.deterministic,
        grad_fusion=job.grad_fusion and _code(job, config) == "megatron",
        compiled=_compiled(job), compiled_loss=job.compile and _compiles_loss(job), chunked_loss=job.loss == "chunked",
        softmax_keeps_input=torch < (1, 11),  # github.com/pytorch/pytorch/pull/65242
        code=_code(job, config), raises_logits=_raises_logits(job, config),
        boolean_masks=transformers >= BOOLEAN_MASKS_FROM, knows_windows=job.attention == "flash",
        masks_always=transformers < BOOLEAN_MASKS_FROM and config.model_type in ALWAYS_MASKED_BEFORE_THAT,
        input_grads=needs_input_grads(job, config),
        trainable=_trainable(job), lora=_lora(job, config), quantized=_quantized(job, config),
        upcast=_upcast(job, config),
    )  # fmt: skip


def _fused_loss(job: Job, config: Config) -> frozenset[str]:
    """Head and loss in one kernel; under Megatron the loss alone."""
    if job.loss != "fused":
        return frozenset()
    return frozenset({"cross entropy" if _code(job, config) == "megatron" else "loss"})


def _modules(job: Job, config: Config, name: str) -> frozenset[str]:
    """Parts of Megatron's layers; other code has no such names."""
    asked: tuple[str, ...] = getattr(job, name)
    if asked and _code(job, config) != "megatron":
        raise InputError(
            f"{name.replace('_', '-')} {', '.join(asked)}: these are parts of Megatron's layers. Say framework "
            f"megatron and a model_type of {', '.join(MEGATRON)}; elsewhere checkpointing and offload say what is kept."
        )
    return frozenset(asked)


def _expert_gemm(job: Job, transformers: tuple[int, int]) -> str:
    if job.expert_gemm is not None:
        return job.expert_gemm
    return "grouped" if transformers >= GROUPED_EXPERTS_FROM or job.framework == "megatron" else "loop"


def _compiled(job: Job) -> str:
    """torchtune compiles layer by layer and the loss; elsewhere `torch.compile(model)`."""
    if not job.compile:
        return "none"
    return "blocks" if job.framework in ("torchtune", "torchtitan") else "model"


def _code(job: Job, config: Config) -> str:
    """torchtitan's and Megatron's own code is described for some models; others are taken as transformers runs them."""
    only = {"torchtitan": ("llama", "qwen3"), "megatron": MEGATRON}
    described = job.framework in OWN_CODE and config.model_type in only.get(job.framework, (config.model_type,))
    return job.framework if described else "transformers"


def _raises_logits(job: Job, config: Config) -> str:
    """torchtitan over time, dated by the torch nightly of the day: Transformer.forward returned `.float()` until its PR
    642 of October 2024, since then the loss function upcasts."""
    if _code(job, config) != "torchtitan":
        return raises_logits(config.model_type, version(job.transformers_version))
    return "model" if version(job.torch_version) < (2, 6) else "loss"


def _compiles_loss(job: Job) -> bool:
    """torchtitan compiles the loss with the blocks since its PR 642 (October 2024), except from PR 755 (December 2024)
    to PR 1033 (April 2025)."""
    torch = version(job.torch_version)
    return job.framework != "torchtitan" or (torch >= (2, 6) and torch != (2, 7))


def _liger(job: Job) -> tuple[int, ...]:
    """ops/fused_linear_cross_entropy.py: before 0.8.1 `grad_weight += torch.mm(…).float()`, then addmm; before 0.8.3 a
    chunk's logits were alive while the next ones were made."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in job.liger_version.split("."))


def kv_cache(job: Job, config: Config) -> str:
    """transformers fills past_key_values in training too, unless its Trainer, checkpointing or the config forbids it:
    at first with the very tensors, later with copies."""
    transformers = version(job.transformers_version)
    reached = transformers < DECODER_DECIDES_FROM.get(config.model_type, (99, 0))
    trainer = job.framework in ("hf", "trl") and transformers >= TRAINER_WITHOUT_CACHE_FROM and reached
    if trainer or job.framework in OWN_CODE or job.checkpointing != "none" or not config.flag("use_cache", True):
        return "none"
    return "copy" if transformers >= CACHE_COPIES_FROM else "alias"


def needs_input_grads(job: Job, config: Config) -> bool:
    """Does gradient checkpointing make the embeddings' output ask for a gradient? PEFT and those who use it did so
    before transformers did: with reentrant checkpointing nothing behind frozen embeddings would be trained else."""
    if job.checkpointing == "none" or _code(job, config) != "transformers" or job.framework in OWN_CODE:
        return False
    reads_ids = config.model_type not in READ_NO_IDS
    return job.lora_rank is not None or (reads_ids and version(job.transformers_version) >= INPUT_GRADS_FROM)


# `main_input_name` of these is pixel_values or input_features.
READ_NO_IDS = frozenset({
    "vit", "deit", "dinov2", "clip_vision_model", "siglip_vision_model", "resnet", "convnext", "whisper",
})  # fmt: skip


def attention_kernel(job: Job, config: Config, gpu: Gpu | None) -> str:
    """What `sdpa` comes to on this card: flash for 16-bit without a mask on Ampere and later, else efficient."""
    if job.attention != "sdpa":
        return job.attention
    transformers, torch = version(job.transformers_version), version(job.torch_version)
    own = job.framework in OWN_CODE
    if torch < (2, 0) or not (own or supports_sdpa(config.model_type, transformers, torch)):
        return "eager"
    recipe = RECIPES[job.precision]
    raised = job.quantize != "none" and raises_to_fp32(job)  # hidden states then, and so queries and keys
    compute = recipe.autocast or (F32 if raised else recipe.weights)
    ampere = gpu is None or gpu.compute_capability is None or gpu.compute_capability >= (8, 0)
    bare = job.longest_seq is None and config.model_type not in ALWAYS_MASKED
    return "flash" if compute in (BF16, F16) and ampere and bare else "efficient"


ALWAYS_MASKED = frozenset({"t5", "mt5", "umt5", "falcon"})  # a bias or a mask goes with every call


def _trainable(job: Job) -> Callable[[str], bool]:
    return functools.partial(_is_trained, tuple(job.freeze)) if job.freeze else everything


@functools.cache  # a search asks for the same names in every recording
def _is_trained(frozen: tuple[str, ...], name: str) -> bool:
    return not any(fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in frozen)


def _lora(job: Job, config: Config) -> Lora | None:
    if job.lora_rank is None:
        if job.dora:
            raise InputError("dora needs lora-rank")
        return None
    matches = lora_matches(job.lora_targets, moved_names(job, config))
    return Lora(rank=job.lora_rank, matches=matches, dtype=adapter_dtype(job), dora=job.dora, dropout=job.lora_dropout)


def adapter_dtype(job: Job) -> Dtype:
    """What adapters are stored in. PEFT raises those of a 16-bit model to fp32; other frameworks keep the model's
    dtype."""
    if job.lora_dtype:
        return DTYPES[job.lora_dtype]
    return RECIPES[job.precision].weights if job.framework in OWN_CODE else F32


def moved_names(job: Job, config: Config) -> dict[str, str]:
    """Names of linear layers that PEFT reads as names of parameters, since transformers holds experts as tensors."""
    if version(job.transformers_version) < GROUPED_EXPERTS_FROM or _code(job, config) != "transformers":
        return {}
    return MOVED.get(config.model_type, {})


def expert_adapters_text(job: Job, config: Config) -> tuple[str, ...]:
    """What is assumed about adapters on experts, where the job has any."""
    names = MOVED.get(config.model_type, NOTHING)
    asked = job.lora_targets == ALL_LINEAR or any(target.rpartition(".")[2] in names for target in job.lora_targets)
    if job.lora_rank is None or not names or not asked or _code(job, config) != "transformers":
        return ()
    if not moved_names(job, config):
        return ("adapters on each expert's linear layers, which PEFT makes before transformers 5, are not counted",)
    refused = f"; it refuses lora-dropout {job.lora_dropout} there, which is left out" if job.lora_dropout else ""
    return (f"adapters on experts as PEFT 0.21 puts them: added to one tensor as large as the experts{refused}",)


def _quantized(job: Job, config: Config) -> Quantized | None:
    if job.quantize == "none":
        return None
    if job.lora_rank is None:
        raise UnsupportedError(
            f"quantize {job.quantize} freezes the weights it stores: give lora-rank to train adapters"
        )
    recipe = RECIPES[job.precision]
    compute = recipe.autocast or recipe.weights
    spared = _spared(config)
    kinds = ("linear", "head") if job.framework == "litgpt" else ("linear",)  # Fabric replaces every nn.Linear
    return Quantized(
        matches=lambda name, kind: kind in kinds and not name.endswith(spared), stored_bytes=STORED[job.quantize],
        compute=compute,
        pins_input=job.quantize != "int8" and version(job.bitsandbytes_version) < PINS_INPUT_BEFORE,
        via_half=job.quantize != "int8" and compute != F16 and _quantised_from_half(job),
        clones=job.quantize != "int8" and job.framework not in OWN_CODE,  # peft 0.21 tuners/lora/bnb.py
    )  # fmt: skip


def _quantised_from_half(job: Job) -> bool:
    """bitsandbytes before 0.43 quantised `weight.half()`, and so dequantises to fp16; Fabric's plugin still does."""
    return version(job.bitsandbytes_version) < (0, 43) or job.framework == "litgpt"


STORED: dict[str, Callable[[int], int]] = {
    "int8": lambda n: n,  # plus one fp32 scale per row, which is billed with the bias-sized tensors
    "nf4": lambda n: n // 2 + 4 * -(-n // 64),
    "nf4-double": lambda n: n // 2 + -(-n // 64) + 4 * -(-n // (64 * 256)),
}


def raises_to_fp32(job: Job) -> bool:
    """prepare_model_for_kbit_training turns what is not quantised to fp32; who wants 16-bit adapters or shards weights
    does without."""
    by_peft = job.framework in ("plain", "hf", "trl", "accelerate", "lightning")
    return by_peft and job.lora_dtype in (None, "fp32") and job.strategy not in ("fsdp1", "fsdp2", "zero3")


def _spared(config: Config) -> tuple[str, ...]:
    """`_keep_in_fp32_modules` of transformers' classes: linear layers that its quantizers leave alone."""
    return (".wo",) if config.model_type in ("t5", "mt5", "umt5") else ()


def _upcast(job: Job, config: Config) -> Callable[[str, str], bool]:
    if job.quantize == "none" or not raises_to_fp32(job):
        return lambda name, kind: False
    spared = tuple(f"{end}{middle}.weight" for end in _spared(config) for middle in ("", ".base_layer"))
    return lambda name, kind: kind not in ("linear", "adapter") or (kind == "linear" and name.endswith(spared))
