"""axolotl's flat YAML.

Sources: axolotl/utils/schemas/*.py (keys and defaults), loaders/model.py (dtypes), core/trainers/base.py (packing),
utils/__init__.py (it sets expandable_segments itself).
"""

from __future__ import annotations

import re

from vramcast.configs import peft
from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import (
    NO_EFFECT,
    checkpoint_by_fsdp,
    compute_dtype,
    read_attention,
    read_checkpointing,
    read_optimizer,
    targets_of,
)
from vramcast.configs.huggingface import read_loader, read_quantization, read_strategy
from vramcast.configs.records import Draft, Record, Settings
from vramcast.configs.tasks import say_reference, say_task

SEQUENCE_LEN = 512
ALLOC_CONF = "expandable_segments:True"


def _read_model(settings: Settings, draft: Draft) -> None:
    model = settings.record("base_model")
    if model is not None:
        draft.say("model", model.value, model)
    read_quantization(settings, draft)
    if draft.value("quantize") == "nf4":
        draft.replace("quantize", "nf4-double", settings.record("load_in_4bit"))
    adapter = settings.record("adapter")
    if adapter is not None:
        _read_adapter(settings, draft, adapter)
        return
    draft.said.pop("quantize", None)  # axolotl refuses to train quantised weights in full
    settings.used.update(
        record.key for record in settings if record.key.startswith(("lora_", "peft_"))
    )


def _read_adapter(settings: Settings, draft: Draft, adapter: Record) -> None:
    if adapter.value not in ("lora", "qlora"):
        draft.gap(adapter, "counted as LoRA")
    rank, dropout = settings.record("lora_r"), settings.record("lora_dropout")
    if rank is None:
        draft.gap(adapter, "lora_r is missing: say it with --lora-rank; counted with 8")
    draft.say("lora-rank", 8 if rank is None else rank.value, rank or adapter)
    draft.say("lora-dropout", dropout.value, dropout) if dropout is not None else None
    linear, targets = settings.record("lora_target_linear"), settings.record("lora_target_modules")
    if linear is not None and settings.is_on("lora_target_linear"):
        draft.say("lora-targets", ("all-linear",), linear)
    elif targets is not None:
        _read_targets(targets, draft)
    peft.read_copies(settings, draft)
    if settings.is_on("peft_use_dora", "lora_use_dora"):
        draft.say("dora", True, settings.record("peft_use_dora", "lora_use_dora"))


def _read_targets(targets: Record, draft: Draft) -> None:
    """A text is a pattern: `model.layers.[\\d]+.self_attn.(q|k|v|o)_proj` means four names."""
    names = (
        module_names(targets.value) if isinstance(targets.value, str) else targets_of(targets.value)
    )
    if names:
        draft.say("lora-targets", names, targets)
    else:
        draft.gap(
            targets,
            "a pattern of modules: say the names with --lora-targets; counted as all linear ones",
        )


def module_names(pattern: str) -> tuple[str, ...]:
    """The names that the last part of a pattern stands for; nothing where it is not made of words and choices."""
    last = re.split(r"\\?\.(?![*+])", pattern)[-1].removesuffix("$")
    pieces = re.fullmatch(r"(\w*)(?:\(([\w|]+)\)(\w*))?", last)
    if pieces is None or not last:
        return ()
    return tuple(f"{pieces[1]}{word}{pieces[3] or ''}" for word in (pieces[2] or "").split("|"))


def _read_data(settings: Settings, draft: Draft) -> None:
    """Packed samples are one row of micro_batch_size × sequence_len tokens."""
    length, micro = settings.record("sequence_len"), settings.record("micro_batch_size")
    seq = (settings.number("sequence_len") if length else None) or SEQUENCE_LEN
    batch = _micro_batch(settings)
    source = length or f"axolotl's sequence_len is {SEQUENCE_LEN} by default"
    if settings.is_on("sample_packing") and batch > 1:
        told = settings.record("sample_packing")
        draft.say("batch", 1, told)
        draft.say("seq", batch * seq, told)
    else:
        draft.say("batch", batch, micro or "axolotl's micro_batch_size is 1 by default")
        draft.say("seq", seq, source)
    accumulate = settings.record("gradient_accumulation_steps")
    if accumulate is not None:
        draft.say("accumulate", accumulate.value, accumulate)
    settings.used.update(
        ("eval_batch_size", "pad_to_sequence_len", "sample_packing", "eval_sample_packing")
    )


