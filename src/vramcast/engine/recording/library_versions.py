"""When transformers changed what a training step holds: facts with a date, as its released wheels have them.

A version is the first two numbers, since a patch release changes none of this. What torch, bitsandbytes and other
frameworks changed is told where it matters (see `regime`).
"""

from __future__ import annotations

from vramcast.models.record.regime import Habits
from vramcast.setup.versions import Version

# `_supports_sdpa` of each family's modeling file, released wheels 4.30 to 5.22: the first version with True, where that
# is later than SDPA itself (4.36) or than the family. Before, attention is eager unless another kernel is asked for.
SDPA_FROM: dict[str, Version] = {
    "mistral": (4, 37), "mixtral": (4, 37), "phi": (4, 39), "stablelm": (4, 39), "bert": (4, 41), "vit": (4, 41),
    "deit": (4, 41), "gpt2": (4, 42), "gpt_neox": (4, 42), "clip": (4, 43), "clip_text_model": (4, 43),
    "clip_vision_model": (4, 43), "siglip": (4, 43), "siglip_text_model": (4, 43), "siglip_vision_model": (4, 43),
    "phi3": (4, 45), "roberta": (4, 45), "xlm-roberta": (4, 45), "camembert": (4, 45), "mbart": (4, 45),
    "dinov2": (4, 45), "opt": (4, 46), "distilbert": (4, 46), "llava": (4, 46), "pegasus": (4, 53), "marian": (4, 53),
    "electra": (5, 0), "t5": (5, 15), "mt5": (5, 15), "umt5": (5, 15),
}  # fmt: skip
SDPA_EXISTS_FROM: Version = (4, 36)
NEVER_SDPA = frozenset({"gpt_neo", "gptj", "codegen", "bloom", "gpt_oss"})
# Soft-capped scores: 4.45 to 4.47 swap SDPA for eager (_check_and_enable_sdpa), from 5.21 it is not offered at all. In
# between SDPA is the default, and the cap is left out.
EAGER_AGAIN: dict[str, tuple[tuple[Version, Version], ...]] = {
    "gemma2": (((4, 45), (4, 48)), ((5, 21), (99, 0))),
    "vaultgemma": (((5, 21), (99, 0)),),
}
SDPA_NEEDS_TORCH: Version = (2, 1)  # utils/import_utils.py is_torch_sdpa_available
CALLS_SDPA_ITSELF = {"falcon": (2, 0)}  # since 4.31, wherever torch has it


def supports_sdpa(model_type: str, transformers: Version, torch: Version) -> bool:
    """Does transformers choose SDPA where nothing is asked for?"""
    if model_type in CALLS_SDPA_ITSELF and transformers < SDPA_EXISTS_FROM:
        return torch >= CALLS_SDPA_ITSELF[model_type]
    if model_type in NEVER_SDPA or torch < SDPA_NEEDS_TORCH:
        return False
    spans = EAGER_AGAIN.get(model_type, ())
    return transformers >= SDPA_FROM.get(model_type, SDPA_EXISTS_FROM) and not any(
        first <= transformers < end for first, end in spans
    )


# Key and value heads were repeated by transformers itself; since then by the kernel, if torch's takes grouped heads
# (integrations/sdpa_attention.py use_gqa_in_sdpa).
TILES_FROM: Version = (1, 15)  # of TRL: add_fused_lm_head in trl/trainer/utils.py
GROUPED_HEADS_FROM: Version = (4, 54)
GROUPED_HEADS_NEED_TORCH: Version = (2, 5)

# Experts ran one by one before (integrations/moe.py).
GROUPED_EXPERTS_FROM: Version = (5, 0)

