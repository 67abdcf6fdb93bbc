"""Decoders with LayerNorm and rotary positions or ALiBi: GPT-NeoX (Pythia), Phi, StableLM, StarCoder2, BLOOM, Falcon.

BLOOM has no SDPA path in transformers: whatever kernel is asked for, it runs eager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vramcast.models.families.decoder import Block, Frame, causal_mask, decoder
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import Eager, Heads, attend, project_qkv
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import gated_mlp, mlp, rope_both, rope_table, split, split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    h: Dim
    f: Dim
    heads: Heads
    act: str


def read_heads(c: Config, h: Dim, *, num: int, num_kv: int | None = None) -> Heads:
    """`num` and `num_kv` are the config class's defaults; None: as many key/value heads as heads."""
    heads = c.dim("num_attention_heads", "a", "n_head", default=num)
    kv = c.dim("num_key_value_heads", "g", default=int(heads) if num_kv is None else num_kv)
    exact_division(heads, kv, f"{c.where}: num_attention_heads by num_key_value_heads")
    if isinstance(c.data.get("head_dim"), int):  # of one tensor-parallel rank, with fewer heads
        return Heads(num=heads, num_kv=kv, width=c.dim("head_dim", "d"))
    width = exact_division(h, heads, f"{c.where}: hidden_size by num_attention_heads")
    return Heads(num=heads, num_kv=kv, width=Dim(int(width), "d"))


def read_shape(
    c: Config, *, h: int, f: int, num: int, num_kv: int | None = None, act: str = "gelu"
) -> Shape:
    hidden = c.dim("hidden_size", "h", default=h)
    return Shape(
        h=hidden,
        f=c.dim("intermediate_size", "f", default=f),
        heads=read_heads(c, hidden, num=num, num_kv=num_kv),
        act=c.word("hidden_act", act),
    )


def frame(
    t: Tape,
    c: Config,
    h: Dim,
    *,
    base: str,
    table: str,
    norm: str,
    depth: int,
    vocab: int,
    tied: bool,
    layers: str = "layers",
    embedded: Callable[[Value], Value] = lambda x: x,
    head_bias: bool = False,
    token_head: str = "classifier",
    token_dropout: float = 0.1,
) -> Frame:
    rows = c.dim("vocab_size", "V", default=vocab)

    def embed(ids: Value) -> tuple[Value, Value]:
        weight = t.embedding_weight(table, rows, h)
        return embedded(t.embed(weight, ids)), weight

    return Frame(
        base=base,
        layers=layers,
        depth=c.dim("num_hidden_layers", "L", "n_layer", default=depth),
        vocab=rows,
        embed=embed,
        finish=lambda x: t.layer_norm(norm, x),
        tied=c.flag("tie_word_embeddings", tied),
        head_bias=head_bias,
        token_head=token_head,
        token_dropout=c.number("classifier_dropout", token_dropout),
    )


