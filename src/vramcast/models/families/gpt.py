"""GPT-2 and its early kin: GPT-Neo, GPT-J, CodeGen, GPT-BigCode (StarCoder) and OPT.

GPT-Neo, GPT-J and CodeGen have no SDPA path in transformers: whatever kernel is asked for, they run eager.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vramcast.errors import InputError
from vramcast.models.families.decoder import Frame, causal_mask, decoder
from vramcast.models.read.config import Config, exact_division
from vramcast.models.read.tasks import num_labels
from vramcast.models.record.attention import Eager, Heads, attend, split_qkv
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import mlp, split, split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F16, F32, I64, Dtype, Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    h: Dim
    f: Dim
    heads: Heads
    depth: Dim
    positions: Dim
    act: str


def read_shape(
    c: Config, *, h: int, depth: int, heads: int, positions: int, act: str = "gelu_new"
) -> Shape:
    """GPT-2's key names and the common ones; the numbers are the config class's defaults."""
    width = c.dim("n_embd", "h", "hidden_size", default=h)
    num = c.dim("n_head", "a", "num_attention_heads", "num_heads", default=heads)
    d = exact_division(width, num, f"{c.where}: hidden size by attention heads")
    return Shape(
        h=width,
        f=c.dim("n_inner", "f", "intermediate_size", default=4 * int(width)),
        heads=Heads(num=num, num_kv=num, width=Dim(int(d), "d")),
        depth=c.dim("n_layer", "L", "num_hidden_layers", "num_layers", default=depth),
        positions=c.dim("n_positions", "positions", "max_position_embeddings", default=positions),
        act=c.word("activation_function", act),
    )


def frame(
    t: Tape,
    c: Config,
    shape: Shape,
    *,
    vocab: int,
    tied: bool,
    dropout: float,
    learned: bool = True,
) -> Frame:
    """wte, perhaps wpe, dropout; ln_f and lm_head."""
    rows = c.dim("vocab_size", "V", default=vocab)

    def embed(ids: Value) -> tuple[Value, Value]:
        table = t.embedding_weight("wte", rows, shape.h)
        x = t.embed(table, ids)
        if learned:
            position_ids = t.op("arange", (), (1, ids.shape[1]), I64, label="position ids")
            position_table = t.embedding_weight("wpe", shape.positions, shape.h)
            positions = t.embed(position_table, position_ids, "position embeddings")
            x = t.add(x, positions)
        return t.dropout(x, dropout), table

    return Frame(
        base="transformer",
        layers="h",
        depth=shape.depth,
        vocab=rows,
        embed=embed,
        finish=lambda x: t.layer_norm("ln_f", x),
        tied=c.flag("tie_word_embeddings", tied),
        token_dropout=c.number("classifier_dropout", c.number("hidden_dropout", 0.1)),
    )


def gpt2(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape = read_shape(c, h=768, depth=12, heads=12, positions=1024)
    resid, attn = c.number("resid_pdrop", 0.1), c.number("attn_pdrop", 0.1)
    qk_fp32 = c.flag("reorder_and_upcast_attn", False)
    cross = c.flag("add_cross_attention", False)

    def attention(y: Value) -> Value:
        qkv = t.linear("c_attn", y, 3 * shape.h, bias=True, transposed=True, label="qkv")
        q, k, v = (split_heads(t, part, shape.heads.num) for part in split(t, qkv, (shape.h,) * 3))
        eager = Eager(upcast=False, qk_fp32="no autocast" if qk_fp32 else "")
        y = attend(t, q, k, v, shape.heads, dropout=attn, eager=eager)
        y = t.linear("c_proj", y, shape.h, bias=True, transposed=True)
        return t.hold(t.dropout(y, resid), qkv)

    def block(x: Value, kind: Any) -> Value:
        """Variables of GPT2Block.forward: `attn_output` until it returns, `hidden_states` until it is set anew."""
        y = t.layer_norm("ln_1", x)
        with t.scope("attn"):
            given = attention(y)
            x = t.hold(t.add(given, x, "residual stream"), y)
        if cross:
            _unused_cross_attention(t, shape.h)
        y = t.layer_norm("ln_2", x)
        with t.scope("mlp"):
            z = mlp(t, y, shape.f, shape.act, ("c_fc", "c_proj"), transposed=True)
        return t.hold(t.add(x, t.dropout(z, resid), "residual stream"), given, y)

    around = frame(t, c, shape, vocab=50257, tied=True, dropout=c.number("embd_pdrop", 0.1))
    return decoder(t, c, sizes, around, lambda x: block)


def _unused_cross_attention(t: Tape, h: Dim) -> None:
    """Parameters that add_cross_attention brings; a decoder trained alone never runs them."""
    with t.scope("crossattention"):
        for name, out in (("c_attn", 2 * h), ("q_attn", h), ("c_proj", h)):
            with t.scope(name):
                t.param("weight", (h, out), "linear")
                t.param("bias", (out,), "bias")
    with t.scope("ln_cross_attn"):
        t.param("weight", (h,), "norm")
        t.param("bias", (h,), "norm")


def gpt_bigcode(t: Tape, c: Config, sizes: Sizes) -> Program:
    """GPT-2 with plain linears and one key/value head (StarCoder, SantaCoder)."""
    shape = read_shape(c, h=768, depth=12, heads=12, positions=1024, act="gelu_pytorch_tanh")
    resid, attn = c.number("resid_pdrop", 0.1), c.number("attn_pdrop", 0.1)
    shared = c.flag("multi_query", True)
    heads = Heads(
        num=shape.heads.num, num_kv=1 if shared else shape.heads.num, width=shape.heads.width
    )
    if c.flag("add_cross_attention", False):
        raise InputError(f"{c.where}: add_cross_attention is not described for gpt_bigcode")

    def block(x: Value, kind: Any) -> Value:
        y = t.layer_norm("ln_1", x)
        with t.scope("attn"):
            widths = (shape.h, heads.num_kv * heads.width, heads.num_kv * heads.width)
            qkv = t.linear("c_attn", y, widths[0] + 2 * widths[1], bias=True, label="qkv")
            q, k, v = split(t, qkv, widths)
            q, k, v = split_qkv(t, q, k, v, heads)
            eager = Eager(upcast=c.flag("attention_softmax_in_fp32", True))
            y = attend(t, q, k, v, heads, dropout=attn, eager=eager)
            y = t.dropout(t.linear("c_proj", y, shape.h, bias=True), resid)
        x = t.add(y, x, "residual stream")
        y = t.layer_norm("ln_2", x)
        with t.scope("mlp"):
            y = mlp(t, y, shape.f, shape.act, ("c_fc", "c_proj"))
        return t.add(x, t.dropout(y, resid), "residual stream")

    around = frame(t, c, shape, vocab=50257, tied=True, dropout=c.number("embd_pdrop", 0.1))
    return decoder(t, c, sizes, around, lambda x: block)


def gpt_neo(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape = read_shape(c, h=2048, depth=24, heads=16, positions=2048)
    resid, attn = c.number("resid_dropout", 0.0), c.number("attention_dropout", 0.0)
    heads = shape.heads

    def project(y: Value, name: str) -> Value:
        return split_heads(t, t.linear(f"{name}_proj", y, shape.h, label=name), heads.num)

    def block(x: Value, kind: Any) -> Value:
        y = t.layer_norm("ln_1", x)
        with t.scope("attn.attention"):
            k = project(y, "k")
            v = project(y, "v")
            q = project(y, "q")
            eager = Eager(upcast=False, scaled=False, qk_fp32="autocast")
            y = attend(t, q, k, v, heads, dropout=attn, eager=eager, kernel="eager")
            y = t.dropout(t.linear("out_proj", y, shape.h, bias=True), resid)
        x = t.add(y, x, "residual stream")
        y = t.layer_norm("ln_2", x)
        with t.scope("mlp"):
            y = mlp(t, y, shape.f, shape.act, ("c_fc", "c_proj"))
        return t.add(x, t.dropout(y, resid), "residual stream")

    around = frame(t, c, shape, vocab=50257, tied=True, dropout=c.number("embed_dropout", 0.0))
    return decoder(t, c, sizes, replace(around, mask=causal_mask), lambda x: block)


def gptj(t: Tape, c: Config, sizes: Sizes) -> Program:
    """GPT-J and CodeGen: attention and MLP side by side, rotary tables made anew in every layer."""
    shape = read_shape(c, h=4096, depth=28, heads=16, positions=2048)
    resid, attn = c.number("resid_pdrop", 0.0), c.number("attn_pdrop", 0.0)
    fused = c.model_type == "codegen"
    heads, rotary = shape.heads, _rotary_dim(c, shape)

    def project(y: Value, name: str) -> Value:
        return split_heads(t, t.linear(f"{name}_proj", y, shape.h, label=name), heads.num)

    def project_all(y: Value) -> tuple[Value, Value, Value]:
        if not fused:
            q, k, v = (project(y, name) for name in "qkv")
            return q, k, v
        fused_qkv = t.linear("qkv_proj", y, 3 * shape.h, label="qkv")
        parts = split(t, fused_qkv, (shape.h,) * 3)
        # Four blocks of heads are interleaved, so bringing the heads together copies.
        q, v, k = (split_heads(t, t.copy(part), heads.num) for part in parts)
        return q, k, v

    def block(x: Value, kind: Any) -> Value:
        y = t.layer_norm("ln_1", x)
        with t.scope("attn"):
            q, k, v = project_all(y)
            k = _gptj_rope(t, k, rotary, F32 if fused else k.dtype)
            q = _gptj_rope(t, q, rotary, F32 if fused else q.dtype)
            eager = Eager(upcast=False, qk_fp32="autocast")
            a = attend(t, q, k, v, heads, dropout=attn, eager=eager, kernel="eager")
            a = t.dropout(t.linear("out_proj", a, shape.h), resid)
        with t.scope("mlp"):
            m = t.dropout(mlp(t, y, shape.f, shape.act, ("fc_in", "fc_out")), resid)
        return t.add(t.add(a, m), x, "residual stream")

    base = frame(
        t, c, shape, vocab=50400, tied=False, dropout=c.number("embd_pdrop", 0.0), learned=False
    )
    around = replace(base, mask=causal_mask, head_bias=True, question_labels=num_labels(c))
    return decoder(t, c, sizes, around, lambda x: block)


def _rotary_dim(c: Config, shape: Shape) -> Dim:
    rotary = c.dim("rotary_dim", "d_rot", default=64)
    if rotary > shape.heads.width:
        raise InputError(
            f"{c.where}: rotary_dim {int(rotary)} is wider than a head ({int(shape.heads.width)})"
        )
    return rotary


def _gptj_rope(t: Tape, x: Value, rotary: Dim, dtype: Dtype) -> Value:
    """The first `rotary` columns are rotated and concatenated with the rest; sin and cos are repeated each time."""
    part = t.slice(x, rotary)
    table_shape = (1, x.shape[1], 1, rotary)
    sin = t.op("repeat", (), table_shape, dtype, label="sin")
    cos = t.op("repeat", (), table_shape, dtype, label="cos")
    with_cos = t.mul(part, cos)
    with_sin = t.mul(t.copy(part), sin)
    rotated = t.add(with_cos, with_sin, f"{x.label} with positions")
    return t.op("cat", (rotated, x), x.shape, rotated.dtype, label=rotated.label)


def opt(t: Tape, c: Config, sizes: Sizes) -> Program:
    """OPT; the 350m one normalises after each branch and embeds in half the width."""
    h, num = c.dim("hidden_size", "h", default=768), c.dim("num_attention_heads", "a", default=12)
    d = exact_division(h, num, f"{c.where}: hidden_size by num_attention_heads")
    heads = Heads(num=num, num_kv=num, width=Dim(int(d), "d"))
    f, act = c.dim("ffn_dim", "f", default=3072), c.word("activation_function", "relu")
    before, bias = c.flag("do_layer_norm_before", True), c.flag("enable_bias", True)
    affine = c.flag("layer_norm_elementwise_affine", True)
    p, attn = c.number("dropout", 0.1), c.number("attention_dropout", 0.0)

    def norm(name: str, x: Value, here: bool) -> Value:
        return t.layer_norm(name, x, affine=affine) if here else x

    def block(x: Value, kind: Any) -> Value:
        y = norm("self_attn_layer_norm", x, before)
        with t.scope("self_attn"):
            q, k, v = _opt_qkv(t, y, heads, bias=bias)
            y = t.linear("out_proj", _opt_attention(t, q, k, v, heads, attn), h, bias=bias)
        x = t.add(x, t.dropout(y, p), "residual stream")
        x = norm("self_attn_layer_norm", x, not before)
        y = norm("final_layer_norm", x, before)
        # The MLP is written out in the layer, it is no module of its own.
        y = t.activation(t.linear("fc1", y, f, bias=bias, label="mlp hidden"), act)
        y = t.linear("fc2", y, h, bias=bias, label="mlp output")
        x = t.add(x, t.dropout(y, p), "residual stream")
        return norm("final_layer_norm", x, not before)

    around = _opt_frame(t, c, h, affine=affine, before=before)
    return decoder(t, c, sizes, around, lambda x: block)


def _opt_qkv(t: Tape, y: Value, heads: Heads, *, bias: bool) -> tuple[Value, Value, Value]:
    h, form = y.shape[-1], t.regime.habits.opt_attention
    q = t.linear("q_proj", y, h, bias=bias, label="q")
    if form != "own" or t.regime.attention == "eager":
        q = t.scale(q, "scaled q")  # what it was made from is gone before keys are made
    k, v = (t.linear(f"{n}_proj", y, h, bias=bias, label=n) for n in "kv")
    q, k, v = (split_heads(t, part, heads.num) for part in (q, k, v))
    if form == "oldest":
        q, k, v = (t.copy(part) for part in (q, k, v))
    return q, k, v


def _opt_attention(t: Tape, q: Value, k: Value, v: Value, heads: Heads, dropout: float) -> Value:
    form, in_fp16 = t.regime.habits.opt_attention, q.dtype == F16
    eager = {
        "oldest": Eager(scaled=False, floored=True, upcast=in_fp16, recast=in_fp16),
        "own": Eager(scaled=False),
    }.get(form, Eager())
    return attend(t, q, k, v, heads, dropout=dropout, eager=eager, heads_first=form == "oldest")


def _opt_frame(t: Tape, c: Config, h: Dim, *, affine: bool, before: bool) -> Frame:
    vocab = c.dim("vocab_size", "V", default=50272)
    rows = c.dim("max_position_embeddings", "positions", default=2048)
    width = c.dim("word_embed_proj_dim", "h_word", default=int(h))
    normed = before and not c.flag("_remove_final_layer_norm", False)

    def embed(ids: Value) -> tuple[Value, Value]:
        table = t.embedding_weight("embed_tokens", vocab, width)
        x = t.embed(table, ids)
        x = t.linear("project_in", x, h) if width != h else x
        position_ids = t.op("cumsum", (), ids.shape, I64, label="position ids")
        position_table = t.embedding_weight("embed_positions", rows + 2, h)
        positions = t.embed(position_table, position_ids, "position embeddings")
        return t.add(x, positions), table

    def finish(x: Value) -> Value:
        x = t.layer_norm("final_layer_norm", x, affine=affine) if normed else x
        return t.linear("project_out", x, width) if width != h else x

    return Frame(
        base="model.decoder",
        bare="decoder",
        layers="layers",
        depth=c.dim("num_hidden_layers", "L", default=12),
        vocab=vocab,
        embed=embed,
        finish=finish,
        tied=c.flag("tie_word_embeddings", True),
    )


FAMILIES = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gptj": gptj,
    "codegen": gptj,
    "opt": opt,
}
