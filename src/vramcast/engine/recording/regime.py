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
    TILES_FROM,
    TRAINER_WITHOUT_CACHE_FROM,
    fills_cache_in_training,
    habits_of,
    raises_logits,
    supports_sdpa,
    takes_unmasked_for_packed,
)
from vramcast.engine.recording.lora_targets import (
    ALL_LINEAR,
    MOVED,
    NOTHING,
    in_layers,
    lora_matches,
    names_layers,
)
from vramcast.errors import InputError, UndescribedModelError, UnsupportedError
from vramcast.job import PROMPTS, Job, is_regular
from vramcast.models.families.megatron_types import DESCRIBED as MEGATRON
from vramcast.models.read.config import Config
from vramcast.models.read.expansion import added_layers
from vramcast.models.record.adapters import KINDS
from vramcast.models.record.regime import Copies, VirtualTokens, everything
from vramcast.models.record.tape import BF16, DTYPES, F16, F32, Dtype, Lora, Quantized, Regime
from vramcast.setup import Setup, resolve
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


def describes_adapters(job: Job, config: Config) -> bool:
    """Do the formulas know what the job's adapters take?"""
    try:
        _check_described(resolve(job), config)
    except UndescribedModelError:
        return False
    return True


def _check_described(setup: Setup, config: Config) -> None:
    """What the formulas do not say about adapters is left to a trace."""
    adapter = setup.adapter
    where = f"{config.where}: adapter {adapter.kind}"
    chooses = is_regular(adapter.targets) or bool(adapter.layers)
    if adapter.kind == "lora" and chooses and moved_names(setup.versions, config):
        # PEFT reads an expression as the last parts of the names that it matches, in all layers.
        raise UndescribedModelError(
            f"{where} on some layers of a mixture of experts is described by no formula"
        )
    if adapter.added_blocks and _is_divided(setup):
        raise UndescribedModelError(
            f"{config.where}: added blocks on many GPUs are described by no formula"
        )
    if adapter.kind in (None, "lora") and not adapter.saved:
        return
    if adapter.kind not in DESCRIBED:
        raise UndescribedModelError(f"{where} is described by no formula")
    if adapter.quantize != "none":
        raise UndescribedModelError(
            f"{where} over {adapter.quantize} weights is described by no formula"
        )
    if _is_divided(setup):
        raise UndescribedModelError(f"{where} on many GPUs is described by no formula")
    if _code(setup.versions, config) != "transformers":
        raise UnsupportedError(
            f"{where} in {setup.versions.framework}'s own models is not described"
        )


def _is_divided(setup: Setup) -> bool:
    parallel = setup.parallel
    return max(parallel.gpus, parallel.tp, parallel.pp, parallel.cp, setup.experts.ep) > 1


def regime_of(setup: Setup, config: Config, gpu: Gpu | None) -> Regime:
    _check_described(setup, config)
    recipe = setup.precision
    transformers, torch = setup.versions.transformers, setup.versions.torch
    return Regime(
        weights=recipe.weights,
        frozen=recipe.frozen,
        fp8_weights=recipe.fp8_weights,
        autocast=recipe.autocast,
        attention=attention_kernel(setup, config, gpu),
        mask=setup.data.longest_seq is not None,
        fused=frozenset(setup.kernels.fused) | _fused_loss(setup, config),
        gqa_in_kernel=transformers >= GROUPED_HEADS_FROM and torch >= GROUPED_HEADS_NEED_TORCH,
        loss_sums_copies=setup.versions.liger < SUMS_IN_PLACE_FROM,
        prompt=setup.data.prompt,
        is_half_prompt=setup.data.is_half_prompt,
        tiled_loss=setup.kernels.loss == "tiled",
        checkpoints_loss=_checkpoints_loss(setup.versions),
        loss_chunks=1 if setup.versions.liger >= ONE_CHUNK_FROM else 2,
        kv_cache=kv_cache(setup, config),
        experts=_expert_gemm(setup, config),
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
        masks_always=_masks_always(setup, config),
        input_grads=needs_input_grads(setup, config),
        habits=habits_of(config.model_type, transformers),
        trainable=_trainable(setup.adapter, config),
        lora=_lora(setup, config),
        copies=_copies(setup, config),
        virtual_tokens=_virtual_tokens(setup, config),
        quantized=_quantized(setup, config),
        upcast=_upcast(setup, config),
    )


