"""llm-foundry and nanotron: YAML with nested groups, fewer users, the keys that decide memory.

Sources: llmfoundry/command_utils/train.py; nanotron/config/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import dtype_word
from vramcast.configs.model_sizes import Sizes, model_with
from vramcast.configs.records import Draft, Record, Settings


def _read_foundry(settings: Settings, draft: Draft) -> None:
    model = settings.record(
        "model.pretrained_model_name_or_path", "variables.model_name_or_path", "model_name_or_path"
    )
    draft.say("model", model.value if model else None, model)
    if model is None and "model.d_model" in settings:
        keys = {
            "layers": "n_layers",
            "hidden": "d_model",
            "heads": "n_heads",
            "vocabulary": "vocab_size",
        }
        sizes = _sizes(settings, "model.", keys, is_gated=False)
        _say_by_sizes(sizes, settings.record("model.d_model"), draft)
    batch = settings.record("device_train_microbatch_size")
    if batch is not None and str(batch.value) == "auto":
        draft.gap(batch, "auto: the batch is found while it runs; say it with --batch")
    else:
        draft.say("batch", batch.value if batch else None, batch)
    draft.facts["global_batch"] = settings.record("global_train_batch_size")
    length = settings.record("max_seq_len", "variables.max_seq_len")
    draft.say("seq", length.value if length else None, length)
    _read_foundry_fsdp(settings, draft)
    interval, rows = settings.record("eval_interval"), settings.record("device_eval_batch_size")
    if interval is not None and str(interval.value) not in ("0", "0ba", "0ep"):
        draft.say("evaluate", True, interval)
        draft.say("eval-batch", rows.value if rows else None, rows)
    if settings.is_on("model.use_flash_attention_2"):
        draft.say("attention", "flash", settings.record("model.use_flash_attention_2"))
    attention = settings.record("model.attn_config.attn_impl")
    if attention is not None:
        kinds = {"flash": "flash", "torch": "math", "triton": "flash"}
        draft.say("attention", kinds.get(str(attention.value)), attention)
    # composer/distributed/mosaic_parallelism.py: PURE and DEFAULT differ in what gradients are reduced in;
    # what each GPU keeps of the weights stays in fp32 either way.
    precision = settings.record("precision")
    word = {"amp_bf16": "bf16-mixed", "amp_fp16": "fp16-mixed", "fp32": "fp32"}.get(
        settings.text("precision", default="amp_bf16")
    )
    draft.say("precision", word, precision or "llm-foundry's precision is amp_bf16 by default")
    rank = settings.record("model.peft_config.r")
    draft.say("lora-rank", rank.value if rank else None, rank)
    optimizer = settings.text("optimizer.name")
    if "lion" in optimizer:
        draft.say("optimizer", "lion", settings.record("optimizer.name"))


def _read_foundry_fsdp(settings: Settings, draft: Draft) -> None:
    sharding = settings.record("fsdp_config.sharding_strategy")
    if sharding is not None:
        word = str(sharding.value).upper()
        draft.say("strategy", "ddp" if word == "NO_SHARD" else "fsdp1", sharding)
        draft.say("reshard", False if word == "SHARD_GRAD_OP" else None, sharding)
    checkpointing = settings.record("fsdp_config.activation_checkpointing")
    if checkpointing is not None:
        draft.say(
            "checkpointing", "full" if settings.is_on(checkpointing.key) else "none", checkpointing
        )
        reentrant = settings.record("fsdp_config.activation_checkpointing_reentrant")
        draft.say("reentrant", settings.is_on(reentrant.key) if reentrant else None, reentrant)
    if settings.is_on("fsdp_config.activation_cpu_offload"):
        draft.say("offload", "activations", settings.record("fsdp_config.activation_cpu_offload"))


def _sizes(
    settings: Settings, prefix: str, keys: Mapping[str, str], *, is_gated: bool = True
) -> Sizes:
    found = {name: settings.number(prefix + key) for name, key in keys.items()}
    return replace(Sizes(is_gated=is_gated), **found)  # type: ignore[arg-type]


def _say_by_sizes(sizes: Sizes, source: Record | None, draft: Draft) -> None:
    name = model_with(sizes, "" if source is None else Path(source.file).name)
    draft.say("model", name, source)
    draft.assume(
        "the model is given by its sizes; MODEL must be one with the same"
        if name is None
        else f"the model is given by its sizes, which {name} has: say MODEL if it is another"
    )


FOUNDRY = Framework(
    name="llm-foundry",
    title="llm-foundry",
    rules=(_read_foundry,),
    gaps={
        "tp_config*": "tensor parallelism: say it with --tp",
        "model.peft_config.target_modules": "say it with --lora-targets",
    },
    no_effect=words(
        """
        variables* model.name model.d_model model.n_* model.expansion_ratio model.max_seq_len model.vocab_size
        model.attn_config* model.pretrained model.use_auth_token model.init_device model.config_overrides*
        model.loss_fn model.init_config* tokenizer* train_loader* eval_loader* scheduler* optimizer* algorithms*
        max_duration eval_* global_* seed device_* fsdp_config.backward_prefetch fsdp_config.limit_all_gathers
        fsdp_config.use_orig_params fsdp_config.verbose fsdp_config.state_dict_type
        fsdp_config.sync_module_states fsdp_config.forward_prefetch fsdp_config.load_*
        fsdp_config.mixed_precision progress_bar log_* console_* callbacks* loggers* save_* run_name load_*
        data_* autoresume dist_timeout python_log_level icl_* global_seed expandable_segments train_loader
        tokenizer_name
        """
    ),
    apart=("tokenizer.", "callbacks.", "loggers.", "icl_", "eval_loader.", "train_loader."),
    marks={
        "device_train_microbatch_size": 5,
        "train_loader*": 3,
        "max_seq_len": 1,
        "fsdp_config.sharding_strategy": 2,
        "max_duration": 2,
        "global_train_batch_size": 2,
    },
)


def _read_nanotron(settings: Settings, draft: Draft) -> None:
    for key, word in (
        ("tokens.micro_batch_size", "batch"),
        ("tokens.batch_accumulation_per_replica", "accumulate"),
        ("tokens.sequence_length", "seq"),
        ("parallelism.tp", "tp"),
        ("parallelism.pp", "pp"),
        ("parallelism.context_parallel_size", "cp"),
        ("parallelism.expert_parallel_size", "ep"),
    ):
        record = settings.record(key)
        draft.say(word, record.value if record else None, record)
    gpus = 1
    for key in ("dp", "tp", "pp", "context_parallel_size"):  # nanotron/parallel/context.py
        gpus *= settings.number(f"parallelism.{key}", default=1) or 1
    draft.say("gpus", gpus, settings.record("parallelism.dp"))
    stage = settings.record("optimizer.zero_stage")
    draft.say(
        "strategy", "zero1" if stage is not None and settings.number(stage.key) else "ddp", stage
    )
    dtype, fp32 = (
        settings.record("model.dtype"),
        settings.record("optimizer.accumulate_grad_in_fp32"),
    )
    if dtype_word(settings.value("model.dtype")) == "bf16":
        is_fp32 = fp32 is None or settings.is_on(fp32.key)
        draft.say("precision", "megatron-bf16" if is_fp32 else "bf16-true", dtype)
    mode = settings.record("parallelism.tp_mode")
    if mode is not None:
        draft.say("sequence-parallel", str(mode.value).upper() == "REDUCE_SCATTER", mode)
    recompute = settings.record("parallelism.recompute_layer")
    if recompute is not None and settings.is_on(recompute.key):
        draft.say("checkpointing", "full", recompute)
    if settings.under("model.model_config"):
        inner = "model.model_config."
        keys = {
            "layers": "num_hidden_layers",
            "hidden": "hidden_size",
            "heads": "num_attention_heads",
            "groups": "num_key_value_heads",
            "ffn": "intermediate_size",
            "vocabulary": "vocab_size",
        }
        _say_by_sizes(_sizes(settings, inner, keys), settings.record(f"{inner}hidden_size"), draft)


NANOTRON = Framework(
    name="nanotron",
    title="nanotron",
    rules=(_read_nanotron,),
    gaps={},
    no_effect=words(
        """
        checkpoints* data_stages* general* lighteval* logging* model.ddp_bucket_cap_mb model.init_method*
        model.make_vocab* model.model_config optimizer.clip_grad optimizer.learning_rate*
        optimizer.weight_decay* optimizer.optimizer_factory* parallelism.tp_mode parallelism.pp_engine
        parallelism.tp_linear* parallelism.tp_recompute* parallelism.moe_layer_recompute optimizer.adam_*
        optimizer.torch_adam* doremi* data.* parallelism.dp profiler* tokenizer* tokens.* s3_upload*
        metrics_logging* lr_*
        """
    ),
    apart=("tokenizer.", "data_stages.", "checkpoints.", "logging.", "general.", "lighteval."),
    marks={
        "tokens.micro_batch_size": 6,
        "parallelism.tp_mode": 2,
        "parallelism.dp": 2,
        "tokens.sequence_length": 2,
    },
)
