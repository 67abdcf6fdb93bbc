"""Megatron-LM's GPT, BERT and T5 with Transformer Engine modules (megatron/core/models, their TE layer specs).

Differs from transformers where memory is concerned: norms are fused into the linear behind them and keep input and
output, one fused qkv projection, biased GELU and SwiGLU that keep their input only, dropout with a one-byte mask, and a
vocabulary-parallel cross entropy that turns fp32 logits into softmax and then into their gradient in place. Sizes are
divided by tp here; the vocabulary comes padded and divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.errors import UnsupportedError
from vramcast.models.config import Config, exact_division
from vramcast.models.dims import Dim
from vramcast.models.layers import Heads, attend, by_head
from vramcast.models.program import Program, Sizes
from vramcast.models.tape import BOOL, F32, I64, Tape, Value

GPT, LLAMA = ("gpt2", "bert", "t5"), ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    h: Dim
    f: int
    heads: Heads
    gated: bool
    rope: bool
    bias: bool
    dropout: float
    attention_dropout: float
    layer_norm: bool


def read_shape(c: Config, tp: int) -> Shape:
    if c.model_type not in (*GPT, *LLAMA):
        raise UnsupportedError(
            f"{c.where}: how Megatron runs model_type {c.model_type!r} is not described. "
            f"Known: {', '.join((*GPT, *LLAMA))}."
        )
    gpt = c.model_type in GPT
    h, num = c.dim("hidden_size", "h", "n_embd", "d_model"), c.dim("num_attention_heads", "a", "n_head", "num_heads")
    kv = c.dim("num_key_value_heads", "g", default=int(num))
    given = c.data.get("head_dim") or c.data.get("d_kv")
    width = Dim(int(given), "d") if given else exact_division(h, num, f"{c.where}: hidden size by heads")
    inner = c.dim("intermediate_size", "f", "n_inner", "d_ff", default=4 * int(h))
    return Shape(
        h=h, f=exact_division(inner, tp, f"{c.where}: inner size by tp"),
        heads=Heads(num=num // tp, num_kv=max(int(kv) // tp, 1), width=width),
        gated=not gpt, rope=not gpt or c.word("position_embedding_type", "learned") == "rope",
        bias=c.flag("add_bias_linear", gpt), dropout=c.number("resid_pdrop", 0.1 if gpt else 0.0),
        attention_dropout=c.number("attn_pdrop", 0.1 if gpt else c.number("attention_dropout", 0.0)), layer_norm=gpt,
    )  # fmt: skip


def megatron(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape, vocab = read_shape(c, t.regime.split.tp), c.dim("vocab_size", "V")
    ids = t.input("input ids", (sizes.batch, sizes.seq), I64)
    with t.part("embedding", ids) as part, t.scope("embedding"):
        table = t.table("word_embeddings", vocab, shape.h)
        kinds = 2 if c.model_type == "bert" else 0
        part.outputs = (_embedded(t, c, shape, table, ids, token_types=kinds),)
    layers = ["layer"] * c.dim("num_hidden_layers", "L", "n_layer", "num_layers")
    if c.model_type == "t5":
        x = _encoder_decoder(t, c, shape, sizes, table, layers, part.outputs[0])
    else:
        with t.scope("decoder"):
            x = t.stack("layers", layers, lambda y, kind: _layer(t, shape, y), part.outputs[0])
    with t.part("head", x) as part:
        x = _norm(t, shape, "final_layernorm", x)
        if c.model_type == "bert":
            x = _bert_head(t, shape, x)
        tied = c.flag("tie_word_embeddings", c.model_type in GPT)
        bias = c.model_type in ("bert", "t5")
        weight = table if tied else None
        part.outputs = (t.linear("output_layer", x, vocab, weight=weight, bias=bias, label="logits", kind="head"),)
    labels = t.input("labels", ids.shape, I64)
    return Program(tape=t, output=part.outputs[0], labels=labels, loss="causal")


def _embedded(t: Tape, c: Config, shape: Shape, table: Value, ids: Value, *, token_types: int = 0) -> Value:
    x = t.lookup(table, ids)
    if not shape.rope:
        rows = c.dim("max_position_embeddings", "positions", "n_positions", default=512)
        positions = t.table("position_embeddings", rows, shape.h)
        x = t.op("add", (x, positions), x.shape, x.dtype, label="embeddings with positions")
    if token_types:
        kinds = t.table("tokentype_embeddings", token_types, shape.h)
        x = t.op("add", (x, kinds), x.shape, x.dtype, label="embeddings with types")
    return t.dropout(x, shape.dropout, "embedding dropout")


def _bert_head(t: Tape, shape: Shape, x: Value) -> Value:
    """The pooler of the sentence task, and the dense, GELU and norm before the vocabulary."""
    with t.scope("pooler"):
        t.param("weight", (shape.h, shape.h), "linear")
    with t.scope("lm_head"):
        x = _plain(t, "dense", x, shape.h)
        x = t.op("gelu", (x,), x.shape, x.dtype, saves=(x,), label="activated")
        return _norm(t, shape, "layer_norm", x)


def _plain(t: Tape, name: str, x: Value, out: int) -> Value:
    """A linear that every tensor-parallel rank computes whole."""
    return t.linear(name, x, out, bias=True, kind="classifier")


def _encoder_decoder(
    t: Tape, c: Config, shape: Shape, sizes: Sizes, table: Value, layers: list[str], x: Value
) -> Value:  # fmt: skip
    with t.scope("encoder"):
        x = t.stack("layers", layers, lambda y, kind: _layer(t, shape, y), x)
    with t.part("encoder norm", x) as part:
        memory = _norm(t, shape, "encoder.final_layernorm", x)
        part.outputs = (memory,)
    ids = t.input("decoder ids", (sizes.batch, sizes.target_seq), I64)
    with t.part("decoder embedding", ids) as part, t.scope("decoder_embedding"):
        part.outputs = (_embedded_again(t, shape, table, ids),)
    blocks = ["block"] * c.dim("num_decoder_layers", "L_d", default=len(layers))
    with t.scope("decoder"):
        return t.stack("layers", blocks, lambda y, kind: _layer(t, shape, y, memory), part.outputs[0])


def _embedded_again(t: Tape, shape: Shape, table: Value, ids: Value) -> Value:
    """The decoder looks up in the encoder's tables."""
    t.tie("word_embeddings.weight", table)
    return t.dropout(t.lookup(table, ids), shape.dropout, "embedding dropout")


