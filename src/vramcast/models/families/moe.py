"""Decoders with routed experts: Mixtral, Qwen2-MoE, Qwen3-MoE, Phi-MoE, OLMoE, gpt-oss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.errors import InputError
from vramcast.models.families.dense import clamped
from vramcast.models.families.llama import Block, Frame, Shape, causal_lm, project_qkv, read_shape
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Dim
from vramcast.models.record.experts import (
    Experts,
    Routing,
    chosen_softmax_router,
    run_experts,
    softmax_router,
    sparse_mixer,
)
from vramcast.models.record.layers import Eager, attend, by_head, gated_mlp, rms_norm, ropes
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Tape, Value


def read_experts(c: Config, inner: Dim, act: str, *names: str, **facts: Any) -> Experts:
    """The experts of a layer; `names` are the keys their number goes by."""
    num, k = c.dim(names[0], "E", *names[1:]), c.dim("num_experts_per_tok", "k")
    if k > num:
        raise InputError(f"{c.where}: num_experts_per_tok {int(k)} is more than the {int(num)} experts there are")
    return Experts(num=num, k=k, inner=inner, act=act, **facts)


def flat(t: Tape, x: Value) -> Value:
    """[b, s, h] as [tokens, h]."""
    return t.view(x, (x.shape[0] * x.shape[1], x.shape[-1]))


def routed(t: Tape, x: Value, e: Experts, route: Callable[[Value], Routing]) -> Value:
    rows = flat(t, x)
    return t.view(run_experts(t, rows, route(rows), e), x.shape)


Norm = Callable[[Tape, str, Value], Value]


def moe_block(
    t: Tape, attention: Callable[[Value], Value], mlp: Callable[[Value], Value], norm: Norm = rms_norm
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
    t: Tape, c: Config, shape: Shape, positions: Value, *, bias: bool, out_bias: bool, qk_norm: bool = False
) -> Callable[[Value], Value]:
    def attention(y: Value) -> Value:
        q, k, v = project_qkv(t, y, shape.heads, bias=bias)
        if qk_norm:
            q, k = rms_norm(t, "q_norm", q), rms_norm(t, "k_norm", k)
        q, k = ropes(t, q, k, positions)
        y = attend(t, q, k, v, shape.heads, dropout=c.number("attention_dropout", 0.0))
        return t.linear("o_proj", y, shape.h, bias=out_bias)

    return attention


def mixtral(t: Tape, c: Config, sizes: Sizes) -> Program:
    c = c.with_defaults(num_local_experts=8, num_experts_per_tok=2, num_key_value_heads=8)
    shape = read_shape(c)
    e = read_experts(c, shape.f, shape.act, "num_local_experts", "num_experts")
    jitter = c.number("router_jitter_noise", 0.0)

    def mlp(x: Value) -> Value:
        x = jittered(t, x, jitter)
        return routed(t, x, e, lambda rows: softmax_router(t, "gate", rows, e, normalise=True, keeps_fp32=True))

    def make_block(positions: Value) -> Block:
        attention = grouped_attention(t, c, shape, positions, bias=False, out_bias=False)
        return lambda x, kind: moe_block(t, attention, mlp)(x)

    return causal_lm(t, c, sizes, make_block)


def jittered(t: Tape, x: Value, noise: float) -> Value:
    """x *= noise while training; the noise is kept."""
    if not noise or not t.regime.training:
        return x
    return t.op("mul", (x,), x.shape, x.dtype, saves=(Value(x.shape, x.dtype, label="jitter"),), label="jittered input")


QWEN2_MOE = {
    "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}  # fmt: skip
QWEN3_MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "num_key_value_heads": 4}


def qwen_moe(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Qwen2-MoE with biases and a gated shared expert; Qwen3-MoE with q/k norms. Some layers may be dense."""
    second = c.model_type == "qwen2_moe"
    c = c.with_defaults(**(QWEN2_MOE if second else QWEN3_MOE))
    shape = read_shape(c)
    e = read_experts(c, c.dim("moe_intermediate_size", "f_e"), shape.act, "num_experts", "num_local_experts")
    normalise = c.flag("norm_topk_prob", False)
    bias = c.flag("qkv_bias", True) if second else c.flag("attention_bias", False)

    def sparse(x: Value) -> Value:
        y = shared(t, c, flat(t, x), shape) if second else None
        y_routed = routed(t, x, e, lambda rows: softmax_router(t, "gate", rows, e, normalise=normalise))
        return y_routed if y is None else t.add(y_routed, t.view(y, x.shape), "mixture and shared expert")

    def make_block(positions: Value) -> Block:
        attention = grouped_attention(
            t, c, shape, positions, bias=bias, out_bias=bias and not second, qk_norm=not second
        )

        def block(x: Value, kind: str) -> Value:
            mlp = sparse if kind == "sparse" else lambda y: gated_mlp(t, y, shape.f, shape.act)
            return moe_block(t, attention, mlp)(x)

        return block

    return causal_lm(t, c, sizes, make_block, kinds=sparse_kinds(c))


