"""LLaMA-Factory's flat YAML, or the same keys as flags of `llamafactory-cli train`.

Sources: llamafactory/hparams/*.py (keys and defaults), model/adapter.py (what is raised to fp32),
model/model_utils/ checkpointing.py. Weights are loaded in the compute dtype; what is trained is then raised to fp32
(not with pure_bf16, BAdam or ZeRO-3).
"""

from __future__ import annotations

from vramcast.configs import peft
from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import (
    NO_EFFECT,
    compute_dtype,
    read_attention,
    read_liger,
    targets_of,
)
from vramcast.configs.huggingface import read_batch, read_common, read_strategy
from vramcast.configs.megatron import read_megatron
from vramcast.configs.model_parts import (
    freeze_layers,
    freeze_parts,
    num_layers,
    say_pixels,
    sees,
)
from vramcast.configs.precision import ZERO, stored_dtype
from vramcast.configs.records import Draft, Settings
from vramcast.configs.tasks import say_reference, say_task
from vramcast.errors import InputError

LORA_RANK = 8
CUTOFF = 2048
OLD_CUTOFF, CUTOFF_FROM = 1024, (0, 9, 1)


def _refuse_inference(settings: Settings, _draft: Draft) -> None:
    """Files of `llamafactory-cli chat`, `api` and `export` have the same words."""
    if "tokenized_path" in settings and not settings.is_on("do_train"):
        place = settings.records["tokenized_path"]
        raise InputError(
            f"{place.place}: tokenized_path without do_train prepares a dataset; the file trains nothing"
        )
    predicts = settings.record("do_predict", "do_eval")
    if predicts is not None and settings.is_on(predicts.key) and not settings.is_on("do_train"):
        raise InputError(
            f"{predicts.place}: {predicts.key} without do_train; the file trains nothing"
        )
    if any(key in settings for key in TRAINS):
        return
    other = settings.record("infer_backend", "export_dir", "vllm_maxlen")
    if other is not None:
        raise InputError(
            f"{other.place}: {other.key} serves or exports a model; the file trains nothing"
        )


TRAINS = ("do_train", "output_dir", "per_device_train_batch_size", "learning_rate")


def _read_method(settings: Settings, draft: Draft) -> None:
    model, stage = settings.record("model_name_or_path"), settings.text("stage", default="sft")
    if model is not None:
        draft.say("model", model.value, model)
    preference = settings.text("pref_loss", default="sigmoid")
    say_task(
        preference if preference in ("orpo", "simpo") else stage, settings.record("stage"), draft
    )
    if draft.value("task") == "orpo":  # LLaMA-Factory's DPO trainer computes it
        draft.replace("task", "dpo", settings.record("pref_loss"))
        draft.say("reference", "none", settings.record("pref_loss"))
    read_batch(settings, draft)
    method = settings.text("finetuning_type", default="lora")
    if method in ("lora", "oft"):
        _read_lora(settings, draft)
    settings.used.update(("oft_rank", "oft_block_size", "oft_target", "module_dropout"))
    if method == "oft":
        draft.gap(settings.record("finetuning_type"), "OFT is counted as LoRA of rank 8")
    if method == "freeze":
        _read_frozen_layers(settings, draft)
    elif sees(draft):
        _read_parts(settings, draft)
    if stage == "ppo":
        draft.gap(settings.record("stage"), "PPO's value head, reward and rollouts are not counted")
    _read_reference(settings, draft, stage, method)


def _read_frozen_layers(settings: Settings, draft: Draft) -> None:
    """The last n layers are trained, or the first where n is negative; LLaMA-Pro trains every (L/n)-th."""
    count, layers = settings.number("freeze_trainable_layers", default=2) or 2, num_layers(draft)
    source = settings.record("freeze_trainable_layers", "finetuning_type")
    modules = settings.text("freeze_trainable_modules", default="all")
    if layers is None or modules != "all" or abs(count) > layers:
        draft.gap(
            source, "which layers stay frozen: say it with --freeze; counted as if all were trained"
        )
        return
    trained = set(range(layers - count, layers)) if count > 0 else set(range(-count))
    if settings.is_on("use_llama_pro") and layers % abs(count) == 0:
        step = layers // abs(count)
        trained = set(range(step - 1, layers, step))
    freeze_layers(draft, source, trained, layers)


