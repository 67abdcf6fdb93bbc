"""Words of transformers that many frameworks share: optimizers, attention, Liger, precision, what never matters."""

from __future__ import annotations

import re

from vramcast.configs.framework import words
from vramcast.configs.records import Draft, Record, Settings

# transformers/training_args.py OptimizerNames, and those that axolotl and LLaMA-Factory add → the Job's.
OPTIMIZERS: dict[str, tuple[str, str | None]] = {
    "adamw_torch": ("adamw", "foreach"),
    "adamw_torch_fused": ("adamw", "fused"),
    "adamw_apex_fused": ("adamw", "fused"),
    "adamw_hf": ("adamw", "loop"),
    "adamw": ("adamw", None),
    "adam": ("adam", None),
    "adamw_8bit": ("adamw-8bit", None),
    "adamw_bnb_8bit": ("adamw-8bit", None),
    "paged_adamw": ("paged-adamw", None),
    "paged_adamw_32bit": ("paged-adamw", None),
    "paged_adamw_8bit": ("paged-adamw-8bit", None),
    "adafactor": ("adafactor", None),
    "lion": ("lion", None),
    "lion_32bit": ("lion", None),
    "lion_pytorch": ("lion", None),
    "sgd": ("sgd", None),
    "adagrad": ("adagrad", None),
    "rmsprop": ("rmsprop", None),
    "galore_adamw": ("galore", None),
    "galore_adamw_layerwise": ("galore", None),
    "lomo": ("lomo", None),
    "muon": ("muon", None),
    "came_pytorch": ("came", None),
    "adam_mini": ("adam-mini", None),
    "sophia": ("sophia", None),
    "adamw_torch_8bit": ("adamw-torchao-8bit", None),
    "ao_adamw_8bit": ("adamw-torchao-8bit", None),
    "adamw_torch_4bit": ("adamw-torchao-4bit", None),
    "ao_adamw_4bit": ("adamw-torchao-4bit", None),
    "lion_8bit": ("lion-8bit", None),
    "paged_lion": ("paged-lion", None),
    "paged_lion_32bit": ("paged-lion", None),
    "paged_lion_8bit": ("paged-lion-8bit", None),
    "ademamix": ("ademamix", None),
    "ademamix_8bit": ("ademamix-8bit", None),
    "paged_ademamix_32bit": ("paged-ademamix", None),
    "paged_ademamix_8bit": ("paged-ademamix-8bit", None),
    "schedule_free_adamw": ("schedule-free-adamw", None),
    "apollo_adamw": ("apollo", None),
    "apollo_adamw_layerwise": ("apollo", None),
}
# What has no word: what it is counted as, and why that is not the same.
NEAREST_OPTIMIZERS: dict[str, tuple[str, str]] = {
    "ao_adamw_fp8": ("adamw-torchao-8bit", "torchao's fp8 states are counted as its 8-bit ones"),
    "rmsprop_32bit": ("rmsprop", "bitsandbytes' form is counted as torch's"),
    "rmsprop_bnb": ("rmsprop", "bitsandbytes' form is counted as torch's"),
    "rmsprop_bnb_8bit": ("rmsprop", "8-bit states are counted in the weights' dtype: too much"),
    "galore_adamw_8bit": ("galore", "8-bit states are counted in fp32: too much"),
    "galore_adamw_8bit_layerwise": ("galore", "8-bit states are counted in fp32: too much"),
    "galore_adafactor": ("galore", "factored states are counted as AdamW's: too much"),
    "galore_adafactor_layerwise": ("galore", "factored states are counted as AdamW's: too much"),
    "adalomo": ("lomo", "AdaLomo's factored states are not counted"),
    "stable_adamw": ("adamw", "its temporaries are counted as AdamW's"),
    "schedule_free_radam": ("schedule-free-adamw", "schedule-free states are counted as AdamW's"),
    "schedule_free_sgd": ("sgd-momentum", "schedule-free states are counted as a momentum"),
    "optimi_adamw": ("adamw", "its temporaries are counted as torch's"),
    "grokadamw": ("adamw", "its third state is not counted: too little"),
    "adamw_anyprecision": ("adamw", "its states are counted in the weights' dtype"),
    "q_galore": ("galore", "int8 projections are counted in fp32: too much"),
    "dion": ("muon", "Dion's low-rank states are counted as Muon's"),
    "flash_adamw": ("adamw", "its compressed states are counted as AdamW's: too much"),
}
ATTENTION = {
    "sdpa": "sdpa",
    "auto": "sdpa",
    "eager": "eager",
    "disabled": "eager",
    "flash_attention": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash_attn": "flash",
    "flash_attn_2": "flash",
    "flash_attn_3": "flash",
    "flash": "flash",
    "fa2": "flash",
    "fa3": "flash",
    "xformers": "efficient",
    "true": "flash",
    "false": "sdpa",
}
# Attention through kernels of the Hub: `kernels-community/flash-attn2`, `vllm-flash-attn3`.
HUB_FLASH = re.compile(r".*flash[-_]attn.*|.*flash_attention.*")
DTYPES = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp32": "fp32",
    "float": "fp32",
}
LIGER = {"loss": "fused", "kernels": ("norm", "rope", "mlp")}

