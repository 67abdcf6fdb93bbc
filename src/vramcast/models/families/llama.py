"""Decoders in Llama's line: pre-norm RMSNorm, rotary positions, grouped heads, gated MLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.models.read.config import Config, exact_division
from vramcast.models.read.tasks import num_labels, task_of
from vramcast.models.record.attention import Heads, attend, project_fused_qkv, project_qkv
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import (
    fused_gated_mlp,
    gated_mlp,
    rms_norm,
    rope_both,
    rope_table,
)
from vramcast.models.record.program import Program, Sizes, masks_for
from vramcast.models.record.tape import I64, Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The dimensions of a decoder layer."""

    h: Dim
    f: Dim
    heads: Heads
    act: str


def read_shape(c: Config) -> Shape:
    h = c.dim("hidden_size", "h")
    heads = c.dim("num_attention_heads", "a")
    kv = c.dim("num_key_value_heads", "g", default=int(heads))
    exact_division(heads, kv, f"{c.where}: num_attention_heads by num_key_value_heads")
    width: int
    if c.data.get("head_dim"):
        width = c.dim("head_dim", "d")
    else:
        width = exact_division(h, heads, f"{c.where}: hidden_size by num_attention_heads")
    return Shape(
        h=h,
        f=c.dim("intermediate_size", "f"),
        act=c.word("hidden_act", "silu", "hidden_activation"),
        heads=Heads(num=heads, num_kv=kv, width=Dim(int(width), "d")),
    )