def _read_parts(settings: Settings, draft: Draft) -> None:
    """Of a vision-language model only the language model is trained unless said."""
    tower = settings.record(
        "freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"
    )
    freeze_parts(
        draft,
        tower or "LLaMA-Factory freezes the vision tower and its projector by default",
        tower=settings.is_on("freeze_vision_tower", default=True),
        projector=settings.is_on("freeze_multi_modal_projector", default=True),
        language=settings.is_on("freeze_language_model"),
    )
    say_pixels(draft, settings.record("image_max_pixels"))


def _read_lora(settings: Settings, draft: Draft) -> None:
    rank, targets = settings.record("lora_rank"), settings.record("lora_target")
    if rank is not None:
        draft.say("lora-rank", rank.value, rank)
    else:
        draft.say(
            "lora-rank",
            LORA_RANK,
            "LLaMA-Factory's finetuning_type is lora and lora_rank 8 by default",
        )
    if targets is not None:
        draft.say("lora-targets", targets_of(targets.value), targets)
    dropout = settings.record("lora_dropout")
    if dropout is not None:
        draft.say("lora-dropout", dropout.value, dropout)
    peft.read_copies(settings, draft)
    if settings.is_on("use_dora"):
        draft.say("dora", True, settings.record("use_dora"))


def _read_reference(settings: Settings, draft: Draft, stage: str, method: str) -> None:
    """DPO and KTO compare with a frozen copy; adapters switched off are one already. ORPO and SimPO have none."""
    reference, loss = settings.record("ref_model"), settings.text("pref_loss", default="sigmoid")
    if stage not in ("dpo", "kto") or loss in ("orpo", "simpo"):
        return
    source = settings.record("stage")
    say_reference(draft, reference or source, adapts=method == "lora" and reference is None)


def _read_precision(settings: Settings, draft: Draft) -> None:
    """Adapters and everything else that is trained are fp32; what is frozen stays in 16 bit."""
    if settings.is_on("pure_bf16"):
        draft.say("precision", "bf16-true", settings.record("pure_bf16"))
        settings.used.update(("bf16", "fp16"))  # both mean what is computed in
        if draft.value("lora-rank") is not None:
            draft.say("lora-dtype", "bf16", settings.record("pure_bf16"))
        return
    compute, record = compute_dtype(settings)
    draft.facts["compute"] = (
        compute or "no",
        record or "LLaMA-Factory: bf16 and fp16 are off by default",
    )
    adapts = draft.value("lora-rank") is not None
    if adapts and compute is None:
        weights = stored_dtype(draft)
        draft.facts["weights"] = (weights, "LLaMA-Factory loads in the checkpoint's dtype")
    else:
        loaded = compute if adapts else "fp32"
        draft.facts["weights"] = (loaded, "LLaMA-Factory raises what is trained to fp32")


def _read_quantization(settings: Settings, draft: Draft) -> None:
    bits, method = (
        settings.record("quantization_bit"),
        settings.text("quantization_method", default="bnb"),
    )
    if bits is None:
        return
    number = settings.number("quantization_bit")
    if method not in ("bnb", "bitsandbytes") or number not in (4, 8):
        draft.gap(
            settings.record("quantization_method") or bits, "counted as bitsandbytes' 4 or 8 bit"
        )
    double = settings.is_on("double_quantization", default=True)
    word = "int8" if number == 8 else "nf4-double" if double else "nf4"
    draft.say("quantize", word, bits)
    settings.used.add("quantization_type")


