"""Sliding windows: which layers of a config look back only so far, and which masks a forward pass makes for that.

A kernel chosen by SDPA knows "causal" and nothing else: from a window's length on a mask tensor says what to look at,
which flash kernels do not take (transformers masking_utils.py _ignore_causal_mask_sdpa). flash-attention itself knows
windows. Config classes fill in what a config.json leaves out; so does this.

Example: Gemma 2 slides in every second layer (0, 2, 4 …) over 4,096 tokens. At a length of 1,024 no layer needs a mask;
at 8,192 the layers that slide get one, and their kernel is the memory-efficient one; the others stay with flash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number
from vramcast.models.record.tape import Regime

# `sliding_window` of the config class where the config does not say; None: no window.
DEFAULT_WINDOW: dict[str, int | None] = {
    "mistral": 4096,
    "ministral": 4096,
    "gemma2": 4096,
    "gemma3_text": 4096,
    "cohere2": 4096,
    "olmo3": 4096,
    "gpt_oss": 128,
    "qwen2": 4096,
    "qwen3": 4096,
    "qwen2_moe": 4096,
    "qwen3_moe": 4096,
    "qwen2_vl_text": 4096,
    "qwen2_5_vl_text": 4096,
    "mixtral": None,
    "starcoder2": None,
    "phi3": None,
    "phimoe": None,
    "smollm3": None,
    "exaone4": 4096,
    "cwm": 8192,
    "vaultgemma": 4096,
    "ministral3": None,
}
# Types that slide only where `use_sliding_window` is set.
OPT_IN = (
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "smollm3",
    "qwen2_vl_text",
    "qwen2_5_vl_text",
)
# Of so many layers the last does not slide; of CWM's the first.
FULL_ATTENTION_EVERY = {
    "gemma2": 2,
    "vaultgemma": 2,
    "gpt_oss": 2,
    "gemma3_text": 6,
    "cohere2": 4,
    "olmo3": 4,
    "exaone4": 4,
    "cwm": 4,
}
SLIDE_FROM_LAYER = ("qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text")  # `max_window_layers`
IGNORE_LAYER_TYPES = ("mistral", "mixtral", "starcoder2", "phi3", "phimoe", "qwen3_moe")
MAX_WINDOW_LAYERS = 28
NO_ROPE_LAYER_INTERVAL = 4


def window_of(c: Config) -> int | None:
    """How far back the sliding layers look; None where none slides."""
    if c.model_type not in DEFAULT_WINDOW:
        return None
    if c.model_type in OPT_IN and not c.flag("use_sliding_window", False):
        return None
    default = DEFAULT_WINDOW[c.model_type]
    if c.data.get("sliding_window", default) is None:
        return None
    return int(c.dim("sliding_window", "w", default=default))


def sliding_layers(c: Config, layers: int) -> list[bool]:
    """For each layer whether it slides, as the config lists it or its class fills it in."""
    if window_of(c) is None:
        return [False] * layers
    if c.list("layer_types") and c.model_type not in IGNORE_LAYER_TYPES:
        return [kind == "sliding_attention" for kind in c.per_layer("layer_types", layers)]
    return _layers_of_class(c, layers)


def _layers_of_class(c: Config, layers: int) -> list[bool]:
    """What the config class fills in where the config lists nothing."""
    if c.model_type in FULL_ATTENTION_EVERY:
        return _slide_by_interval(c, layers)
    latest = int(c.dim("max_window_layers", "n", default=MAX_WINDOW_LAYERS, least=0))
    if c.model_type in SLIDE_FROM_LAYER:
        return [index >= latest for index in range(layers)]
    if c.model_type == "qwen2_moe":
        return [index % 2 == 0 and index < latest for index in range(layers)]
    if c.model_type == "smollm3":
        return _slide_without_rope(c, layers)
    return [True] * layers


def _slide_by_interval(c: Config, layers: int) -> list[bool]:
    """All layers but one of each interval."""
    interval = FULL_ATTENTION_EVERY[c.model_type]
    if c.model_type == "cwm":
        return [index % interval != 0 for index in range(layers)]
    pattern = c.data.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        interval = len(pattern)  # EXAONE also writes it out: "LLLG"
    else:
        interval = int(c.dim("sliding_window_pattern", "n", default=interval))
    return [(index + 1) % interval != 0 for index in range(layers)]


def _slide_without_rope(c: Config, layers: int) -> list[bool]:
    """SmolLM3: the layers without rotary positions."""
    interval = int(c.dim("no_rope_layer_interval", "n", default=NO_ROPE_LAYER_INTERVAL))
    rotates = c.per_layer("no_rope_layers", layers)
    if rotates:
        return [not rotates[index] for index in range(layers)]
    return [(index + 1) % interval == 0 for index in range(layers)]


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


def choose_masks(
    regime: Regime, c: Config, layers: int, *, beyond: bool, always: bool = False
) -> Masks:
    """`beyond`: the sequence is as long as the window. `always`: the family masks every layer, whatever the length
    (images that see all of themselves)."""
    slides = sliding_layers(c, layers)
    forms = len(set(slides)) or 1
    if regime.kernel_has_windows:
        return Masks(layers=("none",) * layers, forms=forms)
    always = always or regime.masks_always
    of_full = _mask_of_layer(regime, slides=False) if always else "none"
    of_sliding = _mask_of_layer(regime, slides=True) if always or beyond else "none"
    return Masks(layers=tuple(of_sliding if slide else of_full for slide in slides), forms=forms)


def _mask_of_layer(regime: Regime, *, slides: bool) -> str:
    """Where a layer that needs a mask gets it from."""
    made_for_call = regime.boolean_masks or regime.autocast is not None
    if made_for_call or (slides and regime.masks_always):
        return "own"
    return "shared"