def _checkpoints_loss(versions: Versions) -> tuple[int, ...] | None:
    """The version of a TRL that computes its loss in chunks, each under a checkpoint."""
    return versions.trl if versions.framework == "trl" and versions.trl < TILES_FROM else None


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


def _expert_gemm(setup: Setup, config: Config) -> str:
    if setup.experts.gemm is not None:
        return setup.experts.gemm
    if (
        setup.versions.transformers >= GROUPED_EXPERTS_FROM
        or setup.versions.framework == "megatron"
    ):
        return "grouped"
    if _has_expert_modules(setup, config):
        return "modules"
    return "loop"


def _has_expert_modules(setup: Setup, config: Config) -> bool:
    """Before 5.0 transformers held a mixture's experts as a list of modules."""
    return (
        setup.experts.ep == 1
        and setup.versions.transformers < GROUPED_EXPERTS_FROM
        and _code(setup.versions, config) == "transformers"
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
        or not _uses_cache(setup, config)
        or not fills_cache_in_training(config.model_type, transformers)
    ):
        return "none"
    return "copy" if transformers >= CACHE_COPIES_FROM else "alias"


def _masks_always(setup: Setup, config: Config) -> bool:
    """Does attention get a mask whatever the length?"""
    versions, model_type = setup.versions, config.model_type
    if _code(versions, config) != "transformers":
        return False
    if versions.transformers < BOOLEAN_MASKS_FROM:
        return model_type in ALWAYS_MASKED_BEFORE_THAT
    has_cache = _uses_cache(setup, config) and fills_cache_in_training(
        model_type, versions.transformers
    )
    packed = takes_unmasked_for_packed(model_type, versions.transformers, versions.torch)
    return packed and not has_cache and not setup.loop.has_attention_mask


