"""unsloth's scripts and notebooks: FastLanguageModel, its adapters, and TRL's config around them.

Sources: unsloth/models/loader.py, unsloth/models/llama.py. What the file leaves open is the profile's: 4 bit, rank
16, block inputs in CPU memory.
"""

from __future__ import annotations

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import targets_of
from vramcast.configs.huggingface import TRAINER_GAPS, TRAINER_NO_EFFECT, read_batch, read_common
from vramcast.configs.model_parts import freeze_parts
from vramcast.configs.records import Draft, Settings
from vramcast.configs.tasks import say_reference, say_task

SEQ = 2048


def _read_model(settings: Settings, draft: Draft) -> None:
    model = settings.record("model_name_or_path")
    if model is not None:
        draft.say("model", model.value, model)
    verb = settings.text("_verb")
    say_task(verb, settings.record("_verb"), draft)
    read_batch(settings, draft)
    length = settings.record("max_seq_length", "max_length")
    draft.say(
        "seq",
        SEQ if length is None else length.value,
        length or "unsloth's max_seq_length is 2048 by default",
    )
    if settings.is_on("full_finetuning"):
        draft.say("tuning", "full", settings.record("full_finetuning"))
        return
    _read_adapter(settings, draft)
    four, eight = settings.record("load_in_4bit"), settings.record("load_in_8bit")
    if eight is not None and settings.is_on("load_in_8bit"):
        draft.say("quantize", "int8", eight)
    elif four is None or settings.is_on("load_in_4bit"):
        draft.say("quantize", "nf4-double", four or "unsloth's load_in_4bit is on by default")
    else:
        draft.say("quantize", "none", four)


def _read_adapter(settings: Settings, draft: Draft) -> None:
    rank, targets, dropout = (
        settings.record(key) for key in ("r", "target_modules", "lora_dropout")
    )
    draft.say(
        "lora-rank", 16 if rank is None else rank.value, rank or "unsloth's r is 16 by default"
    )
    if targets is not None:
        draft.say("lora-targets", targets_of(targets.value), targets)
    if dropout is not None:
        draft.say("lora-dropout", dropout.value, dropout)


def _read_training(settings: Settings, draft: Draft) -> None:
    checkpointing = settings.record("use_gradient_checkpointing")
    word = settings.text("use_gradient_checkpointing", default="unsloth")
    kinds = {"unsloth": "offload", "true": "full", "false": "none"}
    source = checkpointing or "unsloth's use_gradient_checkpointing is “unsloth” by default"
    draft.say("checkpointing", kinds.get(word, "offload"), source)
    read_common(settings, draft)
    # Scripts ask the card: bf16=is_bfloat16_supported(). The profile does the same.
    settings.used.update(
        ("bf16", "fp16", "dtype", "torch_dtype", "_loaded", "gradient_checkpointing", "use_peft")
    )
    settings.used.add("attn_implementation")
    packing = settings.record("packing", "padding_free")
    if packing is not None and settings.is_on(packing.key):
        draft.assume(f"{packing.text}: every row is as long as it may be")
    if settings.text("_verb") in ("dpo", "kto"):
        adapts = draft.value("lora-rank") is not None
        say_reference(draft, settings.record("_verb"), adapts=adapts)
    completion = settings.record("max_completion_length")
    if settings.text("_verb") == "grpo" and completion is not None:
        draft.say("rollout-tokens", completion.value, completion)
    _read_parts(settings, draft)


def _read_parts(settings: Settings, draft: Draft) -> None:
    """FastVisionModel: which parts get adapters."""
    keys = ("finetune_vision_layers", "finetune_language_layers")
    tower, language = (settings.is_on(key, default=True) for key in keys)
    source = settings.record(*keys)
    settings.used.update(("finetune_attention_modules", "finetune_mlp_modules"))
    if source is not None and not (tower and language):
        freeze_parts(draft, source, tower=not tower, projector=not tower, language=not language)
    for key, word in (("finetune_attention_modules", "attention"), ("finetune_mlp_modules", "MLP")):
        if not settings.is_on(key, default=True):
            draft.gap(
                settings.record(key), f"no adapters on {word}: say the others with --lora-targets"
            )


UNSLOTH = Framework(
    name="unsloth",
    title="unsloth",
    rules=(_read_model, _read_training),
    gaps={
        **TRAINER_GAPS,
        "fast_inference": "vLLM in the same process is not counted",
        "qat_scheme": "quantisation-aware training is not described",
        "load_in_fp8": "weights in fp8 are counted in 16 bit, or in 4 where load_in_4bit is on",
        "offload_embedding": "an embedding in CPU memory is counted on the GPU: too much",
        "float8_kv_cache": "the cache of rollouts is not counted",
        "unsloth_tiled_mlp": "the tiled MLP is counted whole: too much",
        "use_liger_kernel": "unsloth's own kernels stand in for Liger's",
    },
    no_effect=(
        *TRAINER_NO_EFFECT,
        *words(
            """
            finetune_* random_state max_lora_rank gpu_memory_utilization loftq_config fast_inference_*
            unsloth_vllm_* auto_model whisper_* text_only return_logits unsloth_* use_exact_model_name reset_*
            id2label* label2id* max_prompt_length max_completion_length
            """
        ),
    ),
    marks={},
)
