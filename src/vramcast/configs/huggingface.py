"""transformers' TrainingArguments and TRL's configs: as YAML, JSON, or flags of a launch script.

Sources: transformers/training_args.py, trl/trainer/*_config.py, trl/trainer/model_config.py,
peft/tuners/lora/config.py.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vramcast.configs import peft
from vramcast.configs.framework import Framework, is_off, words
from vramcast.configs.hf_words import (
    NO_EFFECT,
    checkpoint_by_fsdp,
    compute_dtype,
    dtype_word,
    read_attention,
    read_checkpointing,
    read_evaluation,
    read_liger,
    read_optimizer,
    targets_of,
)
from vramcast.configs.model_parts import freeze_parts, say_pixels, sees
from vramcast.configs.records import Draft, Record, Settings
from vramcast.configs.tasks import say_reference, say_task

BATCH = "per_device_train_batch_size"
NESTED = ("use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quant", "use_nested_quant")
TRL_LORA_RANK = 16
LLAVA_RANK = 64  # llava/train/train.py
PEFT_RANK = 8
PEFT_TARGETS = ("q_proj", "v_proj")  # peft/utils/constants.py
# Of loops by hand around accelerate (`run_clm_no_trainer.py`, open-instruct), whose file says the precision.
OF_LOOPS = ("with_tracking", "checkpointing_steps", "use_slow_tokenizer")
# Keys that only one of TRL's trainers has.
OF_ONE_TRAINER = {
    "gamma_beta_ratio": "simpo",
    "simpo_gamma": "simpo",
    "cpo_alpha": "cpo",
    "num_generations": "grpo",
    "reward_funcs": "grpo",
    "max_completion_length": "grpo",
    "undesirable_weight": "kto",
    "desirable_weight": "kto",
    "center_rewards_coefficient": "reward",
    "reference_model_name_or_path": "dpo",
    "ref_model_name_or_path": "dpo",
}
IN_NAME = re.compile(r"(?<![a-z])(dpo|ipo|kto|orpo|simpo|cpo|grpo|rloo)(?![a-z])")
# trl/trainer/*_config.py at its tags: the version that brought what is the default today.
BF16_FROM, CHECKPOINTS_FROM = (0, 19), (0, 22)
NO_BETA_FROM, COLOCATE_FROM = (0, 19), (1, 0)
INTERNVL = ("use_llm_lora", "use_backbone_lora", "grad_checkpoint", "freeze_backbone")
VIT_PATCH = 14
HEADS = {"ForMaskedLM": "pretrain", "ForSequenceClassification": "classify"}
# transformers/examples/pytorch
PROGRAMS = (
    (re.compile(r"run_mlm|(?<![a-z])mlm(?![a-z])"), "pretrain"),
    (re.compile(r"run_glue|run_classification|run_xnli|text_classification"), "classify"),
)
PARTS = ("freeze_", "unfreeze_", "tune_")
COMPLETION, PROMPT = 512, 512  # trl/trainer/grpo_config.py; max_prompt_length until it was removed


def read_batch(settings: Settings, draft: Draft, default: int = 8) -> None:
    """In samples: that a pair of answers is two rows is the task's."""
    record = settings.record(BATCH, "per_gpu_train_batch_size", "per_device_batch_size")
    if record is None:
        draft.say("batch", default, f"{BATCH} is {default} by default")
    else:
        draft.say("batch", settings.number(record.key) or default, record)
    if settings.is_on("auto_find_batch_size"):
        draft.gap(
            settings.record("auto_find_batch_size"),
            "the batch that will run is not the one in the file",
        )


