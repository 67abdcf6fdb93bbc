"""Parts of a model by name: its layers, its vision tower, what several frameworks freeze of it.

Where a framework says "the last two layers" or "not the vision tower", the Job says the names of what is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.configs.records import Draft, Record
from vramcast.errors import VramcastError

# Parameters of vision-language models by part, as transformers names them.
QWEN_VL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "glm4v")
TOWER = {True: ("*visual.patch_embed*", "*visual.blocks*"), False: ("*vision_tower*",)}
PROJECTOR = {True: ("*visual.merger*",), False: ("*multi_modal_projector*",)}
LANGUAGE = ("*language_model*", "*lm_head*")


def config_of(draft: Draft) -> Mapping[str, Any] | None:
    """The config of the model that the files name, where it is known. Nothing is built for it."""
    from vramcast.catalog.models import lookup_model
    from vramcast.models.read.config import read_config

    name = str(draft.facts.get("model") or draft.value("model") or "")
    path = Path(name) / "config.json" if not name.endswith(".json") else Path(name)
    try:
        if name and path.is_file():
            return read_config(path).data
    except (OSError, ValueError, VramcastError):
        return None
    known = lookup_model(name)
    return None if known is None else known.config


def sees(draft: Draft) -> bool:
    """Is it a vision-language model?"""
    config = config_of(draft)
    return config is not None and isinstance(config.get("vision_config"), dict)


def freeze_parts(
    draft: Draft,
    source: Record | str | None,
    *,
    tower: bool = False,
    projector: bool = False,
    language: bool = False,
) -> None:
    """Say the names of the frozen parts; adapters are not put on them either."""
    config = config_of(draft)
    if config is None or not isinstance(config.get("vision_config"), dict):
        return
    is_qwen = str(config.get("model_type")) in QWEN_VL
    names = [
        *(TOWER[is_qwen] if tower else ()),
        *(PROJECTOR[is_qwen] if projector else ()),
        *(LANGUAGE if language else ()),
    ]
    if names:
        draft.say("freeze", tuple(names), source)


def num_layers(draft: Draft) -> int | None:
    config = config_of(draft)
    if config is None:
        return None
    inner = config.get("text_config")
    for data in (inner if isinstance(inner, dict) else {}, config):
        for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
            if type(data.get(key)) is int:
                return int(data[key])
    return None


def freeze_layers(draft: Draft, source: Record | None, trained: set[int], count: int) -> None:
    """All layers but these, the embeddings, the head and the last norm stay as they are."""
    layers = [f"*layers.{number}" for number in range(count) if number not in trained]
    others = ("*embed_tokens*", "*lm_head*", "model.norm*")
    draft.say("freeze", (*(f"{name}.*" for name in layers), *others), source)


def tokens_of_pixels(draft: Draft, pixels: Record) -> int | None:
    """Of an image of that many pixels: one per merged square of patches (Qwen's processors)."""
    config = config_of(draft)
    vision = None if config is None else config.get("vision_config")
    if config is None or not isinstance(vision, dict) or config.get("model_type") not in QWEN_VL:
        return None
    patch, merge = vision.get("patch_size", 14), vision.get("spatial_merge_size", 2)
    try:
        total = int(float(str(pixels.value)))
    except (ValueError, OverflowError):
        return None
    if type(patch) is not int or type(merge) is not int or patch * merge < 1:
        return None
    return max(total // (patch * merge) ** 2, 1)


def say_pixels(draft: Draft, pixels: Record | None) -> None:
    """`MAX_PIXELS`: the largest image, as tokens of the language model."""
    if pixels is None:
        return
    tokens = tokens_of_pixels(draft, pixels)
    if tokens is None:
        draft.gap(pixels, "pixels per image: say the tokens with --image-tokens")
        return
    draft.say("image-tokens", tokens, pixels)
    draft.say(
        "images", 1, f"{pixels.place}: images per sample are not in the files, counted with 1"
    )
    draft.assume(
        f"{pixels.text}: an image is at most {tokens:,} tokens; one per sample, else say --images"
    )
