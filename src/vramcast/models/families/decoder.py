"""What decoder-only models have in common around their layers: embeddings before, a norm and a head after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.models.read.config import Config
from vramcast.models.read.tasks import num_labels, task_of
from vramcast.models.record.dims import Dim
from vramcast.models.record.program import Program, Sizes, masks_for
from vramcast.models.record.tape import I64, Tape, Value

Block = Callable[[Value, Any], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Everything but the layers."""

    base: str  # the backbone's name inside a model with a head
    bare: str = ""  # and where the backbone is the whole model
    layers: str  # the stack's name inside the backbone
    depth: Dim
    vocab: Dim
    # ids → embeddings, and the embedding weight that the head may be tied to.
    embed: Callable[[Value], tuple[Value, Value]]
    finish: Callable[[Value], Value]  # the norm after the last layer, and what follows it
    tied: bool
    # A mask that is made for every forward, given the residual stream.
    mask: Callable[[Value], Value | None] = lambda x: None
    head_bias: bool = False
    token_head: str = "classifier"
    token_dropout: float = 0.1
    question_labels: int = 2


def decoder(
    t: Tape,
    c: Config,
    sizes: Sizes,
    frame: Frame,
    make_block: Callable[[Value], Block],
    kinds: Sequence[Any] | None = None,
) -> Program:
    """`make_block(x)` gives the layer; x is the stream that enters the first one."""
    task = task_of(c, ("lm", "none", "sequence", "token", "question"))
    base = frame.bare if task == "none" else frame.base
    ids = t.input("input ids", (sizes.batch, sizes.seq), I64)
    with t.scope(base):
        with t.section("embedding", ids) as section:
            x, table = frame.embed(ids)
            section.outputs = (x,)
        mask, masks = frame.mask(x), masks_for(t, c, sizes, frame.depth)
        kinds = kinds or ["layer"] * frame.depth
        with t.decoding():
            x = t.layers(frame.layers, kinds, make_block(x), x, masks.layers)
    with t.section("head", x) as section:
        with t.scope(base):
            x = frame.finish(x)
        x, shape, loss = _head(t, c, frame, task, x, table)
        section.outputs = (x,)
    labels = t.input("labels", shape, I64) if loss != "none" else None
    return Program(tape=t, output=x, labels=labels, loss=loss, own_mask=mask, masks=masks)


def causal_mask(x: Value) -> Value:
    """What eager attention adds to its scores."""
    return Value((x.shape[0], 1, x.shape[1], x.shape[1]), x.dtype, label="attention mask")


def _head(
    t: Tape, c: Config, frame: Frame, task: str, x: Value, table: Value
) -> tuple[Value, tuple[Any, ...], str]:
    """Logits, the shape of their labels, and the loss."""
    b, s = x.shape[:2]
    if task == "lm":
        weight = table if frame.tied else None
        logits = t.linear(
            "lm_head",
            x,
            frame.vocab,
            weight=weight,
            bias=frame.head_bias,
            label="logits",
            kind="head",
        )
        return logits, (b, s), "causal"
    if task == "sequence":
        scores = t.linear("score", x, num_labels(c), label="logits", kind="classifier")
        return t.copy(scores, (b, scores.shape[-1]), "last token's logits"), (b,), "classify"
    if task == "token":
        x = t.dropout(x, frame.token_dropout)
        logits = t.linear(
            frame.token_head, x, num_labels(c), bias=True, label="logits", kind="classifier"
        )
        return logits, (b, s), "classify"
    if task == "question":
        answer = t.linear(
            "qa_outputs", x, frame.question_labels, bias=True, label="logits", kind="classifier"
        )
        return answer, (b, 2), "classify"
    return x, (), "none"