def read_strategy(settings: Settings, draft: Draft) -> None:
    """`fsdp: full_shard auto_wrap`, with its `fsdp_config`."""
    record = settings.record("fsdp")
    config = settings.under("fsdp_config")
    said = {each.key.removeprefix("fsdp_config.").removeprefix("fsdp_"): each for each in config}
    if record is None or str(record.value).lower() in ("[]", "false"):
        return
    names = record.value if isinstance(record.value, list) else str(record.value).split()
    version = said.get("version")
    is_new = (version is not None and str(version.value) == "2") or str(record.value).lower() in (
        "fsdp2",
        "true",
    )
    draft.say("strategy", "fsdp2" if is_new else "fsdp1", record)
    if "offload" in names or _on(said, "offload_params"):
        draft.say("offload", "all", said.get("offload_params", record))
    if "shard_grad_op" in names or _off(said, "reshard_after_forward"):
        draft.say("reshard", False, said.get("reshard_after_forward", record))
    if "hybrid_shard" in names or "hybrid_shard_zero2" in names:
        draft.gap(record, "one copy per node: say it with --shard-size")
    if _on(said, "activation_checkpointing"):
        checkpoint_by_fsdp(said["activation_checkpointing"], draft)
        draft.say("reentrant", False, said["activation_checkpointing"])


def _on(said: dict[str, Record], key: str) -> bool:
    value = getattr(said.get(key), "value", None)
    return str(value).lower() == "true"


def _off(said: dict[str, Record], key: str) -> bool:
    value = getattr(said.get(key), "value", None)
    return str(value).lower() in ("false", "shard_grad_op")


def read_dtypes(settings: Settings, draft: Draft) -> None:
    """What is computed in, and in which dtype the weights are loaded."""
    compute, record = compute_dtype(settings)
    dtype = settings.record(
        "dtype", "torch_dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype"
    )
    if compute is not None:
        draft.facts["compute"] = (compute, record)
    elif draft.framework == "trl" and record is None and not draft.is_before(*BF16_FROM):
        draft.facts["compute"] = ("bf16", "TRL's bf16 is on unless fp16 is")
    elif not any(key in settings for key in OF_LOOPS):  # accelerate's mixed_precision holds then
        draft.facts["no_compute"] = ("no", record or "bf16 and fp16 are off by default")
    if dtype is not None and dtype_word(dtype.value) is not None:
        draft.facts["weights"] = (dtype_word(dtype.value), dtype)
    elif _takes_stored(settings, draft, dtype):
        draft.facts["loads"] = "stored"
    elif draft.framework == "trl" and dtype is None:
        draft.facts["weights"] = ("fp32", "TRL loads in float32 where no dtype is given")


def _takes_stored(settings: Settings, draft: Draft, dtype: Record | None) -> bool:
    """The checkpoint's dtype, whatever it is."""
    if dtype is not None:
        return str(dtype.value) == "auto" or settings.text("_loaded") == "stored"
    is_stored = draft.framework == "trl" and _loads(draft) == "stored"
    return is_stored or settings.text("_loaded") == "stored"


def _loads(draft: Draft) -> str:
    """In which dtype this TRL loads where nothing is said: that of the checkpoint in 0.26 alone."""
    from vramcast.setup.profiles import PROFILES

    loads = PROFILES["trl"].loads
    if draft.version is None or isinstance(loads, str):
        return "fp32"
    major, minor, *_ = (*draft.version, 0)
    return loads.at({"trl": (major, minor)})