# Keys of TrainingArguments that decide no memory: schedules, logging, saving, seeds, the Hub.
NO_EFFECT = words(
    """
    bf16_full_eval fp16_full_eval lora_task_type
    output_dir overwrite_output_dir do_train do_eval do_predict num_train_epochs max_steps max_train_steps
    learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm lr_scheduler_type
    lr_scheduler_kwargs* warmup_ratio warmup_steps log_level* log_on_each_node logging_* save_strategy
    save_steps save_total_limit save_only_model save_safetensors save_on_each_node seed data_seed run_name
    report_to push_to_hub hub_* eval_steps eval_delay eval_on_start load_best_model_at_end metric_for_best_model
    greater_is_better ignore_data_skip tf32 ddp_timeout ddp_backend ddp_find_unused_parameters disable_tqdm
    remove_unused_columns label_names dataloader_drop_last dataloader_persistent_workers dataloader_shuffle
    past_index local_rank skip_memory_metrics include_* restore_* full_determinism use_cpu no_cuda
    resume_from_checkpoint project trackio_* wandb* swanlab* mlflow* comet_* disable_log* trust_remote_code
    model_revision revision token cache_dir use_fast use_fast_tokenizer tokenizer_name* config_name dataset
    dataset_* datasets* data_path data_dir data_files train_file validation_file test_file
    preprocessing_num_workers overwrite_cache max_samples max_train_samples max_eval_samples
    validation_split_percentage template system chat_template* eval_dataset* val_size num_workers_preprocess
    plot_loss lora_alpha use_rslora loraplus_* lora_bias bias init_lora_weights task_type peft_type
    inference_mode base_model_name_or_path fan_in_fan_out auto_mapping alpha_pattern loftq_config* megatron_*
    corda_config* eva_config* exclude_modules layer_replication lora_weight_* gradient_checkpointing_kwargs*
    accelerator_config* torch_compile_backend torch_compile_mode average_tokens_across_devices
    use_legacy_prediction_loop debug jit_mode_eval length_column_name torchdynamo ray_scope
    lr_scheduler evaluation_strategy eval_strategy save_on_epoch_end report_to.* tags
    desc
    """
)


def read_optimizer(settings: Settings, draft: Draft, *keys: str) -> None:
    """`optim: paged_adamw_8bit`."""
    record = settings.record(*keys)
    if record is not None:
        say_optimizer(str(record.value), record, draft)


def say_optimizer(name: str, record: Record, draft: Draft) -> None:
    word = name.strip().lower().replace("-", "_").rpartition(".")[2]
    known = OPTIMIZERS.get(word)
    if known is not None:
        draft.say("optimizer", known[0], record)
        if word == "lion_32bit":  # bitsandbytes' Lion keeps it in fp32 whatever the weights are
            draft.say("state-dtype", "fp32", record)
        draft.say(
            "optimizer-impl", "in-backward" if word.endswith("layerwise") else known[1], record
        )
        return
    nearest = NEAREST_OPTIMIZERS.get(word)
    if nearest is None:
        draft.gap(record, "no such optimizer is known; counted as AdamW")
        return
    draft.say("optimizer", nearest[0], record)
    draft.gap(record, nearest[1])


def read_attention(settings: Settings, draft: Draft, *keys: str) -> None:
    record = settings.record(*keys)
    if record is None:
        return
    word = str(record.value).strip().lower().replace("-", "_")
    if word in ATTENTION:
        draft.say("attention", ATTENTION[word], record)
    elif HUB_FLASH.fullmatch(word):
        draft.say("attention", "flash", record)
    elif "flex" in word:
        draft.say("attention", "flash", record)
        draft.gap(record, "flex attention is counted as flash attention")
    else:
        draft.gap(record, "no such attention is known; counted as sdpa")


