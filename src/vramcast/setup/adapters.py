"""What PEFT decides about adapters where nothing is said: which modules get them, their ranks and sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from vramcast.errors import InputError, UnsupportedError
from vramcast.job import LLAMA_PRO, PROMPTS, Job, is_regular
from vramcast.setup.checkpoint import config_of

ALL_LINEAR = ("all-linear",)
# A profile's word for: as PEFT chooses.
BY_PEFT = ("by PEFT",)
# peft/utils/constants.py TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING, 0.21: of types not listed PEFT asks for
# targets, and people answer all-linear.
TARGETS = {
    "q_proj v_proj": (
        "bart gemma gemma2 gemma3_text gpt_neo gptj llama mistral mixtral opt qwen2 qwen3 stablelm"
    ),
    "q_proj v_proj fc1 fc2": "phi",
    "q v": "t5 mt5",
    "query value": "bert roberta xlm-roberta electra",
    "query_key_value": "bloom gpt_neox chatglm falcon",
    "c_attn": "gpt2 gpt_bigcode",
    "qkv_proj": "codegen",
}
TARGETS_OF = {
    model_type: tuple(names.split())
    for names, types in TARGETS.items()
    for model_type in types.split()
}


def targets_by_peft(job: Job) -> tuple[str, ...]:
    """QLoRA adapts every linear layer, as its paper and PEFT's guide do; LoRA those that PEFT lists for the model."""
    if job.quantize != "none":
        return ALL_LINEAR
    config = config_of(job)
    return TARGETS_OF.get(config.model_type, ALL_LINEAR) if config is not None else ALL_LINEAR


def is_listed(job: Job) -> bool:
    """Does PEFT list LoRA's targets for the model?"""
    config = config_of(job)
    return config is not None and config.model_type in TARGETS_OF


# TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
IA3 = {
    "k v wo": "t5",
    "k v wi_1": "mt5",
    "c_attn mlp.c_proj": "gpt2 gpt_bigcode",
    "query_key_value mlp.dense_4h_to_h": "bloom",
    "key value output.dense": "bert roberta",
    "q_proj k_proj fc2": "opt",
    "q_proj v_proj fc_out": "gptj",
    "query_key_value dense_4h_to_h": "gpt_neox falcon",
    "q_proj v_proj c_proj": "gpt_neo",
    "q_proj v_proj fc2": "bart phi",
    "k_proj v_proj down_proj": "llama mistral",
    "k_proj v_proj w2": "mixtral",
    "q_proj v_proj down_proj": "llama4 gemma gemma2 gemma3_text qwen2 qwen3",
}
# TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING: those of the targets whose inputs are scaled.
IA3_FEEDFORWARD = {
    "wo": "t5",
    "": "mt5",
    "mlp.c_proj": "gpt2 gpt_bigcode",
    "mlp.dense_4h_to_h": "bloom",
    "output.dense": "bert roberta",
    "fc2": "opt bart phi",
    "fc_out": "gptj",
    "dense_4h_to_h": "gpt_neox falcon",
    "c_proj": "gpt_neo",
    "down_proj": "llama llama4 mistral gemma gemma2 gemma3_text qwen2 qwen3",
    "w2": "mixtral",
}
# TRANSFORMERS_MODELS_TO_ADALORA_TARGET_MODULES_MAPPING
ADALORA = {
    "q k v o wi wo": "t5",
    "q k v o wi_0 wi_1 wo": "mt5",
    "q_proj k_proj v_proj out_proj fc1 fc2": "bart opt",
    "c_attn": "gpt2 gpt_bigcode",
    "query_key_value": "bloom gpt_neox",
    "q_proj v_proj": "gptj gpt_neo llama llama4 gemma gemma2 gemma3_text qwen2 qwen3",
    "query value": "bert",
    "query key value dense": "roberta",
}
# TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING
LN_TUNING = {
    "input_layernorm post_attention_layernorm norm": "llama mistral gemma",
    "input_layernorm post_attention_layernorm ln_f": "bloom falcon",
    "layer_norm final_layer_norm": "t5 mt5",
    "self_attn_layer_norm encoder_attn_layer_norm final_layer_norm": "bart",
    "ln_1 ln_2 ln_f": "gpt2",
    "ln_1 ln_f": "gptj",
    "input_layernorm final_layernorm": "phi",
    "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm norm": (
        "gemma2 gemma3_text"
    ),
    "post_attention_layernorm": "qwen2 qwen3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Of one kind of adapter, in PEFT 0.21's configuration classes. `targets`: model types by their targets."""

    rank: int | None = None
    block: int | None = None
    targets: dict[str, str] = field(default_factory=lambda: TARGETS)
    dropout: str = ""  # the class's name of the dropout before the adapter; empty: there is none


KINDS = {
    "lora": Defaults(rank=8, dropout="lora_dropout"),
    "adalora": Defaults(rank=12, targets=ADALORA, dropout="lora_dropout"),
    "vera": Defaults(
        rank=256, targets={**TARGETS, "q_proj v_proj": f"{TARGETS['q_proj v_proj']} phi"}
    ),
    "loha": Defaults(rank=8),
    "lokr": Defaults(rank=8),
    "oft": Defaults(block=32),
    "boft": Defaults(block=4),
    "ia3": Defaults(targets=IA3),
    "ln-tuning": Defaults(targets=LN_TUNING),
    **dict.fromkeys(PROMPTS, Defaults(targets={})),
}
# Options that only some kinds have.
ONLY_OF = {
    "lora_rank": tuple(kind for kind, found in KINDS.items() if found.rank is not None),
    "adapter_block": tuple(kind for kind, found in KINDS.items() if found.block is not None),
    "lora_targets": tuple(kind for kind in KINDS if kind not in PROMPTS),
    "layers_to_transform": tuple(
        kind for kind in KINDS if kind not in (*PROMPTS, "ia3", "ln-tuning")
    ),
    "lora_dropout": tuple(kind for kind, found in KINDS.items() if found.dropout),
    "modules_to_save": tuple(kind for kind in KINDS if kind not in PROMPTS),
    "dora": ("lora",),
    "virtual_tokens": PROMPTS,
    "prompt_hidden": ("prefix", "p-tuning"),
    "expand_blocks": (LLAMA_PRO,),
}
LONGEST_EXPRESSION = 1000
OWN_ADAPTERS = ("litgpt", "torchtune", "torchtitan", "megatron", "nemo")  # frameworks without PEFT


def kind_of(job: Job) -> str | None:
    """None where the job trains no adapters."""
    if not job.has_adapters:
        return None
    return job.adapter or "lora"


def check_adapter(job: Job) -> None:
    """What is said about adapters must belong to the kind that is asked for."""
    kind = job.adapter or "lora"
    if is_regular(tuple(job.lora_targets)):
        _check_regular(job.lora_targets[0])
    for name, kinds in ONLY_OF.items():
        if kind not in kinds and getattr(job, name) not in (None, (), False, 0.0):
            raise InputError(
                f"{name.replace('_', '-')} belongs to adapter {', '.join(kinds)}: leave it out, or name one of them "
                f"(adapter is {kind})"
            )
    if kind == "lora":
        return
    if job.framework in OWN_ADAPTERS and kind != LLAMA_PRO:
        raise UnsupportedError(
            f"adapter {kind} is PEFT's, and {job.framework} has adapters of its own: name another framework, or "
            "adapter lora"
        )
    if kind == LLAMA_PRO and job.expand_blocks is None:
        raise InputError(
            "adapter llama-pro needs expand-blocks: how many blocks are added, such as 8 to 32"
        )
    if kind in PROMPTS and job.virtual_tokens is None:
        raise InputError(
            f"adapter {kind} needs virtual-tokens, which PEFT has no default for: say 20"
        )
    if kind == "prefix" and job.checkpointing not in (None, "none"):
        raise UnsupportedError(
            "adapter prefix does not work with gradient checkpointing: PEFT refuses it. Give --checkpointing none"
        )


def _check_regular(expression: str) -> None:
    try:
        if len(expression) > LONGEST_EXPRESSION:
            raise re.error(f"it has more than {LONGEST_EXPRESSION} signs")
        re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"lora-targets {expression[:60]} is no regular expression: {error}. Give names, separated by commas"
        ) from None


