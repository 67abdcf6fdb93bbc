"""Falcon: attention and MLP side by side; one key/value head (7B), grouped heads repeated in place (40B, 180B), or
ALiBi with a plain residual stream (RW)."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.models.families.decoder import Block, Frame, decoder
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import Eager, Heads, attend, split_qkv
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import rope_both, rope_table, split
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import BOOL, I64, Tape, Value, promote


@dataclass(frozen=True, slots=True, kw_only=True)
class Falcon:
    """The switches of a Falcon config."""

    h: Dim
    f: Dim
    heads: Heads
    grouped: bool  # "new_decoder_architecture"
    shared: bool  # one key/value head for all
    parallel: bool
    norms: int  # in front of parallel branches
    alibi: bool
    bias: bool
    act: str
    hidden_dropout: float
    attention_dropout: float


def read_falcon(c: Config) -> Falcon:
    h = c.dim("n_embed", "h", "hidden_size", default=4544)
    num = c.dim("num_attention_heads", "a", "n_head", default=71)
    grouped = c.flag("new_decoder_architecture", False)
    shared = c.flag("multi_query", True) and not grouped
    kv = c.dim("num_kv_heads", "g", "n_head_kv", default=int(num))
    exact_division(num, kv, f"{c.where}: num_attention_heads by num_kv_heads")
    width = exact_division(h, num, f"{c.where}: hidden_size by num_attention_heads")
    num_kv: int = num
    if grouped:
        num_kv = kv
    elif shared:
        num_kv = 1
    return Falcon(
        h=h,
        f=c.dim("ffn_hidden_size", "f", default=4 * int(h)),
        grouped=grouped,
        shared=shared,
        heads=Heads(num=num, num_kv=num_kv, width=Dim(int(width), "d")),
        parallel=c.flag("parallel_attn", True),
        alibi=c.flag("alibi", False),
        bias=c.flag("bias", False),
        norms=c.dim("num_ln_in_parallel_attn", "norms", default=2 if grouped else 1),
        act=c.word("activation", "gelu"),
        hidden_dropout=c.number("hidden_dropout", 0.0),
        attention_dropout=c.number("attention_dropout", 0.0),
    )


def falcon(t: Tape, c: Config, sizes: Sizes) -> Program:
    f = read_falcon(c)
    b, s = sizes.batch, sizes.seq

    def mask(stream: Value) -> Value:
        """Made once for all layers. With ALiBi it carries the slopes; else SDPA gets a boolean one."""
        if f.alibi:
            return Value((b, f.heads.num, s, s), stream.dtype, label="attention mask with ALiBi")
        dtype = stream.dtype if t.regime.attention == "eager" else BOOL
        return Value((b, 1, s, s), dtype, label="attention mask")

    def make_block(stream: Value) -> Block:
        places = mask(stream) if f.alibi else rope_table(stream, 1, s, f.heads.width)
        return lambda x, kind: _block(t, f, x, places)

    def embed(ids: Value) -> tuple[Value, Value]:
        table = t.embedding_weight("word_embeddings", vocab, f.h)
        return t.embed(table, ids), table

    vocab = c.dim("vocab_size", "V", default=65024)
    around = Frame(
        base="transformer",
        layers="h",
        depth=c.dim("num_hidden_layers", "L", "n_layer", default=32),
        vocab=vocab,
        embed=embed,
        finish=lambda x: t.layer_norm("ln_f", x),
        tied=c.flag("tie_word_embeddings", True),
        mask=mask,
        token_dropout=c.number("classifier_dropout", c.number("hidden_dropout", 0.1)),
    )
    return decoder(t, c, sizes, around, make_block)


def _block(t: Tape, f: Falcon, x: Value, places: Value) -> Value:
    """Names and order as in FalconDecoderLayer.forward."""
    has_two_norms = f.parallel and f.norms == 2
    is_sequential = not f.grouped and not f.parallel
    y = t.layer_norm("ln_attn" if has_two_norms else "input_layernorm", x)
    mlp_input = t.layer_norm("ln_mlp", x) if has_two_norms else y
    with t.scope("self_attention"):
        attended = _attention(t, f, y, places)
    if is_sequential:
        x = t.add(x, t.dropout(attended, f.attention_dropout), "residual stream")
        mlp_input = t.layer_norm("post_attention_layernorm", x)
    with t.scope("mlp"):
        hidden = linear(t, "dense_h_to_4h", mlp_input, f.f, bias=f.bias, label="mlp hidden")
        activated = t.activation(hidden, f.act)
        out = linear(t, "dense_4h_to_h", activated, f.h, bias=f.bias, label="mlp output")
    if not is_sequential:
        out = t.op(
            "add_", (out, attended), out.shape, out.dtype, label="branches", passes_grad=True
        )
    return t.add(x, t.dropout(out, f.hidden_dropout), "residual stream")


def linear(t: Tape, name: str, x: Value, out: int, *, bias: bool, label: str) -> Value:
    """FalconLinear: a product, and the bias added outside of it, where autocast does not lower it."""
    y = t.linear(name, x, out, label=label)
    if not bias:
        return y
    with t.scope(name):
        b = t.param("bias", (out,), "bias")
    return t.op("add", (y, b), y.shape, promote(y.dtype, b.dtype), label=label)


def _attention(t: Tape, f: Falcon, y: Value, places: Value) -> Value:
    """`places` is the rotary table or, with ALiBi, the mask that has the slopes."""
    heads = f.heads
    q, k, v = _project_qkv(t, f, y)
    if f.grouped or f.shared:
        k, v = _index_heads(t, k, "k"), _index_heads(t, v, "v")
    if f.grouped:  # flattening the groups copies; keys and values are repeated on the way
        full = (*q.shape[:2], heads.num, heads.width)
        q = t.copy(q, full, "q")
        k = t.copy(k, full, "k repeated")
        v = t.copy(v, full, "v repeated")
        heads = Heads(num=heads.num, num_kv=heads.num, width=heads.width)
    # Fused kernels do not broadcast one key/value head over many: SDPA falls back to math.
    kernel = "math" if f.shared and t.regime.attention != "eager" else None
    eager = Eager(upcast=False)
    if f.alibi:
        p = f.attention_dropout
        y = attend(
            t, q, k, v, heads, dropout=p, eager=eager, kernel=kernel, bias=places, masked=True
        )
    else:
        q, k = rope_both(t, q, k, places)
        y = attend(t, q, k, v, heads, eager=eager, kernel=kernel, masked=True)
    return linear(t, "dense", y, f.h, bias=f.bias, label="attention projection")


def _project_qkv(t: Tape, f: Falcon, y: Value) -> tuple[Value, Value, Value]:
    heads = f.heads
    q_width, kv_width = heads.num * heads.width, heads.num_kv * heads.width
    width = (heads.num + 2 * heads.num_kv) * heads.width
    qkv = linear(t, "query_key_value", y, width, bias=f.bias, label="qkv")
    q, k, v = split(t, qkv, (q_width, kv_width, kv_width))
    return split_qkv(t, q, k, v, heads)


def _index_heads(t: Tape, x: Value, label: str) -> Value:
    index = Value((1,), I64, label="head index")
    return t.op("index", (x,), x.shape, x.dtype, saves=(index,), label=label)


FAMILIES = {"falcon": falcon}
