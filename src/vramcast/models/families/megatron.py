"""Megatron-LM's GPT, BERT and T5 with Transformer Engine modules (megatron/core/models, their TE layer specs). Mixtures
of experts are in `megatron_moe`, latent attention and multi-token prediction in `megatron_latent`.

Differs from transformers where memory is concerned: norms are fused into the linear behind them and keep input and
output, one fused qkv projection, biased GELU and SwiGLU that keep their input only, dropout with a one-byte mask, and a
vocabulary-parallel cross entropy that turns fp32 logits into softmax and then into their gradient in place. Sizes are
divided by tp here; the vocabulary comes padded and divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.errors import UnsupportedError
from vramcast.models.families.megatron_latent import (
    Latent,
    Prediction,
    latent_attention,
    predict_ahead,
    read_latent,
)
from vramcast.models.families.megatron_moe import Mixture, layer_kinds, mixture, read_mixture
from vramcast.models.families.megatron_types import DESCRIBED, GPT
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import Heads, attend, split_qkv
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.recompute import checkpoint_part, discard_outputs, offloadable
from vramcast.models.record.tape import BOOL, F32, I64, Tape, Value

NORMED_HEADS, QKV_BIAS = ("qwen3", "qwen3_moe"), ("qwen2", "qwen2_moe")


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
    normed_heads: bool = False
    qkv_bias: bool = False
    latent: Latent | None = None
    mixture: Mixture | None = None


def read_shape(t: Tape, c: Config) -> Shape:
    if c.model_type not in DESCRIBED:
        raise UnsupportedError(
            f"{c.where}: how Megatron runs model_type {c.model_type!r} is not described. Known: {', '.join(DESCRIBED)}."
        )
    tp, gpt = t.regime.split.tp, c.model_type in GPT
    h, num = (
        c.dim("hidden_size", "h", "n_embd", "d_model"),
        c.dim("num_attention_heads", "a", "n_head", "num_heads"),
    )
    kv = c.dim("num_key_value_heads", "g", default=int(num))
    given = c.data.get("head_dim") or c.data.get("d_kv")
    width = (
        c.dim("head_dim", "d", "d_kv")
        if given
        else exact_division(h, num, f"{c.where}: hidden size by heads")
    )
    inner = c.dim("intermediate_size", "f", "n_inner", "d_ff", default=4 * int(h))
    return Shape(
        h=h,
        f=exact_division(inner, tp, f"{c.where}: inner size by tp"),
        heads=Heads(num=num // tp, num_kv=max(int(kv) // tp, 1), width=width),
        gated=not gpt,
        rope=not gpt or c.word("position_embedding_type", "learned") == "rope",
        bias=c.flag("add_bias_linear", gpt),
        dropout=c.number("resid_pdrop", 0.1 if gpt else 0.0),
        attention_dropout=c.number(
            "attn_pdrop", 0.1 if gpt else c.number("attention_dropout", 0.0)
        ),
        layer_norm=gpt,
        normed_heads=c.model_type in NORMED_HEADS,
        qkv_bias=c.model_type in QKV_BIAS,
        latent=read_latent(c, tp),
        mixture=read_mixture(t, c, gated=not gpt),
    )


def megatron(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Megatron-LM's GPT, BERT and T5 with what this rank computes of them."""
    shape, vocab = read_shape(t, c), c.dim("vocab_size", "V")
    ids = t.input("input ids", (sizes.batch, sizes.seq), I64)
    with t.section("embedding", ids) as section, t.scope("embedding"):
        table = t.embedding_weight("word_embeddings", vocab, shape.h)
        kinds = 2 if c.model_type == "bert" else 0
        section.outputs = (_embedded(t, c, shape, table, ids, token_types=kinds),)
    layers = layer_kinds(c, c.dim("num_hidden_layers", "L", "n_layer", "num_layers"))
    tied = c.flag("tie_word_embeddings", c.model_type in GPT)
    weight = table if tied else None
    if c.model_type == "t5":
        x = _encoder_decoder(t, c, shape, sizes, table, layers, section.outputs[0])
    else:
        with t.scope("decoder"):
            x = t.layers(
                "layers", layers, lambda y, kind: _layer(t, shape, y, kind), section.outputs[0]
            )
    ahead = c.dim("num_nextn_predict_layers", "D", "mtp_num_layers", default=0, least=0)
    if ahead:
        with t.section("mtp", x) as section:
            head = weight or t.param("output_layer.weight", (int(vocab), int(shape.h)), "linear")
            weight = head
            prediction = _prediction(t, c, shape, layers[-1], table, ids, head)
            section.outputs = (predict_ahead(t, x, prediction, int(ahead)),)
            x = section.outputs[0]
    with t.section("head", x) as section:
        x = _norm(t, shape, "final_layernorm", x)
        if c.model_type == "bert":
            x = _bert_head(t, shape, x)
        bias = c.model_type in ("bert", "t5")
        section.outputs = (
            t.linear(
                "output_layer", x, vocab, weight=weight, bias=bias, label="logits", kind="head"
            ),
        )
    labels = t.input("labels", ids.shape, I64)
    _mark_fused_weight_gradients(t)
    return Program(tape=t, output=section.outputs[0], labels=labels, loss="causal")


