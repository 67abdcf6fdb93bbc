"""BART's line of encoder-decoders: BART, mBART, Pegasus, Marian, and Whisper with its convolution stem.

`Sizes.seq` is the source's length and `Sizes.target_seq` the target's. Whisper always encodes its
`max_source_positions` (30 s of sound), whatever `Sizes.seq` says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

from vramcast.models.read.config import Config, exact_division
from vramcast.models.read.tasks import num_labels, task_of
from vramcast.models.record.attention import Eager, Heads, attend
from vramcast.models.record.dims import Dim, Number
from vramcast.models.record.layers import split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import I64, Tape, Value, promote


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """Where a family puts its norms and where its positions come from."""

    norm_first: bool
    embedding_norm: bool = False
    offset: int = 0  # rows in front of the position table
    sinusoidal: bool = False  # positions are a frozen table
    whisper: bool = False

    @property
    def final_norm(self) -> bool:
        return self.norm_first


MANNERS = {
    "bart": Manner(norm_first=False, embedding_norm=True, offset=2),
    "mbart": Manner(norm_first=True, embedding_norm=True, offset=2),
    "pegasus": Manner(norm_first=True, sinusoidal=True),
    "marian": Manner(norm_first=False, sinusoidal=True),
    "whisper": Manner(norm_first=True, whisper=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The encoder's or the decoder's dimensions."""

    name: str
    h: Dim
    f: Dim
    heads: Heads
    depth: Dim
    positions: Dim
    act: str
    dropout: float
    attention_dropout: float
    activation_dropout: float
    manner: Manner


def read_side(c: Config, name: str) -> Side:
    manner = MANNERS[c.model_type]
    small = manner.whisper
    h = c.dim("d_model", "h", "hidden_size", default=384 if small else 1024)
    num = c.dim(f"{name}_attention_heads", "a", "num_attention_heads", default=6 if small else 16)
    d = exact_division(h, num, f"{c.where}: d_model by {name}_attention_heads")
    table = {"encoder": "max_source_positions", "decoder": "max_target_positions"}[name]
    other_depth = ("num_hidden_layers",) if name == "encoder" else ()
    rows = c.dim(table, "positions", default=1500 if name == "encoder" else 448) if small else None
    return Side(
        name=name,
        h=h,
        f=c.dim(f"{name}_ffn_dim", "f", default=1536 if small else 4096),
        manner=manner,
        heads=Heads(num=num, num_kv=num, width=Dim(int(d), "d")),
        depth=c.dim(f"{name}_layers", "L", *other_depth, default=4 if small else 12),
        positions=rows or c.dim("max_position_embeddings", "positions", default=1024),
        act=c.word("activation_function", "gelu"),
        dropout=c.number("dropout", 0.0 if small else 0.1),
        attention_dropout=c.number("attention_dropout", 0.0),
        activation_dropout=c.number("activation_dropout", 0.0),
    )


# ---- layers


def _attention(t: Tape, side: Side, y: Value, states: Value, *, causal: bool) -> Value:
    whisper, heads = side.manner.whisper, side.heads
    q = t.linear("q_proj", y, side.h, bias=True, label="q")
    k = t.linear("k_proj", states, side.h, bias=not whisper, label="k")
    v = t.linear("v_proj", states, side.h, bias=True, label="v")
    if whisper:  # q is scaled first, and all three are laid out head by head
        q, k, v = t.copy(t.scale(q)), t.copy(k), t.copy(v)
    q, k, v = (split_heads(t, part, heads.num) for part in (q, k, v))
    y = attend(
        t,
        q,
        k,
        v,
        heads,
        dropout=side.attention_dropout,
        eager=Eager(upcast=False, recast=False, mask=causal),
        heads_first=whisper,
    )
    return t.linear("out_proj", y, side.h, bias=True)


def _branch(t: Tape, side: Side, norm: str, x: Value, branch: Callable[[Value], Value]) -> Value:
    """The residual stream around one branch, normalised before or behind it."""
    y = branch(t.layer_norm(norm, x) if side.manner.norm_first else x)
    x = t.add(x, t.dropout(y, side.dropout), "residual stream")
    return x if side.manner.norm_first else t.layer_norm(norm, x)