def read_adapter(settings: Settings, draft: Draft, *, rank: int | None = None) -> None:
    """LoRA as TRL's ModelConfig and scripts around PEFT say it."""
    record = settings.record("lora_r", "lora_rank", "r")
    asked = settings.record("use_peft", "use_lora", "lora_enable", "lora", "use_peft_lora")
    is_asked = settings.is_on(asked.key) if asked is not None else record is not None
    targets = settings.record(
        "lora_target_modules", "target_modules", "lora_target", "lora_targets"
    )
    if peft.kind_record(settings) is not None:
        peft.read_kind(settings, draft)
        return
    dropout = settings.record("lora_dropout")
    if not is_asked:
        return
    peft.read_copies(settings, draft)
    is_llava = asked is not None and asked.key == "lora_enable"
    _read_rank(record, asked, draft, is_llava=is_llava)
    if dropout is not None:
        draft.say("lora-dropout", dropout.value, dropout)
    elif draft.framework == "trl" or is_llava:
        draft.say("lora-dropout", 0.05, "lora_dropout is 0.05 by default")
    if targets is None and is_llava:
        draft.say(
            "lora-targets",
            ("all-linear",),
            "LLaVA's train.py: every linear layer of the language model",
        )
        freeze_parts(draft, asked, tower=True, projector=True)
    elif targets is not None:
        draft.say("lora-targets", targets_of(targets.value), targets)
    elif draft.framework == "trl":
        draft.say("lora-targets", PEFT_TARGETS, "PEFT's default for models in the manner of LLaMA")
    if settings.is_on("use_dora"):
        draft.say("dora", True, settings.record("use_dora"))


def _read_rank(
    record: Record | None, asked: Record | None, draft: Draft, *, is_llava: bool
) -> None:
    if record is not None:
        draft.say("lora-rank", record.value, record)
    elif draft.framework == "trl":
        draft.say("lora-rank", TRL_LORA_RANK, f"TRL's lora_r is {TRL_LORA_RANK} by default")
    elif is_llava:
        draft.say("lora-rank", LLAVA_RANK, f"LLaVA's lora_r is {LLAVA_RANK} by default")
    else:
        draft.say("lora-rank", PEFT_RANK, f"PEFT's r is {PEFT_RANK} by default")
        draft.gap(asked, f"the rank is not in the files: say --lora-rank; counted with {PEFT_RANK}")