def _uses_cache(setup: Setup, config: Config) -> bool:
    asked = setup.loop.use_cache
    return config.flag("use_cache", True) if asked is None else asked


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
    return setup.adapter.kind is not None or (
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


def _trainable(adapter: Adapter, config: Config) -> Callable[[str], bool]:
    if adapter.added_blocks:
        return in_layers(tuple(sorted(added_layers(config, adapter.added_blocks))))
    return functools.partial(_is_trained, tuple(adapter.freeze)) if adapter.freeze else everything


@functools.cache  # a search asks for the same names in every recording
def _is_trained(frozen: tuple[str, ...], name: str) -> bool:
    return not any(
        fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in frozen
    )


def _lora(setup: Setup, config: Config) -> Lora | None:
    adapter = setup.adapter
    if adapter.kind is None and adapter.dora:
        raise InputError("dora needs lora-rank")
    if adapter.kind is None or adapter.kind in NOT_ON_LINEARS:
        return None
    moved = moved_names(setup.versions, config) if adapter.kind == "lora" else NOTHING
    targets = lora_matches(adapter.targets, moved)
    trained = _trainable(adapter, config)
    of_layers = in_layers(adapter.layers)
    saved = functools.partial(_is_inside, adapter.saved)

    def matches(name: str, kind: str) -> bool:
        """LLaMA-Factory and ms-swift put no adapters on the parts that they freeze, PEFT none on those of which it
        trains a copy."""
        return targets(name, kind) and of_layers(name) and trained(name) and not saved(name)

    return Lora(
        rank=adapter.rank or 0,
        matches=matches,
        dtype=adapter_dtype(setup),
        dora=adapter.dora,
        dropout=adapter.dropout,
        kind=adapter.kind,
        block=adapter.block or 0,
        scales_input=lambda name: name.endswith(adapter.feedforward),
        by_layer=bool(adapter.layers) or names_layers(adapter.targets),
    )


# Kinds that a formula describes, beside the records of `models.record.adapters`.
DESCRIBED = (*KINDS, "ln-tuning", "prompt", "p-tuning")
NOT_ON_LINEARS = ("ln-tuning", *PROMPTS)


# peft_model.py: PeftModelForSequenceClassification and …ForTokenClassification
HEADS_WITH_PROMPTS = {
    "ForSequenceClassification": ("classifier", "score"),
    "ForTokenClassification": ("classifier", "score"),
}


def _copies(setup: Setup, config: Config) -> tuple[Copies, ...]:
    """LN tuning trains copies of norms, modules-to-save of whatever is named; with virtual tokens the head of a
    classifier is trained, too."""
    adapter, found, saved = setup.adapter, [], setup.adapter.saved
    if adapter.kind in PROMPTS:
        saved = next(
            (
                names
                for ending, names in HEADS_WITH_PROMPTS.items()
                if config.architecture.endswith(ending)
            ),
            (),
        )
    if adapter.kind == "ln-tuning":
        matches = lora_matches(adapter.targets)
        found.append(
            Copies(
                matches=lambda name: matches(name, "norm"),
                frozen="base_layer",
                trained="ln_tuning_layers.default",
                by_layer=names_layers(adapter.targets),
            )
        )
    if adapter.kind is not None and saved:
        found.append(
            Copies(
                matches=functools.partial(_ends_with, saved),
                frozen="original_module",
                trained="modules_to_save.default",
                by_layer=names_layers(saved),
            )
        )
    return tuple(found)


def _ends_with(targets: tuple[str, ...], name: str) -> bool:
    """peft/utils/other.py _set_trainable: the end of a module's name, whatever stands before it."""
    return name.endswith(targets)


def _is_inside(modules: tuple[str, ...], name: str) -> bool:
    """Is it one of these modules, or inside of one?"""
    return any(f".{module}." in f".{name}." for module in modules)


def _virtual_tokens(setup: Setup, config: Config) -> VirtualTokens | None:
    adapter = setup.adapter
    if adapter.kind not in PROMPTS:
        return None
    hidden = adapter.prompt_hidden
    if adapter.kind == "p-tuning":
        hidden = hidden or int(config.dim("hidden_size", "h"))
    return VirtualTokens(count=adapter.virtual_tokens, dtype=adapter_dtype(setup), hidden=hidden)


def adapter_dtype(setup: Setup) -> Dtype:
    """What adapters are stored in. PEFT raises those of a 16-bit model to fp32 (since 0.12); other frameworks keep the
    model's dtype."""
    dtype = setup.adapter.dtype
    return setup.precision.weights if dtype == "weights" else DTYPES[dtype]


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
        setup.adapter.kind != "lora"
        or not names
        or not asked
        or _code(setup.versions, config) != "transformers"
    ):
        return ()
    if not moved_names(setup.versions, config):
        if _has_expert_modules(setup, config):
            return (
                "adapters on each expert's linear layers, as PEFT makes them before transformers 5",
            )
        return ("adapters on experts that are spread over GPUs are not counted",)
    refused = (
        f"; it refuses lora-dropout {setup.adapter.dropout} there, which is left out"
        if setup.adapter.dropout
        else ""
    )
    return (
        f"adapters on experts as PEFT 0.21 puts them: added to one tensor as large as the experts{refused}",
    )


LITGPT_HEAD_CHUNK = 128  # litgpt/finetune/lora.py lm_head_chunk_size


def _quantized(setup: Setup, config: Config) -> Quantized | None:
    if setup.adapter.quantize == "none":
        return None
    if setup.adapter.kind is None:
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
        loaded=_loaded_as(setup),
        head_chunk=LITGPT_HEAD_CHUNK if setup.versions.framework == "litgpt" else None,
        clones=setup.adapter.quantize != "int8"
        and setup.versions.framework not in OWN_CODE,  # peft 0.21 tuners/lora/bnb.py
    )


def _loaded_as(setup: Setup) -> Dtype | None:
    """The dtype that 4-bit weights come back to: what they were loaded in (functional.py, QuantState.dtype).
    bitsandbytes before 0.43 quantised `weight.half()`, Fabric's plugin still does."""
    if setup.adapter.quantize == "int8":
        return None
    if setup.versions.bitsandbytes < (0, 43) or setup.versions.framework == "litgpt":
        return F16
    return setup.precision.frozen or setup.precision.weights


STORED: dict[str, Callable[[int], int]] = {
    "int8": lambda n: n,  # plus one fp32 scale per row, which is billed with the bias-sized tensors
    "nf4": lambda n: n // 2 + 4 * -(-n // 64),
    "nf4-double": lambda n: n // 2 + -(-n // 64) + 4 * -(-n // (64 * 256)),
}


def raises_to_fp32(setup: Setup) -> bool:
    """prepare_model_for_kbit_training turns what is not quantised to fp32; TRL, and who wants 16-bit adapters or shards
    weights, does without."""
    return setup.adapter.is_raised and setup.parallel.strategy not in ("fsdp1", "fsdp2", "zero3")


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