def gpt_neox(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape = read_shape(c, h=6144, f=24576, num=64)
    heads, p, bias = shape.heads, c.number("hidden_dropout", 0.0), c.flag("attention_bias", True)
    parallel = c.flag("use_parallel_residual", True)

    def attention(y: Value, positions: Value) -> Value:
        with t.scope("attention"):
            width = 3 * heads.num * heads.width
            qkv = t.linear("query_key_value", y, width, bias=bias, label="qkv")
            q, k, v = split(t, split_heads(t, qkv, heads.num), (heads.width,) * 3)
            q, k = rope_both(t, q, k, positions, partial=True)
            if t.regime.attention != "eager":
                q, k = t.cast(q, v.dtype), t.cast(k, v.dtype)
            dropout = c.number("attention_dropout", 0.0)
            eager = Eager(upcast=t.regime.habits.softmax_in_fp32 is not False)
            y = attend(t, q, k, v, heads, dropout=dropout, eager=eager, heads_first=True)
            return t.dropout(t.linear("dense", y, shape.h, bias=bias), p)

    def feed_forward(x: Value) -> Value:
        y = t.layer_norm("post_attention_layernorm", x)
        with t.scope("mlp"):
            return t.dropout(mlp(t, y, shape.f, shape.act, ("dense_h_to_4h", "dense_4h_to_h")), p)

    def make_block(stream: Value) -> Block:
        positions = rope_table(stream, 1, sizes.seq, heads.width)
        if t.regime.habits.neox_rotates_in_fp32:
            positions = replace(positions, dtype=F32)

        def block(x: Value, kind: Any) -> Value:
            a = attention(t.layer_norm("input_layernorm", x), positions)
            if parallel:
                return t.add(t.add(feed_forward(x), a), x, "residual stream")
            x = t.add(a, x, "residual stream")
            return t.add(feed_forward(x), x, "residual stream")

        return block

    around = frame(
        t,
        c,
        shape.h,
        base="gpt_neox",
        table="embed_in",
        norm="final_layer_norm",
        depth=44,
        vocab=50432,
        tied=False,
        embedded=lambda x: t.dropout(x, p),
    )
    if t.regime.habits.neox_masks_keys:
        around = replace(around, mask=_mask_of_keys)
    return decoder(t, c, sizes, around, make_block)


def _mask_of_keys(x: Value) -> Value:
    return Value((x.shape[0], 1, 1, x.shape[1]), x.dtype, label="attention mask")


def phi(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Phi-1, 1.5 and 2: attention and MLP side by side after one norm, biases everywhere."""
    shape = read_shape(c, h=2048, f=8192, num=32, act="gelu_new")
    heads, p, qk_norm = shape.heads, c.number("resid_pdrop", 0.0), c.flag("qk_layernorm", False)

    def make_block(stream: Value) -> Block:
        positions = rope_table(stream, 1, sizes.seq, heads.width)

        def block(x: Value, kind: Any) -> Value:
            y = t.layer_norm("input_layernorm", x)
            with t.scope("self_attn"):
                q, k, v = project_qkv(t, y, heads, bias=True)
                if qk_norm:
                    q, k = t.layer_norm("q_layernorm", q), t.layer_norm("k_layernorm", k)
                q, k = rope_both(t, q, k, positions, partial=True)
                a = attend(
                    t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0), heads_first=True
                )
                a = t.dropout(t.linear("dense", a, shape.h, bias=True), p)
            with t.scope("mlp"):
                m = t.dropout(mlp(t, y, shape.f, shape.act, ("fc1", "fc2")), p)
            return t.add(t.add(a, m), x, "residual stream")

        return block

    around = frame(
        t,
        c,
        shape.h,
        base="model",
        table="embed_tokens",
        norm="final_layernorm",
        depth=24,
        vocab=51200,
        tied=False,
        embedded=lambda x: t.dropout(x, c.number("embd_pdrop", 0.0)),
        head_bias=True,
        token_head="score",
    )
    return decoder(t, c, sizes, around, make_block)


def stablelm(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape = read_shape(c, h=2560, f=6912, num=32, num_kv=32, act="silu")
    heads, p = shape.heads, c.number("hidden_dropout", 0.0)
    bias, qk_norm = c.flag("use_qkv_bias", False), c.flag("qk_layernorm", False)
    parallel = c.flag("use_parallel_residual", False)

    def attention(y: Value, positions: Value) -> Value:
        with t.scope("self_attn"):
            q, k, v = project_qkv(t, y, heads, bias=bias)
            if qk_norm:
                q, k = norm_per_head(t, "q_layernorm", q), norm_per_head(t, "k_layernorm", k)
            q, k = rope_both(t, q, k, positions, partial=True)
            y = attend(
                t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0), heads_first=True
            )
            return t.linear("o_proj", y, shape.h)

    def feed_forward(y: Value) -> Value:
        with t.scope("mlp"):
            return t.dropout(gated_mlp(t, y, shape.f, shape.act), p)

    def make_block(stream: Value) -> Block:
        positions = rope_table(stream, 1, sizes.seq, heads.width)

        def block(x: Value, kind: Any) -> Value:
            y = t.layer_norm("input_layernorm", x)
            x = t.add(x, attention(y, positions), "residual stream")
            y = y if parallel else t.layer_norm("post_attention_layernorm", x)
            return t.add(x, feed_forward(y), "residual stream")

        return block

    around = frame(
        t,
        c,
        shape.h,
        base="model",
        table="embed_tokens",
        norm="norm",
        depth=32,
        vocab=50304,
        tied=False,
        token_head="score",
        token_dropout=p,
    )
    return decoder(t, c, sizes, around, make_block)


def norm_per_head(t: Tape, name: str, x: Value) -> Value:
    """A LayerNorm without bias for every head, their outputs joined again."""
    x = t.autocast_fp32(x)
    with t.scope(name):
        weights = [t.param(f"norms.{i}.weight", (x.shape[-1],), "norm") for i in range(x.shape[2])]
        dtype = F32 if t.regime.cuda else t.regime.weights
        statistics = Value((*x.shape[:-1], 2), dtype, label=f"{name} mean, rstd")
        normed = t.op(
            "layer_norm", (x, *weights), x.shape, x.dtype, saves=(x, statistics), label=name
        )
        return t.copy(normed)


def starcoder2(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape = read_shape(c, h=3072, f=12288, num=24, num_kv=2, act="gelu_pytorch_tanh")
    heads, p, bias = shape.heads, c.number("residual_dropout", 0.0), c.flag("use_bias", True)

    def make_block(stream: Value) -> Block:
        positions = rope_table(stream, 1, sizes.seq, heads.width)

        def block(x: Value, kind: Any) -> Value:
            y = t.layer_norm("input_layernorm", x)
            with t.scope("self_attn"):
                q, k, v = project_qkv(t, y, heads, bias=bias)
                q, k = rope_both(t, q, k, positions)
                y = attend(t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0))
                y = t.dropout(t.linear("o_proj", y, shape.h, bias=bias), p)
            x = t.add(x, y, "residual stream")
            y = t.layer_norm("post_attention_layernorm", x)
            with t.scope("mlp"):
                y = t.dropout(mlp(t, y, shape.f, shape.act, ("c_fc", "c_proj"), bias=bias), p)
            return t.add(x, y, "residual stream")

        return block

    around = frame(
        t,
        c,
        shape.h,
        base="model",
        table="embed_tokens",
        norm="norm",
        depth=30,
        vocab=49152,
        tied=True,
        embedded=lambda x: t.dropout(x, c.number("embedding_dropout", 0.0)),
        token_head="score",
    )
    return decoder(t, c, sizes, around, make_block)


BLOOM = Eager(scaled=False, holds_product=True)  # scores = alibi.baddbmm(q, k), then + mask


def bloom(t: Tape, c: Config, sizes: Sizes) -> Program:
    h = c.dim("n_embed", "h", "hidden_size", default=64)
    heads = read_heads(c, h, num=8)
    p, attn = c.number("hidden_dropout", 0.0), c.number("attention_dropout", 0.0)
    after_norm = c.flag("apply_residual_connection_post_layernorm", False)

    def block(x: Value, kind: Any) -> Value:
        y = t.layer_norm("input_layernorm", x)
        residual = y if after_norm else x
        with t.scope("self_attention"):
            qkv = t.linear("query_key_value", y, 3 * h, bias=True, label="qkv")
            q, k, v = split(t, split_heads(t, qkv, heads.num), (heads.width,) * 3)
            if t.regime.habits.bloom_caches_copies:
                k, v = t.copy(k), t.copy(v)
            y = attend(t, q, k, v, heads, dropout=attn, kernel="eager", eager=BLOOM)
            y = t.dropout(t.linear("dense", y, h, bias=True), p)
            x = t.hold(t.add(residual, y, "residual stream"), qkv)
        y = t.layer_norm("post_attention_layernorm", x)
        residual = y if after_norm else x
        with t.scope("mlp"):
            y = t.dropout(mlp(t, y, 4 * h, "bloom_gelu", ("dense_h_to_4h", "dense_4h_to_h")), p)
            return t.add(residual, y, "residual stream")

    around = frame(
        t,
        c,
        h,
        base="transformer",
        table="word_embeddings",
        norm="ln_f",
        depth=2,
        vocab=250880,
        tied=True,
        layers="h",
        embedded=lambda x: t.layer_norm("word_embeddings_layernorm", x),
        token_dropout=c.number("hidden_dropout", 0.1),
    )
    return decoder(t, c, sizes, replace(around, mask=causal_mask), lambda x: block)


FAMILIES = {
    "gpt_neox": gpt_neox,
    "phi": phi,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "bloom": bloom,
}
