"""Decoders with routed experts: Mixtral, Qwen2-MoE, Qwen3-MoE, Phi-MoE, OLMoE, gpt-oss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.errors import InputError
from vramcast.models.families.dense import clamp
from vramcast.models.families.llama import Block, Frame, Shape, causal_lm, read_shape
from vramcast.models.read.config import Config
from vramcast.models.record.attention import Eager, attend, project_qkv, split_qkv
from vramcast.models.record.dims import Dim
from vramcast.models.record.experts import run_experts
from vramcast.models.record.layers import gated_mlp, rms_norm, rope_both
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.routers import (
    Experts,
    Routing,
    chosen_softmax_router,
    softmax_router,
    sparse_mixer,
)
from vramcast.models.record.tape import Tape, Value

W1_W3_W2 = ("w1", "w3", "w2")  # Mixtral's names of gate, up and down


def read_experts(c: Config, inner: Dim, act: str, *names: str, **facts: Any) -> Experts:
    """The experts of a layer; `names` are the keys their number goes by."""
    num, k = c.dim(names[0], "E", *names[1:]), c.dim("num_experts_per_tok", "k")
    if k > num:
        raise InputError(
            f"{c.where}: num_experts_per_tok {int(k)} is more than the {int(num)} experts there are"
        )
    return Experts(num=num, k=k, inner=inner, act=act, **facts)


def flat(t: Tape, x: Value) -> Value:
    """[b, s, h] as [tokens, h]."""
    return t.view(x, (x.shape[0] * x.shape[1], x.shape[-1]))


def routed(t: Tape, x: Value, e: Experts, route: Callable[[Value], Routing]) -> Value:
    rows = flat(t, x)
    return t.view(run_experts(t, rows, route(rows), e), x.shape)


Norm = Callable[[Tape, str, Value], Value]


def moe_block(
    t: Tape,
    attention: Callable[[Value], Value],
    mlp: Callable[[Value], Value],
    norm: Norm = rms_norm,
) -> Callable[[Value], Value]:
    """Llama's order around any attention and any MLP."""

    def block(x: Value) -> Value:
        y = norm(t, "input_layernorm", x)
        with t.scope("self_attn"):
            y = attention(y)
        x = t.add(x, y, "residual stream")
        y = norm(t, "post_attention_layernorm", x)
        with t.scope("mlp"):
            y = mlp(y)
        return t.add(x, y, "residual stream")

    return block


def grouped_attention(
    t: Tape,
    c: Config,
    shape: Shape,
    positions: Value,
    *,
    bias: bool,
    out_bias: bool,
    qk_norm: bool = False,
) -> Callable[[Value], Value]:
    def attention(y: Value) -> Value:
        q, k, v = project_qkv(t, y, shape.heads, bias=bias)
        if qk_norm:
            q, k = rms_norm(t, "q_norm", q), rms_norm(t, "k_norm", k)
        q, k = rope_both(t, q, k, positions)
        y = attend(t, q, k, v, shape.heads, dropout=c.number("attention_dropout", 0.0))
        return t.linear("o_proj", y, shape.h, bias=out_bias)

    return attention


def mixtral(t: Tape, c: Config, sizes: Sizes) -> Program:
    c = c.with_defaults(num_local_experts=8, num_experts_per_tok=2, num_key_value_heads=8)
    shape = read_shape(c)
    e = read_experts(
        c, shape.f, shape.act, "num_local_experts", "num_experts", projections=W1_W3_W2
    )
    jitter = c.number("router_jitter_noise", 0.0)

    def mlp(x: Value) -> Value:
        x = jitter_input(t, x, jitter)

        def route(rows: Value) -> Routing:
            return softmax_router(t, "gate", rows, e, normalised=True, keeps_fp32=True)

        return routed(t, x, e, route)

    def make_block(positions: Value) -> Block:
        attention = grouped_attention(t, c, shape, positions, bias=False, out_bias=False)
        return lambda x, kind: moe_block(t, attention, mlp)(x)

    return causal_lm(t, c, sizes, make_block)


def jitter_input(t: Tape, x: Value, noise: float) -> Value:
    """x *= noise while training; the noise is saved."""
    if not noise or not t.regime.training:
        return x
    factors = Value(x.shape, x.dtype, label="jitter")
    return t.op("mul", (x,), x.shape, x.dtype, saves=(factors,), label="jittered input")


