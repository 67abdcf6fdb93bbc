"""What a model keeps of every token it has read, layer by layer: keys and values, latents, windows, states.

Read from the config alone, so that models whose passes are not described have a cache all the same.

    full     keys and values of every token
    sliding  of the last `window` tokens
    latent   one compressed vector per token (multi-head latent attention), whole on every tensor-parallel rank
    state    one state per request, however long it is (Mamba, gated delta net)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.errors import UnsupportedError
from vramcast.models.read.config import Config
from vramcast.models.record.sliding_windows import sliding_layers, window_of

FULL, SLIDING, LATENT, STATE = "full", "sliding", "latent", "state"
# Words of `layer_types` (transformers) for the four kinds.
KIND_OF_WORD = {
    "full_attention": FULL,
    "attention": FULL,
    "hybrid": FULL,
    "sliding_attention": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": SLIDING,
    "linear_attention": STATE,
    "mamba": STATE,
    "mamba2": STATE,
    "conv": STATE,
    "recurrent": STATE,
}
# Letters of `hybrid_override_pattern` (Nemotron-H): * attends, M is a state, - an MLP.
KIND_OF_LETTER = {"*": FULL, "M": STATE}
ROPE_OF_LATENT = 64
# Their recurrence is kept in fp32 (mamba_ssm_dtype of the published configs).
IN_FP32 = ("nemotron_h", "kimi_linear", "qwen3_5")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLayer:
    """One layer's part of the cache. `heads` are key-value heads of the whole model."""

    kind: str
    heads: int = 0
    key_width: int = 0  # of one head
    value_width: int = 0
    window: int | None = None
    # Of a state: its elements, of the convolution and of the recurrence.
    conv_numel: int = 0
    state_numel: int = 0

    def heads_on_rank(self, tp: int) -> int:
        """Heads are replicated where there are more ranks than heads; a latent is one."""
        return 1 if self.kind == LATENT else max(1, self.heads // tp)

    def values_per_token(self, tp: int = 1) -> int:
        """Cached values of one token on one rank."""
        return self.heads_on_rank(tp) * (self.key_width + self.value_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """All layers that cache something."""

    layers: tuple[CachedLayer, ...]

    def of_kind(self, *kinds: str) -> tuple[CachedLayer, ...]:
        return tuple(layer for layer in self.layers if layer.kind in kinds)

    def values_per_token(self, tp: int = 1) -> int:
        """Cached values of one token of all layers, as if none had a window."""
        return sum(layer.values_per_token(tp) for layer in self.layers)

    def describe(self) -> str:
        """`36 full layers × 8 heads × (128 + 128)`"""
        parts = []
        for layer, count in Counter(self.layers).items():
            if layer.kind == STATE:
                parts.append(f"{count} layers with a state")
                continue
            width = f"({layer.key_width} + {layer.value_width})"
            if layer.kind == LATENT:
                width = f"{layer.key_width} values"
                parts.append(f"{count} latent layers × {width}")
                continue
            window = f" (window {layer.window:,})" if layer.window else ""
            parts.append(f"{count} {layer.kind} layers{window} × {layer.heads} heads × {width}")
        return ", ".join(parts)


def cache_shape(c: Config) -> CacheShape:
    """The cache of a language model."""
    if _int(c, "kv_lora_rank"):
        return _latent_shape(c)
    kinds = _kinds(c)
    shared = _int(c, "num_kv_shared_layers") or 0
    kept = kinds[: len(kinds) - shared] if shared else kinds
    layers = [
        _layer(c, kind, index) for index, kind in enumerate(kept) if kind in (FULL, SLIDING, STATE)
    ]
    if not layers:
        raise UnsupportedError(f"{c.model_type} caches nothing: it does not generate")
    return CacheShape(layers=tuple(layers))


def _latent_shape(c: Config) -> CacheShape:
    rank = int(c.dim("kv_lora_rank", "c"))
    rope = _int(c, "qk_rope_head_dim") or ROPE_OF_LATENT
    one = CachedLayer(kind=LATENT, heads=1, key_width=rank + rope)
    linear = _linear_layers(c)
    layers = [_state_layer(c) if index in linear else one for index in range(_number_of_layers(c))]
    return CacheShape(layers=tuple(layers))


def _linear_layers(c: Config) -> set[int]:
    """Kimi Linear: `linear_attn_config.kda_layers`, counted from 1."""
    found = c.sub("linear_attn_config").data.get("kda_layers")
    return {index - 1 for index in found} if isinstance(found, list) else set()


def _number_of_layers(c: Config) -> int:
    return int(
        c.dim("num_hidden_layers", "L", "n_layer", "num_layers", "n_layers", "decoder_layers")
    )


def _kinds(c: Config) -> list[str]:
    count = _number_of_layers(c)
    words = c.data.get("layer_types") or c.data.get("layers_block_type")
    if isinstance(words, list) and len(words) >= count and all(isinstance(w, str) for w in words):
        kinds = [KIND_OF_WORD.get(word, "") for word in words[:count]]
        return [FULL if kind == SLIDING and not _window(c) else kind for kind in kinds]
    pattern = c.data.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [KIND_OF_LETTER.get(letter, "") for letter in pattern[:count]]
    if c.data.get("attn_layer_period") is not None:  # Jamba
        period, offset = int(c.dim("attn_layer_period", "p")), _int(c, "attn_layer_offset") or 0
        return [FULL if index % period == offset else STATE for index in range(count)]
    if _int(c, "full_attention_interval") and _int(c, "linear_num_value_heads"):
        interval = int(c.dim("full_attention_interval", "i"))
        return [FULL if (index + 1) % interval == 0 else STATE for index in range(count)]
    if c.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return [STATE] * count
    if _int(c, "attention_chunk_size") and c.model_type.startswith("llama4"):
        return [FULL if (index + 1) % 4 == 0 else SLIDING for index in range(count)]
    if window_of(c) is None:
        return [FULL] * count
    return [SLIDING if slides else FULL for slides in sliding_layers(c, count)]


def _window(c: Config) -> int | None:
    chunk = _int(c, "attention_chunk_size")
    if c.model_type in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        return window_of(c)
    return _int(c, "sliding_window") or chunk or window_of(c)


def _layer(c: Config, kind: str, index: int) -> CachedLayer:
    if kind == STATE:
        return _state_layer(c)
    heads = _key_value_heads(c)
    width = _head_width(c)
    value = _int(c, "v_head_dim") or width
    if c.model_type.startswith("gemma4") and kind == FULL:
        heads = _int(c, "num_global_key_value_heads") or heads
        width = value = _int(c, "global_head_dim") or width
    return CachedLayer(
        kind=kind,
        heads=heads,
        key_width=width,
        value_width=value,
        window=_window(c) if kind == SLIDING else None,
    )


def _key_value_heads(c: Config) -> int:
    query = int(c.dim("num_attention_heads", "n", "n_head", "n_heads", "decoder_attention_heads"))
    if c.data.get("multi_query") is True and not c.data.get("new_decoder_architecture"):
        return 1
    for name in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"):
        found = _int(c, name)
        if found:
            return found
    return query


def _head_width(c: Config) -> int:
    for name in ("head_dim", "kv_channels", "attention_head_dim", "d_kv"):
        found = _int(c, name)
        if found:
            return found
    hidden = int(c.dim("hidden_size", "h", "n_embd", "d_model"))
    return hidden // int(
        c.dim("num_attention_heads", "n", "n_head", "n_heads", "decoder_attention_heads")
    )


def _state_layer(c: Config) -> CachedLayer:
    """vllm/model_executor/layers/mamba/mamba_utils.py: shapes of the convolution's and the recurrence's state."""
    linear = c.sub("linear_attn_config")
    if linear.data:
        heads, width = _int(linear, "num_heads") or 1, _int(linear, "head_dim") or 128
        kernel = _int(linear, "short_conv_kernel_size") or 4
        return CachedLayer(
            kind=STATE,
            conv_numel=3 * heads * width * (kernel - 1),
            state_numel=heads * width * width,
        )
    if _int(c, "linear_num_value_heads"):
        keys = _int(c, "linear_num_key_heads") or 1
        values = _int(c, "linear_num_value_heads") or 1
        key, value = _int(c, "linear_key_head_dim") or 128, _int(c, "linear_value_head_dim") or 128
        kernel = _int(c, "linear_conv_kernel_dim") or 4
        return CachedLayer(
            kind=STATE,
            conv_numel=(2 * keys * key + values * value) * (kernel - 1),
            state_numel=values * value * key,
        )
    hidden = int(c.dim("hidden_size", "h", "d_model"))
    state = _first(c, "mamba_d_state", "ssm_state_size", "state_size") or 16
    kernel = _first(c, "mamba_d_conv", "conv_kernel", "conv_L_cache", "d_conv") or 4
    if c.data.get("conv_L_cache") is not None:  # LFM2: a convolution alone
        return CachedLayer(kind=STATE, conv_numel=hidden * (kernel - 1))
    count = _first(c, "mamba_n_heads", "mamba_num_heads")
    if count:
        groups = _first(c, "mamba_n_groups", "n_groups") or 1
        wide = count * (_first(c, "mamba_d_head", "mamba_head_dim") or 64)
        return CachedLayer(
            kind=STATE,
            conv_numel=(wide + 2 * groups * state) * (kernel - 1),
            state_numel=wide * state,
        )
    expand = _first(c, "mamba_expand", "expand")
    said = _first(c, "intermediate_size", "d_inner") or 2 * hidden
    inner = hidden * expand if expand else said
    return CachedLayer(kind=STATE, conv_numel=inner * (kernel - 1), state_numel=inner * state)


def state_bytes(layer: CachedLayer, c: Config, tp: int, dtype_bytes: int) -> int:
    """Of one request on one rank. The recurrence is often kept in fp32, as the config says."""
    said = c.data.get("mamba_ssm_dtype") or c.data.get("mamba_ssm_cache_dtype")
    in_fp32 = said == "float32" or c.model_type.startswith(IN_FP32)
    recurrent = 4 if in_fp32 else dtype_bytes
    return (layer.conv_numel * dtype_bytes + layer.state_numel * recurrent) // tp


def _first(c: Config, *names: str) -> int | None:
    return next((value for value in (_int(c, name) for name in names) if value), None)


def _int(c: Config, name: str) -> int | None:
    value: Any = c.data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def stage_layers(layers: Sequence[CachedLayer], pp: int) -> list[tuple[CachedLayer, ...]]:
    """Layers of each pipeline stage: evenly, what is left over on the later ones but the last."""
    counts = split_layers(len(layers), pp)
    stages, begin = [], 0
    for count in counts:
        stages.append(tuple(layers[begin : begin + count]))
        begin += count
    return stages


def split_layers(layers: int, pp: int) -> list[int]:
    """vllm/distributed/utils.py get_pp_indices."""
    counts = [layers // pp] * pp
    for index in range(2, layers % pp + 2):
        counts[-index] += 1
    return counts