def _read_training(settings: Settings, draft: Draft) -> None:
    length = settings.record("cutoff_len")
    cutoff = OLD_CUTOFF if draft.is_before(*CUTOFF_FROM) else CUTOFF
    draft.say(
        "seq",
        cutoff if length is None else length.value,
        length or f"LLaMA-Factory's cutoff_len is {cutoff} by default",
    )
    read_attention(settings, draft, "flash_attn")
    stage = settings.text("stage", default="sft")
    read_liger(
        settings, draft, "enable_liger_kernel", loss="fused" if stage in ("sft", "pt") else "full"
    )
    _read_checkpointing(settings, draft)
    _read_galore(settings, draft)
    read_common(settings, draft)
    read_strategy(settings, draft)
    packing = settings.record("neat_packing", "packing")
    if packing is not None and settings.is_on(packing.key):
        draft.assume(f"{packing.text}: every row is filled to cutoff_len")
    settings.used.update(("packing", "neat_packing"))


def _read_checkpointing(settings: Settings, draft: Draft) -> None:
    settings.used.add("gradient_checkpointing")  # LLaMA-Factory switches transformers' own off
    off = settings.record("disable_gradient_checkpointing")
    host = settings.record("use_unsloth_gc")
    if off is not None and settings.is_on("disable_gradient_checkpointing"):
        draft.say("checkpointing", "none", off)
    elif host is not None and settings.is_on("use_unsloth_gc"):
        draft.say("checkpointing", "offload", host)
    else:
        draft.say(
            "checkpointing",
            "full",
            "LLaMA-Factory checkpoints unless disable_gradient_checkpointing",
        )
        reentrant = settings.record("use_reentrant_gc")
        draft.facts["reentrant"] = reentrant
        value = True if reentrant is None else settings.is_on("use_reentrant_gc")
        draft.say(
            "reentrant", value, reentrant or "LLaMA-Factory's use_reentrant_gc is on by default"
        )


def _read_galore(settings: Settings, draft: Draft) -> None:
    for key, word in (
        ("use_galore", "galore"),
        ("use_adam_mini", "adam-mini"),
        ("use_muon", "muon"),
        ("use_apollo", "apollo"),
    ):
        if not settings.is_on(key):
            continue
        record = settings.record(key)
        draft.say("optimizer", word, record)
        kind = "apollo" if key == "use_apollo" else "galore"
        rank = settings.number(f"{kind}_rank", default=16)
        if word in ("galore", "apollo"):
            draft.say(
                "optimizer-rank",
                rank,
                settings.record(f"{kind}_rank") or f"LLaMA-Factory's {kind}_rank is 16 by default",
            )
        if settings.is_on(f"{kind}_layerwise"):
            draft.say("optimizer-impl", "in-backward", settings.record(f"{kind}_layerwise"))
        settings.used.add("optim")
    settings.used.update(
        each.key for each in settings if each.key.startswith(("galore_", "apollo_"))
    )


def _read_megatron_adapter(settings: Settings, draft: Draft) -> None:
    """mcore_adapter: Megatron trains, with its own sizes beside the Trainer's batch and cutoff."""
    if not any(key in settings for key in MEGATRON_KEYS):
        return
    source = next(settings.record(key) for key in MEGATRON_KEYS if key in settings)
    draft.replace("framework", "megatron", source)
    read_megatron(settings, draft)
    for key in ("checkpointing", "reentrant", "loss", "kernels", "attention"):
        draft.said.pop(key, None)
    if settings.text("recompute_granularity") == "full":
        draft.say("checkpointing", "full", settings.record("recompute_granularity"))
    draft.replace("precision", "megatron-bf16", settings.record("bf16") or source)


def _read_ray(settings: Settings, draft: Draft) -> None:
    workers = settings.record("ray_num_workers")
    if workers is not None:
        draft.say("gpus", settings.number("ray_num_workers"), workers)
    settings.under("resources_per_worker")


MEGATRON_KEYS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
)


def _read_zero3(settings: Settings, draft: Draft) -> None:
    """Unquantised ZeRO-3 keeps the loaded dtype; under FSDP2 checkpointing is without reentry."""
    if draft.value("strategy") == "zero3":
        draft.facts["weights"] = (
            draft.facts["compute"][0],
            "LLaMA-Factory leaves ZeRO-3's weights as they are loaded",
        )
    if (
        draft.value("strategy") == "fsdp2"
        and draft.facts.get("reentrant") is None
        and "reentrant" in draft.said
    ):
        draft.replace("reentrant", False, "LLaMA-Factory: without reentry under FSDP2")
    if draft.value("strategy") not in ZERO and draft.value("precision") is None:
        settings.used.add("pure_bf16")