# The loss stood in each model's own forward until `self.loss_function` came (4.46, or later where named); most raised
# the logits to fp32 there first (`logits = logits.float()`), some only since a version, some never.
LOSS_FUNCTION_FROM: dict[str, Version] = {
    "starcoder2": (4, 47), "mistral": (4, 48), "granite": (4, 48), "gpt2": (4, 48), "gpt_bigcode": (4, 48),
    "gpt_neo": (4, 48), "gptj": (4, 48), "codegen": (4, 48), "opt": (4, 48), "bloom": (4, 48), "falcon": (4, 48),
    "stablelm": (4, 48), "gpt_neox": (4, 49), "llava": (4, 52), "qwen2_vl": (4, 52), "qwen2_5_vl": (4, 52),
}  # fmt: skip
LOSS_FUNCTION_EXISTS_FROM: Version = (4, 46)
RAISED_FROM: dict[str, Version] = {"llama": (4, 31)}
NEVER: Version = (99, 0)
RAISED_FROM |= dict.fromkeys(
    ("gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "stablelm", "gpt_neox", "llava"), NEVER
)
# Code that models bring along does not change with transformers.
OF_THEIR_OWN = {
    "internlm": "never",
    "internlm2": "model",
    "internlm3": "loss",
    "baichuan": "never",
    "chatglm": "model",
    "qwen": "never",
}


def raises_logits(model_type: str, transformers: Version) -> str:
    """Where logits are turned to fp32: in the "model", whose outputs they then are, in the "loss", or "never"."""
    if model_type in OF_THEIR_OWN:
        return OF_THEIR_OWN[model_type]
    if transformers >= LOSS_FUNCTION_FROM.get(model_type, LOSS_FUNCTION_EXISTS_FROM):
        return "loss"
    return "model" if transformers >= RAISED_FROM.get(model_type, (0, 0)) else "never"


# generation/utils.py: only the last position's logits (num_logits_to_keep) since then.
LAST_LOGITS_FROM: Version = (4, 45)
# cache_utils.py DynamicSlidingWindowLayer: sliding layers keep their window alone since then.
WINDOWED_CACHE_FROM: Version = (4, 56)
# cache_utils.py, DynamicLayer.update: before, the first update held the very tensors.
CACHE_COPIES_FROM: Version = (4, 56)
# Modeling files of the released wheels: in these spans a model in train() mode fills no cache, since it makes one only
# for `not self.training` (or, Gemma 2 before 4.45, only in generate()).
NO_CACHE_IN_TRAINING: dict[str, tuple[Version, Version]] = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "gemma", "phi", "phi3", "stablelm", "starcoder2",
         "cohere", "olmo", "persimmon"), ((4, 43), (4, 45))
    ),
    "bloom": ((4, 44), (4, 45)), "gemma2": ((4, 42), (5, 0)), "gemma3": ((4, 50), (5, 0)),
    "gemma3_text": ((4, 50), (5, 0)), "cohere2": ((4, 48), (5, 0)), "vaultgemma": ((4, 57), (5, 0)),
}  # fmt: skip
# Until then `outputs.past_key_values` was a tuple of tensors, later a Cache object, which nobody looks into.
CACHE_OBJECT_FROM: dict[str, Version] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "bart", "mbart", "pegasus", "marian"), (4, 56)),
    **dict.fromkeys(
        ("qwen2_moe", "phimoe", "gpt_neo", "gptj", "opt", "bloom", "falcon", "stablelm", "olmoe", "t5", "mt5", "umt5",
         "whisper", "codegen", "persimmon"), (4, 54)
    ),
    "gpt_neox": (4, 49), "gemma": (4, 45), "qwen2_vl": (4, 47),
}  # fmt: skip
CACHE_IS_OBJECT_FROM: Version = (4, 48)


def fills_cache_in_training(model_type: str, transformers: Version) -> bool:
    first, end = NO_CACHE_IN_TRAINING.get(model_type, ((99, 0), (99, 0)))
    return not first <= transformers < end


def returns_cache_as_tuple(model_type: str, transformers: Version) -> bool:
    return transformers < CACHE_OBJECT_FROM.get(model_type, CACHE_IS_OBJECT_FROM)


# trainer.py get_batch_samples: since then all micro-batches of a step are fetched, and on the device, before the first.
TRAINER_FETCHES_STEP_FROM: Version = (4, 46)

# trainer.py sets `model.config.use_cache = args.use_cache`, which is False unless asked for (training_args.py).
TRAINER_WITHOUT_CACHE_FROM: Version = (5, 0)
# modeling_t5.py: since then the decoder asks its own copy of the config, which the Trainer does not reach.
DECODER_DECIDES_FROM: dict[str, Version] = dict.fromkeys(("t5", "mt5", "umt5"), (5, 15))

# modeling_utils.py gradient_checkpointing_enable: since then it calls enable_input_require_grads() of every model that
# reads token ids.
INPUT_GRADS_FROM: Version = (5, 0)

# masking_utils.py: boolean masks, which SDPA makes additive for every call. Before, one additive mask for all layers;
# the families whose cache was hybrid passed one whatever the length, and sliding layers changed a copy of it.
BOOLEAN_MASKS_FROM: Version = (4, 53)
ALWAYS_MASKED_BEFORE_THAT = frozenset({"gemma2", "gemma3", "gemma3_text", "cohere2"})
# masking_utils.py find_packed_sequence_indices: batches without an attention mask, in a model without a cache, are
# taken for packed ones and get a mask, which SDPA's flash kernel does not take. Since 5.0 it looks whether they are.
TAKEN_FOR_PACKED: tuple[Version, Version] = ((4, 53), (5, 0))
TAKEN_FOR_PACKED_NEEDS_TORCH: Version = (2, 6)
# Their modeling files make their masks themselves in these versions.
WITH_MASKS_OF_THEIR_OWN = frozenset(
    {
        "qwen2_moe",
        "phimoe",
        "gpt_neo",
        "gptj",
        "opt",
        "bloom",
        "falcon",
        "stablelm",
        "olmoe",
        "persimmon",
        "codegen",
    }
)
MASKED_LATER: dict[str, Version] = {"gpt2": (4, 54), "gpt_bigcode": (4, 54)}