def read_quantization(settings: Settings, draft: Draft) -> None:
    four = settings.record("load_in_4bit", "use_4bit_quantization")
    eight = settings.record("load_in_8bit", "use_8bit_quantization")
    bits = settings.record("bits", "quant_bits", "quantization_bit")
    double = settings.is_on(*NESTED)
    if four is not None and settings.is_on(four.key):
        draft.say("quantize", "nf4-double" if double else "nf4", four)
    elif eight is not None and settings.is_on(eight.key):
        draft.say("quantize", "int8", eight)
    elif bits is not None and str(bits.value) in ("4", "8"):
        word = "int8" if str(bits.value) == "8" else "nf4-double" if double else "nf4"
        draft.say("quantize", word, bits)
    settings.used.update(
        ("bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "quant_type", "bnb_4bit_quant_storage")
    )


def read_loader(settings: Settings, draft: Draft) -> None:
    for key, word in (
        ("dataloader_num_workers", "workers"),
        ("dataloader_pin_memory", "pin-memory"),
        ("dataloader_prefetch_factor", "prefetch"),
    ):
        record = settings.record(key)
        if record is not None and word == "pin-memory":
            draft.say(word, settings.is_on(key), record)
        elif record is not None:
            draft.say(word, record.value, record)


def read_common(settings: Settings, draft: Draft) -> None:
    """What every loop around transformers' Trainer says with the same keys."""
    read_optimizer(settings, draft, "optim", "optimizer")
    rank = settings.record("optim_args")
    if rank is not None and "rank=" in str(rank.value):
        number = str(rank.value).partition("rank=")[2].split(",")[0].strip()
        draft.say("optimizer-rank", number, rank)
    if settings.is_on("torch_compile"):
        draft.say("compile", True, settings.record("torch_compile"))
    accumulate = settings.record("gradient_accumulation_steps")
    if accumulate is not None and str(accumulate.value) != "auto":
        draft.say("accumulate", accumulate.value, accumulate)
    read_evaluation(settings, draft)
    read_loader(settings, draft)
    settings.used.add("optim_target_modules")


def _task(settings: Settings, draft: Draft) -> tuple[str, Record | None]:
    """Said by the command; in a recipe by what only one trainer has, by the file's name, or by `beta`."""
    said = settings.record("_verb")
    if said is not None:
        return settings.text("_verb"), said
    if draft.framework != "trl":
        return _task_of_head(settings)
    for key, word in OF_ONE_TRAINER.items():
        # max_completion_length beside max_length is of the trainers of pairs: trl/trainer/orpo_config.py
        if key in settings and not (key == "max_completion_length" and "max_length" in settings):
            return word, settings.records[key]
    return _task_of_beta(settings, draft)


def _task_of_beta(settings: Settings, draft: Draft) -> tuple[str, Record | None]:
    beta = settings.record("beta")
    if beta is None:
        return "", None
    named = IN_NAME.findall(beta.file.lower())
    program = settings.text("_program").rpartition("/")[2]
    by_program = IN_NAME.findall(program.replace("_", " "))
    named, how = (by_program, program) if by_program else (named, "the name of the file")
    word = named[-1] if named else "dpo"
    draft.assume(
        f"{beta.text}: read as {word.upper()}, by {how if named else 'its beta'}: else say --task"
    )
    return word, beta


def _task_of_head(settings: Settings) -> tuple[str, Record | None]:
    """An encoder learns masked tokens or classes: the class that is loaded says it, or the example script's name."""
    head, program = settings.record("_head"), settings.record("_program")
    if head is not None:
        return HEADS.get(str(head.value), ""), replace(head, key=str(head.value))
    if program is None:
        return "", None
    name = str(program.value).rpartition("/")[2]
    found = next((word for pattern, word in PROGRAMS if pattern.search(name)), "")
    return found, replace(program, key=name)


def _read(settings: Settings, draft: Draft) -> None:
    is_trl = draft.framework == "trl"
    verb, source = _task(settings, draft)
    loss = settings.text("loss_type")
    # open-instruct packs what vLLM generates on cards of its own
    draft.facts["uses_vllm"] = settings.is_on("use_vllm") or "pack_length" in settings
    if verb not in ("grpo", "rloo") or not draft.facts["uses_vllm"]:
        say_task("simpo" if verb == "cpo" and loss == "simpo" else verb, source, draft)
    draft.facts["rolls_out"] = verb in ("grpo", "rloo")
    if verb in ("dpo", "ipo", "kto"):
        _read_reference(settings, draft, source)
    read_quantization(settings, draft)
    read_adapter(settings, draft)
    read_batch(settings, draft)
    read_dtypes(settings, draft)
    read_common(settings, draft)
    read_attention(settings, draft, "attn_implementation", "model_init_kwargs.attn_implementation")
    flash = settings.record(
        "use_flash_attn", "use_flash_attention", "use_flash_attention_2", "flash_attn"
    )
    if flash is not None and settings.is_on(flash.key):
        draft.say("attention", "flash", flash)
    no_flash = settings.record("disable_flash_attn2")  # Qwen2-VL-Finetune's switch
    if no_flash is not None:
        draft.say("attention", "sdpa" if settings.is_on(no_flash.key) else "flash", no_flash)
    read_liger(settings, draft, "use_liger_kernel", "use_liger")
    read_checkpointing(
        settings,
        draft,
        default=is_trl and not draft.is_before(*CHECKPOINTS_FROM),
        why="TRL's gradient_checkpointing is on by default",
    )
    _read_prepared(settings, draft)
    read_strategy(settings, draft)
    if settings.text("loss_type").startswith("dft"):
        draft.say("loss", "full", settings.record("loss_type"))
    if settings.is_on("activation_offloading"):
        draft.say("offload", "activations", settings.record("activation_offloading"))


def _read_prepared(settings: Settings, draft: Draft) -> None:
    """A Python file shows whether PEFT's prepare_model_for_kbit_training is called, which checkpoints."""
    prepared, loaded = settings.record("_prepared"), settings.record("_loaded")
    if loaded is None or "checkpointing" in draft.said:
        return
    if prepared is not None:
        draft.say("checkpointing", "full" if settings.is_on("_prepared") else "none", prepared)
    elif draft.value("quantize", "none") != "none":
        draft.say("checkpointing", "none", "gradient_checkpointing is off by default")


def _read_reference(settings: Settings, draft: Draft, source: Record | None) -> None:
    settings.record("reference_model_name_or_path", "ref_model_name_or_path")
    if settings.is_on("precompute_ref_log_probs", "precompute_ref_batch_size"):
        draft.say("reference", "precomputed", settings.record("precompute_ref_log_probs"))
    else:
        say_reference(draft, source, adapts=settings.is_on("use_peft"))


def _read_internvl(settings: Settings, draft: Draft) -> None:
    """internvl/train/internvl_chat_finetune.py: tiles of an image, and adapters on either part."""
    rank, tower = settings.number("use_llm_lora"), settings.number("use_backbone_lora")
    source = settings.record("use_llm_lora", "use_backbone_lora")
    if rank or tower:
        draft.say("lora-rank", rank or tower, source)
        draft.say("lora-targets", ("all-linear",), "InternVL's wrap_llm_lora: every linear layer")
    if rank and tower and rank != tower:
        draft.gap(
            settings.record("use_backbone_lora"), "counted with the rank of the language model"
        )
    checkpointing = settings.record("grad_checkpoint")
    if checkpointing is not None:
        draft.say(
            "checkpointing", "full" if settings.is_on("grad_checkpoint") else "none", checkpointing
        )
    kinds = {
        "tower": (settings.record("freeze_backbone"), tower),
        "projector": (settings.record("freeze_mlp"), None),
        "language": (settings.record("freeze_llm"), rank),
    }
    frozen = {
        kind: record
        for kind, (record, adapted) in kinds.items()
        if record is not None and not is_off(record.value) and not adapted
    }
    if sees(draft):
        freeze_parts(draft, next(iter(frozen.values()), None), **dict.fromkeys(frozen, True))
    else:
        for record in frozen.values():
            draft.gap(record, "which part is frozen: say it with --freeze")
    settings.used.update(
        ("dynamic_image_size", "vision_select_layer", "drop_path_rate", "ps_version", "conv_style")
    )
    _say_tiles(settings, draft)


def _say_tiles(settings: Settings, draft: Draft) -> None:
    """An image is cut into tiles, each (size / 14 · ratio)² tokens; a thumbnail is one more."""
    tiles, size = settings.record("max_dynamic_patch"), settings.number("force_image_size")
    ratio = settings.value("down_sample_ratio", default=0.5)
    if tiles is None or size is None or type(ratio) not in (int, float):
        return
    count = (settings.number("max_dynamic_patch") or 1) + settings.is_on("use_thumbnail")
    tokens = int(size / VIT_PATCH * ratio) ** 2
    draft.say("images", count, tiles)
    draft.say("image-tokens", tokens, settings.record("force_image_size"))
    draft.assume(
        f"{tiles.text}: {count} tiles of {tokens} tokens, as of one large image per sample; else say --images"
    )


def _read_parts(settings: Settings, draft: Draft) -> None:
    """Scripts of vision-language models say with words of their own which parts are trained."""
    if any(key in settings for key in INTERNVL):
        _read_internvl(settings, draft)
        return
    if sees(draft):
        kinds = {
            "tower": ("freeze_vision_tower", "freeze_vit", "tune_mm_vision"),
            "projector": ("freeze_merger", "tune_merger", "tune_mm_mlp"),
            "language": ("freeze_llm", "tune_mm_llm"),
        }
        frozen = {
            kind: found
            for kind, keys in kinds.items()
            if (found := _frozen(settings, keys)) is not None
        }
        freeze_parts(draft, next(iter(frozen.values()), None), **dict.fromkeys(frozen, True))
        say_pixels(draft, settings.record("image_max_pixels", "max_pixels"))
        return
    parts = settings.record("mm_tunable_parts")
    if parts is not None and "mm_language_model" not in str(parts.value):
        draft.gap(
            parts, "the language model is frozen: counted as if it were trained, far too much"
        )
    for record in list(settings):
        is_frozen = record.key.startswith("freeze_") and not is_off(record.value)
        is_left_out = record.key.startswith(("tune_", "unfreeze_")) and is_off(record.value)
        if is_frozen or is_left_out:
            draft.gap(record, "which part is frozen: say it with --freeze")
        if record.key.startswith(PARTS) and record.key not in TRAINER_GAPS:
            settings.used.add(record.key)


def _read_stage(settings: Settings, draft: Draft) -> None:
    """Scripts that write DeepSpeed's file themselves, for a stage of ZeRO (ms-swift, open-instruct)."""
    stage = settings.record("zero_stage", "deepspeed_stage")
    if stage is not None:
        number = settings.number(stage.key) or 0
        draft.say("strategy", f"zero{number}" if number else "ddp", stage)
        draft.facts["is_deepspeed"] = True


def _frozen(settings: Settings, keys: tuple[str, ...]) -> Record | None:
    """`freeze_x: true` and `tune_x: false`."""
    record = settings.record(*keys)
    if record is None:
        return None
    return record if record.key.startswith("freeze") != is_off(record.value) else None


def _read_length(settings: Settings, draft: Draft) -> None:
    """`max_length` and its older names; packing fills every row."""
    row = settings.record("pack_length")  # of open-instruct: one row of so many tokens
    if row is not None:
        draft.say("seq", row.value, row)
        draft.replace("batch", 1, row)
        settings.used.update(("response_length", "max_prompt_token_length", "max_token_length"))
    record = settings.record(
        "max_length",
        "max_seq_length",
        "model_max_length",
        "max_seq_len",
        "block_size",
        "cutoff_len",
        "tokenizer.max_length",
    )
    if record is not None:
        draft.say("seq", record.value, record)
    elif row is not None:
        return
    elif draft.framework == "trl" and "max_length" in settings:
        draft.assume("max_length is null: samples are as long as they are; say it with --seq")
    elif draft.framework == "trl":
        draft.say("seq", 1024, "TRL's max_length is 1024 by default")
    packing = settings.record("packing", "padding_free")
    if packing is not None and settings.is_on(packing.key):
        draft.assume(f"{packing.text}: every row is as long as it may be")
        _pack(settings, draft)


def _pack(settings: Settings, draft: Draft) -> None:
    """TRL flattens a packed batch into one row."""
    record = settings.record("packing", "padding_free")
    batch, seq = draft.value("batch"), draft.value("seq")
    settings.used.update(("packing", "padding_free", "packing_strategy", "eval_packing"))
    if draft.framework != "trl" or record is None or not seq:
        return
    if int(batch) > 1:
        draft.replace(
            "seq", int(batch) * int(seq), f"{record.place}: one row of {batch} × {seq} tokens"
        )
        draft.replace("batch", 1, f"{record.place}: packing makes one row of the batch")


def _read_rl(settings: Settings, draft: Draft) -> None:
    """GRPO and RLOO: the train batch counts completions."""
    completion, prompt = (
        settings.record("max_completion_length"),
        settings.record("max_prompt_length"),
    )
    vllm = settings.record("use_vllm")
    settings.record("num_generations")
    if not draft.facts.get("rolls_out"):
        return
    if "pack_length" in settings:
        _read_beta(settings, draft)
        return
    tokens = (
        COMPLETION if completion is None else settings.number("max_completion_length") or COMPLETION
    )
    before = PROMPT if prompt is None else settings.number("max_prompt_length") or PROMPT
    source = completion or f"TRL's max_completion_length is {COMPLETION} by default"
    if draft.facts["uses_vllm"]:
        told = prompt or f"counted with {PROMPT} tokens of prompt, which the loss does not score"
        draft.say("prompt-tokens", before, told)
    else:
        draft.say("rollout-tokens", tokens, source)
    if prompt is None:
        draft.assume(
            f"max_prompt_length is not said: counted with {PROMPT} tokens of prompt; say the sum with --seq"
        )
    draft.replace("seq", tokens + before, source)
    _read_beta(settings, draft)
    if vllm is not None and settings.is_on("use_vllm"):
        _read_vllm(settings, draft, vllm, before)


def _read_beta(settings: Settings, draft: Draft) -> None:
    """A reference where its divergence counts."""
    beta = settings.record("beta")
    adapts = draft.value("lora-rank") is not None
    if beta is not None and str(beta.value) not in ("0", "0.0"):
        say_reference(draft, beta, adapts=adapts)
    elif beta is None and draft.is_before(*NO_BETA_FROM):
        say_reference(draft, "TRL's beta is 0.04 by default before 0.19", adapts=adapts)


def _read_vllm(settings: Settings, draft: Draft, vllm: Record, prompt: int) -> None:
    """trl/generation/vllm_generation.py: on the training cards (colocate, the default since 1.0) or on others."""
    mode = settings.record("vllm_mode")
    is_server = mode is None and draft.is_before(*COLOCATE_FROM)
    if is_server or (mode is not None and str(mode.value).lower() == "server"):
        draft.said.pop("rollout-tokens", None)
        draft.say("prompt-tokens", prompt, mode or vllm)
        told = "TRL's vllm_mode is server by default before 1.0" if mode is None else mode.text
        draft.assume(f"{told}: samples are generated on other cards")
        settings.used.add("vllm_gpu_memory_utilization")
        return
    draft.say("rollout-engine", "vllm", mode or vllm)
    share = settings.record("vllm_gpu_memory_utilization")
    if share is not None:
        draft.say("rollout-share", share.value, share)
    ranks = settings.record("vllm_tensor_parallel_size")
    if ranks is not None and (settings.number(ranks.key) or 1) > 1:
        draft.say("rollout-tp", settings.number(ranks.key), ranks)
    sleep = settings.record("vllm_enable_sleep_mode")
    if sleep is not None:
        draft.say("rollout-sleep", settings.is_on(sleep.key), sleep)


def _read_model(settings: Settings, draft: Draft) -> None:
    record = settings.record(
        "model_name_or_path",
        "base_model_name_or_path",
        "pretrained_model_name_or_path",
        "model_name",
        "model_id",
        "model_path",
        "base_model",
        "model",
    )
    if record is not None:
        draft.say("model", record.value, record)


TRAINER_GAPS = {
    "ddp_bucket_cap_mb": "DDP's buckets are counted with 25 MB",
    "torch_empty_cache_steps": "what empty_cache gives back is not counted: reserved is lower",
    "neftune_noise_alpha": "the noise on embeddings is not counted",
    "parallelism_config*": "say it with --cp, --tp, --shard-size",
    "group_by_length": "lengths that vary are said with --lengths",
    "layers_pattern": "layers are numbered by the first number in a name, whatever the pattern says",
    "rank_pattern*": "ranks that differ between modules are not counted",
    "target_parameters*": "adapters on expert parameters are not counted",
    "tune_mm_mlp_adapter": "only the projector is trained: say the frozen rest with --freeze",
    "vision_tower": "the vision tower is counted only where MODEL's config has it",
    "max_pixels": "pixels per image: say the tokens with --image-tokens",
    "vllm_gpu_memory_utilization": "the share of the card that vLLM holds is not counted",
    "use_logits_to_keep": "logits of fewer tokens: counted for all",
    "assistant_only_loss": "",
    "label_smoothing_factor": "label smoothing's copies of the logits are not counted",
    "reward_model_path": "the reward model is not counted",
    "peft_config": "a method of PEFT that is not LoRA: counted as if everything were trained",
    "use_adalora": "AdaLoRA is counted as LoRA",
    "use_lisa": "LISA trains some layers at a time; counted as if all were trained: too much",
}
TRAINER_NO_EFFECT = (
    *NO_EFFECT,
    *words(
        """
        device_map* max_memory low_cpu_mem_usage use_cache attn_implementation_* llm_int8_* bnb_4bit_*
        quantization_config importance_sampling_level embedding_learning_rate lora_bias use_safetensors
        fsdp_transformer_layer_cls_to_wrap
        subfolder local_files_only num_labels output_attentions output_hidden_states load_in_* r lora_dropout
        target_modules token random_state load_best* image_folder min_pixels system_prompt eos_token pad_token
        assistant_only_loss callbacks benchmarks num_warmup_steps data_split zero_stage mm_* lazy_preprocess
        pretrain_mm_mlp_adapter image_aspect_ratio group_by_modality_length version _verb num_generations
        steps_per_generation generation_batch_size num_iterations epsilon* delta use_logits_to_keep_off
        scale_rewards num_completions_to_print use_vllm model_init_kwargs* mask_truncated_completions
        log_completions rpo_alpha undesirable_weight desirable_weight script_args with_tracking
        checkpointing_steps use_slow_tokenizer num_epochs add_bos hf_* keep_last_n_checkpoints push_to_hub
        video_folder image_grid_pinpoints frames_upbound fps conversation_template disable_group_texts
        ignore_mismatched_sizes label2id* id2label* image_min_pixels *_lr gamma_beta_ratio simpo_gamma
        add_special_tokens append_concat_token splits pass_rate_* code_* try_launch_beaker_eval_jobs*
        """
    ),
    "config",
    "loss_type",
    "beta",
    "temperature",
    "top_p",
    "top_k",
    "vllm_*",
    "reward_*",
)

TRAINING_ARGUMENTS = Framework(
    name="hf",
    title="transformers TrainingArguments",
    rules=(_read_model, _read, _read_parts, _read_stage, _read_length, _read_rl),
    gaps={key: text for key, text in TRAINER_GAPS.items() if text},
    no_effect=(*TRAINER_NO_EFFECT, "version"),
    marks={
        BATCH: 4,
        "gradient_accumulation_steps": 1,
        "output_dir": 1,
        "model_name_or_path": 1,
        "num_train_epochs": 1,
        "model_max_length": 2,
        "use_lora": 2,
        "do_train": 1,
        **dict.fromkeys(OF_LOOPS, 4),
    },
)
TRL = Framework(
    name="trl",
    title="TRL",
    rules=(_read_model, _read, _read_parts, _read_stage, _read_length, _read_rl),
    gaps={key: text for key, text in TRAINER_GAPS.items() if text},
    no_effect=TRAINER_NO_EFFECT,
    marks={
        BATCH: 3,
        "gradient_accumulation_steps": 1,
        "output_dir": 1,
        "model_name_or_path": 1,
        "use_peft": 3,
        "dataset_name": 2,
        "max_completion_length": 3,
        "max_prompt_length": 3,
        "num_generations": 2,
        "assistant_only_loss": 3,
        "dataset_text_field": 3,
        "packing": 2,
        "dataset_mixer*": 3,
        "dataset_mixture*": 3,
        "dataset_configs*": 2,
        "lora_target_modules": 1,
        "load_in_4bit": 2,
        "beta": 2,
        "reward_funcs": 3,
    },
)
ADAPTER_CONFIG = Framework(
    name="peft",
    title="PEFT adapter_config.json",
    rules=(_read_model, read_adapter),
    gaps={
        "layers_pattern": TRAINER_GAPS["layers_pattern"],
        "rank_pattern*": TRAINER_GAPS["rank_pattern*"],
        "target_parameters*": TRAINER_GAPS["target_parameters*"],
        "trainable_token_indices*": "trained rows of the embedding are not counted",
    },
    no_effect=(
        *NO_EFFECT,
        *peft.NO_EFFECT,
        *words("megatron_core* qalora* use_qalora arrow_config* ensure_weight_tying peft_version"),
    ),
    marks={"peft_type": 9},
)
