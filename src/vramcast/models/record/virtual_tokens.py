"""Virtual tokens: trained vectors before every sample, as PEFT's prompt tuning and p-tuning put them there.

As peft 0.21 does it (peft_model.py PeftModelForCausalLM.forward): words are looked up outside of the model, the vectors
are made (looked up in a table, or made of it by a network of three linear layers), cast and put before the words;
labels and attention mask get as many places more. A sample of 100 tokens with 20 virtual ones runs as one of 120.
"""

from __future__ import annotations

from vramcast.models.record.activations import activate
from vramcast.models.record.ops import Ops
from vramcast.models.record.regime import VirtualTokens
from vramcast.models.record.values import F32, I64, Param, Value

ENCODER = "prompt_encoder.default"


def put_before(t: Ops, words: Value, virtual: VirtualTokens) -> tuple[Value, tuple[Value, ...]]:
    """The vectors and the words as one sequence, and what the caller holds until the loss: labels and mask."""
    batch, length, width = words.shape
    whole = (batch, length + virtual.count)
    mask = t.op(
        "cat", (), whole, F32, label="attention mask with virtual tokens", requires_grad=False
    )
    labels = t.op("cat", (), whole, I64, label="labels with virtual tokens", requires_grad=False)
    vectors = t.cast(_vectors(t, batch, width, virtual), words.dtype)
    joined = t.op("cat", (vectors, words), (*whole, width), words.dtype, label="embeddings")
    return t.hold(joined, vectors, words), (mask, labels)


def _vectors(t: Ops, batch: int, width: int, virtual: VirtualTokens) -> Value:
    table = _param(t, virtual, "embedding.weight", (virtual.count, width))
    shape = (batch, virtual.count)
    numbers = t.op("to", (), shape, I64, label="numbers of virtual tokens", requires_grad=False)
    x = t.op(
        "embedding",
        (table, numbers),
        (*shape, width),
        table.dtype,
        saves=(numbers,),
        label="virtual tokens",
    )
    if virtual.hidden is None:
        return x
    for place, size in (("0", virtual.hidden), ("2", virtual.hidden), ("4", width)):
        weight = _param(t, virtual, f"mlp_head.{place}.weight", (size, x.shape[-1]))
        bias = _param(t, virtual, f"mlp_head.{place}.bias", (size,))
        x = t.multiply_weight(x, weight, t.autocast(bias), size, f"mlp_head.{place}")
        x = x if place == "4" else activate(t, x, "relu", "activated")
    return x


def _param(t: Ops, virtual: VirtualTokens, name: str, shape: tuple[int, ...]) -> Value:
    """PEFT keeps them beside the model, whatever scope is open."""
    return t.declare(
        Param(name=f"{ENCODER}.{name}", shape=shape, kind="adapter", dtype=virtual.dtype)
    )
