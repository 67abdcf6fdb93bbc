"""A Job as a Regime: which tensors exist when this job runs this model."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable

from vramcast.catalog.gpus import Gpu
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
from vramcast.errors import InputError, UnsupportedError
from vramcast.models.families.megatron import DESCRIBED as MEGATRON
from vramcast.models.read.config import Config
from vramcast.models.record.regime import everything
from vramcast.models.record.tape import BF16, DTYPES, F16, F32, Dtype, Lora, Quantized, Regime
from vramcast.setup import Setup
from vramcast.setup.profiles import PREPARES_QUANTISED
from vramcast.setup.records import Adapter, Versions

# Liger ops/fused_linear_cross_entropy.py: before 0.8.1 `grad_weight += torch.mm(…).float()`, then addmm; before 0.8.3 a
# chunk's logits were alive while the next ones were made.
SUMS_IN_PLACE_FROM = (0, 8, 1)
ONE_CHUNK_FROM = (0, 8, 3)
# Frameworks whose modelling code is described apart from transformers'.
OWN_CODE = ("litgpt", "torchtune", "torchtitan", "megatron")
PINS_INPUT_BEFORE = (
    0,
    44,
)  # bitsandbytes: MatMul4Bit wrote its input into ctx.tensors and never needed it


def regime_of(setup: Setup, config: Config, gpu: Gpu | None) -> Regime:
    recipe = setup.precision
    transformers, torch = setup.versions.transformers, setup.versions.torch
    return Regime(
        weights=recipe.weights,
        autocast=recipe.autocast,
        attention=attention_kernel(setup, config, gpu),
        mask=setup.data.longest_seq is not None,
        fused=frozenset(setup.kernels.fused) | _fused_loss(setup, config),
        gqa_in_kernel=transformers >= GROUPED_HEADS_FROM and torch >= GROUPED_HEADS_NEED_TORCH,
        loss_sums_copies=setup.versions.liger < SUMS_IN_PLACE_FROM,
        tiled_loss=setup.kernels.loss == "tiled",
        loss_chunks=1 if setup.versions.liger >= ONE_CHUNK_FROM else 2,
        kv_cache=kv_cache(setup, config),
        experts=_expert_gemm(setup, transformers),
        dispatch=setup.experts.dispatch or "allgather",
        recompute=_megatron_parts(setup.versions, config, "recompute", setup.kernels.recompute),
        offloaded=_megatron_parts(setup.versions, config, "offload-modules", setup.offload.modules),
        deterministic=setup.kernels.deterministic,
        grad_fusion=setup.parallel.grad_fusion and _code(setup.versions, config) == "megatron",
        compiled=_compiled(setup),
        compiled_loss=setup.kernels.compile and _compiles_loss(setup.versions),
        chunked_loss=setup.kernels.loss == "chunked",
        softmax_keeps_input=torch < (1, 11),  # github.com/pytorch/pytorch/pull/65242
        code=_code(setup.versions, config),
        upcasts_logits=_raises_logits(setup.versions, config),
        boolean_masks=transformers >= BOOLEAN_MASKS_FROM,
        kernel_has_windows=setup.kernels.attention == "flash",
        masks_always=transformers < BOOLEAN_MASKS_FROM
        and config.model_type in ALWAYS_MASKED_BEFORE_THAT,
        input_grads=needs_input_grads(setup, config),
        trainable=_trainable(setup.adapter),
        lora=_lora(setup, config),
        quantized=_quantized(setup, config),
        upcast=_upcast(setup, config),
    )


def _fused_loss(setup: Setup, config: Config) -> frozenset[str]:
    """Head and loss in one kernel; under Megatron the loss alone."""
    if setup.kernels.loss not in ("fused", "tiled"):
        return frozenset()
    return frozenset({"cross entropy" if _code(setup.versions, config) == "megatron" else "loss"})


def _megatron_parts(
    versions: Versions, config: Config, flag: str, asked: tuple[str, ...]
) -> frozenset[str]:
    """Parts of Megatron's layers; other code has no such names."""
    if asked and _code(versions, config) != "megatron":
        raise InputError(
            f"{flag} {', '.join(asked)}: these are parts of Megatron's layers. Say framework "
            f"megatron and a model_type of {', '.join(MEGATRON)}; elsewhere checkpointing and offload say what is kept."
        )
    return frozenset(asked)


def _expert_gemm(setup: Setup, transformers: tuple[int, int]) -> str:
    if setup.experts.gemm is not None:
        return setup.experts.gemm
    return (
        "grouped"
        if transformers >= GROUPED_EXPERTS_FROM or setup.versions.framework == "megatron"
        else "loop"
    )


def _compiled(setup: Setup) -> str:
    """torchtune compiles layer by layer and the loss; elsewhere `torch.compile(model)`."""
    if not setup.kernels.compile:
        return "none"
    return "blocks" if setup.versions.framework in ("torchtune", "torchtitan") else "model"


