"""A model that a file spells out in sizes → the catalog's with the same sizes, where there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# One name per size; a catalog's config has one of them.
KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "groups": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "vocabulary": ("vocab_size",),
}
FAMILY = re.compile(r"[^a-z]")
NEEDED = ("layers", "hidden", "heads")
GENERATES = "ForCausalLM"
UNGATED = (
    "gpt2",
    "opt",
    "bloom",
    "gpt_neox",
    "gptj",
    "falcon",
    "phi",
    "gpt_bigcode",
    "starcoder2",
    "mpt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the file says; None: nothing of it."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    groups: int | None = None
    ffn: int | None = None
    experts: int | None = None
    vocabulary: int | None = None
    is_gated: bool = True
    is_latent: bool = False  # multi-head latent attention


def model_with(sizes: Sizes, named: str = "") -> str | None:
    """The catalog's name of the model with these sizes. `named` is where the file names a family: its own name, a
    tokenizer. None where there is no such model, or where models differ that the file does not tell apart."""
    from vramcast.catalog.models import all_models

    if any(type(getattr(sizes, key)) is not int for key in NEEDED):
        return None
    found = [
        model
        for model in all_models()
        if model.architecture.endswith((GENERATES, "LMHeadModel")) and _agree(sizes, model.config)
    ]
    of_family = [model for model in found if FAMILY.split(model.name)[0] in named.lower()]
    found = of_family or found
    if len({(model.params, model.config.get("vocab_size")) for model in found}) != 1:
        return None
    return found[0].name


def _agree(sizes: Sizes, config: Mapping[str, Any]) -> bool:
    if sizes.is_gated == (config.get("model_type") in UNGATED):
        return False
    if not sizes.is_gated and sizes.vocabulary is None:
        return False  # many families have the same layers then
    if sizes.is_latent != (config.get("kv_lora_rank") is not None):
        return False
    for key in ("layers", "hidden", "heads", "ffn", "vocabulary"):
        wanted, has = getattr(sizes, key), _value(config, key)
        if wanted is not None and wanted != has and not (key == "ffn" and has is None):
            return False
    groups = sizes.groups or sizes.heads
    has_groups = _value(config, "groups") or _value(config, "heads")
    return groups == has_groups and sizes.experts == _value(config, "experts")


def _value(config: Mapping[str, Any], key: str) -> int | None:
    found = (config.get(name) for name in KEYS[key])
    return next((value for value in found if type(value) is int and value), None)
