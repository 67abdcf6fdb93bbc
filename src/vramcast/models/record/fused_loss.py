"""Liger's fused_linear_cross_entropy: the head and the loss in one kernel, so that the logits never exist whole.

The kernel goes through the rows (tokens) in chunks. For each chunk it computes the logits, the loss and at once the
gradients of its input and of the head, which is all that it saves. Example: 1,024 rows, a vocabulary of 32,000 and a
width of 4,000 give ⌈32,000 / 4,000⌉ = 8 chunks of 128 rows; in bf16, 128 · 32,000 · 2 bytes = 8.2 MB of logits exist
at a time instead of 65.5 MB.
"""

from __future__ import annotations

from math import prod

from vramcast.models.record.dims import Number, minimum, power_of_two_from
from vramcast.models.record.ops import Ops
from vramcast.models.record.values import F32, Dtype, Value


def fused_linear_cross_entropy(t: Ops, x: Value, weight: Value) -> Value:
    """The loss of x (the last hidden state) under the head's weight of shape [vocabulary, width]."""
    vocab = weight.shape[0]
    compute = t.regime.autocast or x.dtype
    chunk_bytes = _rows_per_chunk(x, weight) * vocab * compute.nbytes
    saves: list[Value] = []
    if x.requires_grad:
        saves.append(Value(x.shape, x.dtype, label="gradient of the last hidden state"))
    if weight.requires_grad:
        saves.append(Value(weight.shape, weight.dtype, label="gradient of the head"))
    chunks = (chunk_bytes,) * t.regime.loss_chunks
    temps = (*chunks, *_copies_of_head(t, weight, compute))
    return t.op(
        "fused linear cross entropy",
        (x, weight),
        (),
        F32,
        saves=tuple(saves),
        label="loss",
        forward_temp_bytes=sum(temps),
        forward_temps=temps,
        flops=2 * prod(x.shape) * vocab,
        grad_in_place_of_saved=True,
    )


def _rows_per_chunk(x: Value, weight: Value) -> Number:
    """As many chunks as the vocabulary is wider than the hidden state, rounded to a power of two of rows."""
    rows = prod(x.shape[:-1])
    vocab, width = int(weight.shape[0]), int(x.shape[-1])
    num_chunks = -(-vocab // width)
    return minimum(power_of_two_from(-(-rows // num_chunks)), rows)


def _copies_of_head(t: Ops, weight: Value, compute: Dtype) -> tuple[Number, ...]:
    """Autocast casts the head's transpose for every chunk and keeps a cast of a trained head until it ends; a product
    that is not added up in place is a tensor of the head's size."""
    numel = prod(weight.shape)
    cast_bytes = numel * compute.nbytes if weight.dtype != compute else 0
    if not weight.requires_grad:
        return (cast_bytes,)
    product = _gradient_product(t, numel, compute)
    if sum(product) > cast_bytes:
        return (cast_bytes, *product)
    return (cast_bytes, cast_bytes)


def _gradient_product(t: Ops, numel: Number, compute: Dtype) -> tuple[Number, ...]:
    """A chunk's gradient of the head, before it is added to the sum."""
    fp32_bytes = numel * F32.nbytes
    if t.regime.loss_sums_copies:
        return (numel * compute.nbytes, fp32_bytes if compute != F32 else 0)
    return () if compute.nbytes == 2 else (fp32_bytes,)