def _code(versions: Versions, config: Config) -> str:
    """torchtitan's and Megatron's own code is described for some models; others are taken as transformers runs them."""
    only = {"torchtitan": ("llama", "qwen3"), "megatron": MEGATRON}
    described = versions.framework in OWN_CODE and config.model_type in only.get(
        versions.framework, (config.model_type,)
    )
    return versions.framework if described else "transformers"


def _raises_logits(versions: Versions, config: Config) -> str:
    """torchtitan over time, dated by the torch nightly of the day: Transformer.forward returned `.float()` until its PR
    642 of October 2024, since then the loss function upcasts."""
    if _code(versions, config) != "torchtitan":
        return raises_logits(config.model_type, versions.transformers)
    return "model" if versions.torch < (2, 6) else "loss"


def _compiles_loss(versions: Versions) -> bool:
    """torchtitan compiles the loss with the blocks since its PR 642 (October 2024), except from PR 755 (December 2024)
    to PR 1033 (April 2025)."""
    torch = versions.torch
    return versions.framework != "torchtitan" or (torch >= (2, 6) and torch != (2, 7))


def kv_cache(setup: Setup, config: Config) -> str:
    """transformers fills past_key_values in training too, unless its Trainer, checkpointing or the config forbids it:
    at first with the very tensors, later with copies."""
    transformers = setup.versions.transformers
    reached = transformers < DECODER_DECIDES_FROM.get(config.model_type, (99, 0))
    trainer = (
        setup.versions.framework in ("hf", "trl")
        and transformers >= TRAINER_WITHOUT_CACHE_FROM
        and reached
    )
    if (
        trainer
        or setup.versions.framework in OWN_CODE
        or setup.checkpointing.how != "none"
        or not config.flag("use_cache", True)
    ):
        return "none"
    return "copy" if transformers >= CACHE_COPIES_FROM else "alias"


def needs_input_grads(setup: Setup, config: Config) -> bool:
    """Does gradient checkpointing make the embeddings' output ask for a gradient? PEFT and those who use it did so
    before transformers did: with reentrant checkpointing nothing behind frozen embeddings would be trained else."""
    if (
        setup.checkpointing.how == "none"
        or _code(setup.versions, config) != "transformers"
        or setup.versions.framework in OWN_CODE
    ):
        return False
    reads_ids = config.model_type not in READ_NO_IDS
    return setup.adapter.rank is not None or (
        reads_ids and setup.versions.transformers >= INPUT_GRADS_FROM
    )


# `main_input_name` of these is pixel_values or input_features.
READ_NO_IDS = frozenset(
    {
        "vit",
        "deit",
        "dinov2",
        "clip_vision_model",
        "siglip_vision_model",
        "resnet",
        "convnext",
        "whisper",
    }
)


def attention_kernel(setup: Setup, config: Config, gpu: Gpu | None) -> str:
    """What `sdpa` comes to on this card: flash for 16-bit without a mask on Ampere and later, else efficient."""
    if setup.kernels.attention != "sdpa":
        return setup.kernels.attention
    if not _calls_sdpa(setup.versions, config):
        return "eager"
    is_masked = setup.data.longest_seq is not None or config.model_type in ALWAYS_MASKED
    is_16bit = _attention_dtype(setup) in (BF16, F16)
    return "flash" if is_16bit and not is_masked and _is_ampere(gpu) else "efficient"


def _calls_sdpa(versions: Versions, config: Config) -> bool:
    """Does the model's code, in these versions, call torch's scaled_dot_product_attention?"""
    if versions.torch < (2, 0):
        return False
    if versions.framework in OWN_CODE:
        return True
    return supports_sdpa(config.model_type, versions.transformers, versions.torch)


def _attention_dtype(setup: Setup) -> Dtype:
    """Of queries and keys: hidden states may have been raised to fp32, and so are they."""
    recipe = setup.precision
    is_raised = setup.adapter.quantize != "none" and raises_to_fp32(setup)
    return recipe.autocast or (F32 if is_raised else recipe.weights)


def _is_ampere(gpu: Gpu | None) -> bool:
    """Ampere or later, which an unknown card is taken to be."""
    capability = gpu.compute_capability if gpu is not None else None
    return capability is None or capability >= (8, 0)


ALWAYS_MASKED = frozenset({"t5", "mt5", "umt5", "falcon"})  # a bias or a mask goes with every call


def _trainable(adapter: Adapter) -> Callable[[str], bool]:
    return functools.partial(_is_trained, tuple(adapter.freeze)) if adapter.freeze else everything


@functools.cache  # a search asks for the same names in every recording
def _is_trained(frozen: tuple[str, ...], name: str) -> bool:
    return not any(
        fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in frozen
    )