QWEN2_MOE = {
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
QWEN3_MOE = {
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "num_key_value_heads": 4,
}


def qwen_moe(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Qwen2-MoE with biases and a gated shared expert; Qwen3-MoE with q/k norms. Some layers may be dense."""
    second = c.model_type == "qwen2_moe"
    c = c.with_defaults(**(QWEN2_MOE if second else QWEN3_MOE))
    shape = read_shape(c)
    e = read_experts(
        c, c.dim("moe_intermediate_size", "f_e"), shape.act, "num_experts", "num_local_experts"
    )
    normalised = c.flag("norm_topk_prob", False)
    bias = c.flag("qkv_bias", True) if second else c.flag("attention_bias", False)

    def sparse(x: Value) -> Value:
        def route(rows: Value) -> Routing:
            return softmax_router(t, "gate", rows, e, normalised=normalised)

        if not second:
            return routed(t, x, e, route)
        shared = shared_expert(t, c, flat(t, x), shape)
        mixture = routed(t, x, e, route)
        return t.add(mixture, t.view(shared, x.shape), "mixture and shared expert")

    def make_block(positions: Value) -> Block:
        attention = grouped_attention(
            t, c, shape, positions, bias=bias, out_bias=bias and not second, qk_norm=not second
        )

        def block(x: Value, kind: str) -> Value:
            mlp = sparse if kind == "sparse" else lambda y: gated_mlp(t, y, shape.f, shape.act)
            return moe_block(t, attention, mlp)(x)

        return block

    return causal_lm(t, c, sizes, make_block, kinds=sparse_kinds(c))


def shared_expert(t: Tape, c: Config, rows: Value, shape: Shape) -> Value:
    """Qwen2's expert for all tokens, weighted by a sigmoid gate."""
    with t.scope("shared_expert"):
        y = gated_mlp(t, rows, c.dim("shared_expert_intermediate_size", "f_s"), shape.act)
    gate = t.linear("shared_expert_gate", rows, 1, label="shared expert gate")
    return t.mul(y, t.activation(gate, "sigmoid"), "shared expert")


def sparse_kinds(c: Config) -> list[str]:
    step = c.dim("decoder_sparse_step", "n", default=1)
    dense = set(c.numbers("mlp_only_layers"))
    layers = range(c.dim("num_hidden_layers", "L"))
    return ["sparse" if i not in dense and (i + 1) % step == 0 else "dense" for i in layers]


def phimoe(t: Tape, c: Config, sizes: Sizes) -> Program:
    """LayerNorms with biases, a router that draws two experts."""
    c = c.with_defaults(num_local_experts=16, num_experts_per_tok=2, num_key_value_heads=8)
    shape = read_shape(c)
    e = read_experts(c, shape.f, shape.act, "num_local_experts", projections=W1_W3_W2)
    bias, jitter = c.flag("attention_bias", False), c.number("input_jitter_noise", 0.0)

    def mlp(x: Value) -> Value:
        x = jitter_input(t, jitter_input(t, x, jitter), jitter)
        return routed(t, x, e, lambda rows: sparse_mixer(t, "router", rows, e))

    def norm(t: Tape, name: str, x: Value) -> Value:
        return t.layer_norm(name, x)

    def make_block(positions: Value) -> Block:
        attention = grouped_attention(t, c, shape, positions, bias=bias, out_bias=bias)
        return lambda x, kind: moe_block(t, attention, mlp, norm)(x)

    frame = Frame(norm=norm, head_bias=c.flag("lm_head_bias", False))
    return causal_lm(t, c, sizes, make_block, frame=frame)


def olmoe(t: Tape, c: Config, sizes: Sizes) -> Program:
    """q and k normed over all heads at once, perhaps clamped."""
    c = c.with_defaults(num_experts=64, num_experts_per_tok=8)
    shape = read_shape(c)
    heads, bias = shape.heads, c.flag("attention_bias", False)
    clip = c.data.get("clip_qkv") is not None
    e = read_experts(c, shape.f, shape.act, "num_experts", "num_local_experts")
    normalised = c.flag("norm_topk_prob", False)

    def mlp(x: Value) -> Value:
        def route(rows: Value) -> Routing:
            return softmax_router(t, "gate", rows, e, normalised=normalised)

        return routed(t, x, e, route)

    def make_block(positions: Value) -> Block:
        def attention(y: Value) -> Value:
            q = t.linear("q_proj", y, heads.num * heads.width, bias=bias, label="q")
            q = rms_norm(t, "q_norm", q)
            k = t.linear("k_proj", y, heads.num_kv * heads.width, bias=bias, label="k")
            k = rms_norm(t, "k_norm", k)
            v = t.linear("v_proj", y, heads.num_kv * heads.width, bias=bias, label="v")
            if clip:
                q, k, v = clamp(t, q), clamp(t, k), clamp(t, v)
            q, k, v = split_qkv(t, q, k, v, heads)
            q, k = rope_both(t, q, k, positions)
            y = attend(t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0))
            return t.linear("o_proj", y, shape.h, bias=bias)

        return lambda x, kind: moe_block(t, attention, mlp)(x)

    return causal_lm(t, c, sizes, make_block)


GPT_OSS = {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 4,
}


def gpt_oss(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Attention with a learned sink per head (SDPA cannot run it), experts with biases and a clamped gate."""
    c = c.with_defaults(**GPT_OSS)
    shape = read_shape(c)
    e = read_experts(
        c,
        shape.f,
        shape.act,
        "num_local_experts",
        "num_experts",
        bias=True,
        transposed=True,
        clamped_gate=True,
    )
    bias = c.flag("attention_bias", True)

    def norm(t: Tape, name: str, x: Value) -> Value:
        return rms_norm(t, name, x, style="fp32")

    def mlp(x: Value) -> Value:
        return routed(t, x, e, lambda rows: chosen_softmax_router(t, "router", rows, e))

    def make_block(positions: Value) -> Block:
        def attention(y: Value) -> Value:
            t.param("sinks", (int(shape.heads.num),), "table")
            q, k, v = project_qkv(t, y, shape.heads, bias=bias)
            q, k = rope_both(t, q, k, positions, partial=True)
            p = c.number("attention_dropout", 0.0)
            y = attend(
                t, q, k, v, shape.heads, dropout=p, eager=Eager(sinks=True), heads_first=True
            )
            return t.linear("o_proj", y, shape.h, bias=bias)

        return lambda x, kind: moe_block(t, attention, mlp, norm)(x)

    return causal_lm(t, c, sizes, make_block, frame=Frame(norm=norm))


FAMILIES = {
    "mixtral": mixtral,
    "qwen2_moe": qwen_moe,
    "qwen3_moe": qwen_moe,
    "phimoe": phimoe,
    "olmoe": olmoe,
    "gpt_oss": gpt_oss,
}
