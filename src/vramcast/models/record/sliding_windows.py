"""Sliding windows: which layers of a config look back only so far, and which masks a forward pass makes for that.

A kernel chosen by SDPA knows "causal" and nothing else: from a window's length on a mask tensor says what to look at,
which flash kernels do not take (transformers masking_utils.py _ignore_causal_mask_sdpa). flash-attention itself knows
windows. Config classes fill in what a config.json leaves out; so does this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number
from vramcast.models.record.tape import Regime

# `sliding_window` of the config class where the config does not say; None: no window.
DEFAULT_WINDOW: dict[str, int | None] = {
    "mistral": 4096, "ministral": 4096, "gemma2": 4096, "gemma3_text": 4096, "cohere2": 4096, "olmo3": 4096,
    "gpt_oss": 128, "qwen2": 4096, "qwen3": 4096, "qwen2_moe": 4096, "qwen3_moe": 4096, "qwen2_vl_text": 4096,
    "qwen2_5_vl_text": 4096, "mixtral": None, "starcoder2": None, "phi3": None, "phimoe": None, "smollm3": None,
    "exaone4": 4096, "cwm": 8192, "vaultgemma": 4096, "ministral3": None,
}  # fmt: skip
ASK_FIRST = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3", "qwen2_vl_text", "qwen2_5_vl_text")
# Of so many layers the last looks at all; CWM's first does.
EVERY = {
    "gemma2": 2, "vaultgemma": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4, "olmo3": 4, "exaone4": 4, "cwm": 4,
}  # fmt: skip
MAX_WINDOW_LAYERS = 28


def window_of(c: Config) -> int | None:
    """How far back the sliding layers look; None where none slides."""
    if c.model_type not in DEFAULT_WINDOW:
        return None
    if c.model_type in ASK_FIRST and not c.flag("use_sliding_window", False):
        return None
    if c.data.get("sliding_window", DEFAULT_WINDOW[c.model_type]) is None:
        return None
    return int(c.dim("sliding_window", "w", default=DEFAULT_WINDOW[c.model_type]))


def sliding_layers(c: Config, layers: int) -> list[bool]:
    """For each layer whether it slides, as the config lists it or its class fills it in."""
    if window_of(c) is None:
        return [False] * layers
    listed = c.list("layer_types")
    if listed and c.model_type not in ("mistral", "mixtral", "starcoder2", "phi3", "phimoe", "qwen3_moe"):
        return [kind == "sliding_attention" for kind in c.per_layer("layer_types", layers)]
    return [_slides(c, layers)(index) for index in range(layers)]


def _slides(c: Config, layers: int) -> Callable[[int], bool]:
    if c.model_type == "cwm":
        return lambda index: index % EVERY["cwm"] != 0
    if c.model_type in EVERY:
        pattern = c.data.get("sliding_window_pattern")  # EXAONE also writes it out: "LLLG"
        named = len(pattern) if isinstance(pattern, str) and pattern else None
        every = named or int(c.dim("sliding_window_pattern", "n", default=EVERY[c.model_type]))
        return lambda index: (index + 1) % every != 0
    latest = int(c.dim("max_window_layers", "n", default=MAX_WINDOW_LAYERS, least=0))
    if c.model_type in ("qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text"):
        return lambda index: index >= latest
    if c.model_type == "qwen2_moe":
        return lambda index: index % 2 == 0 and index < latest
    if c.model_type == "smollm3":  # layers without rotation
        every = int(c.dim("no_rope_layer_interval", "n", default=4))
        rotates = c.per_layer("no_rope_layers", layers)
        return lambda index: not rotates[index] if rotates else (index + 1) % every == 0
    return lambda index: True


def is_beyond(seq: Number, window: int | None) -> bool:
    """Is the sequence as long as the window? Of many lengths, is any? (`engine.prices.peaks` takes them apart.)"""
    return window is not None and bool(_any(seq >= window))


def _any(found: Any) -> bool:
    return found if isinstance(found, bool) else found.any()


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """What attention is given in each layer of a decoder.

    Of `layers`, "none" needs nothing, "shared" reads the one tensor that a forward pass makes, "own" has one made for
    its own call. `forms` is how many different masks there are.
    """

    layers: tuple[str, ...]
    forms: int = 1

    @property
    def needed(self) -> bool:
        return any(kind != "none" for kind in self.layers)


NO_MASKS = Masks(layers=())


def masks_of(regime: Regime, c: Config, layers: int, *, beyond: bool, always: bool = False) -> Masks:
    """`always`: the family masks every layer, whatever the length (images that see all of themselves)."""
    slides = sliding_layers(c, layers)
    forms = len(set(slides)) or 1
    always = always or regime.masks_always
    if regime.knows_windows:
        return Masks(layers=("none",) * layers, forms=forms)
    made = "own" if regime.boolean_masks or regime.autocast else "shared"
    kinds = []
    for slide in slides:
        if not always and not (slide and beyond):
            kinds.append("none")
        else:
            kinds.append("own" if slide and regime.masks_always else made)
    return Masks(layers=tuple(kinds), forms=forms)
