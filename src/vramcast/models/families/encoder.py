"""Encoders in BERT's line: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA and DistilBERT, each with its heads.

Layers normalise behind each branch. The head follows from the class named in `architectures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vramcast.errors import UndescribedModelError
from vramcast.models.read.config import Config, exact_division
from vramcast.models.read.tasks import num_labels, task_of
from vramcast.models.record.attention import Eager, Heads, attend
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, I64, Tape, Value

TASKS = ("lm", "none", "pretraining", "sequence", "token", "question", "choice", "next sentence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    h: Dim
    f: Dim
    heads: Heads
    depth: Dim
    vocab: Dim
    positions: Dim
    act: str
    dropout: float
    attention_dropout: float


Answer = tuple[Value, tuple[Any, ...], str]  # logits, the shape of their labels, the loss
Head = Callable[[Tape, Config, Shape, str, Value, Value], Answer]


def encoder(
    t: Tape,
    c: Config,
    sizes: Sizes,
    shape: Shape,
    *,
    base: str,
    stack: str,
    embed: Callable[[Value], tuple[Value, Value]],
    block: Callable[[Value, Any], Value],
    pooled: tuple[str, ...],
    head: Head,
) -> Program:
    task = task_of(c, TASKS)
    base = "" if task == "none" else base
    ids = t.input("input ids", (sizes.batch, sizes.seq), I64)
    with t.scope(base):
        with t.section("embedding", ids) as section:
            embedded, table = embed(ids)
            section.outputs = (embedded,)
        x = t.layers(stack, ["layer"] * shape.depth, block, embedded)
    with t.section("head", x) as section:
        t.read(embedded)  # `embedding_output`, until the model's forward returns
        if task in pooled:
            with t.scope(base):
                pool = _pooler(t, x, shape)
                x = x if task in ("none", "pretraining") else pool
        x, labels, loss = (x, (), "none") if task == "none" else head(t, c, shape, task, x, table)
        section.outputs = (x,)
    return Program(
        tape=t,
        output=x,
        labels=t.input("labels", labels, I64) if labels else None,
        loss=loss,
        own_mask=_own_mask(t, ids),
    )


def _own_mask(t: Tape, ids: Value) -> Value | None:
    """Eager attention is given a mask without an axis of queries, [batch, 1, 1, length], or none where nothing is
    padded (masking_utils.py create_bidirectional_mask, since 5.0). Kernels take a whole one."""
    pads = t.regime.mask and not t.regime.habits.bert_holds_scores
    if t.regime.attention != "eager" or pads:
        return None
    batch, length = ids.shape
    dtype = F32 if t.regime.autocast else t.regime.weights
    return Value((batch, 1, 1, length), dtype, label="attention mask")


def _pooler(t: Tape, x: Value, shape: Shape) -> Value:
    with t.scope("pooler"):
        first = t.copy(x, (x.shape[0], x.shape[-1]), "first token")
        return t.activation(t.linear("dense", first, shape.h, bias=True), "tanh", "pooled")


# ---- BERT, RoBERTa, ELECTRA


def read_bert(c: Config) -> Shape:
    electra = c.model_type == "electra"
    h = c.dim("hidden_size", "h", default=256 if electra else 768)
    num = c.dim("num_attention_heads", "a", default=4 if electra else 12)
    d = exact_division(h, num, f"{c.where}: hidden_size by num_attention_heads")
    if c.flag("add_cross_attention", False):
        raise UndescribedModelError(
            f"{c.where}: add_cross_attention is not described for {c.model_type}; trace the model"
        )
    return Shape(
        h=h,
        f=c.dim("intermediate_size", "f", default=1024 if electra else 3072),
        heads=Heads(num=num, num_kv=num, width=Dim(int(d), "d")),
        depth=c.dim("num_hidden_layers", "L", default=12),
        vocab=c.dim("vocab_size", "V", default=50265 if c.model_type == "roberta" else 30522),
        positions=c.dim("max_position_embeddings", "positions", default=512),
        act=c.word("hidden_act", "gelu"),
        dropout=c.number("hidden_dropout_prob", 0.1),
        attention_dropout=c.number("attention_probs_dropout_prob", 0.1),
    )


def bert(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape = read_bert(c)
    base = {"bert": "bert", "electra": "electra"}.get(c.model_type, "roberta")
    pooled = {
        "bert": ("none", "pretraining", "next sentence", "sequence", "choice"),
        "roberta": ("none", "choice"),
        "electra": (),
    }[base]
    width = c.dim("embedding_size", "h_word", default=128) if base == "electra" else shape.h

    def embed(ids: Value) -> tuple[Value, Value]:
        with t.scope("embeddings"):
            x, table = _bert_embeddings(
                t, c, ids, shape, width, positions_per_sample=base == "roberta"
            )
        x = t.linear("embeddings_project", x, shape.h, bias=True) if width != shape.h else x
        return x, table

    def block(x: Value, kind: Any) -> Value:
        with t.scope("attention"):
            with t.scope("self"):
                eager = OWN if t.regime.habits.bert_holds_scores else BIDIRECTIONAL
                y = self_attention(t, x, shape, ("query", "key", "value"), eager)
            with t.scope("output"):
                x = _add_and_norm(
                    t, "LayerNorm", t.linear("dense", y, shape.h, bias=True), x, shape.dropout
                )
        with t.scope("intermediate"):
            wide = t.linear("dense", x, shape.f, bias=True, label="mlp hidden")
        with t.scope("output"):
            activated = t.activation(wide, shape.act)
            y = t.linear("dense", activated, shape.h, bias=True, label="mlp output")
            # `intermediate_output` and `attention_output`, until feed_forward_chunk returns
            return t.hold(_add_and_norm(t, "LayerNorm", y, x, shape.dropout), activated, x)

    head = {"bert": _bert_head, "roberta": _roberta_head, "electra": _electra_head}[base]
    return encoder(
        t,
        c,
        sizes,
        shape,
        base=base,
        stack="encoder.layer",
        embed=embed,
        block=block,
        pooled=pooled,
        head=head,
    )


def _bert_embeddings(
    t: Tape, c: Config, ids: Value, shape: Shape, width: Dim, *, positions_per_sample: bool
) -> tuple[Value, Value]:
    table = t.embedding_weight("word_embeddings", shape.vocab, width)
    kinds = t.embedding_weight(
        "token_type_embeddings", c.dim("type_vocab_size", "types", default=2), width
    )
    places = t.embedding_weight("position_embeddings", shape.positions, width)
    rows = ids.shape[0] if positions_per_sample else 1
    kind_ids = t.op("gather", (), (rows, ids.shape[1]), I64, label="token type ids")
    place_ids = t.op("cumsum", (), (rows, ids.shape[1]), I64, label="position ids")
    x = t.add(t.embed(table, ids), t.embed(kinds, t.view(kind_ids, ids.shape), "token types"))
    x = t.add(x, t.embed(places, place_ids, "position embeddings"))
    return t.dropout(t.layer_norm("LayerNorm", x), shape.dropout), table


BIDIRECTIONAL = Eager(upcast=False, recast=False, mask=False)


OWN = Eager(upcast=False, recast=False, holds_scores=True)


def self_attention(
    t: Tape,
    x: Value,
    shape: Shape,
    names: tuple[str, str, str],
    eager: Eager = BIDIRECTIONAL,
) -> Value:
    q, k, v = (
        split_heads(t, t.linear(name, x, shape.h, bias=True, label=name[0]), shape.heads.num)
        for name in names
    )
    return attend(t, q, k, v, shape.heads, dropout=shape.attention_dropout, eager=eager)


def _add_and_norm(t: Tape, name: str, y: Value, x: Value, p: float) -> Value:
    """`hidden_states = self.LayerNorm(hidden_states + input_tensor)`: the variable is what dropout gave, until then."""
    dropped = t.dropout(y, p)
    return t.hold(t.layer_norm(name, t.add(dropped, x, "residual stream")), dropped, x)


def _vocabulary(
    t: Tape, c: Config, shape: Shape, x: Value, table: Value, name: str = "decoder"
) -> Value:
    """The projection to the vocabulary, whose bias BERT and RoBERTa keep beside it."""
    tied = c.flag("tie_word_embeddings", True)
    bias = t.param("bias", (shape.vocab,), "bias")
    if tied:
        t.tie(f"{name}.bias", bias)
    weight = table if tied else None
    return t.linear(name, x, shape.vocab, weight=weight, bias=not tied, label="logits", kind="head")


def _bert_head(t: Tape, c: Config, shape: Shape, task: str, x: Value, table: Value) -> Answer:
    b = x.shape[0]
    if task in ("lm", "pretraining"):
        with t.scope("cls"):
            if task == "pretraining":
                first = Value((b, shape.h), x.dtype, x.requires_grad, "pooled", owner=x.storage)
                t.linear("seq_relationship", first, 2, bias=True, kind="classifier")
            with t.scope("predictions"):
                with t.scope("transform"):
                    x = t.activation(t.linear("dense", x, shape.h, bias=True), shape.act)
                    x = t.layer_norm("LayerNorm", x)
                return _vocabulary(t, c, shape, x, table), x.shape[:2], "masked"
    if task == "next sentence":
        return (
            t.linear("cls.seq_relationship", x, 2, bias=True, kind="classifier"),
            (b,),
            "classify",
        )
    return _plain_head(t, c, shape, task, x)


def _plain_head(t: Tape, c: Config, shape: Shape, task: str, x: Value) -> Answer:
    """Dropout and one linear: on the pooled token, or on every token."""
    b = x.shape[0]
    if task == "question":
        return (
            t.linear("qa_outputs", x, num_labels(c), bias=True, kind="classifier"),
            (b, 2),
            "classify",
        )
    x = t.dropout(x, c.number("classifier_dropout", shape.dropout))
    out = 1 if task == "choice" else num_labels(c)
    labels = x.shape[:2] if task == "token" else (b,)
    return (
        t.linear("classifier", x, out, bias=True, label="logits", kind="classifier"),
        labels,
        "classify",
    )


def _roberta_head(t: Tape, c: Config, shape: Shape, task: str, x: Value, table: Value) -> Answer:
    if task == "lm":
        with t.scope("lm_head"):
            x = t.layer_norm(
                "layer_norm", t.activation(t.linear("dense", x, shape.h, bias=True), "gelu")
            )
            return _vocabulary(t, c, shape, x, table), x.shape[:2], "masked"
    if task == "sequence":
        return _two_layer_head(t, c, shape, x, "tanh")
    return _plain_head(t, c, shape, task, x)


def _two_layer_head(t: Tape, c: Config, shape: Shape, x: Value, act: str) -> Answer:
    p = c.number("classifier_dropout", shape.dropout)
    with t.scope("classifier"):
        x = t.dropout(t.copy(x, (x.shape[0], x.shape[-1]), "first token"), p)
        x = t.dropout(t.activation(t.linear("dense", x, shape.h, bias=True), act), p)
        logits = t.linear(
            "out_proj", x, num_labels(c), bias=True, label="logits", kind="classifier"
        )
        return logits, (x.shape[0],), "classify"


def _electra_head(t: Tape, c: Config, shape: Shape, task: str, x: Value, table: Value) -> Answer:
    if task == "lm":
        with t.scope("generator_predictions"):
            x = t.activation(t.linear("dense", x, table.shape[1], bias=True), "gelu")
            x = t.layer_norm("LayerNorm", x)
        weight = table if c.flag("tie_word_embeddings", True) else None
        logits = t.linear(
            "generator_lm_head",
            x,
            shape.vocab,
            weight=weight,
            bias=True,
            label="logits",
            kind="head",
        )
        return logits, x.shape[:2], "masked"
    if task == "pretraining":
        with t.scope("discriminator_predictions"):
            y = t.activation(t.linear("dense", x, shape.h, bias=True), shape.act)
            return (
                t.linear("dense_prediction", y, 1, bias=True, kind="classifier"),
                x.shape[:2],
                "classify",
            )
    if task == "sequence":
        return _two_layer_head(t, c, shape, x, "gelu")
    if task == "choice":
        raise UndescribedModelError(
            f"{c.where}: ElectraForMultipleChoice is not described; trace the model instead"
        )
    return _plain_head(t, c, shape, task, x)


# ---- DistilBERT


def distilbert(t: Tape, c: Config, sizes: Sizes) -> Program:
    h, num = (
        c.dim("dim", "h", "hidden_size", default=768),
        c.dim("n_heads", "a", "num_attention_heads", default=12),
    )
    d = exact_division(h, num, f"{c.where}: dim by n_heads")
    shape = Shape(
        h=h,
        f=c.dim("hidden_dim", "f", default=3072),
        heads=Heads(num=num, num_kv=num, width=Dim(int(d), "d")),
        depth=c.dim("n_layers", "L", "num_hidden_layers", default=6),
        vocab=c.dim("vocab_size", "V", default=30522),
        positions=c.dim("max_position_embeddings", "positions", default=512),
        act=c.word("activation", "gelu"),
        dropout=c.number("dropout", 0.1),
        attention_dropout=c.number("attention_dropout", 0.1),
    )

    def embed(ids: Value) -> tuple[Value, Value]:
        with t.scope("embeddings"):
            table = t.embedding_weight("word_embeddings", shape.vocab, h)
            place_ids = t.op("arange", (), (1, ids.shape[1]), I64, label="position ids")
            places = t.embed(
                t.embedding_weight("position_embeddings", shape.positions, h),
                place_ids,
                "position embeddings",
            )
            return t.dropout(
                t.layer_norm("LayerNorm", t.add(t.embed(table, ids), places)), shape.dropout
            ), table

    def block(x: Value, kind: Any) -> Value:
        with t.scope("attention"):
            y = self_attention(t, x, shape, ("q_lin", "k_lin", "v_lin"))
            y = t.linear("out_lin", y, h, bias=True)
        x = _add_and_norm(t, "sa_layer_norm", y, x, 0.0)
        with t.scope("ffn"):
            wide = t.linear("lin1", x, shape.f, bias=True, label="mlp hidden")
            y = t.linear("lin2", t.activation(wide, shape.act), h, bias=True, label="mlp output")
        return _add_and_norm(t, "output_layer_norm", y, x, shape.dropout)

    return encoder(
        t,
        c,
        sizes,
        shape,
        base="distilbert",
        stack="transformer.layer",
        embed=embed,
        block=block,
        pooled=(),
        head=_distilbert_head,
    )


def _distilbert_head(t: Tape, c: Config, shape: Shape, task: str, x: Value, table: Value) -> Answer:
    b = x.shape[0]
    if task == "lm":
        x = t.activation(t.linear("vocab_transform", x, shape.h, bias=True), shape.act)
        x = t.layer_norm("vocab_layer_norm", x)
        weight = table if c.flag("tie_word_embeddings", True) else None
        logits = t.linear(
            "vocab_projector", x, shape.vocab, weight=weight, bias=True, label="logits", kind="head"
        )
        return logits, x.shape[:2], "masked"
    if task in ("sequence", "choice"):
        first = t.copy(x, (b, shape.h), "first token")
        x = t.activation(t.linear("pre_classifier", first, shape.h, bias=True), "relu")
        x = t.dropout(x, c.number("seq_classif_dropout", 0.2))
        out = 1 if task == "choice" else num_labels(c)
        return (
            t.linear("classifier", x, out, bias=True, label="logits", kind="classifier"),
            (b,),
            "classify",
        )
    if task == "question":
        x = t.dropout(x, c.number("qa_dropout", 0.1))
    if task not in ("question", "token"):
        raise UndescribedModelError(
            f"{c.where}: {c.architecture} is not described for distilbert; trace the model instead"
        )
    return _plain_head(t, c, shape, task, x)


FAMILIES = {
    "bert": bert,
    "roberta": bert,
    "xlm-roberta": bert,
    "camembert": bert,
    "electra": bert,
    "distilbert": distilbert,
}