def make_block(t: Tape, side: Side, source: Value | None) -> Callable[[Value, Any], Value]:
    def self_attention(y: Value) -> Value:
        with t.scope("self_attn"):
            return _attention(t, side, y, y, causal=source is not None)

    def cross_attention(y: Value) -> Value:
        assert source is not None
        with t.scope("encoder_attn"):
            return _attention(t, side, y, source, causal=False)

    def feed_forward(y: Value) -> Value:
        wide = t.activation(t.linear("fc1", y, side.f, bias=True, label="mlp hidden"), side.act)
        return t.linear(
            "fc2", t.dropout(wide, side.activation_dropout), side.h, bias=True, label="mlp output"
        )

    def block(x: Value, kind: Any) -> Value:
        x = _branch(t, side, "self_attn_layer_norm", x, self_attention)
        if source is not None:
            x = _branch(t, side, "encoder_attn_layer_norm", x, cross_attention)
        return _branch(t, side, "final_layer_norm", x, feed_forward)

    return block


def _positions(t: Tape, side: Side, x: Value, rows: Number) -> Value:
    """Position embeddings added, then the norm and the dropout in front of the first layer."""
    manner = side.manner
    frozen = manner.sinusoidal or (manner.whisper and side.name == "encoder")
    ids = t.op("arange", (), (rows, x.shape[1]), I64, label="position ids")
    table = t.embedding_weight(
        "embed_positions", side.positions + manner.offset, side.h, frozen=frozen
    )
    x = t.add(x, t.embed(table, ids, "position embeddings"))
    x = t.layer_norm("layernorm_embedding", x) if manner.embedding_norm else x
    return t.dropout(x, side.dropout)


def _layers(t: Tape, side: Side, x: Value, source: Value | None) -> Value:
    with t.decoding() if source is not None else nullcontext():
        x = t.layers("layers", ["layer"] * side.depth, make_block(t, side, source), x)
    if side.manner.final_norm:
        with t.section(f"{side.name} end", x) as section:
            x = t.layer_norm("layer_norm", x)
            section.outputs = (x,)
    return x


# ---- models


def bart(t: Tape, c: Config, sizes: Sizes) -> Program:
    """BART, mBART, Pegasus, Marian: one table of tokens for source, target and head."""
    task = task_of(c, ("lm", "none", "sequence", "question"))
    ids = t.input("input ids", (sizes.batch, sizes.seq), I64)
    targets = t.input("decoder input ids", (sizes.batch, sizes.target_seq), I64)
    vocab = c.dim("vocab_size", "V", default=58101 if c.model_type == "marian" else 50265)
    one = c.flag("share_encoder_decoder_embeddings", True)
    target_vocab = vocab if one else c.dim("decoder_vocab_size", "V_dec", default=int(vocab))
    tied = c.flag("tie_word_embeddings", True)
    with t.scope("" if task == "none" else "model"):
        with t.section("embedding", ids) as section:
            side = read_side(c, "encoder")
            shared = t.embedding_weight("shared", vocab, side.h) if one else None
            x = _embed(t, side, ids, vocab, shared if tied else None, rows=sizes.batch)[0]
            section.outputs = (x,)
        with t.scope("encoder"):
            source = _layers(t, side, x, None)
        with t.section("decoder embedding", targets) as section:
            side = read_side(c, "decoder")
            x, table = _embed(t, side, targets, target_vocab, shared if tied else None, rows=1)
            section.outputs = (x,)
        with t.scope("decoder"):
            x = _layers(t, side, x, source)
    with t.section("head", x) as section:
        x, labels, loss = _head(t, c, task, x, target_vocab, (shared or table) if tied else None)
        section.outputs = (x,)
    return Program(
        tape=t, output=x, labels=t.input("labels", labels, I64) if labels else None, loss=loss
    )


def _embed(
    t: Tape, side: Side, ids: Value, vocab: Dim, shared: Value | None, *, rows: Number
) -> tuple[Value, Value]:
    with t.scope(side.name):
        name = "embed_tokens"
        table = (
            t.embedding_weight(name, vocab, side.h)
            if shared is None
            else t.tie(f"{name}.weight", shared)
        )
        x = t.embed(table, ids)
        x = x if side.manner.whisper else t.scale(x, "scaled embeddings")
        return _positions(t, side, x, rows), table