def _lora(setup: Setup, config: Config) -> Lora | None:
    if setup.adapter.rank is None:
        if setup.adapter.dora:
            raise InputError("dora needs lora-rank")
        return None
    matches = lora_matches(setup.adapter.targets, moved_names(setup.versions, config))
    return Lora(
        rank=setup.adapter.rank,
        matches=matches,
        dtype=adapter_dtype(setup),
        dora=setup.adapter.dora,
        dropout=setup.adapter.dropout,
    )


def adapter_dtype(setup: Setup) -> Dtype:
    """What adapters are stored in. PEFT raises those of a 16-bit model to fp32; other frameworks keep the model's
    dtype."""
    if setup.adapter.dtype:
        return DTYPES[setup.adapter.dtype]
    if setup.versions.framework == "trl" and setup.adapter.quantize != "none":
        return BF16  # trl/trainer/*_trainer.py: adapters of a quantised model are cast to bf16
    return setup.precision.weights if setup.versions.framework in OWN_CODE else F32


def moved_names(versions: Versions, config: Config) -> dict[str, str]:
    """Names of linear layers that PEFT reads as names of parameters, since transformers holds experts as tensors."""
    if versions.transformers < GROUPED_EXPERTS_FROM or _code(versions, config) != "transformers":
        return {}
    return MOVED.get(config.model_type, {})


def expert_adapters_text(setup: Setup, config: Config) -> tuple[str, ...]:
    """What is assumed about adapters on experts, where the job has any."""
    names = MOVED.get(config.model_type, NOTHING)
    asked = setup.adapter.targets == ALL_LINEAR or any(
        target.rpartition(".")[2] in names for target in setup.adapter.targets
    )
    if (
        setup.adapter.rank is None
        or not names
        or not asked
        or _code(setup.versions, config) != "transformers"
    ):
        return ()
    if not moved_names(setup.versions, config):
        return (
            "adapters on each expert's linear layers, which PEFT makes before transformers 5, are not counted",
        )
    refused = (
        f"; it refuses lora-dropout {setup.adapter.dropout} there, which is left out"
        if setup.adapter.dropout
        else ""
    )
    return (
        f"adapters on experts as PEFT 0.21 puts them: added to one tensor as large as the experts{refused}",
    )


def _quantized(setup: Setup, config: Config) -> Quantized | None:
    if setup.adapter.quantize == "none":
        return None
    if setup.adapter.rank is None:
        raise UnsupportedError(
            f"quantize {setup.adapter.quantize} freezes the weights it stores: give lora-rank to train adapters"
        )
    recipe = setup.precision
    compute = recipe.autocast or recipe.weights
    spared = _spared(config)
    kinds = (
        ("linear", "head") if setup.versions.framework == "litgpt" else ("linear",)
    )  # Fabric replaces every nn.Linear
    return Quantized(
        matches=lambda name, kind: kind in kinds and not name.endswith(spared),
        stored_bytes=STORED[setup.adapter.quantize],
        compute=compute,
        graph_keeps_input=setup.adapter.quantize != "int8"
        and setup.versions.bitsandbytes < PINS_INPUT_BEFORE,
        via_half=setup.adapter.quantize != "int8"
        and compute != F16
        and _quantised_from_half(setup.versions),
        clones=setup.adapter.quantize != "int8"
        and setup.versions.framework not in OWN_CODE,  # peft 0.21 tuners/lora/bnb.py
    )


def _quantised_from_half(versions: Versions) -> bool:
    """bitsandbytes before 0.43 quantised `weight.half()`, and so dequantises to fp16; Fabric's plugin still does."""
    return versions.bitsandbytes < (0, 43) or versions.framework == "litgpt"


STORED: dict[str, Callable[[int], int]] = {
    "int8": lambda n: n,  # plus one fp32 scale per row, which is billed with the bias-sized tensors
    "nf4": lambda n: n // 2 + 4 * -(-n // 64),
    "nf4-double": lambda n: n // 2 + -(-n // 64) + 4 * -(-n // (64 * 256)),
}


def raises_to_fp32(setup: Setup) -> bool:
    """prepare_model_for_kbit_training turns what is not quantised to fp32; TRL, and who wants 16-bit adapters or shards
    weights, does without."""
    return (
        setup.versions.framework in PREPARES_QUANTISED
        and setup.adapter.dtype in (None, "fp32")
        and setup.parallel.strategy not in ("fsdp1", "fsdp2", "zero3")
    )


def _spared(config: Config) -> tuple[str, ...]:
    """`_keep_in_fp32_modules` of transformers' classes: linear layers that its quantizers leave alone."""
    return (".wo",) if config.model_type in ("t5", "mt5", "umt5") else ()


def _upcast(setup: Setup, config: Config) -> Callable[[str, str], bool]:
    if setup.adapter.quantize == "none" or not raises_to_fp32(setup):
        return lambda name, kind: False
    spared = tuple(
        f"{end}{middle}.weight" for end in _spared(config) for middle in ("", ".base_layer")
    )
    return lambda name, kind: (
        kind not in ("linear", "adapter") or (kind == "linear" and name.endswith(spared))
    )