Block = Callable[[Value, Any], Value]
Change = Callable[[Value], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What differs between causal models outside of their layers."""

    prefix: str = "model"
    table: str = "embed_tokens"
    layers: str = "layers"
    last_norm: str = "norm"
    head: str = "lm_head"
    tied: bool = False  # where the config does not say
    head_bias: bool = False
    norm: Callable[[Tape, str, Value], Value] = rms_norm
    embedded: Change = lambda x: x  # after the look-up: Gemma's scale
    merged: Change = lambda x: x  # after the embedding section: image features are put in
    finished: Change = lambda logits: logits  # after the head: soft capping, scaling
    always_masked: bool = False  # attention needs a mask whatever the length


PLAIN = Frame()


def causal_lm(
    t: Tape,
    c: Config,
    sizes: Sizes,
    make_block: Callable[[Value], Block],
    *,
    kinds: Sequence[Any] | None = None,
    frame: Frame = PLAIN,
) -> Program:
    """Embedding, layers, final norm, head. `make_block(positions)` returns the layer, which reads the rotary table."""
    b, s = sizes.batch, sizes.seq
    task = task_of(c, ("lm", "none", "sequence", "token", "question"))
    prefix = prefix_of(c, task, frame)
    layers = c.dim("num_hidden_layers", "L")
    ids = t.input("input ids", (b, s), I64)
    with t.section("embedding", ids) as section, t.scope(prefix):
        table = t.embedding_weight(frame.table, c.dim("vocab_size", "V"), c.dim("hidden_size", "h"))
        x = frame.embedded(t.embed(table, ids))
        section.outputs = (x,)
    x = frame.merged(x)
    positions = rope_table(x, b, s, read_shape(c).heads.width)
    masks = masks_for(t, c, sizes, layers, always=frame.always_masked)
    with t.scope(prefix), t.decoding():
        kinds = kinds or ["layer"] * layers
        x = t.layers(frame.layers, kinds, make_block(positions), x, masks.layers)
    with t.section("head", x) as section:
        with t.scope(prefix):
            x = frame.norm(t, frame.last_norm, x)
        x = head_of(t, c, task, frame, x, table)
        section.outputs = (x,)
    if task == "none":
        return Program(tape=t, output=x, labels=None, loss="none", masks=masks)
    labels_shape = {"sequence": (b,), "question": (b, 2)}.get(task, (b, s))
    labels = t.input("labels", labels_shape, I64)
    loss = "causal" if task == "lm" else "classify"
    return Program(tape=t, output=x, labels=labels, loss=loss, masks=masks)


OLD_PREFIX = ("llama", "ministral", "qwen2", "qwen3", "qwen3_moe", "smollm3")


def prefix_of(c: Config, task: str, frame: Frame) -> str:
    """A bare backbone has none; question answering kept an older name in some families."""
    if task == "none":
        return ""
    return "transformer" if task == "question" and c.model_type in OLD_PREFIX else frame.prefix


def head_of(t: Tape, c: Config, task: str, frame: Frame, x: Value, table: Value) -> Value:
    """What transformers' GenericFor… classes put on a backbone, or the language model's head."""
    if task == "lm":
        tied = c.flag("tie_word_embeddings", frame.tied)
        logits = t.linear(
            frame.head,
            x,
            table.shape[0],
            weight=table if tied else None,
            bias=frame.head_bias,
            label="logits",
            kind="head",
        )
        return frame.finished(logits)
    if task == "sequence":
        scores = t.linear("score", x, num_labels(c), label="logits", kind="classifier")
        return t.copy(scores, (x.shape[0], scores.shape[-1]), "last token's logits")
    if task == "token":
        x = t.dropout(x, c.number("classifier_dropout", c.number("hidden_dropout", 0.1)))
        return t.linear("score", x, num_labels(c), bias=True, label="logits", kind="classifier")
    if task == "question":
        return t.linear("qa_outputs", x, 2, bias=True, label="logits", kind="classifier")
    return x


BIASED = ("qwen2", "qwen2_vl_text", "qwen2_5_vl_text")


def llama(t: Tape, c: Config, sizes: Sizes, frame: Frame = PLAIN) -> Program:
    """Llama and what shares its code (Mistral, Yi, SmolLM, …); Qwen2 with its biases; Qwen3 with its q/k norms."""
    shape = read_shape(c)
    qwen2 = c.model_type in BIASED
    bias = c.flag("attention_bias", False)
    qkv_bias, out_bias = qwen2 or bias, bias and not qwen2
    qk_norm = c.model_type == "qwen3"
    mlp_bias = c.flag("mlp_bias", False)

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "input_layernorm", x)
            with t.scope("self_attn"):
                q, k, v = project_qkv(t, y, shape.heads, bias=qkv_bias)
                if qk_norm:
                    q, k = rms_norm(t, "q_norm", q), rms_norm(t, "k_norm", k)
                q, k = rope_both(t, q, k, positions)
                y = attend(t, q, k, v, shape.heads, dropout=c.number("attention_dropout", 0.0))
                y = t.linear("o_proj", y, shape.h, bias=out_bias)
            x = t.add(x, y, "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, shape.act, bias=mlp_bias)
            return t.add(x, y, "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, frame=frame)


def phi3(t: Tape, c: Config, sizes: Sizes, frame: Frame = PLAIN) -> Program:
    """Phi-3 and Phi-4: fused qkv and gate-up projections, dropout on both branches."""
    shape = read_shape(c)
    heads, p = shape.heads, c.number("resid_pdrop", 0.0)
    attention_dropout = c.number("attention_dropout", 0.0)

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "input_layernorm", x)
            with t.scope("self_attn"):
                q, k, v = project_fused_qkv(t, "qkv_proj", y, heads, bias=False)
                part = t.regime.habits.phi3_joins_rotated
                q, k = rope_both(t, q, k, positions, partial=part)
                y = attend(t, q, k, v, heads, dropout=attention_dropout, heads_first=part)
                y = t.linear("o_proj", y, shape.h)
            x = t.add(x, t.dropout(y, p), "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                names = ("gate_up_proj", "down_proj")
                y = fused_gated_mlp(t, y, shape.f, shape.act, names)
            return t.add(x, t.dropout(y, p), "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, frame=frame)


FAMILIES = {
    "llama": llama,
    "mistral": llama,
    "ministral": llama,
    "qwen2": llama,
    "qwen3": llama,
    "phi3": phi3,
}
