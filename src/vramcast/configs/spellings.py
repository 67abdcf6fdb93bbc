"""A change of the Job in a framework's own words: which keys of its file get which values.

A spelling takes the job before and after, and the file's settings; None: this framework has no word for it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramcast.configs.records import Settings
from vramcast.job import Job

Spelling = Callable[[Job, Job, Settings], Mapping[str, Any] | None]

# transformers' `optim`, by optimizer and implementation.
OPTIM = {
    ("adamw", "fused"): "adamw_torch_fused",
    ("adamw", "foreach"): "adamw_torch",
    ("adamw", None): "adamw_torch",
    ("adamw-8bit", None): "adamw_bnb_8bit",
    ("paged-adamw", None): "paged_adamw_32bit",
    ("paged-adamw-8bit", None): "paged_adamw_8bit",
    ("adafactor", None): "adafactor",
    ("lion", None): "lion_32bit",
    ("sgd", None): "sgd",
    ("adamw-torchao-8bit", None): "adamw_torch_8bit",
    ("adamw-torchao-4bit", None): "adamw_torch_4bit",
    ("lion-8bit", None): "lion_8bit",
    ("paged-lion", None): "paged_lion_32bit",
    ("paged-lion-8bit", None): "paged_lion_8bit",
    ("ademamix", None): "ademamix",
    ("ademamix-8bit", None): "ademamix_8bit",
    ("paged-ademamix", None): "paged_ademamix_32bit",
    ("paged-ademamix-8bit", None): "paged_ademamix_8bit",
    ("schedule-free-adamw", None): "schedule_free_adamw",
    ("apollo", None): "apollo_adamw",
}
LIGER_KERNELS = {"norm": "rms_norm", "rope": "rope", "mlp": "swiglu"}


def scaled(key: str, field: str, default: int) -> Spelling:
    """The file's number changes as the Job's does: pairs and packed rows keep their meaning."""

    def spell(before: Job, after: Job, settings: Settings) -> Mapping[str, Any] | None:
        old, new = getattr(before, field), getattr(after, field)
        value = settings.number(key, default=default) or default
        return {key: new * value // old} if old and new * value % old == 0 else None

    return spell


def plain(key: str, field: str) -> Spelling:
    return lambda _before, after, _settings: {key: getattr(after, field)}


def words(key: str, field: str, names: Mapping[Any, Any]) -> Spelling:
    def spell(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
        value = getattr(after, field)
        return {key: names[value]} if value in names else None

    return spell


def first_of(*keys: str, field: str) -> Spelling:
    """Under the name that the file has already."""

    def spell(before: Job, after: Job, settings: Settings) -> Mapping[str, Any] | None:
        key = next((key for key in keys if key in settings), keys[0])
        return scaled(key, field, getattr(before, field) or 1)(before, after, settings)

    return spell


def optim(key: str, eight_bit: str = "adamw_bnb_8bit") -> Spelling:
    def spell(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
        word = OPTIM.get((after.optimizer or "adamw", after.optimizer_impl))
        return None if word is None else {key: eight_bit if word == "adamw_bnb_8bit" else word}

    return spell


def liger(key: str) -> Spelling:
    """Liger's loss and kernels; `liger_kernel_config` switches those off that the plan does not take."""

    def spell(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
        if after.loss not in ("fused", None) or (after.loss is None and not after.kernels):
            return None
        off = {LIGER_KERNELS[kind]: False for kind in LIGER_KERNELS if kind not in after.kernels}
        loss = {} if after.loss == "fused" else {"fused_linear_cross_entropy": False}
        config = {"liger_kernel_config": {**off, **loss}} if off or loss else {}
        return {key: True, **config}

    return spell


CHECKPOINTING = words("gradient_checkpointing", "checkpointing", {"full": True, "none": False})


def trainer(length: tuple[str, ...], attention: str) -> dict[str, Spelling]:
    """Keys of transformers' Trainer and of the frameworks that are made of it."""
    return {
        "batch": scaled("per_device_train_batch_size", "batch", 8),
        "accumulate": plain("gradient_accumulation_steps", "accumulate"),
        "optimizer": optim("optim"),
        "optimizer-impl": optim("optim"),
        "checkpointing": CHECKPOINTING,
        "loss": liger("use_liger_kernel"),
        "kernels": liger("use_liger_kernel"),
        "attention": words(
            attention, "attention", {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
        ),
        "seq": first_of(*length, field="seq"),
        "compile": plain("torch_compile", "compile"),
        "workers": plain("dataloader_num_workers", "workers"),
        "eval-batch": plain("per_device_eval_batch_size", "eval_batch"),
        "lora-rank": first_of("lora_r", "lora_rank", "r", field="lora_rank"),
    }


ADAPTER_KEYS = ("lora-rank", "lora-targets", "quantize", "tuning")
HF = trainer(
    ("max_length", "max_seq_length", "model_max_length", "block_size"), "attn_implementation"
)
TRL = {
    **HF,
    "offload": words("activation_offloading", "offload", {"activations": True, "none": False}),
}
LLAMA_FACTORY = {
    **trainer(("cutoff_len",), "flash_attn"),
    "attention": words(
        "flash_attn", "attention", {"sdpa": "sdpa", "flash": "fa2", "eager": "disabled"}
    ),
    "loss": words("enable_liger_kernel", "loss", {"fused": True}),
    "kernels": words("enable_liger_kernel", "loss", {"fused": True}),
    "precision": words("pure_bf16", "precision", {"bf16-true": True}),
}


def _factory_adapters(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    if after.lora_rank is None:
        return {"finetuning_type": "full"}
    targets = "all" if after.lora_targets in ((), ("all-linear",)) else ",".join(after.lora_targets)
    return {"finetuning_type": "lora", "lora_rank": after.lora_rank, "lora_target": targets}


def _factory_bits(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    double = {} if after.quantize != "nf4" else {"double_quantization": False}
    bits = {"nf4": 4, "nf4-double": 4, "int8": 8}.get(after.quantize)
    return None if bits is None else {"quantization_bit": bits, **double}


def _axolotl_adapters(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    if after.lora_rank is None:
        return None
    is_four = after.quantize in ("nf4", "nf4-double")
    bits = (
        {"load_in_4bit": True}
        if is_four
        else {"load_in_8bit": True}
        if after.quantize == "int8"
        else {}
    )
    linear = {"lora_target_linear": True} if after.lora_targets in ((), ("all-linear",)) else {}
    return {
        "adapter": "qlora" if is_four else "lora",
        "lora_r": after.lora_rank,
        "lora_alpha": 2 * after.lora_rank,
        **linear,
        **bits,
    }


def _trl_adapters(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    if after.lora_rank is None:
        return {"use_peft": False}
    targets = (
        "all-linear" if after.lora_targets in ((), ("all-linear",)) else list(after.lora_targets)
    )
    four = {"load_in_4bit": True} if after.quantize in ("nf4", "nf4-double") else {}
    double = {"use_bnb_nested_quant": True} if after.quantize == "nf4-double" else {}
    dropout = {"lora_dropout": after.lora_dropout or 0.0}
    return {
        "use_peft": True,
        "lora_r": after.lora_rank,
        "lora_target_modules": targets,
        **dropout,
        **four,
        **double,
    }


def _swift_adapters(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    if after.lora_rank is None:
        return {"tuner_type": "full"}
    four = (
        {"quant_method": "bnb", "quant_bits": 4} if after.quantize in ("nf4", "nf4-double") else {}
    )
    return {"tuner_type": "lora", "lora_rank": after.lora_rank, **four}


def _factory_checkpointing(
    _before: Job, after: Job, settings: Settings
) -> Mapping[str, Any] | None:
    changes = {
        "none": {"disable_gradient_checkpointing": True},
        "full": {"disable_gradient_checkpointing": False},
        "offload": {"use_unsloth_gc": True},
    }
    found = changes.get(after.checkpointing or "")
    if (
        found is not None
        and after.checkpointing != "none"
        and "disable_gradient_checkpointing" in settings
    ):
        return {**found, "disable_gradient_checkpointing": False}
    return found


LLAMA_FACTORY |= {
    "checkpointing": _factory_checkpointing,
    "lora-rank": _factory_adapters,
    "lora-targets": _factory_adapters,
    "tuning": _factory_adapters,
    "quantize": _factory_bits,
}
TRL |= dict.fromkeys(ADAPTER_KEYS, _trl_adapters)


def _axolotl_kernels(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    keys = {"norm": "liger_rms_norm", "rope": "liger_rope", "mlp": "liger_glu_activation"}
    changes: dict[str, Any] = {keys[kind]: True for kind in after.kernels}
    if after.loss == "fused":
        changes["liger_fused_linear_cross_entropy"] = True
    if after.loss == "chunked":
        changes["chunked_cross_entropy"] = True
    return changes or None


def _axolotl_checkpointing(
    _before: Job, after: Job, _settings: Settings
) -> Mapping[str, Any] | None:
    changes = {
        "none": {"gradient_checkpointing": False},
        "full": {"gradient_checkpointing": True},
        "offload": {"gradient_checkpointing": True, "activation_offloading": True},
    }
    return changes.get(after.checkpointing or "")


AXOLOTL: dict[str, Spelling] = {
    "batch": scaled("micro_batch_size", "batch", 1),
    "accumulate": plain("gradient_accumulation_steps", "accumulate"),
    "seq": scaled("sequence_len", "seq", 512),
    "optimizer": optim("optimizer"),
    "optimizer-impl": optim("optimizer"),
    "checkpointing": _axolotl_checkpointing,
    "loss": _axolotl_kernels,
    "kernels": _axolotl_kernels,
    "attention": words(
        "attn_implementation",
        "attention",
        {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"},
    ),
    "eval-batch": plain("eval_batch_size", "eval_batch"),
    **dict.fromkeys(ADAPTER_KEYS, _axolotl_adapters),
}
MS_SWIFT = {
    **trainer(("max_length",), "attn_impl"),
    "batch": scaled("per_device_train_batch_size", "batch", 1),
    "attention": words(
        "attn_impl", "attention", {"sdpa": "sdpa", "flash": "flash_attn", "eager": "eager"}
    ),
    **dict.fromkeys(ADAPTER_KEYS, _swift_adapters),
}
MEGATRON: dict[str, Spelling] = {
    "batch": plain("micro_batch_size", "batch"),
    "seq": plain("seq_length", "seq"),
    "tp": plain("tensor_model_parallel_size", "tp"),
    "pp": plain("pipeline_model_parallel_size", "pp"),
    "cp": plain("context_parallel_size", "cp"),
    "ep": plain("expert_model_parallel_size", "ep"),
}
OPENRLHF: dict[str, Spelling] = {
    "batch": first_of("micro_train_batch_size", "train.micro_batch_size", field="batch"),
    "seq": first_of("max_len", "data.max_len", field="seq"),
}
UNSLOTH = {
    **trainer(("max_seq_length",), "attn_implementation"),
    "optimizer": optim("optim", "adamw_8bit"),
    "checkpointing": words(
        "use_gradient_checkpointing",
        "checkpointing",
        {"full": True, "none": False, "offload": "unsloth"},
    ),
    "lora-rank": plain("r", "lora_rank"),
    "quantize": words("load_in_4bit", "quantize", {"nf4": True, "nf4-double": True, "none": False}),
}
VERL: dict[str, Spelling] = {
    "batch": scaled("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "batch", 1),
    "checkpointing": words(
        "actor_rollout_ref.model.enable_gradient_checkpointing",
        "checkpointing",
        {"full": True, "none": False},
    ),
}


def _zero_offload(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    on: dict[str, str] = {"device": after.offload_device}
    if after.offload == "optimizer":
        return {"zero_optimization.offload_optimizer": on}
    if after.offload == "all":
        return {"zero_optimization.offload_optimizer": on, "zero_optimization.offload_param": on}
    return None


DEEPSPEED: dict[str, Spelling] = {
    "strategy": words(
        "zero_optimization.stage", "strategy", {"zero1": 1, "zero2": 2, "zero3": 3, "ddp": 0}
    ),
    "offload": _zero_offload,
}
ACCELERATE: dict[str, Spelling] = {
    "gpus": plain("num_processes", "gpus"),
    "offload": words(
        "fsdp_config.fsdp_offload_params", "offload", {"all": True, "params": True, "none": False}
    ),
}


def _switch(key: str, field: str, on: str, off: str = "none") -> Spelling:
    """A setting that is true or false."""
    return words(key, field, {on: True, off: False})


def _where_it_is(key: str, field: str) -> Spelling:
    """Only changed where it is: a recipe of full training has no adapters."""
    return lambda _before, after, settings: (
        {key: getattr(after, field)} if key in settings else None
    )


def _torchtune_optimizer(_before: Job, after: Job, settings: Settings) -> Mapping[str, Any] | None:
    """The class, and whether its step is fused or runs in backward."""
    classes = {
        "adamw": "torch.optim.AdamW",
        "adamw-8bit": "bitsandbytes.optim.AdamW8bit",
        "paged-adamw": "bitsandbytes.optim.PagedAdamW",
        "paged-adamw-8bit": "bitsandbytes.optim.PagedAdamW8bit",
        "sgd": "torch.optim.SGD",
    }
    name = classes.get(after.optimizer or "adamw")
    if name is None:
        return None
    is_in_backward = after.optimizer_impl == "in-backward"
    changes: dict[str, Any] = {"optimizer._component_": name}
    if is_in_backward or "optimizer_in_bwd" in settings:
        changes["optimizer_in_bwd"] = is_in_backward
    if name.startswith("torch.") and after.optimizer_impl == "fused":
        changes["optimizer.fused"] = True
    elif "optimizer.fused" in settings:
        changes["optimizer.fused"] = False
    return changes


TORCHTUNE: dict[str, Spelling] = {
    "batch": plain("batch_size", "batch"),
    "accumulate": plain("gradient_accumulation_steps", "accumulate"),
    "seq": plain("tokenizer.max_seq_len", "seq"),
    "checkpointing": _switch("enable_activation_checkpointing", "checkpointing", "full"),
    "offload": _switch("enable_activation_offloading", "offload", "activations"),
    "optimizer": _torchtune_optimizer,
    "optimizer-impl": _torchtune_optimizer,
    "lora-rank": _where_it_is("model.lora_rank", "lora_rank"),
    "compile": plain("compile", "compile"),
}
QUANTIZE = {"nf4": "bnb.nf4", "nf4-double": "bnb.nf4-dq", "int8": "bnb.int8-training"}
LITGPT: dict[str, Spelling] = {
    "batch": plain("train.micro_batch_size", "batch"),
    "seq": plain("train.max_seq_length", "seq"),
    "lora-rank": plain("lora_r", "lora_rank"),
    "quantize": words("quantize", "quantize", QUANTIZE),
    "gpus": plain("devices", "gpus"),
}


def _nemo_checkpointing(_before: Job, after: Job, settings: Settings) -> Mapping[str, Any] | None:
    """Automodel's word, or that of NeMo RL's policy on DTensor."""
    of_policy = "policy.dtensor_cfg.activation_checkpointing"
    is_rl = any(record.key.startswith("policy.") for record in settings)
    key = of_policy if is_rl else "distributed.activation_checkpointing"
    return _switch(key, "checkpointing", "full")(_before, after, settings)


NEMO: dict[str, Spelling] = {
    "batch": first_of(
        "step_scheduler.local_batch_size", "policy.train_micro_batch_size", field="batch"
    ),
    "seq": first_of(
        "dataset.seq_len", "dataset.seq_length", "policy.max_total_sequence_length", field="seq"
    ),
    "checkpointing": _nemo_checkpointing,
    "lora-rank": plain("peft.dim", "lora_rank"),
    "tp": plain("distributed.tp_size", "tp"),
    "cp": plain("distributed.cp_size", "cp"),
}
FOUNDRY: dict[str, Spelling] = {
    "batch": plain("device_train_microbatch_size", "batch"),
    "seq": plain("max_seq_len", "seq"),
    "checkpointing": _switch("fsdp_config.activation_checkpointing", "checkpointing", "full"),
    "offload": _switch("fsdp_config.activation_cpu_offload", "offload", "activations"),
}
NANOTRON: dict[str, Spelling] = {
    "batch": plain("tokens.micro_batch_size", "batch"),
    "accumulate": plain("tokens.batch_accumulation_per_replica", "accumulate"),
    "seq": plain("tokens.sequence_length", "seq"),
    "checkpointing": _switch("parallelism.recompute_layer", "checkpointing", "full"),
    "tp": plain("parallelism.tp", "tp"),
    "pp": plain("parallelism.pp", "pp"),
}
LLAMA_FACTORY_V1: dict[str, Spelling] = {
    "batch": plain("micro_batch_size", "batch"),
    "seq": plain("cutoff_len", "seq"),
    "checkpointing": _switch("enable_activation_checkpointing", "checkpointing", "full"),
    "lora-rank": first_of("peft_config.r", "peft_config.rank", field="lora_rank"),
}


def _megatron_recompute(_before: Job, after: Job, _settings: Settings) -> Mapping[str, Any] | None:
    if after.checkpointing != "full":
        return None
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }


def _megatron_optimizer_offload(
    _before: Job, after: Job, _settings: Settings
) -> Mapping[str, Any] | None:
    return {"optimizer_cpu_offload": True} if after.offload == "optimizer" else None


MEGATRON |= {"checkpointing": _megatron_recompute, "offload": _megatron_optimizer_offload}


def _openrlhf_flag(flat: str, dotted: str, field: str, value: str) -> Spelling:
    """A flag that stands alone, under the names that the script has already."""

    def spell(_before: Job, after: Job, settings: Settings) -> Mapping[str, Any] | None:
        is_dotted = any(key.startswith(("ds.", "train.")) for key in settings.records)
        key = dotted if is_dotted else flat
        return {key: True} if getattr(after, field) == value and key not in settings else None

    return spell


def _openrlhf_stage(_before: Job, after: Job, settings: Settings) -> Mapping[str, Any] | None:
    key = "ds.zero_stage" if "ds.zero_stage" in settings else "zero_stage"
    stages = {"zero1": 1, "zero2": 2, "zero3": 3}
    stage = stages.get(after.strategy or "")
    return None if stage is None else {key: stage}


OPENRLHF |= {
    "checkpointing": _openrlhf_flag(
        "gradient_checkpointing", "model.gradient_checkpointing_enable", "checkpointing", "full"
    ),
    "offload": _openrlhf_flag("adam_offload", "ds.adam_offload", "offload", "optimizer"),
    "strategy": _openrlhf_stage,
}
BY_FRAMEWORK: dict[str, Mapping[str, Spelling]] = {
    "torchtune": TORCHTUNE,
    "litgpt": LITGPT,
    "nemo": NEMO,
    "llm-foundry": FOUNDRY,
    "nanotron": NANOTRON,
    "llama-factory-v1": LLAMA_FACTORY_V1,
    "hf": HF,
    "trl": TRL,
    "llama-factory": LLAMA_FACTORY,
    "axolotl": AXOLOTL,
    "ms-swift": MS_SWIFT,
    "ms-swift-megatron": MEGATRON,
    "megatron": MEGATRON,
    "openrlhf": OPENRLHF,
    "unsloth": UNSLOTH,
    "verl": VERL,
    "deepspeed": DEEPSPEED,
    "accelerate": ACCELERATE,
}