def takes_unmasked_for_packed(model_type: str, transformers: Version, torch: Version) -> bool:
    first, end = TAKEN_FOR_PACKED
    first = MASKED_LATER.get(model_type, first)
    is_new = first <= transformers < end and torch >= TAKEN_FOR_PACKED_NEEDS_TORCH
    return is_new and model_type not in WITH_MASKS_OF_THEIR_OWN


# modeling_bloom.py: keys and values were reshaped before `present` held them, until past_key_values.update came.
BLOOM_CACHES_VIEWS_FROM: Version = (4, 44)
# modeling_gpt_neox.py: `attention_mask[:, None, None, :]`, until _prepare_4d_causal_attention_mask.
NEOX_MASKS_PAIRS_FROM: Version = (4, 42)
# modeling_gpt_neox.py: GPTNeoXRotaryEmbedding gave cos and sin as they were cached, until it cast them to x.dtype.
NEOX_CASTS_POSITIONS_FROM: Version = (4, 45)
# modeling_phi3.py apply_rotary_pos_emb: whole heads were rotated until partial_rotary_factor came with Phi-4-mini.
PHI3_JOINS_ROTATED_FROM: Version = (4, 49)
# modeling_t5.py: a config that unties the head was obeyed until configuration_t5.py set tie_word_embeddings itself.
T5_TIES_HEAD_FROM: Version = (5, 0)
# modeling_t5.py: T5Stack made its masks itself, until masking_utils made them.
T5_SHARED_MASKS_FROM: Version = (5, 0)
# modeling_t5.py: `scores += position_bias_masked`, until attention went through ALL_ATTENTION_FUNCTIONS.
T5_SHARED_ATTENTION_FROM: Version = (5, 15)

# modeling_opt.py: `_shape` went when the cache became an object, then attention went through ALL_ATTENTION_FUNCTIONS.
OPT_ATTENTION_FROM: tuple[tuple[Version, str], ...] = (((4, 52), "shared"), ((4, 49), "own"))

# modeling_bert.py and its copies: attention of their own, until eager_attention_forward. From 4.54 on layers returned
# its weights, asked for or not, which under reentrant checkpointing get a gradient of zeros; that is not described.
BERT_SHARED_ATTENTION_FROM: Version = (5, 0)

# Eager attention of each modeling file: softmax in fp32 and back in these spans, else in the dtype of the scores. Other
# families never changed.
SOFTMAX_IN_FP32: dict[str, tuple[tuple[Version, Version], ...]] = {
    **dict.fromkeys(("vit", "deit"), (((4, 50), (5, 0)), ((5, 12), NEVER))),
    "dinov2": (((4, 50), (5, 0)),),
    **dict.fromkeys(("clip", "clip_text_model", "clip_vision_model"), (((4, 52), NEVER),)),
    "gpt_neox": (((4, 49), NEVER),),
}


def softmax_in_fp32(model_type: str, transformers: Version) -> bool | None:
    """None: as the family always did."""
    spans = SOFTMAX_IN_FP32.get(model_type)
    return None if spans is None else any(first <= transformers < end for first, end in spans)


def form_of(changes: tuple[tuple[Version, str], ...], transformers: Version, before: str) -> str:
    """The newest form that the version has; `before`: what was there before all of them."""
    return next((form for first, form in changes if transformers >= first), before)


def habits_of(model_type: str, transformers: Version) -> Habits:
    """What the modelling files of that version do that others do not."""
    return Habits(
        softmax_in_fp32=softmax_in_fp32(model_type, transformers),
        returns_cache_as_tuple=returns_cache_as_tuple(model_type, transformers),
        bert_holds_scores=transformers < BERT_SHARED_ATTENTION_FROM,
        opt_attention=form_of(OPT_ATTENTION_FROM, transformers, "oldest"),
        phi3_joins_rotated=transformers >= PHI3_JOINS_ROTATED_FROM,
        bloom_caches_copies=transformers < BLOOM_CACHES_VIEWS_FROM,
        neox_masks_keys=transformers < NEOX_MASKS_PAIRS_FROM,
        neox_rotates_in_fp32=transformers < NEOX_CASTS_POSITIONS_FROM,
        t5_ties_head=transformers >= T5_TIES_HEAD_FROM,
        t5_bias_in_place=transformers < T5_SHARED_ATTENTION_FROM,
        t5_makes_masks=transformers < T5_SHARED_MASKS_FROM,
    )
