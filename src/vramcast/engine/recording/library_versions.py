"""When transformers changed what a training step holds: facts with a date, as its released wheels have them.

A version is the first two numbers, since a patch release changes none of this. What torch, bitsandbytes and other
frameworks changed is told where it matters (see `regime`).
"""

from __future__ import annotations

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


# cache_utils.py, DynamicLayer.update: before, the first update held the very tensors.
CACHE_COPIES_FROM: Version = (4, 56)
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
