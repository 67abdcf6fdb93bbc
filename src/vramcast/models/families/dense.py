"""Further dense decoders: OLMo 1-3, GLM 3 and 4, Granite, Cohere 1 and 2, SmolLM3, Ministral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramcast.models.families.llama import Block, Frame, Shape, causal_lm, read_shape
from vramcast.models.read.config import Config
from vramcast.models.record.attention import attend, project_qkv, split_qkv
from vramcast.models.record.layers import (
    fused_gated_mlp,
    gated_mlp,
    rms_norm,
    rope,
    rope_both,
)
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, Tape, Value


def fp32_rope(t: Tape, x: Value, positions: Value) -> Value:
    """Rotation in fp32 and back, where tables or inputs are cast to fp32 first (OLMo, Cohere)."""
    return t.cast(rope(t, x, positions), x.dtype, x.label)


def in_fp32(positions: Value) -> Value:
    return Value(positions.shape, F32, label=positions.label)


# ---- OLMo


def olmo_norm(t: Tape, name: str, x: Value) -> Value:
    """RMSNorm whose weight is applied in fp32."""
    return rms_norm(t, name, x, style="fp32")


def bare_norm(t: Tape, name: str, x: Value) -> Value:
    """OLMo 1: LayerNorm in fp32 without parameters."""
    x32 = t.cast(x, F32, f"{name} input fp32")
    return t.cast(t.layer_norm("", x32, affine=False), x.dtype, name)


def olmo(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Llama's order with parameterless norms; q, k and v may be clamped."""
    shape = read_shape(c)
    bias, clip = c.flag("attention_bias", False), c.data.get("clip_qkv") is not None

    def make_block(positions: Value) -> Block:
        table = in_fp32(positions)

        def block(x: Value, kind: Any) -> Value:
            y = bare_norm(t, "input_layernorm", x)
            with t.scope("self_attn"):
                q, k, v = project_qkv(t, y, shape.heads, bias=bias)
                if clip:
                    q, k, v = clamp(t, q), clamp(t, k), clamp(t, v)
                q, k = fp32_rope(t, q, table), fp32_rope(t, k, table)
                y = attend(t, q, k, v, shape.heads, dropout=c.number("attention_dropout", 0.0))
                y = t.linear("o_proj", y, shape.h, bias=bias)
            x = t.add(x, y, "residual stream")
            y = bare_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, shape.act)
            return t.add(x, y, "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, frame=Frame(norm=bare_norm))


def clamp(t: Tape, x: Value) -> Value:
    """In-place clamp: backward needs the values from before."""
    before = Value(x.shape, x.dtype, label=f"{x.label} before clamp")
    return t.op("clamp", (x,), x.shape, x.dtype, saves=(before,), label=x.label)


def olmo2(t: Tape, c: Config, sizes: Sizes) -> Program:
    """OLMo 2 and 3: norms only after the branches; q and k normed over all heads at once."""
    shape = read_shape(c)
    heads, bias = shape.heads, c.flag("attention_bias", False)

    def make_block(positions: Value) -> Block:
        table = in_fp32(positions)

        def block(x: Value, kind: Any) -> Value:
            with t.scope("self_attn"):
                q = t.linear("q_proj", x, heads.num * heads.width, bias=bias, label="q")
                q = olmo_norm(t, "q_norm", q)
                k = t.linear("k_proj", x, heads.num_kv * heads.width, bias=bias, label="k")
                k = olmo_norm(t, "k_norm", k)
                v = t.linear("v_proj", x, heads.num_kv * heads.width, bias=bias, label="v")
                q, k, v = split_qkv(t, q, k, v, heads)
                q, k = fp32_rope(t, q, table), fp32_rope(t, k, table)
                y = attend(t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0))
                y = t.linear("o_proj", y, shape.h, bias=bias)
            x = t.add(x, olmo_norm(t, "post_attention_layernorm", y), "residual stream")
            with t.scope("mlp"):
                y = gated_mlp(t, x, shape.f, shape.act)
            return t.add(x, olmo_norm(t, "post_feedforward_layernorm", y), "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, frame=Frame(norm=olmo_norm))


# ---- GLM

GLM = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
}