def _micro_batch(settings: Settings) -> int:
    """An old file says batch_size, which counts the accumulated samples."""
    accumulated = settings.number("gradient_accumulation_steps", default=1) or 1
    old = settings.number("batch_size", default=0) or 0
    return settings.number("micro_batch_size", default=max(old // accumulated, 1)) or 1


def _read_precision(settings: Settings, draft: Draft) -> None:
    """Weights are loaded in the compute dtype and trained without a master copy."""
    compute, record = compute_dtype(settings)
    whole = settings.record("bfloat16", "float16")
    if whole is not None and settings.is_on(whole.key):
        dtype = "bf16" if whole.key == "bfloat16" else "fp16"
        draft.say("precision", f"{dtype}-true", whole)
        return
    if compute is None and (record is None or "bf16" not in settings):
        compute = "bf16"
    source: Record | str = record or "axolotl's bf16 is auto by default"
    draft.facts["compute"] = (compute or "no", source)
    draft.facts["weights"] = (compute or "fp32", source)


def _read_training(settings: Settings, draft: Draft) -> None:
    read_optimizer(settings, draft, "optimizer")
    if "optimizer" not in draft.said:
        default = "axolotl's optimizer is adamw_torch_fused by default"
        draft.say("optimizer", "adamw", default)
        draft.say("optimizer-impl", "fused", default)
    read_attention(settings, draft, "attn_implementation")
    for key, word in (
        ("flash_attention", "flash"),
        ("sdp_attention", "sdpa"),
        ("xformers_attention", "efficient"),
        ("eager_attention", "eager"),
    ):
        if settings.is_on(key) and "attention" not in draft.said:
            draft.say("attention", word, settings.record(key))
    _read_checkpointing(settings, draft)
    _read_kernels(settings, draft)
    if settings.is_on("torch_compile") or settings.text("torch_compile") == "auto":
        draft.say("compile", True, settings.record("torch_compile"))
    read_loader(settings, draft)
    draft.say(
        "alloc-conf", ALLOC_CONF, "axolotl sets PYTORCH_ALLOC_CONF=expandable_segments:True itself"
    )


def _read_checkpointing(settings: Settings, draft: Draft) -> None:
    record = settings.record("gradient_checkpointing")
    word = settings.text("gradient_checkpointing")
    offload = settings.record("activation_offloading")
    if word in ("offload", "offload_disk", "unsloth"):
        draft.say("checkpointing", "offload", record)
        settings.under("gradient_checkpointing_kwargs")
        return
    read_checkpointing(settings, draft)
    if offload is None or settings.text("activation_offloading") in ("false", "none"):
        return
    if draft.value("checkpointing") == "full":
        draft.replace("checkpointing", "offload", offload)
        draft.said.pop("reentrant", None)
    else:
        draft.say("offload", "activations", offload)
    if settings.text("activation_offloading") == "disk":
        draft.gap(offload, "what goes to disk is counted in CPU memory")


def _read_kernels(settings: Settings, draft: Draft) -> None:
    kinds = {
        "norm": ("liger_rms_norm", "liger_layer_norm"),
        "rope": ("liger_rope",),
        "mlp": ("liger_glu_activation", "liger_swiglu"),
    }
    found = tuple(word for word, keys in kinds.items() if _is_any_on(settings, keys))
    if found:
        keys = [key for word in found for key in kinds[word]]
        draft.say("kernels", found, settings.record(*keys))
    liger = settings.record("liger_fused_linear_cross_entropy")
    if liger is not None and settings.is_on(liger.key):
        draft.say("loss", "fused", liger)
    else:
        draft.say("loss", "fused", _cuts(settings))
    chunked = settings.record("chunked_cross_entropy")
    if chunked is not None and settings.is_on("chunked_cross_entropy"):
        draft.say("loss", "chunked", chunked)
    settings.used.add("cut_cross_entropy")


def _is_any_on(settings: Settings, keys: tuple[str, ...]) -> bool:
    settings.used.update(keys)
    return any(settings.is_on(key) for key in keys)


def _read_rl(settings: Settings, draft: Draft) -> None:
    kind, record = settings.text("rl"), settings.record("rl")
    by_vllm = kind in ("grpo", "gdpo") and settings.is_on("trl.use_vllm")
    if not by_vllm:
        say_task("grpo" if kind == "gdpo" else kind, record, draft)
    if settings.is_on("reward_model"):
        say_task("reward", settings.record("reward_model"), draft)
    if kind in ("dpo", "ipo", "kto"):
        say_reference(draft, record, adapts=draft.value("lora-rank") is not None)
    elif kind in ("grpo", "gdpo"):
        completion = settings.record("trl.max_completion_length")
        if not by_vllm:
            draft.say("rollout-tokens", completion.value if completion else None, completion)
        beta = settings.record("trl.beta")
        if beta is not None and str(beta.value) not in ("0", "0.0"):
            say_reference(draft, beta, adapts=draft.value("lora-rank") is not None)
        if settings.is_on("trl.use_vllm"):
            draft.gap(
                settings.record("trl.use_vllm"),
                "the share of the card that vLLM holds is not counted",
            )
    elif kind == "ebft":
        draft.gap(record, "EBFT's rollouts are not counted")
    settings.under("trl")
    settings.under("vllm")


def _read_parallel(settings: Settings, draft: Draft) -> None:
    version, config = settings.record("fsdp_version"), settings.under("fsdp_config")
    if version is not None and str(version.value) == "2":
        draft.say("strategy", "fsdp2", version)
    elif config and settings.record("fsdp") is None:
        draft.say(
            "strategy", "fsdp2" if "fsdp_config.fsdp_version" in settings else "fsdp1", config[0]
        )
    read_strategy(settings, draft)
    for record in config:
        if record.key.endswith("offload_params") and str(record.value).lower() == "true":
            draft.say("offload", "all", record)
        if record.key.endswith("activation_checkpointing") and str(record.value).lower() == "true":
            checkpoint_by_fsdp(record, draft)
        if record.key.endswith("reshard_after_forward") and str(record.value).lower() == "false":
            draft.say("reshard", False, record)
    for key, word in (
        ("tensor_parallel_size", "tp"),
        ("context_parallel_size", "cp"),
        ("sequence_parallel_degree", "cp"),
        ("dp_shard_size", "shard-size"),
        ("expert_parallel_size", "ep"),
    ):
        size = settings.record(key)
        if size is not None and (settings.number(key) or 1) > 1:
            draft.say(word, settings.number(key), size)
    settings.used.add("ring_attn_func")
    _read_evaluation(settings, draft)


def _read_evaluation(settings: Settings, draft: Draft) -> None:
    """cut_cross_entropy/transformers/utils.py use_lce: an evaluation makes no logits either, so it stays below a step
    of as many rows. Liger's makes them all."""
    evaluation = settings.record("val_set_size", "test_datasets")
    if evaluation is None or str(evaluation.value) in ("0", "0.0"):
        return
    batch, rows = settings.record("eval_batch_size"), settings.number("micro_batch_size", default=1)
    is_small = batch is None or (settings.number("eval_batch_size") or 1) <= (rows or 1)
    if _cuts(settings) is not None and is_small:
        draft.assume(
            f"{evaluation.text}: with cut cross entropy an evaluation makes no logits and stays below a step"
        )
        return
    draft.say("evaluate", True, evaluation)
    draft.say("eval-batch", batch.value if batch else None, batch)


def _cuts(settings: Settings) -> Record | None:
    """What says cut cross entropy; with the plugin it is on by default."""
    said = settings.record("cut_cross_entropy")
    if said is not None:
        return said if settings.is_on(said.key) else None
    plugins = settings.record("plugins")
    return plugins if "cutcrossentropyplugin" in settings.text("plugins") else None


KERNELS = "kernels with their own memory are not described: counted as transformers' own"
LORA_KERNELS = "fused LoRA kernels keep less: counted without them, too much"

AXOLOTL = Framework(
    name="axolotl",
    title="axolotl",
    rules=(_read_model, _read_data, _read_precision, _read_training, _read_rl, _read_parallel),
    gaps={
        "unfrozen_parameters": "which are trained: say the frozen ones with --freeze; counted as if all were",
        "lora_target_parameters": "adapters on expert parameters are not counted",
        "lora_mlp_kernel": LORA_KERNELS,
        "lora_qkv_kernel": LORA_KERNELS,
        "lora_o_kernel": LORA_KERNELS,
        "lora_embedding_kernel": LORA_KERNELS,
        "tiled_mlp": "the tiled MLP is counted whole: too much",
        "layer_offloading": "layers kept on the CPU are counted on the GPU: too much",
        "selective_checkpointing": "counted as full checkpointing",
        "fp8": "torchao's fp8 is counted as bf16",
        "qat*": "quantisation-aware training is not described",
        "flex_attention": "flex attention is counted as flash attention",
        "embeddings_skip_upcast": "embeddings are counted as axolotl raises them by default",
        "lora_on_cpu": "adapters on the CPU are counted on the GPU",
        "quantize_moe_experts": "quantised experts are counted in 16 bit: too much",
        "dp_replicate_size": "copies of the sharded model follow from --gpus and --shard-size",
        "relora": "ReLoRA's restarts are not described",
        "kd_*": "distillation: say the teacher with --teacher",
        "mixture_of_experts*": "not described",
        "llama4_linearized_experts": "linearised experts are not described",
        "use_kernels": "kernels of the Hub are not described",
        "gptq": "GPTQ weights are counted unquantised: too much",
        "ebft*": "EBFT's extra passes and rollouts are not counted",
        "use_scattermoe": KERNELS,
        "use_sonicmoe": KERNELS,
        "experts_implementation": KERNELS,
        "fused_attn_kernel": KERNELS,
        "use_dsv4_kernels": KERNELS,
        "use_glm_dsa_kernels": KERNELS,
        "gemma4_hybrid_attn_impl": KERNELS,
        "model_quantization_config": "the checkpoint's own quantisation is not described",
        "use_onebitllms": "one-bit weights are not described",
        "freeze_mm_modules": "which part is frozen: say it with --freeze",
        "lisa_*": "LISA trains some layers at a time; counted as if all were trained: too much",
        "dsv4_fp4_grouped_mode": "fp4 experts are not described",
        "diffusion*": "diffusion language models are not described",
    },
    no_effect=(
        *NO_EFFECT,
        *words(
            """
            base_model_* model_type tokenizer_* processor_type is_*_derived_model num_epochs max_steps
            train_on_inputs special_tokens* tokens added_tokens_overrides* lora_model_dir lora_fan_in_fan_out
            merge_lora strict plugins evals_per_epoch saves_per_epoch save_first_step eval_table_size
            eval_max_new_tokens eval_causal* do_causal_lm_eval early_stopping_patience weight_decay flash_attn_*
            local_rank group_by_length debug pretraining_dataset* test_datasets* shuffle_merged_datasets
            dataset_processes skip_prepare_dataset excess_length_strategy min_sample_len remove_unused_columns
            roles_to_train chat_template* default_system_message rl_beta dpo_* orpo_alpha kto_* simpo_gamma
            cpo_alpha xformers* s2_attention noisy_embedding_alpha loss_watchdog_* cosine_*
            auto_resume_from_checkpoints profiler_* gc_steps use_tensorboard use_wandb eot_tokens tokens*
            eta_min use_swanlab lr_quadratic_warmup low_cpu_mem_usage reinit_weights nvfp4_merge_aware
            device_map* peft_use_rslora cls_model_config expert_parallel_* gptq_disable_exllama
            model_config.output_router_logits flex_attn_compile_kwargs* liger_rms_norm_gated
            model_quantization_config_kwargs* num_labels max_packed_sequence_len use_mlflow use_comet lr_groups*
            optim_args* adam_epsilon2 adam_beta3 embedding_lr* warmup_ratio torch_dtype unsloth_*
            sample_packing_* curriculum_sampling multipack_real_batches pad_to_multiple_of image_size
            image_resize_algorithm datasets.* ddp ddp_* mean_resizing_embeddings resize_token_embeddings_to_32x
            shrink_embeddings overrides_of_model* reward_model chat_template_jinja field_messages*
            experimental_* fix_untrained_tokens lm_eval* adam_* rope_scaling ray_* use_ray revision_of_model
            trust_remote_code neat* liger_cross_entropy gradient_checkpointing_kwargs* bnb_config_kwargs*
            heads_k_stride tensor_parallel_* streaming_* loraplus_* eval_strategy evaluation_strategy save_steps
            tf32 xpos* deepspeed_* dion_* spectrum_* hf_use_auth_token dataloader_*
            sequence_len_overflow_handling eval_sequence_len generate_* max_grad_norm use_eaft eaft_* wandb*
            gradio_* swanlab_* otel_* quantization* merge_method trackio*
            """
        ),
    ),
    marks={
        "base_model": 3,  # mergekit has it as well
        "sequence_len": 4,
        "micro_batch_size": 3,
        "sample_packing": 4,
        "lora_target_linear": 4,
        "adapter": 2,
        "val_set_size": 2,
        "num_epochs": 1,
        "load_in_4bit": 1,
        "datasets*": 1,
    },
)
