"""Megatron-LM's flags, in launch scripts or as `model_config.yaml` (`MODEL_ARGS:`).

Source: megatron/training/arguments.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import dtype_word
from vramcast.configs.model_parts import num_layers
from vramcast.configs.model_sizes import Sizes, model_with
from vramcast.configs.records import Draft, Record, Settings
from vramcast.errors import InputError

SIZES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "expert-tp",
    "make_vocab_size_divisible_by": "vocab-multiple",
    "decoder_first_pipeline_num_layers": "first-stage-layers",
    "decoder_last_pipeline_num_layers": "last-stage-layers",
}
MEGATRON_ARGS = "MODEL_ARGS."  # of a model_config.yaml
ATTENTION = {"flash": "flash", "fused": "cudnn", "unfused": "eager", "local": "eager"}


def megatron_argument(record: Record) -> Record | None:
    """`MODEL_ARGS.--micro-batch-size` of a model_config.yaml as the flag that it is; None: nothing of the job."""
    _, _, name = record.key.partition(".")
    if record.key == "MODE" and str(record.value) == "inference":
        raise InputError(f"{record.place}: MODE inference trains nothing")
    if not record.key.startswith(MEGATRON_ARGS):
        return None
    return replace(record, key=name.lstrip("-").replace("-", "_"))


def read_megatron(settings: Settings, draft: Draft) -> None:
    _read_batch(settings, draft)
    for key, word in SIZES.items():
        record = settings.record(key)
        if record is not None:
            draft.say(word, record.value, record)
    _read_parallel(settings, draft)
    _read_precision(settings, draft)
    _read_dtypes(settings, draft)
    _read_recompute(settings, draft)
    _read_kernels(settings, draft)
    _read_experts(settings, draft)


def _read_batch(settings: Settings, draft: Draft) -> None:
    micro, total = settings.record("micro_batch_size"), settings.record("global_batch_size")
    if micro is not None:
        draft.say("batch", settings.number("micro_batch_size") or 1, micro)
    draft.facts["global_batch"] = total
    length = settings.record("seq_length", "encoder_seq_length")
    if length is not None:
        draft.say("seq", length.value, length)
    settings.used.add("max_position_embeddings")


def _read_parallel(settings: Settings, draft: Draft) -> None:
    shared = settings.record("use_distributed_optimizer")
    if shared is not None and settings.is_on("use_distributed_optimizer"):
        draft.say("strategy", "zero1", shared)
    for key, word in (
        ("sequence_parallel", "sequence-parallel"),
        ("deterministic_mode", "deterministic"),
        ("overlap_moe_expert_parallel_comm", "overlap-experts"),
    ):
        if settings.is_on(key):
            draft.say(word, True, settings.record(key))
    if settings.is_on("no_gradient_accumulation_fusion"):
        draft.say("grad-fusion", False, settings.record("no_gradient_accumulation_fusion"))
    fusion = settings.record("gradient_accumulation_fusion")
    if fusion is not None and not settings.is_on("gradient_accumulation_fusion"):
        draft.say("grad-fusion", False, fusion)
    _read_pipeline(settings, draft)
    styles = {"a2a": "ulysses", "p2p": "ring", "allgather": "allgather"}
    style = settings.record("cp_comm_type")
    if style is not None and str(style.value) in styles:
        draft.say("cp-style", styles[str(style.value)], style)


def _read_pipeline(settings: Settings, draft: Draft) -> None:
    chunks = settings.record("num_virtual_stages_per_pipeline_rank")
    per_stage = settings.record("num_layers_per_virtual_pipeline_stage")
    layers, stages = (
        settings.number("num_layers"),
        settings.number("pipeline_model_parallel_size", default=1) or 1,
    )
    if chunks is not None:
        draft.say("virtual-stages", chunks.value, chunks)
        draft.say("schedule", "interleaved", chunks)
    elif per_stage is not None and layers and settings.number(per_stage.key):
        draft.say(
            "virtual-stages", layers // stages // (settings.number(per_stage.key) or 1), per_stage
        )
        draft.say("schedule", "interleaved", per_stage)
    elif per_stage is not None:
        draft.gap(per_stage, "say the chunks per GPU with --virtual-stages")


def _read_precision(settings: Settings, draft: Draft) -> None:
    bf16, fp16 = settings.record("bf16"), settings.record("fp16")
    fp8 = settings.record("fp8_format", "fp8")
    if fp8 is not None and str(fp8.value).lower() not in ("false", "none"):
        draft.say("precision", "fp8", fp8)
    elif bf16 is not None and settings.is_on("bf16"):
        draft.say("precision", "megatron-bf16", bf16)
    elif fp16 is not None and settings.is_on("fp16"):
        draft.say("precision", "megatron-bf16", fp16)
        draft.assume(f"{fp16.text}: counted like bf16, of which every tensor has the same size")
    elif draft.framework == "megatron" and bf16 is None:
        draft.say("precision", "fp32", "Megatron-LM trains in fp32 unless --bf16 or --fp16")


def _read_dtypes(settings: Settings, draft: Draft) -> None:
    """Main gradients, states and gathered weights in other dtypes than fp32."""
    reduced = settings.record("grad_reduce_in_bf16")
    if reduced is not None and settings.is_on(reduced.key):
        draft.say("grad-dtype", "bf16", reduced)
    if settings.is_on("use_precision_aware_optimizer"):
        grads = settings.record("main_grads_dtype")
        if grads is not None and dtype_word(grads.value) == "bf16":
            draft.say("grad-dtype", "bf16", grads)
        states = [settings.record(key) for key in ("exp_avg_dtype", "exp_avg_sq_dtype")]
        names = {dtype_word(each.value) if each else "fp32" for each in states}
        told = next((each for each in states if each is not None), None)
        if len(names) == 1 and None not in names:
            draft.say("state-dtype", names.pop(), told)
        elif told is not None:
            draft.gap(
                told,
                "the two states have other dtypes than the Job can say: counted in fp32, too much",
            )
        params = settings.record("main_params_dtype")
        if params is not None and dtype_word(params.value) != "fp32":
            draft.gap(params, "main parameters in 16 bit are counted in fp32: too much")
    gather = settings.record("fp8_param_gather", "fp8_param")
    if gather is not None and settings.is_on(gather.key) and draft.value("precision") == "fp8":
        draft.say("fp8-gather", True, gather)
    fused = settings.record("cross_entropy_fusion_impl")
    if fused is not None and str(fused.value) == "te":
        draft.gap(
            fused,
            "Transformer Engine's cross entropy works in place: counted as Megatron's own, too much",
        )
    share = settings.record("optimizer_offload_fraction")
    if share is not None and settings.is_on("optimizer_cpu_offload") and float(share.value) < 1:
        draft.gap(share, "the share of states that stays on the GPU is not counted: too little")
    recipe = settings.record("fp8_recipe")
    if recipe is not None and draft.value("precision") == "fp8" and str(recipe.value) != "delayed":
        draft.gap(recipe, "another fp8 recipe than delayed scaling: its scales are not counted")
    settings.used.update(
        ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    )


def _read_recompute(settings: Settings, draft: Draft) -> None:
    how = settings.text("recompute_granularity")
    record = settings.record("recompute_granularity")
    modules = settings.record("recompute_modules")
    old = settings.record("recompute_activations", "checkpoint_activations")
    if how == "full":
        _read_full(settings, draft, record)
    elif how == "selective" or (old is not None and settings.is_on(old.key)):
        names = ["core_attn"] if modules is None else modules.value
        names = names if isinstance(names, list) else str(names).split()
        draft.say("recompute", tuple(map(str, names)), modules or record or old)
    settings.used.update(("recompute_method", "recompute_num_layers"))


def _read_full(settings: Settings, draft: Draft, record: Record | None) -> None:
    """uniform recomputes blocks of n layers; block only the first n of a stage."""
    count = settings.number("recompute_num_layers", default=1) or 1
    if settings.text("recompute_method") == "block":
        layers = settings.number("num_layers") or num_layers(draft)
        stages = settings.number("pipeline_model_parallel_size", default=1) or 1
        if layers is None or count < layers // stages:
            draft.gap(
                settings.record("recompute_method"),
                "only some layers are recomputed: counted as all",
            )
        draft.say("checkpointing", "full", record)
    else:
        draft.say("checkpointing", "full", record)
        if count > 1:
            draft.gap(
                settings.record("recompute_num_layers"),
                "blocks of several layers are counted as single ones",
            )


def _read_kernels(settings: Settings, draft: Draft) -> None:
    backend = settings.record("attention_backend")
    if backend is not None and str(backend.value) in ATTENTION:
        draft.say("attention", ATTENTION[str(backend.value)], backend)
    elif settings.is_on("use_flash_attn"):
        draft.say("attention", "flash", settings.record("use_flash_attn"))
    optimizer = settings.record("optimizer")
    if optimizer is not None:
        word = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon", "adamw": "adamw"}.get(
            str(optimizer.value).lower()
        )
        draft.say("optimizer", word, optimizer)
        if word is None:
            draft.gap(optimizer, "no such optimizer is known; counted as AdamW")
    if settings.is_on("optimizer_cpu_offload"):
        draft.say("offload", "optimizer", settings.record("optimizer_cpu_offload"))
    settings.used.add("optimizer_offload_fraction")
    modules = settings.record("offload_modules")
    if modules is not None:
        names = modules.value if isinstance(modules.value, list) else str(modules.value).split()
        draft.say("offload-modules", tuple(map(str, names)), modules)


def _read_experts(settings: Settings, draft: Draft) -> None:
    dispatch = settings.record("moe_token_dispatcher_type")
    if dispatch is not None:
        draft.say("expert-dispatch", str(dispatch.value), dispatch)
    grouped = settings.record("moe_grouped_gemm")
    if grouped is not None:
        draft.say(
            "expert-gemm", "grouped" if settings.is_on("moe_grouped_gemm") else "loop", grouped
        )
    capacity = settings.record("moe_expert_capacity_factor")
    if capacity is not None:
        draft.say("expert-capacity", round(float(capacity.value) * 100), capacity)
    if settings.is_on("moe_pad_expert_input_to_capacity"):
        draft.say("pad-experts", True, settings.record("moe_pad_expert_input_to_capacity"))


def after(settings: Settings, draft: Draft) -> None:
    """How the accumulation follows from the global batch is known once the GPUs are."""
    if "strategy" not in draft.said and draft.value("gpus") is not None:
        draft.say("strategy", "ddp", "Megatron-LM's optimizer is not distributed by default")


def _read_architecture(settings: Settings, draft: Draft) -> None:
    """The model is spelled out in sizes: which one it is must be said, or matches a config given beside it."""
    sizes = words(
        "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups vocab_size num_experts"
    )
    found = [settings.records[key] for key in sizes if key in settings]
    settings.used.update(sizes)
    if not found or "model" in draft.said:
        return
    named = model_with(
        Sizes(
            layers=settings.number("num_layers"),
            hidden=settings.number("hidden_size"),
            heads=settings.number("num_attention_heads"),
            groups=settings.number("num_query_groups"),
            ffn=settings.number("ffn_hidden_size"),
            experts=settings.number("num_experts"),
            vocabulary=settings.number("vocab_size"),
            is_gated=settings.is_on("swiglu"),
            is_latent=settings.is_on("multi_latent_attention"),
        ),
        " ".join(
            (Path(found[0].file).name, settings.text("tokenizer_model"), settings.text("load"))
        ),
    )
    shown = ", ".join(f"{record.key} {record.value}" for record in found)
    if named is not None:
        draft.say("model", named, found[0])
        draft.assume(
            f"{found[0].place}: the model is given by its sizes ({shown}), which {named} has: else say MODEL"
        )
    else:
        draft.assume(
            f"{found[0].place}: the model is given by its sizes ({shown}); MODEL must be one with the same"
        )


MEGATRON_GAPS = {
    "use_megatron_fsdp": "Megatron-FSDP's strategies: counted as the distributed optimizer",
    "use_custom_fsdp": "Megatron-FSDP's strategies: counted as the distributed optimizer",
    "use_torch_fsdp2": "FSDP2: say it with --strategy fsdp2",
    "account_for_embedding_in_pipeline_split": "say the layers with --stage-layers",
    "account_for_loss_in_pipeline_split": "say the layers with --stage-layers",
    "pipeline_model_parallel_layout": "say the layers with --stage-layers",
    "mtp_num_layers": "layers that predict further tokens are not counted",
    "hybrid_*": "hybrid models are not described by these keys",
    "cpu_offloading_num_layers": "activations of some layers in CPU memory are not counted",
    "encoder_num_layers": "an encoder: give the model's config",
    "first_last_layers_bf16": "layers kept in bf16 are counted in fp8",
    "fp4_format": "fp4 is not described",
    "enable_cuda_graph": "CUDA graphs' buffers are not counted",
    "external_cuda_graph": "CUDA graphs' buffers are not counted",
    "cuda_graph_impl": "CUDA graphs' buffers are not counted",
}
MEGATRON_NO_EFFECT = words(
    """
    lr min_lr lr_* weight_decay* clip_grad adam_* train_iters train_samples eval_iters eval_interval save save_*
    load load_* log_* tensorboard_* wandb_* exit_* seed data_* split vocab_file merge_file tokenizer_*
    num_workers distributed_backend distributed_timeout_minutes attention_dropout hidden_dropout init_method_std
    position_embedding_type rotary_* use_rotary_position_embeddings no_position_embedding normalization
    norm_epsilon swiglu squared_relu disable_bias_linear add_qkv_bias untie_embeddings_and_output_weights
    group_query_attention kv_channels qk_layernorm apply_layernorm_1p no_masked_softmax_fusion
    masked_softmax_fusion no_bias_* no_rope_fusion apply_query_key_layer_scaling attention_softmax_in_fp32
    cross_entropy_loss_fusion cross_entropy_fusion_impl use_mcore_models transformer_impl spec
    overlap_grad_reduce overlap_param_gather* tp_comm_overlap* no_async_tensor* moe_router_* moe_aux_loss_coeff
    moe_z_loss_coeff moe_layer_freq moe_layer_recompute moe_permute_fusion moe_shared_expert_*
    moe_ffn_hidden_size moe_token_dispatcher_* moe_enable_deepep moe_per_layer_logging moe_use_*
    moe_token_drop_policy moe_flex_dispatcher_backend num_moe_experts multi_latent_attention q_lora_rank
    kv_lora_rank qk_* v_head_dim dist_ckpt_* ckpt_* async_save auto_detect_ckpt_format use_checkpoint_args
    no_load_* no_save_* no_create_* manual_gc* empty_unused_memory_level check_for_*
    disable_straggler_on_startup timing_log_* profile* use_pytorch_profiler nccl_* high_priority* mock_data
    accumulate_allreduce_grads_in_fp32 use_cpu_initialization init_method_* perform_initialization
    original_max_position* no_mmap_bin_files make_vocab_size* use_dist_ckpt ddp_* delay_wgrad_compute fp8_margin
    fp8_interval fp8_amax_* fp8_recipe eod_mask_loss reset_* finetune create_attention_mask* rampup_batch_size
    cross_entropy_* num_distributed_optimizer* bias_* dataloader_type tiktoken_* padded_vocab_size export_*
    te_rng_tracker inference_* tokenizer* attention_output_gate mtp_loss_scaling_factor linear_* window_*
    use_fused_weighted_squared_relu override_opt* max_tokens_to_oom seq_* overlap_p2p* align_*
    microbatch_group_size* defer_embedding* bf16 no_shared_storage variable_seq_lengths calculate_per_token_loss
    sft* per_split* step_batch_size* no_check* enable_* apply_rope_fusion expert_* num_dataset* one_logger*
    use_persistent_ckpt_worker eval_global_batch_size decoupled_* no_ckpt_* pretrained_checkpoint
    patch_tokenizer_type max_padding_length extra_vocab_size dataset train_data* valid_data* keep_last epochs
    intermediate_size DDP_impl temperature top_k check_weight_hash* vocab_extra_ids dataloader_save logging_level
    use_checkpoint_opt_param_scheduler no_use_tokenizer* return_log_probs output_path prompts mscale* train_mode
    use_te use_legacy_models ignore_unknown* heterogeneous* fim_* mmap* openai_gelu layernorm_epsilon local_rank
    """
)

MEGATRON = Framework(
    name="megatron",
    title="Megatron-LM",
    rules=(read_megatron, _read_architecture),
    gaps=MEGATRON_GAPS,
    no_effect=MEGATRON_NO_EFFECT,
    marks={
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 3,
        "micro_batch_size": 3,
        "num_attention_heads": 2,
        "hidden_size": 1,
        "num_layers": 1,
        "global_batch_size": 1,
        "train_iters": 2,
        "seq_length": 1,
        "use_mcore_models": 4,
        "use_distributed_optimizer": 2,
    },
)