def shared(t: Tape, c: Config, rows: Value, shape: Shape) -> Value:
    """Qwen2's expert for all tokens, behind a sigmoid gate."""
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
    e = read_experts(c, shape.f, shape.act, "num_local_experts")
    bias, jitter = c.flag("attention_bias", False), c.number("input_jitter_noise", 0.0)

    def mlp(x: Value) -> Value:
        x = jittered(t, jittered(t, x, jitter), jitter)
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
    heads, bias, clip = shape.heads, c.flag("attention_bias", False), c.data.get("clip_qkv") is not None
    e = read_experts(c, shape.f, shape.act, "num_experts", "num_local_experts")
    normalise = c.flag("norm_topk_prob", False)

    def mlp(x: Value) -> Value:
        return routed(t, x, e, lambda rows: softmax_router(t, "gate", rows, e, normalise=normalise))

    def make_block(positions: Value) -> Block:
        def attention(y: Value) -> Value:
            q = rms_norm(t, "q_norm", t.linear("q_proj", y, heads.num * heads.width, bias=bias, label="q"))
            k = rms_norm(t, "k_norm", t.linear("k_proj", y, heads.num_kv * heads.width, bias=bias, label="k"))
            v = t.linear("v_proj", y, heads.num_kv * heads.width, bias=bias, label="v")
            q, k, v = (clamped(t, p) if clip else p for p in (q, k, v))
            q, k, v = by_head(t, q, heads.num), by_head(t, k, heads.num_kv), by_head(t, v, heads.num_kv)
            q, k = ropes(t, q, k, positions)
            y = attend(t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0))
            return t.linear("o_proj", y, shape.h, bias=bias)

        return lambda x, kind: moe_block(t, attention, mlp)(x)

    return causal_lm(t, c, sizes, make_block)


GPT_OSS = {
    "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
    "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_experts_per_tok": 4,
}  # fmt: skip


def gpt_oss(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Attention with a learned sink per head (SDPA cannot run it), experts with biases and a clamped gate."""
    c = c.with_defaults(**GPT_OSS)
    shape = read_shape(c)
    e = read_experts(
        c, shape.f, shape.act, "num_local_experts", "num_experts", bias=True, transposed=True, clamped_gate=True
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
            q, k = ropes(t, q, k, positions, partial=True)
            p = c.number("attention_dropout", 0.0)
            y = attend(t, q, k, v, shape.heads, dropout=p, eager=Eager(sinks=True), heads_first=True)
            return t.linear("o_proj", y, shape.h, bias=bias)

        return lambda x, kind: moe_block(t, attention, mlp, norm)(x)

    return causal_lm(t, c, sizes, make_block, frame=Frame(norm=norm))


FAMILIES = {
    "mixtral": mixtral, "qwen2_moe": qwen_moe, "qwen3_moe": qwen_moe, "phimoe": phimoe, "olmoe": olmoe,
    "gpt_oss": gpt_oss,
}  # fmt: skip
