"""T5, mT5 and umT5: encoder and decoder with relative position biases that the layers of a stack share (umT5: each its
own). `Sizes.seq` is the source's length, `Sizes.target_seq` the target's.

transformers ≥ 5 ties the head to the embedding whatever the config says; checkpoints of T5 1.1, Flan and mT5 store it
apart (`Program.stored_apart` names it), and older transformers builds it apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vramcast.errors import InputError
from vramcast.models.read.config import Config
from vramcast.models.read.tasks import num_labels, task_of
from vramcast.models.record.attention import Eager, Heads, attend, update_kv_cache
from vramcast.models.record.dims import Dim, Number
from vramcast.models.record.layers import split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import BOOL, F16, F32, I64, Tape, Value, promote


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    h: Dim
    f: Dim
    heads: Heads
    vocab: Dim
    buckets: Dim
    act: str
    gated: bool
    dropout: float
    own_bias: bool  # every layer has a table of relative biases


def read_shape(c: Config) -> Shape:
    t5 = c.model_type == "t5"
    words = c.word("feed_forward_proj", "relu" if t5 else "gated-gelu").split("-")
    if len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
        raise InputError(
            f"{c.where}: feed_forward_proj must be ACT or gated-ACT, not {'-'.join(words)!r}"
        )
    num = c.dim("num_heads", "a", "num_attention_heads", default=8 if t5 else 6)
    width = c.dim("d_kv", "d", "head_dim", default=64)
    return Shape(
        h=c.dim("d_model", "h", "hidden_size", default=512),
        f=c.dim("d_ff", "f", default=2048 if t5 else 1024),
        heads=Heads(num=num, num_kv=num, width=width),
        vocab=c.dim("vocab_size", "V", default=32128 if t5 else 250112),
        buckets=c.dim("relative_attention_num_buckets", "buckets", default=32),
        gated=len(words) == 2,
        act="gelu_new" if words == ["gated", "gelu"] else words[-1],
        dropout=c.number("dropout_rate", 0.1),
        own_bias=c.model_type == "umt5",
    )


class Stack:
    """The layers of an encoder or a decoder, with the biases that the first layer makes for all."""

    def __init__(self, t: Tape, shape: Shape, ids: Value, *, source: Value | None) -> None:
        self.t, self.shape, self.source = t, shape, source
        self.batch, self.length = ids.shape
        self.bias: Value | None = None
        self.cross_bias: Value | None = None

    def block(self, x: Value, kind: str) -> Value:
        """`kind` is "first" or "rest"."""
        t, with_bias = self.t, kind == "first" or self.shape.own_bias
        with t.scope("layer.0"):
            x = self._branch(x, lambda y: self._self_attention(y, with_bias))
        if self.source is not None:
            with t.scope("layer.1"):
                x = self._branch(x, lambda y: self._cross_attention(y, kind == "first"))
        with t.scope("layer.1" if self.source is None else "layer.2"):
            return self._branch(x, self._feed_forward)

    def _branch(self, x: Value, branch: Callable[[Value], Value]) -> Value:
        y = branch(t5_norm(self.t, "layer_norm", x))
        return self.t.add(x, self.t.dropout(y, self.shape.dropout), "residual stream")

    def _self_attention(self, y: Value, with_bias: bool) -> Value:
        t = self.t
        with t.scope("SelfAttention"):
            if with_bias:
                self.bias = self._relative_bias()
            assert self.bias is not None
            t.hand_through(self.bias)
            bias = self.bias if t.regime.habits.t5_bias_in_place else self._prepared(self.bias)
            return self._attention(y, y, bias, causal=self.source is not None)

    def _relative_bias(self) -> Value:
        t, s = self.t, self.length
        buckets = t.op("bucket", (), (s, s), I64, label="relative position buckets")
        table = t.embedding_weight(
            "relative_attention_bias", self.shape.buckets, self.shape.heads.num
        )
        bias = t.view(t.embed(table, buckets, "position bias"), (1, self.shape.heads.num, s, s))
        return self._with_mask(bias) if t.regime.habits.t5_bias_in_place else bias

    def _with_mask(self, bias: Value) -> Value:
        """`position_bias + mask`: one for each sample. The mask has the dtype of the embeddings."""
        t = self.t
        shape = (self.batch, *bias.shape[1:])
        dtype = promote(bias.dtype, t.regime.weights)
        return t.op("add", (bias,), shape, dtype, label="position bias with mask")

    def _prepared(self, bias: Value) -> Value:
        """SDPA takes the bias as a mask, laid out anew for every call (transformers' create_position_bias_mask)."""
        t = self.t
        if t.regime.attention == "eager":
            return bias
        if self.source is not None:
            allowed = Value((1, 1, self.length, self.length), BOOL, label="causal mask")
            bias = t.op(
                "where",
                (bias,),
                bias.shape,
                bias.dtype,
                saves=(allowed,),
                label="position bias, masked",
            )
        return t.copy(bias, label="position bias as mask")

    def _cross_attention(self, y: Value, first: bool) -> Value:
        t, source = self.t, self.source
        assert source is not None
        with t.scope("EncDecAttention"):
            if first or self.cross_bias is None:
                shape = (1, self.shape.heads.num, y.shape[1], source.shape[1])
                dtype = t.regime.autocast or y.dtype
                zeros = t.op("zeros", (), shape, dtype, label="empty position bias")
                in_place = t.regime.habits.t5_bias_in_place
                self.cross_bias = self._with_mask(zeros) if in_place else zeros
            t.hand_through(self.cross_bias)
            return self._attention(y, source, self.cross_bias, causal=False)

    def _attention(self, y: Value, states: Value, bias: Value, *, causal: bool) -> Value:
        t, heads, p = self.t, self.shape.heads, self.shape.dropout
        q = split_heads(t, t.linear("q", y, heads.num * heads.width, label="q"), heads.num)
        k, v = (
            split_heads(t, t.linear(n, states, heads.num * heads.width, label=n), heads.num)
            for n in "kv"
        )
        if t.regime.habits.t5_bias_in_place:
            return self._attention_in_place(q, k, v, bias)
        y = attend(
            t,
            q,
            k,
            v,
            heads,
            dropout=p,
            bias=bias,
            eager=Eager(upcast=False, recast=False, mask=causal),
        )
        return t.linear("o", y, self.shape.h)

    def _attention_in_place(self, q: Value, k: Value, v: Value, bias: Value) -> Value:
        """The only attention until 5.15: softmax in fp32 of scores to which bias and mask are added in place."""
        t, heads = self.t, self.shape.heads
        k, v = update_kv_cache(t, k, v)
        scores = t.matmul(q, k, (q.shape[0], heads.num, q.shape[1], k.shape[1]), "scores")
        scores = t.add_in_place(scores, bias, "scores + bias")
        weights = t.softmax(t.cast(scores, F32), F32, "attention weights")
        weights = t.dropout(t.cast(weights, scores.dtype), self.shape.dropout, "attention dropout")
        shape = (*q.shape[:2], heads.num * heads.width)
        y = t.copy(t.matmul(weights, v, q.shape, "attention output"), shape)
        y = t.linear("o", y, self.shape.h)
        return t.hold(y, q, k, v, scores, weights)

    def _feed_forward(self, y: Value) -> Value:
        t, shape = self.t, self.shape
        with t.scope("DenseReluDense"):
            if shape.gated:
                gate = t.activation(t.linear("wi_0", y, shape.f, label="gate"), shape.act)
                wide = t.mul(gate, t.linear("wi_1", y, shape.f, label="up"), "gated")
            else:
                wide = t.activation(t.linear("wi", y, shape.f, label="mlp hidden"), shape.act)
            wide = t.dropout(wide, shape.dropout)
            wide = t.cast(wide, F32 if t.regime.weights == F16 else t.regime.weights)
            return t.linear("wo", wide, shape.h, label="mlp output")


def t5_norm(t: Tape, name: str, x: Value) -> Value:
    """RMSNorm whose statistics are fp32 but whose input is not raised."""
    with t.scope(name):
        weight = t.param("weight", (x.shape[-1],), "norm")
        x32 = t.cast(x, F32, f"{name} input fp32")
        variance = t.op(
            "pow mean", (x32,), (*x.shape[:-1], 1), F32, saves=(x32,), forward_temp_bytes=x32.nbytes
        )
        rstd = t.op("rsqrt", (variance,), variance.shape, F32, saves_output=True, label="rstd")
        normed = t.mul(x, rstd, f"{name} normalised")
        return t.mul(t.cast(normed, weight.dtype), weight, name)


def t5(t: Tape, c: Config, sizes: Sizes) -> Program:
    task = task_of(c, ("lm", "none", "encoder", "sequence", "token", "question"))
    shape, b, s = read_shape(c), sizes.batch, sizes.seq
    if t.regime.weights == F16:  # transformers keeps `wo` in fp32 when the rest is fp16
        asked = t.regime.upcast
        t.regime = replace(t.regime, upcast=lambda name, kind: asked(name, kind) or ".wo." in name)
    with t.scope("transformer" if task in ("sequence", "token") else ""):
        ids = t.input("input ids", (b, s), I64)
        depth = c.dim(
            "num_layers", "L", "num_hidden_layers", default=6 if c.model_type == "t5" else 8
        )
        source, shared = _encode(t, shape, ids, depth)
        if task in ("encoder", "token"):
            x = source
        else:
            targets = t.input("decoder input ids", (b, sizes.target_seq), I64)
            x = _decode(
                t,
                shape,
                targets,
                c.dim("num_decoder_layers", "L_dec", default=int(depth)),
                source,
                shared,
            )
    with t.section("head", x) as section:
        x, labels, loss = _head(t, c, shape, task, x, shared)
        section.outputs = (x,)
    apart = ("lm_head.weight",) if task == "lm" and _stores_head_apart(c) else ()
    return Program(
        tape=t,
        output=x,
        labels=t.input("labels", labels, I64) if labels else None,
        loss=loss,
        stored_apart=apart,
        returned=(source,) if task == "lm" else (),
        own_mask=_own_mask(t, b, s if task in ("encoder", "token") else sizes.target_seq, task),
    )


def _own_mask(t: Tape, batch: Number, length: Number, task: str) -> Value | None:
    """The larger of the masks that T5Stack makes: an encoder's is [batch, 1, 1, length]."""
    if not t.regime.habits.t5_makes_masks:
        return None
    queries = 1 if task in ("encoder", "token") else length
    dtype = F32 if t.regime.autocast else t.regime.weights
    return Value((batch, 1, queries, length), dtype, label="attention mask")


def _encode(t: Tape, shape: Shape, ids: Value, depth: Dim) -> tuple[Value, Value]:
    with t.section("embedding", ids) as section:
        shared = t.embedding_weight("shared", shape.vocab, shape.h)
        x = t.dropout(t.embed(t.tie("encoder.embed_tokens.weight", shared), ids), shape.dropout)
        section.outputs = (x,)
    layers = Stack(t, shape, ids, source=None)
    with t.scope("encoder"):
        x = t.layers("block", _kinds(depth), layers.block, x)
        with t.section("encoder end", x) as section:
            x = t.dropout(t5_norm(t, "final_layer_norm", x), shape.dropout)
            section.outputs = (x,)
    return x, shared


def _kinds(depth: Dim) -> list[Any]:
    return ["first"] + ["rest"] * (int(depth) - 1)


def _decode(t: Tape, shape: Shape, ids: Value, depth: Dim, source: Value, shared: Value) -> Value:
    with t.section("decoder embedding", ids) as section:
        x = t.dropout(t.embed(t.tie("decoder.embed_tokens.weight", shared), ids), shape.dropout)
        section.outputs = (x,)
    layers = Stack(t, shape, ids, source=source)
    with t.scope("decoder"):
        with t.decoding():
            x = t.layers("block", _kinds(depth), layers.block, x)
        with t.section("decoder end", x) as section:
            x = t.dropout(t5_norm(t, "final_layer_norm", x), shape.dropout)
            section.outputs = (x,)
    return x


def _stores_head_apart(c: Config) -> bool:
    return not c.flag("tie_word_embeddings", True)


def _head(
    t: Tape, c: Config, shape: Shape, task: str, x: Value, shared: Value
) -> tuple[Value, tuple[Any, ...], str]:
    """Logits, the shape of their labels, and the loss."""
    b, p = x.shape[0], c.number("classifier_dropout", 0.0)
    if task == "lm":
        # T5 1.0 scales; its successors do not, and say so by an untied head in their config.
        scaled = c.model_type == "t5" and c.data.get("tie_word_embeddings") is not False
        x = t.scale(x) if scaled else x
        tied = t.regime.habits.t5_ties_head or not _stores_head_apart(c)
        weight = shared if tied else None
        logits = t.linear("lm_head", x, shape.vocab, weight=weight, label="logits", kind="head")
        return logits, x.shape[:2], "seq2seq"
    if task == "sequence":
        with t.scope("classification_head"):
            x = t.dropout(t.copy(x, (b, shape.h), "last token"), p)
            x = t.dropout(t.activation(t.linear("dense", x, shape.h, bias=True), "tanh"), p)
            return (
                t.linear("out_proj", x, num_labels(c), bias=True, kind="classifier"),
                (b,),
                "classify",
            )
    if task == "token":
        return (
            t.linear("classifier", t.dropout(x, p), num_labels(c), bias=True, kind="classifier"),
            x.shape[:2],
            "classify",
        )
    if task == "question":
        return (
            t.linear("qa_outputs", x, num_labels(c), bias=True, kind="classifier"),
            (b, 2),
            "classify",
        )
    return t.view(x, x.shape), (), "none"


FAMILIES = {"t5": t5, "mt5": t5, "umt5": t5}