def _mark_fused_weight_gradients(t: Tape) -> None:
    """With gradient accumulation fusion, linears add to the gradient of their weight in place."""
    for section in {id(placed.section): placed.section for placed in t.sections}.values():
        for op in section.ops:
            op.adds_weight_grad = t.regime.grad_fusion and op.name == "linear"


def _prediction(
    t: Tape, c: Config, shape: Shape, kind: str, table: Value, ids: Value, head: Value
) -> Prediction:
    def logits(x: Value) -> Value:
        return t.linear(
            "output_layer", x, int(head.shape[0]), weight=head, label="logits", kind="head"
        )

    def embed() -> Value:
        t.tie("word_embeddings.weight", table)
        return t.embed(table, ids)

    return Prediction(
        layer=lambda x: _layer(t, shape, x, kind),
        norm=lambda name, x: _norm(t, shape, name, x),
        embed=embed,
        logits=logits,
    )


def _embedded(
    t: Tape, c: Config, shape: Shape, table: Value, ids: Value, *, token_types: int = 0
) -> Value:
    x = t.embed(table, ids)
    if not shape.rope:
        rows = c.dim("max_position_embeddings", "positions", "n_positions", default=512)
        positions = t.embedding_weight("position_embeddings", rows, shape.h)
        x = t.op("add", (x, positions), x.shape, x.dtype, label="embeddings with positions")
    if token_types:
        kinds = t.embedding_weight("tokentype_embeddings", token_types, shape.h)
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
) -> Value:
    with t.scope("encoder"):
        x = t.layers("layers", layers, lambda y, kind: _layer(t, shape, y), x)
    with t.section("encoder norm", x) as section:
        memory = _norm(t, shape, "encoder.final_layernorm", x)
        section.outputs = (memory,)
    ids = t.input("decoder ids", (sizes.batch, sizes.target_seq), I64)
    with t.section("decoder embedding", ids) as section, t.scope("decoder_embedding"):
        section.outputs = (_embedded_again(t, shape, table, ids),)
    blocks = ["block"] * c.dim("num_decoder_layers", "L_d", default=len(layers))
    with t.scope("decoder"):
        return t.layers(
            "layers", blocks, lambda y, kind: _layer(t, shape, y, memory=memory), section.outputs[0]
        )


def _embedded_again(t: Tape, shape: Shape, table: Value, ids: Value) -> Value:
    """The decoder looks up in the encoder's tables."""
    t.tie("word_embeddings.weight", table)
    return t.dropout(t.embed(table, ids), shape.dropout, "embedding dropout")


def _layer(
    t: Tape, shape: Shape, x: Value, kind: str = "dense", memory: Value | None = None
) -> Value:
    start = len(t.ops())
    # Without a latent, the norm is fused into the projection.
    with offloadable(t, "attn_norm" if shape.latent is not None else ""):
        y = normed = _norm(t, shape, "input_layernorm", x)
    y = _attention(t, shape, y) if shape.latent is None else _latent(t, shape, shape.latent, y)
    if shape.latent is not None and "layernorm" in t.regime.recompute:
        discard_outputs(t, start, normed)
    x = t.add(x, t.dropout(y, shape.dropout, "residual dropout"), "residual stream")
    if memory is not None:
        y = _cross_attention(t, shape, _norm(t, shape, "pre_cross_attn_layernorm", x), memory)
        x = t.add(x, t.dropout(y, shape.dropout, "residual dropout"), "residual stream")
    with t.scope("mlp"):
        sparse = shape.mixture if kind == "moe" else None
        y = _mlp(t, shape, x) if sparse is None else _experts(t, shape, sparse, x)
    return t.add(x, t.dropout(y, shape.dropout, "residual dropout"), "residual stream")


def _mlp(t: Tape, shape: Shape, x: Value) -> Value:
    start = len(t.ops())
    y = _norm(t, shape, "layer_norm", x)
    wide = t.linear(
        "linear_fc1",
        y,
        2 * shape.f if shape.gated else shape.f,
        bias=shape.bias,
        label="mlp hidden",
    )
    inner = (*wide.shape[:-1], shape.f)
    y = t.op("fused activation", (wide,), inner, wide.dtype, saves=(wide,), label="activated")
    y = t.linear("linear_fc2", y, shape.h, bias=shape.bias, label="mlp output")
    if "mlp" in t.regime.recompute:
        checkpoint_part(t, start, x)
    return y