def _layer(t: Tape, shape: Shape, x: Value, memory: Value | None = None) -> Value:
    y = _attention(t, shape, _norm(t, shape, "input_layernorm", x))
    x = t.add(x, t.dropout(y, shape.dropout, "residual dropout"), "residual stream")
    if memory is not None:
        y = _cross_attention(t, shape, _norm(t, shape, "pre_cross_attn_layernorm", x), memory)
        x = t.add(x, t.dropout(y, shape.dropout, "residual dropout"), "residual stream")
    with t.scope("mlp"):
        y = _norm(t, shape, "layer_norm", x)
        wide = t.linear("linear_fc1", y, 2 * shape.f if shape.gated else shape.f, bias=shape.bias, label="mlp hidden")
        inner = (*wide.shape[:-1], shape.f)
        y = t.op("fused activation", (wide,), inner, wide.dtype, saves=(wide,), label="activated")
        y = t.linear("linear_fc2", y, shape.h, bias=shape.bias, label="mlp output")
    return t.add(x, t.dropout(y, shape.dropout, "residual dropout"), "residual stream")


def _norm(t: Tape, shape: Shape, name: str, x: Value) -> Value:
    """Keeps its input and fp32 statistics; its output is kept by the linear behind it."""
    with t.scope(name):
        weights = [t.param("weight", (x.shape[-1],), "norm")]
        if shape.layer_norm:
            weights.append(t.param("bias", (x.shape[-1],), "norm"))
        statistics = Value((*x.shape[:-1], len(weights)), F32, label=f"{name} statistics")
        return t.op("fused norm", (x, *weights), x.shape, x.dtype, saves=(x, statistics), label=name)


def _attention(t: Tape, shape: Shape, y: Value) -> Value:
    heads = shape.heads
    with t.scope("self_attention"):
        widths = (heads.num * heads.width, heads.num_kv * heads.width, heads.num_kv * heads.width)
        qkv = t.linear("linear_qkv", y, sum(widths), bias=shape.bias, label="qkv")
        q, k, v = (t.slice(qkv, width) for width in widths)
        q, k, v = by_head(t, q, heads.num), by_head(t, k, heads.num_kv), by_head(t, v, heads.num_kv)
        if shape.rope:
            q, k = t.op("rope", (q,), q.shape, q.dtype, label="q"), t.op("rope", (k,), k.shape, k.dtype, label="k")
        unfused = t.regime.attention == "eager"
        y = _unfused(t, shape, q, k, v) if unfused else attend(t, q, k, v, heads)
        return t.linear("linear_proj", y, shape.h, bias=shape.bias, label="attention projected")


def _cross_attention(t: Tape, shape: Shape, y: Value, memory: Value) -> Value:
    heads = shape.heads
    with t.scope("cross_attention"):
        q = by_head(t, t.linear("linear_q", y, heads.num * heads.width, bias=shape.bias, label="q"), heads.num)
        both = t.linear("linear_kv", memory, 2 * heads.num * heads.width, bias=shape.bias, label="kv")
        k, v = (by_head(t, t.slice(both, heads.num * heads.width), heads.num) for _ in range(2))
        y = _unfused(t, shape, q, k, v) if t.regime.attention == "eager" else attend(t, q, k, v, heads)
        return t.linear("linear_proj", y, shape.h, bias=shape.bias, label="attention projected")


def _unfused(t: Tape, shape: Shape, q: Value, k: Value, v: Value) -> Value:
    """Scores, a fused scale-mask-softmax that keeps its result, dropout on it."""
    heads, p = shape.heads, shape.attention_dropout
    scores_shape = (q.shape[0], heads.num, q.shape[1], k.shape[1])
    scores = t.matmul_plain(q, k, scores_shape, "scores")
    weights = t.op("softmax", (scores,), scores_shape, scores.dtype, saves_output=True, label="attention weights")
    if p and t.regime.training:
        mask = Value(scores_shape, BOOL, label="attention dropout mask")
        weights = t.op(
            "native_dropout", (weights,), scores_shape, weights.dtype, saves=(mask,), label="dropped weights"
        )
    out = t.matmul_plain(weights, v, (q.shape[0], heads.num, q.shape[1], heads.width), "attention output")
    return t.copy(out, (*q.shape[:2], heads.num * heads.width), "attention output")