def glm(t: Tape, c: Config, sizes: Sizes) -> Program:
    """GLM-4-9B's form: half of each head rotated in pairs, fused gate and up. GLM-4-0414 adds norms after branches."""
    c = c.with_defaults(**GLM)
    shape, norms_after = read_shape(c), c.model_type == "glm4"

    def after(name: str, y: Value) -> Value:
        return rms_norm(t, name, y) if norms_after else y

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = glm_attention(t, c, shape, rms_norm(t, "input_layernorm", x), positions)
            x = t.add(x, after("post_self_attn_layernorm", y), "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                names = ("gate_up_proj", "down_proj")
                y = fused_gated_mlp(t, y, shape.f, shape.act, names)
            return t.add(x, after("post_mlp_layernorm", y), "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block)


def glm_attention(t: Tape, c: Config, shape: Shape, y: Value, positions: Value) -> Value:
    heads = shape.heads
    rotated = int(heads.width * rotary_share(c, 0.5))
    with t.scope("self_attn"):
        q, k, v = project_qkv(t, y, heads, bias=c.flag("attention_bias", True))
        table = paired_table(t, positions, rotated)
        q, k = partly_rotated(t, q, table), partly_rotated(t, k, table)
        y = attend(t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0), heads_first=True)
        return t.linear("o_proj", y, shape.h)


def rotary_share(c: Config, default: float) -> float:
    """`partial_rotary_factor`, which transformers 5 writes into `rope_parameters`."""
    return c.sub("rope_parameters").number(
        "partial_rotary_factor", c.number("partial_rotary_factor", default)
    )


def paired_table(t: Tape, positions: Value, width: int) -> Value:
    """cos and sin with each column doubled, made anew in every layer."""
    return t.op(
        "copy",
        (positions,),
        (1, positions.shape[1], 1, 2 * width),
        positions.dtype,
        label="cos, sin doubled",
    )


def partly_rotated(t: Tape, x: Value, table: Value) -> Value:
    """The first columns rotated, the rest joined on again."""
    turned = rope(t, t.slice(x, table.shape[-1] // 2), table)
    return t.op("copy", (turned, x), x.shape, x.dtype, label=turned.label)


# ---- Granite, SmolLM3, Ministral


def granite(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Llama with multipliers on embeddings, branches and logits."""
    shape = read_shape(c)
    bias = c.flag("attention_bias", False)

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "input_layernorm", x)
            y = llama_attention(t, c, shape, y, positions, bias=bias)
            x = t.add(x, t.scale(y), "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, shape.act, bias=c.flag("mlp_bias", False))
            return t.add(x, t.scale(y), "residual stream")

        return block

    frame = Frame(
        embedded=lambda x: t.scale(x, "scaled embeddings"), finished=lambda x: t.scale(x, "logits")
    )
    return causal_lm(t, c, sizes, make_block, frame=frame)


def llama_attention(
    t: Tape,
    c: Config,
    shape: Shape,
    y: Value,
    positions: Value | None,
    *,
    bias: bool,
    out_bias: bool | None = None,
) -> Value:
    """Without positions the layer does not rotate (NoPE)."""
    with t.scope("self_attn"):
        q, k, v = project_qkv(t, y, shape.heads, bias=bias)
        if positions is not None:
            q, k = rope_both(t, q, k, positions)
        y = attend(t, q, k, v, shape.heads, dropout=c.number("attention_dropout", 0.0))
        return t.linear("o_proj", y, shape.h, bias=bias if out_bias is None else out_bias)


SMOLLM3 = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}


def smollm3(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Llama that leaves every fourth layer without rotation."""
    c = c.with_defaults(**SMOLLM3)
    shape = read_shape(c)
    bias, layers = c.flag("attention_bias", False), c.dim("num_hidden_layers", "L")
    every = c.dim("no_rope_layer_interval", "n", default=4)
    kinds: Sequence[int] = c.per_layer("no_rope_layers", int(layers)) or [
        int((i + 1) % every != 0) for i in range(layers)
    ]

    def make_block(positions: Value) -> Block:
        def block(x: Value, rotates: int) -> Value:
            y = rms_norm(t, "input_layernorm", x)
            y = llama_attention(t, c, shape, y, positions if rotates else None, bias=bias)
            x = t.add(x, y, "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, shape.act, bias=c.flag("mlp_bias", False))
            return t.add(x, y, "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, kinds=kinds[:layers], frame=Frame(tied=True))


# ---- Cohere


def cohere_norm(t: Tape, name: str, x: Value) -> Value:
    """LayerNorm without bias, op by op in fp32. The weight has the width of a head times the heads for q and k."""
    shape = x.shape[-1:] if len(x.shape) == 3 else x.shape[-2:]
    with t.scope(name):
        weight = t.param("weight", tuple(int(n) for n in shape), "norm")
        x32 = t.cast(x, F32, f"{name} input fp32")
        mean = t.op("mean", (x32,), (*x.shape[:-1], 1), F32)
        centred = t.op("sub", (x32, mean), x.shape, F32, label=f"{name} centred")
        variance = t.op("pow mean", (centred,), mean.shape, F32, saves=(centred,))
        rstd = t.op("rsqrt", (variance,), mean.shape, F32, saves_output=True, label="rstd")
        again = t.op("sub", (x32, mean), x.shape, F32, label=f"{name} centred again")
        normed = t.mul(again, rstd, f"{name} normalised")
        return t.cast(t.mul(normed, t.cast(weight, F32), name), x.dtype)


def cohere(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Attention and MLP side by side on one norm. Cohere 2 rotates only where attention slides."""
    shape = read_shape(c)
    is_second = c.model_type == "cohere2"
    has_window = not is_second or c.data.get("sliding_window", 4096) is not None
    kinds = cohere_kinds(c, is_second=is_second)

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: str) -> Value:
            y = cohere_norm(t, "input_layernorm", x)
            rotates = has_window and kind == "sliding_attention"
            attended = cohere_attention(t, c, shape, y, positions if rotates else None)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, shape.act)
            return t.add(t.add(x, attended), y, "residual stream")

        return block

    frame = Frame(tied=True, norm=cohere_norm, finished=lambda x: t.scale(x, "logits"))
    return causal_lm(t, c, sizes, make_block, kinds=kinds, frame=frame)


def cohere_kinds(c: Config, *, is_second: bool) -> Sequence[str]:
    """Which attention each layer has."""
    layers = c.dim("num_hidden_layers", "L")
    every = c.dim("sliding_window_pattern", "n", default=4)
    if not is_second:
        return ["sliding_attention"] * layers
    pattern = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    return c.per_layer("layer_types", int(layers)) or pattern


def cohere_attention(t: Tape, c: Config, shape: Shape, y: Value, positions: Value | None) -> Value:
    bias = c.flag("attention_bias", False)
    with t.scope("self_attn"):
        q, k, v = project_qkv(t, y, shape.heads, bias=bias)
        if c.flag("use_qk_norm", False):
            q, k = cohere_norm(t, "q_norm", q), cohere_norm(t, "k_norm", k)
        if positions is not None:
            table = in_fp32(positions)
            q, k = fp32_rope(t, q, table), fp32_rope(t, k, table)
        y = attend(t, q, k, v, shape.heads, dropout=c.number("attention_dropout", 0.0))
        return t.linear("o_proj", y, shape.h, bias=bias)


FAMILIES = {
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo2,
    "glm": glm,
    "glm4": glm,
    "granite": granite,
    "smollm3": smollm3,
    "cohere": cohere,
    "cohere2": cohere,
}