def _experts(t: Tape, shape: Shape, sparse: Mixture, x: Value) -> Value:
    """The norm before experts is a module of its own, and can be computed again."""
    start = len(t.ops())
    with offloadable(t, "mlp_norm"):
        normed = _norm(t, shape, "pre_mlp_layernorm", x)
    y = mixture(t, sparse, normed)
    if "layernorm" in t.regime.recompute:
        discard_outputs(t, start, normed)
    return y


def _norm(t: Tape, shape: Shape, name: str, x: Value) -> Value:
    """Keeps its input and fp32 statistics; its output is kept by the linear behind it."""
    with t.scope(name):
        weights = [t.param("weight", (x.shape[-1],), "norm")]
        if shape.layer_norm:
            weights.append(t.param("bias", (x.shape[-1],), "norm"))
        statistics = Value((*x.shape[:-1], len(weights)), F32, label=f"{name} statistics")
        return t.op(
            "fused norm", (x, *weights), x.shape, x.dtype, saves=(x, statistics), label=name
        )


def _attention(t: Tape, shape: Shape, y: Value) -> Value:
    heads = shape.heads
    with t.scope("self_attention"):
        with offloadable(t, "qkv_linear"):
            q, k, v = _queries_keys_values(t, shape, y)
        start = len(t.ops())
        with offloadable(t, "core_attn"):
            unfused = t.regime.attention == "eager"
            y = _unfused(t, shape, q, k, v, heads) if unfused else attend(t, q, k, v, heads)
            if "core_attn" in t.regime.recompute:
                checkpoint_part(t, start, q, k, v)
        with offloadable(t, "attn_proj"):
            return t.linear("linear_proj", y, shape.h, bias=shape.bias, label="attention projected")


def _queries_keys_values(t: Tape, shape: Shape, y: Value) -> tuple[Value, Value, Value]:
    heads = shape.heads
    widths = (heads.num * heads.width, heads.num_kv * heads.width, heads.num_kv * heads.width)
    qkv = t.linear("linear_qkv", y, sum(widths), bias=shape.bias or shape.qkv_bias, label="qkv")
    q, k, v = (t.slice(qkv, width) for width in widths)
    q, k, v = split_qkv(t, q, k, v, heads)
    if shape.normed_heads:
        q, k = _norm(t, shape, "q_layernorm", q), _norm(t, shape, "k_layernorm", k)
    if shape.rope:
        q, k = (
            t.op("rope", (q,), q.shape, q.dtype, label="q"),
            t.op("rope", (k,), k.shape, k.dtype, label="k"),
        )
    return q, k, v


def _latent(t: Tape, shape: Shape, latent: Latent, y: Value) -> Value:
    return latent_attention(
        t,
        latent,
        y,
        lambda name, x: _norm(t, shape, name, x),
        lambda q, k, v, heads: _unfused(t, shape, q, k, v, heads),
    )


def _cross_attention(t: Tape, shape: Shape, y: Value, memory: Value) -> Value:
    heads = shape.heads
    with t.scope("cross_attention"):
        q = split_heads(
            t,
            t.linear("linear_q", y, heads.num * heads.width, bias=shape.bias, label="q"),
            heads.num,
        )
        both = t.linear(
            "linear_kv", memory, 2 * heads.num * heads.width, bias=shape.bias, label="kv"
        )
        k, v = (split_heads(t, t.slice(both, heads.num * heads.width), heads.num) for _ in range(2))
        y = (
            _unfused(t, shape, q, k, v, heads)
            if t.regime.attention == "eager"
            else attend(t, q, k, v, heads)
        )
        return t.linear("linear_proj", y, shape.h, bias=shape.bias, label="attention projected")


def _unfused(t: Tape, shape: Shape, q: Value, k: Value, v: Value, heads: Heads) -> Value:
    """Scores, a fused scale-mask-softmax that keeps its result, dropout on it."""
    p, width = shape.attention_dropout, heads.value_width or heads.width
    scores_shape = (q.shape[0], heads.num, q.shape[1], k.shape[1])
    scores = t.matmul_no_autocast(q, k, scores_shape, "scores")
    weights = t.op(
        "softmax",
        (scores,),
        scores_shape,
        scores.dtype,
        saves_output=True,
        label="attention weights",
    )
    if p and t.regime.training:
        mask = Value(scores_shape, BOOL, label="attention dropout mask")
        weights = t.op(
            "native_dropout",
            (weights,),
            scores_shape,
            weights.dtype,
            saves=(mask,),
            label="dropped weights",
        )
    out = t.matmul_no_autocast(
        weights, v, (q.shape[0], heads.num, q.shape[1], width), "attention output"
    )
    return t.copy(out, (*q.shape[:2], heads.num * width), "attention output")
