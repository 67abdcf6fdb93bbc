"""Megatron-LM's GPT with Transformer Engine modules (megatron/core/models/gpt, transformer_engine layer specs).

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

GPT, LLAMA = ("gpt2",), ("llama", "mistral", "qwen2", "qwen3")


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
    h, num = c.dim("hidden_size", "h", "n_embd"), c.dim("num_attention_heads", "a", "n_head")
    kv = c.dim("num_key_value_heads", "g", default=int(num))
    width = c.dim("head_dim", "d", default=int(exact_division(h, num, f"{c.where}: hidden size by heads")))
    inner = c.dim("intermediate_size", "f", "n_inner", default=4 * int(h))
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
        x = t.lookup(table, ids)
        if not shape.rope:
            rows = c.dim("max_position_embeddings", "positions", "n_positions", default=1024)
            positions = t.table("position_embeddings", rows, shape.h)
            x = t.op("add", (x, positions), x.shape, x.dtype, label="embeddings with positions")
        part.outputs = (t.dropout(x, shape.dropout, "embedding dropout"),)
    kinds = ["layer"] * c.dim("num_hidden_layers", "L", "n_layer")
    with t.scope("decoder"):
        x = t.stack("layers", kinds, lambda y, kind: _layer(t, shape, y), part.outputs[0])
    with t.part("head", x) as part:
        x = _norm(t, shape, "final_layernorm", x)
        weight = table if c.flag("tie_word_embeddings", c.model_type in GPT) else None
        part.outputs = (t.linear("output_layer", x, vocab, weight=weight, label="logits", kind="head"),)
    labels = t.input("labels", (sizes.batch, sizes.seq), I64)
    return Program(tape=t, output=part.outputs[0], labels=labels, loss="causal")


def _layer(t: Tape, shape: Shape, x: Value) -> Value:
    y = _attention(t, shape, _norm(t, shape, "input_layernorm", x))
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