def defaults_of_kind(job: Job) -> dict[str, Any]:
    """PEFT's own, for what the job leaves open about a kind that is not LoRA."""
    found = KINDS[job.adapter or "lora"]
    changes: dict[str, Any] = {"lora_dropout": job.lora_dropout or 0.0}
    if job.lora_rank is None and found.rank is not None:
        changes["lora_rank"] = found.rank
    if job.adapter_block is None and found.block is not None:
        changes["adapter_block"] = found.block
    if not job.lora_targets and found.targets:
        changes["lora_targets"] = _targets_of_kind(job, found)
    return changes


def _targets_of_kind(job: Job, found: Defaults) -> tuple[str, ...]:
    config = config_of(job)
    model_type = config.model_type if config is not None else ""
    for names, types in found.targets.items():
        if model_type in types.split():
            return tuple(names.split())
    raise InputError(
        f"adapter {job.adapter}: PEFT knows no targets for model type {model_type or 'of a bare count'}: give "
        "--lora-targets"
    )


def feedforward_of(job: Job) -> tuple[str, ...]:
    """IA3's targets whose inputs are scaled. PEFT takes them from its table, whatever the targets are."""
    config = config_of(job) if job.adapter == "ia3" else None
    if config is None:
        return ()
    for names, types in IA3_FEEDFORWARD.items():
        if config.model_type in types.split():
            return tuple(names.split())
    raise InputError(
        f"adapter ia3: PEFT knows no feedforward modules for model type {config.model_type}, and refuses it"
    )


def layers_of(job: Job) -> tuple[int, ...]:
    """Numbers of layers. PEFT does not ask for them where targets are a regular expression."""
    if not job.layers_to_transform:
        return ()
    if is_regular(tuple(job.lora_targets)):
        raise InputError(
            "layers-to-transform goes with names: a regular expression in lora-targets says the layers itself"
        )
    if not all(number.isdecimal() and len(number) < 6 for number in job.layers_to_transform):
        raise InputError(
            f"layers-to-transform must be numbers of layers from 0 on, not {', '.join(job.layers_to_transform)}"
        )
    return tuple(int(number) for number in job.layers_to_transform)
