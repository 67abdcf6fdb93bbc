"""ms-swift's flags (`swift sft --model …`) or the same keys as YAML; `megatron sft` has its own.

Sources: swift/arguments/*.py, swift/trainers/arguments.py, swift/megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

from vramcast.configs import peft
from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import (
    NO_EFFECT,
    compute_dtype,
    dtype_word,
    read_attention,
    read_checkpointing,
    read_liger,
    targets_of,
)
from vramcast.configs.huggingface import read_batch, read_common
from vramcast.configs.megatron import MEGATRON_GAPS, MEGATRON_NO_EFFECT, read_megatron
from vramcast.configs.model_parts import freeze_parts, say_pixels, sees
from vramcast.configs.records import Draft, Settings
from vramcast.configs.tasks import say_reference, say_task

ROLLOUTS = ("grpo", "ppo", "rloo", "reinforce_plus_plus")
REFERENCES = ("dpo", "kto")
LORA = ("lora", "qlora", "longlora", "lora_llm", "dora", "adalora")


def _read_model(settings: Settings, draft: Draft) -> None:
    model = settings.record(
        "model", "model_id_or_path", "model_dir", "mcore_model", "load", "model_type"
    )
    if model is not None:
        draft.say("model", model.value, model)
    kind = settings.record("rlhf_type", "task_type")
    by_vllm = settings.is_on("use_vllm") and str(getattr(kind, "value", "")) in ROLLOUTS
    if kind is not None and not by_vllm:
        say_task(str(kind.value).lower(), kind, draft)
    labels = settings.record("num_labels")
    if draft.value("task") == "classify" and labels is not None:
        draft.say("labels", labels.value, labels)
    draft.facts["loads"] = "stored"


def _read_tuner(settings: Settings, draft: Draft, default: str = "lora") -> None:
    record = settings.record("tuner_type", "train_type", "sft_type")
    kind = default if record is None else str(record.value).lower()
    if kind in LORA:
        _read_lora(settings, draft)
    elif kind == "llamapro":
        draft.gap(record, "counted as if everything were trained: too much")
    elif kind != "full":
        _read_lora(settings, draft)
        draft.gap(record, "counted as LoRA")
    if kind in ("longlora", "adalora"):
        draft.gap(record, "counted as LoRA")
    frozen = settings.record("freeze_vit", "freeze_aligner", "freeze_llm")
    freezes = not draft.is_before(3)  # swift/llm/utils/argument.py of 2.4 to 2.6
    freeze_parts(
        draft,
        frozen or "ms-swift's freeze_vit and freeze_aligner are on by default",
        tower=settings.is_on("freeze_vit", default=freezes),
        projector=settings.is_on("freeze_aligner", default=freezes),
        language=settings.is_on("freeze_llm"),
    )
    settings.used.update(
        (
            "freeze_vit",
            "freeze_aligner",
            "freeze_llm",
            "lora_rank",
            "lora_dropout",
            "target_modules",
        )
    )


def _read_lora(settings: Settings, draft: Draft) -> None:
    rank, dropout, targets = (
        settings.record(key) for key in ("lora_rank", "lora_dropout", "target_modules")
    )
    draft.say(
        "lora-rank",
        8 if rank is None else rank.value,
        rank or "ms-swift's lora_rank is 8 by default",
    )
    draft.say(
        "lora-dropout",
        0.05 if dropout is None else dropout.value,
        dropout or "ms-swift's lora_dropout is 0.05 by default",
    )
    old = settings.record("lora_target_modules")
    for record in (targets, old):
        if record is not None:
            names = targets_of(record.value)
            draft.say(
                "lora-targets",
                ("all-linear",) if names in (("ALL",), ("DEFAULT",)) else names,
                record,
            )
    peft.read_copies(settings, draft)
    if settings.is_on("use_dora"):
        draft.say("dora", True, settings.record("use_dora"))
    dtype = settings.record("lora_dtype")
    if dtype is not None and dtype_word(dtype.value) is not None:
        draft.say("lora-dtype", dtype_word(dtype.value), dtype)


def _read_precision(settings: Settings, draft: Draft) -> None:
    """Weights as they are stored, unless torch_dtype says otherwise; bf16 and fp16 follow it."""
    dtype, (compute, record) = settings.record("torch_dtype", "dtype"), compute_dtype(settings)
    word = None if dtype is None else dtype_word(dtype.value)
    if word is not None:
        draft.facts["weights"] = (word, dtype)
        draft.facts["compute"] = (compute or (word if word != "fp32" else "no"), record or dtype)
    elif compute is not None:
        draft.facts["compute"] = (compute, record)


def _read_quantization(settings: Settings, draft: Draft) -> None:
    method, bits = (
        settings.text("quant_method", "quantization_method"),
        settings.record("quant_bits", "quantization_bit"),
    )
    if bits is None or not settings.number(bits.key):
        return
    if method not in ("bnb", ""):
        draft.gap(settings.record("quant_method"), "counted as bitsandbytes' 4 or 8 bit")
    double = settings.is_on("bnb_4bit_use_double_quant", default=True)
    eight = settings.number(bits.key) == 8
    draft.say("quantize", "int8" if eight else "nf4-double" if double else "nf4", bits)
    settings.used.update(("bnb_4bit_compute_dtype", "bnb_4bit_quant_type"))


def _read_training(settings: Settings, draft: Draft) -> None:
    read_batch(settings, draft, default=1)
    length = settings.record("max_length")
    if length is not None:
        draft.say("seq", length.value, length)
    elif draft.is_before(3):
        draft.say("seq", 2048, "ms-swift's max_length is 2048 by default before 3.0")
    else:
        draft.assume(
            "max_length is not said: ms-swift cuts at the model's maximum; say your samples' length with --seq"
        )
    read_attention(settings, draft, "attn_impl")
    if settings.is_on("use_flash_attn"):
        draft.say("attention", "flash", settings.record("use_flash_attn"))
    read_checkpointing(
        settings, draft, default=True, why="ms-swift's gradient_checkpointing is on by default"
    )
    read_liger(settings, draft, "use_liger_kernel")
    _read_galore(settings, draft)
    read_common(settings, draft)
    sizes = settings.record("sequence_parallel_size")
    if sizes is not None and (settings.number("sequence_parallel_size") or 1) > 1:
        draft.say("cp", sizes.value, sizes)
        draft.say("cp-style", "ulysses", sizes)
    fsdp = settings.record("fsdp")
    if fsdp is not None:
        draft.say("strategy", "fsdp2" if "2" in str(fsdp.value) else "fsdp1", fsdp)
    _read_packing(settings, draft)
    visual = settings.record("vit_gradient_checkpointing")
    if visual is not None and sees(draft) and not settings.is_on(visual.key):
        draft.gap(visual, "the vision tower is counted as checkpointed: too little")
    spread = settings.record("device_map")
    if spread is not None and str(spread.value) not in ("cuda", "cuda:0", "cpu"):
        draft.gap(spread, "layers spread over cards are not described")
    settings.used.update(("vit_gradient_checkpointing", "eval_batch_size"))


def _read_packing(settings: Settings, draft: Draft) -> None:
    """A packed row has packing_length tokens, max_length unless said; padding_free is one row of the batch."""
    length = settings.record("packing_length")
    packing = settings.record("packing")
    if packing is not None and settings.is_on("packing"):
        draft.assume(f"{packing.text}: every row is filled")
        if length is not None:
            draft.replace("seq", length.value, length)
    free = settings.record("padding_free")
    if free is not None and settings.is_on("padding_free"):
        draft.assume(f"{free.text}: counted as if every sample were as long as it may be")


def _read_pixels(settings: Settings, draft: Draft) -> None:
    say_pixels(draft, settings.record("max_pixels"))


def _read_galore(settings: Settings, draft: Draft) -> None:
    if settings.is_on("use_galore"):
        draft.say("optimizer", "galore", settings.record("use_galore"))
        rank = settings.record("galore_rank")
        draft.say(
            "optimizer-rank",
            128 if rank is None else rank.value,
            rank or "ms-swift's galore_rank is 128 by default",
        )
        if settings.is_on("galore_quantization"):
            draft.gap(
                settings.record("galore_quantization"),
                "quantised projections are counted in fp32: too much",
            )
    settings.used.update(record.key for record in settings if record.key.startswith("galore_"))


def _read_vllm(settings: Settings, draft: Draft) -> None:
    """vLLM generates: what is trained on is prompt and completion, of which the completion is scored."""
    completion, prompt = settings.record("max_completion_length"), draft.value("seq")
    answer = settings.number("max_completion_length")
    if prompt is not None and answer is not None:
        draft.say("prompt-tokens", prompt, draft.said["seq"].record)
        draft.replace("seq", int(prompt) + answer, completion)


def _read_rl(settings: Settings, draft: Draft) -> None:
    kind, record = settings.text("rlhf_type"), settings.record("rlhf_type")
    if kind in REFERENCES:
        say_reference(draft, record, adapts=draft.value("lora-rank") is not None)
    teacher = settings.record("teacher_model")
    if teacher is not None:
        draft.say("teacher", "same", teacher)
        draft.say("teacher-model", teacher.value, teacher)
    completion = settings.record("max_completion_length")
    if kind in ROLLOUTS:
        if completion is not None and settings.is_on("use_vllm"):
            _read_vllm(settings, draft)
        elif completion is not None:
            draft.say("rollout-tokens", completion.value, completion)
        beta = settings.record("beta")
        if kind == "grpo" and (beta is None or str(beta.value) not in ("0", "0.0")):
            adapts = draft.value("lora-rank") is not None
            say_reference(draft, beta or record, adapts=adapts)
    prompt = draft.value("seq")
    if prompt is not None and draft.value("rollout-tokens") is not None:
        total = int(prompt) + int(draft.value("rollout-tokens"))
        draft.replace("seq", total, f"max_length {prompt} + max_completion_length")


MS_SWIFT = Framework(
    name="ms-swift",
    title="ms-swift",
    rules=(
        _read_model,
        _read_tuner,
        _read_quantization,
        _read_precision,
        _read_training,
        _read_pixels,
        _read_rl,
    ),
    gaps={
        "freeze_parameters_ratio": "the share that is frozen: say it with --freeze",
        "freeze_parameters": "which parameters are frozen: say it with --freeze",
        "trainable_parameters*": "which parameters are trained: say the frozen ones with --freeze",
        "target_parameters": "adapters on expert parameters are not counted",
        "vllm_gpu_memory_utilization": "the share of the card that vLLM holds is not counted",
        "use_logits_to_keep": "logits of fewer tokens: counted for all",
        "lisa_activated_layers": "LISA trains some layers at a time; counted as if all were trained: too much",
        "optimizer": "no such optimizer is known; counted as AdamW",
        "tuner_backend": "unsloth's own kernels are not counted",
        "offload_optimizer": "states leave the GPU while completions are generated: counted as if they stayed",
        "offload_model": "weights leave the GPU while completions are generated: counted as if they stayed",
        "reward_model": "the reward model is not counted",
        "fp8": "fp8 is counted as bf16",
        "experts_impl": "how experts are computed: say it with --expert-gemm",
        "llm_weight_only_quant*": "not described",
        "ref_model": "the reference is counted as a copy of the trained model",
        "dynamic_batch*": "a batch by tokens: say it with --batch 1 --seq",
    },
    no_effect=(
        *NO_EFFECT,
        *words(
            """
            _verb model_author model_name model_type template* split_dataset_ratio val_dataset* columns*
            load_from_cache_file dataset_num_proc dataset_shuffle custom_* external_plugins system
            truncation_strategy streaming* loss_scale loss_type lorap_* agent_template use_hf check_model
            use_chat_template enable_thinking add_* strict stop_words max_new_tokens temperature top_p top_k
            repetition_penalty num_beams stream response_prefix norm_bbox router_aux_loss_coef num_labels
            task_type problem_type rpo_alpha beta label_smoothing epsilon* delta advantage_* num_generations
            steps_per_generation generation_batch_size num_iterations reward_* log_* vllm_* sleep_level
            overlong_* dynamic_sample max_resample_times async_generate multi_turn_* max_turns
            move_model_batches soft_* cosine_* repetition_* importance_sampling* scale_rewards kl_in_reward
            gc_collect* ds3_gather_for_generation deepspeed_* zero_hpz_partition_size cached_* shuffle_*
            interleave_prob stopping_strategy early_stop_interval metric acc_strategy aligner_lr vit_lr
            swanlab_* create_checkpoint_symlink ddp_* adapters adapter_name init_weights init_strategy
            merge_lora safe_serialization resume_only_model ignore_args_error train_dataset_sample logprobs
            packing_* lmbda sft_alpha seq_kd desirable_weight undesirable_weight gamma cpo_alpha simpo_gamma
            use_gym_env gym_env context_manager completion_length* use_liger_loss rollout_* teacher_*
            use_async_engine local_repo_path lazy_tokenize self_cognition_sample_size model_kwargs* config
            use_vllm teacher_deepspeed *_adapters eval_generation_config eval_dataset* eval_limit
            eval_use_evalscope ray_* use_ray eval_iters dynamic_* structured_* default_system channels
            is_training save_strategy resume_from reference_adapters label_names loss_* galore_* max_epochs
            lora_ga_* boft_* vera_* fourier_* init_lora_weights lora_alpha lora_dtype attn_impl embedding_*
            center_rewards_coefficient group_by_length gkd_logits_topk enable_dft_loss fipo_* tau_* response_length
            packing_length task_* use_flash_ckpt offload_bridge wandb_* truncation offline dlrover* llm_lr ref_*
            use_rslora
            """
        ),
    ),
    marks={
        "tuner_type": 4,
        "train_type": 3,
        "sft_type": 4,
        "freeze_vit": 3,
        "split_dataset_ratio": 3,
        "attn_impl": 3,
        "rlhf_type": 4,
        "target_modules": 1,
        "lora_rank": 1,
        "per_device_train_batch_size": 1,
        "torch_dtype": 1,
        "model": 1,
        "quant_method": 2,
        "max_length": 1,
        "system": 1,
        "model_author": 2,
        "load_from_cache_file": 2,
    },
)


def _read_megatron_tuner(settings: Settings, draft: Draft) -> None:
    _read_tuner(settings, draft, default="full")


def _read_megatron_data(settings: Settings, draft: Draft) -> None:
    """Micro-batches are counted as in Megatron; the length is max_length."""
    length = settings.record("max_length")
    if length is not None:
        draft.say("seq", length.value, length)
    else:
        draft.assume(
            "max_length is not said: ms-swift cuts at the model's maximum; say your samples' length with --seq"
        )
    if "recompute_granularity" not in settings and sees(draft):
        draft.assume(
            f"{_SELECTIVE}: not counted, as this model's layers are not described in Megatron's code"
        )
    elif "recompute_granularity" not in settings:
        draft.say("recompute", ("core_attn",), _SELECTIVE)
    if "attention" not in draft.said:
        draft.say("attention", "flash", "ms-swift's attention_backend is flash by default")
    if settings.is_on("use_distributed_optimizer", default=True):
        shared = settings.record("use_distributed_optimizer")
        draft.say(
            "strategy", "zero1", shared or "ms-swift's use_distributed_optimizer is on by default"
        )
    if "batch" not in draft.said:
        draft.say("batch", 1, "ms-swift's micro_batch_size is 1 by default")
    workers = settings.record("dataloader_num_workers")
    draft.say("workers", workers.value if workers else None, workers)
    _read_packing(settings, draft)
    settings.used.update(("attention_backend", "torch_dtype", "bf16", "vit_gradient_checkpointing"))


_SELECTIVE = "ms-swift's recompute_granularity is selective by default"

MS_SWIFT_MEGATRON = Framework(
    name="ms-swift-megatron",
    title="ms-swift with Megatron",
    rules=(_read_model, _read_megatron_tuner, read_megatron, _read_megatron_data, _read_rl),
    gaps={
        **MEGATRON_GAPS,
        **{key: text for key, text in MS_SWIFT.gaps.items() if text and key != "optimizer"},
    },
    no_effect=(*MS_SWIFT.no_effect, *MEGATRON_NO_EFFECT),
    marks={
        "tuner_type": 2,
        "recompute_granularity": 2,
        "tensor_model_parallel_size": 2,
        "micro_batch_size": 1,
        "rlhf_type": 1,
        "load_safetensors": 3,
        "save_safetensors": 3,
        "mcore_model": 3,
        "max_length": 1,
        "split_dataset_ratio": 2,
    },
)