def _head(
    t: Tape, c: Config, task: str, x: Value, vocab: Dim, table: Value | None
) -> tuple[Value, tuple[Any, ...], str]:
    """Logits, the shape of their labels, and the loss."""
    b, h, p = x.shape[0], x.shape[-1], c.number("classifier_dropout", 0.0)
    labels = 3 if c.model_type == "bart" else 2  # as the config classes default
    if task == "lm":
        x = t.linear("lm_head", x, vocab, weight=table, label="logits", kind="head")
        # final_logits_bias is a buffer in the weights' dtype, so autocast's logits come out in it.
        logits = t.op("add", (x,), x.shape, promote(x.dtype, t.regime.weights), label="logits")
        return logits, x.shape[:2], "seq2seq"
    if task == "sequence":
        with t.scope("classification_head"):
            x = t.dropout(t.copy(x, (b, h), "last token"), p)
            x = t.dropout(t.activation(t.linear("dense", x, h, bias=True), "tanh"), p)
            return (
                t.linear("out_proj", x, num_labels(c, labels), bias=True, kind="classifier"),
                (b,),
                "classify",
            )
    if task == "question":
        return t.linear("qa_outputs", x, 2, bias=True, kind="classifier"), (b, 2), "classify"
    return t.view(x, x.shape), (), "none"


def whisper(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Two convolutions over mel frames halve the length; the decoder is Whisper's own."""
    task = task_of(c, ("lm", "none"))
    encoder, decoder = read_side(c, "encoder"), read_side(c, "decoder")
    b, frames = sizes.batch, 2 * encoder.positions
    sound = t.input(
        "mel frames", (b, c.dim("num_mel_bins", "mels", default=80), frames), t.regime.weights
    )
    targets = t.input("decoder input ids", (b, sizes.target_seq), I64)
    vocab = c.dim("vocab_size", "V", default=51865)
    with t.scope("" if task == "none" else "model"):
        with t.scope("encoder"):
            with t.section("stem", sound) as section:
                x = t.activation(conv1d(t, "conv1", sound, encoder.h, frames), "gelu")
                x = t.activation(conv1d(t, "conv2", x, encoder.h, encoder.positions), "gelu")
                x = _positions(t, encoder, t.view(x, (b, encoder.positions, encoder.h)), 1)
                section.outputs = (x,)
            source = _layers(t, encoder, x, None)
        with t.section("decoder embedding", targets) as section:
            x, table = _embed(t, decoder, targets, vocab, None, rows=b)
            section.outputs = (x,)
        with t.scope("decoder"):
            x = _layers(t, decoder, x, source)
    with t.section("head", x) as section:
        weight = table if c.flag("tie_word_embeddings", True) else None
        x = (
            t.view(x, x.shape)
            if task == "none"
            else t.linear("proj_out", x, vocab, weight=weight, label="logits", kind="head")
        )
        section.outputs = (x,)
    labels = None if task == "none" else t.input("labels", (b, sizes.target_seq), I64)
    return Program(tape=t, output=x, labels=labels, loss="none" if task == "none" else "seq2seq")


def conv1d(t: Tape, name: str, x: Value, out: Dim, length: Number, *, kernel: int = 3) -> Value:
    """nn.Conv1d over [b, channels, length]: keeps its input."""
    with t.scope(name):
        weight = t.param("weight", (out, x.shape[1], kernel), "conv")
        bias = t.param("bias", (out,), "bias")
        x, weight = t.autocast(x), t.autocast(weight)
        shape = (x.shape[0], out, length)
        flops = 2 * prod(shape) * x.shape[1] * kernel
        saves = (x, weight) if x.requires_grad else (x,)
        return t.op(
            "conv1d", (x, weight, bias), shape, x.dtype, saves=saves, label=name, flops=flops
        )


FAMILIES = {"bart": bart, "mbart": bart, "pegasus": bart, "marian": bart, "whisper": whisper}