LLAMA_FACTORY = Framework(
    name="llama-factory",
    title="LLaMA-Factory",
    rules=(
        _refuse_inference,
        _read_method,
        _read_quantization,
        _read_precision,
        _read_training,
        _read_megatron_adapter,
        _read_ray,
    ),
    gaps={
        "freeze_extra_modules": "which modules are frozen: say it with --freeze",
        "use_badam": "BAdam trains a block at a time; counted as if everything were trained: too much",
        "fp8": "torchao's fp8 is counted as bf16",
        "fp8_enable_fsdp_float8_all_gather": "gathering in fp8 is not counted",
        "use_kt": "KTransformers keeps experts on the CPU: not counted",
        "train_mm_proj_only": "only the projector is trained: say the frozen rest with --freeze",
        "upcast_lmhead_output": "a copy of the logits in fp32 is not counted",
        "upcast_layernorm": "norms in fp32 are not counted",
        "image_max_pixels": "pixels per image: say the tokens with --image-tokens",
        "video_max_pixels": "pixels per frame: say the tokens with --image-tokens",
        "video_maxlen": "frames per video: say the tokens with --image-tokens",
        "reward_model": "the reward model is not counted",
        "ref_model_quantization_bit": "the reference is counted unquantised: too much",
        "mixture_of_depths": "mixture of depths is not described",
        "use_unsloth": "unsloth's own kernels are not counted",
        "shift_attn": "LongLoRA's shifted attention is counted as plain attention",
        "compute_accuracy": "logits kept for the accuracy are not counted",
        "use_mca": "Megatron-core adapter: give its flags to --framework megatron",
    },
    no_effect=(
        *NO_EFFECT,
        *words(
            """
            additional_target adapter_name_or_path adapter_folder export_* infer_* vllm_* sglang_* ray_* mix_strategy
            interleave_probs streaming buffer_size preprocessing_batch_size tokenized_path
            ignore_pad_token_for_loss train_on_prompt mask_history pref_* kto_* simpo_gamma dpo_label_smoothing
            ppo_* ref_model_adapters reward_model_* create_new_adapter pissa_* rope_scaling resize_vocab
            add_tokens add_special_tokens low_cpu_mem_usage hf_hub_token ms_hub_token om_hub_token use_swanlab
            use_cache eval_num_beams top_p top_k temperature max_new_tokens repetition_penalty do_sample
            num_beams predict_with_generate use_dft_loss use_asft_loss asft_* use_eaft_loss eaft_* include_*
            disable_shuffling early_stopping_steps freeze_vision_tower freeze_multi_modal_projector
            freeze_language_model image_min_pixels video_min_pixels video_fps media_dir default_system
            enable_thinking tool_format print_param_status split_special_tokens badam_* enable_liger_kernel_*
            fp8_backend kt_* crop_to_patches use_audio_in_video audio_sampling_rate offload_folder
            moe_aux_loss_coef train_from_scratch data_shared_file_system num_train_samples muon_* use_v1_kernels
            chat_* ktransformers_* fsdp_transformer_layer_cls_to_wrap use_hyper_parallel eval_on_each_dataset
            custom_* mca_* sequence_parallel_mode overwrite_output use_llama_pro overlap_* bias_activation_fusion
            apply_rope_fusion freeze_trainable_* moe_router* moe_permute* resources_per_worker placement_strategy
            """
        ),
    ),
    marks={
        "finetuning_type": 5,
        "stage": 4,
        "cutoff_len": 4,
        "template": 3,
        "lora_target": 3,
        "lora_rank": 1,
        "model_name_or_path": 1,
        "pure_bf16": 3,
        "quantization_bit": 2,
        "per_device_train_batch_size": 1,
        "dataset": 1,
    },
)
AFTER = (_read_zero3,)