def read_liger(settings: Settings, draft: Draft, *keys: str, loss: str = "fused") -> None:
    """Liger on: fused loss and kernels, each of which `liger_kernel_config` can switch."""
    record = settings.record(*keys)
    if record is None or not settings.is_on(record.key):
        return
    kinds = {"norm": "rms_norm", "rope": "rope", "mlp": "swiglu"}
    prefix = "liger_kernel_config."
    kernels = tuple(
        word for word, key in kinds.items() if settings.is_on(prefix + key, default=True)
    )
    fused = settings.is_on(f"{prefix}fused_linear_cross_entropy", default=True)
    settings.under("liger_kernel_config")
    draft.say("loss", loss if fused else "full", record)
    draft.say("kernels", kernels, record)


def read_checkpointing(
    settings: Settings, draft: Draft, *, default: bool = False, why: str = ""
) -> None:
    """`gradient_checkpointing` and its `use_reentrant`."""
    record = settings.record("gradient_checkpointing")
    if record is not None and str(record.value).lower() == "unsloth":
        draft.say("checkpointing", "offload", record)
    elif record is not None:
        draft.say("checkpointing", "full" if settings.is_on(record.key) else "none", record)
    elif default:
        draft.say("checkpointing", "full", why)
    reentrant = settings.record("gradient_checkpointing_kwargs.use_reentrant")
    if reentrant is not None and draft.value("checkpointing") == "full":
        draft.say("reentrant", settings.is_on(reentrant.key), reentrant)


def checkpoint_by_fsdp(record: Record, draft: Draft) -> None:
    """FSDP wraps the blocks whatever the Trainer's own gradient_checkpointing says."""
    if draft.value("checkpointing") == "none":
        draft.replace("checkpointing", "full", record)
    else:
        draft.say("checkpointing", draft.value("checkpointing", "full"), record)


def read_evaluation(settings: Settings, draft: Draft) -> None:
    """An evaluation runs where a strategy says so; its batch is 8 unless said."""
    record = settings.record("eval_strategy", "evaluation_strategy")
    has_share = settings.record("val_size", "val_set_size", "do_eval")
    batch = settings.record("per_device_eval_batch_size", "eval_batch_size")
    if record is not None and str(record.value).lower() != "no":
        draft.say("evaluate", True, record)
        if batch is not None:
            draft.say("eval-batch", settings.number(batch.key) or 1, batch)
        elif has_share is None or record.value:
            draft.say("eval-batch", 8, "per_device_eval_batch_size is 8 by default")
    settings.used.update(("prediction_loss_only", "eval_accumulation_steps", "batch_eval_metrics"))


def dtype_word(value: object) -> str | None:
    """`torch.bfloat16`, `bf16` → bf16; None: as stored ("auto"), or nothing known."""
    return DTYPES.get(str(value).lower().rpartition(".")[2])


def compute_dtype(settings: Settings) -> tuple[str | None, Record | None]:
    """What `bf16: true` or `fp16: true` says; both at once is refused as transformers refuses it."""
    bf16, fp16 = settings.record("bf16"), settings.record("fp16")
    has_bf16 = bf16 is not None and _is_asked(bf16, settings)
    has_fp16 = fp16 is not None and _is_asked(fp16, settings)
    if bf16 and fp16 and has_bf16 and has_fp16:
        from vramcast.errors import InputError

        raise InputError(
            f"{fp16.place}: bf16 and fp16 are both on; transformers refuses that: leave out one"
        )
    if has_bf16:
        return "bf16", bf16
    return ("fp16", fp16) if has_fp16 else (None, bf16 or fp16)


def _is_asked(record: Record, settings: Settings) -> bool:
    word = str(record.value).lower()
    return True if word in ("auto", "full") else settings.is_on(record.key)


EXPRESSION = frozenset("*+?|()^$\\")  # brackets alone are those of a list


def targets_of(value: object) -> tuple[str, ...]:
    """`q_proj,v_proj`, a list, `all` or `all-linear`, or one regular expression."""
    if isinstance(value, str) and not EXPRESSION.isdisjoint(value):
        return (value,)
    names = (
        value
        if isinstance(value, list | tuple)
        else str(value).strip("[]").replace(" ", ",").split(",")
    )
    found = tuple(str(name).strip().strip("'\"") for name in names if str(name).strip())
    return ("all-linear",) if found in (("all",), ("all-linear",), ("all_linear",)) else found
