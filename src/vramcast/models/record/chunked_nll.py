"""TRL's loss of 1.6 to 1.14: logits of 256 tokens at a time, each chunk under a checkpoint (loss_type "chunked_nll").

Tokens are sorted so that those with a label come first: a copy of the hidden state, which backward keeps. A chunk's
logits and what follows from them (log-softmax, its exponential, their product for the entropy) are in fp32 and exist
while that chunk is computed, in forward and once more in backward. Under autocast the product with the head is in 16
bit, from a copy of the head that each chunk makes for itself: a view of a weight is not what autocast caches. Backward
has the head's gradient so far beside the chunk's own.

Example: 3 samples of 1,024 tokens, a vocabulary of 128,256 and a width of 384, in bf16 without autocast, with a frozen
head: a chunk's logits have 256 · 128,256 · 4 bytes = 131 MB, four such tensors are there at once, and the head's copy
in fp32 has 128,256 · 384 · 4 bytes = 197 MB.

Source: trl/trainer/sft_trainer.py _chunk, _chunked_cross_entropy_loss of TRL 1.7 and 1.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from math import prod

from vramcast.models.record.dims import Number, minimum
from vramcast.models.record.ops import Ops
from vramcast.models.record.tiled_loss import check_words
from vramcast.models.record.values import F32, I64, Dtype, Value

CHUNK_ROWS = 256
MASKS_ENTROPY_FROM = (1, 8)  # by then backward computes the product for the entropy again, too
IN_ROWS_DTYPE_FROM = (
    1,
    13,
)  # the product is in the dtype of the hidden state, and raised to fp32 afterwards


def chunked_nll(t: Ops, x: Value, weight: Value, trl: tuple[int, ...]) -> Value:
    """The loss of x (the last hidden state) under the head's weight of shape [vocabulary, width]."""
    check_words(x, "tiled")
    b, s, width = x.shape
    num_rows = b * (s - 1)
    shifted = t.select(x, (b, s - 1, width))
    if int(b) > 1:  # reshape copies what is not contiguous
        shifted = t.copy(shifted, label="hidden states but the last")
    order = Value((num_rows,), I64, label="order of the tokens")
    labels = Value((num_rows,), I64, label="labels in that order")
    rows = t.op(
        "index", (shifted,), (num_rows, width), x.dtype, saves=(order,), label="rows with a label"
    )
    chunk = _chunk_of(t, rows, weight, trl)
    forward, backward = chunk.forward(), chunk.backward()
    loss = t.op(
        "loss in chunks",
        (rows, weight),
        (),
        F32,
        saves=(rows, weight, labels),
        label="loss",
        forward_temp_bytes=sum(forward),
        forward_temps=forward,
        backward_temp_bytes=sum(backward),
        backward_temps=backward,
        flops=2 * prod(rows.shape) * weight.shape[0],
    )
    return t.hold(loss, x)


def _chunk_of(t: Ops, rows: Value, weight: Value, trl: tuple[int, ...]) -> _Chunk:
    num_rows, width = rows.shape
    between = rows.dtype if trl >= IN_ROWS_DTYPE_FROM else F32
    product = t.regime.autocast or between
    return _Chunk(
        num_rows=minimum(num_rows, CHUNK_ROWS),
        width=width,
        vocab=weight.shape[0],
        rows=_casts(rows.dtype, between, product),
        head=_casts(weight.dtype, between, product),
        product=product,
        logits=F32 if trl >= IN_ROWS_DTYPE_FROM else product,
        trains_head=weight.requires_grad,
        repeats_entropy=trl >= MASKS_ENTROPY_FROM,
        rows_gradient=rows.nbytes,
    )


def _casts(*dtypes: Dtype) -> tuple[Dtype, ...]:
    """A tensor's own dtype, then those of its copies: a cast to the same dtype is none."""
    return tuple(dtype for dtype, _ in groupby(dtypes))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Which tensors a chunk makes."""

    num_rows: Number
    width: Number
    vocab: Number
    rows: tuple[Dtype, ...]
    head: tuple[Dtype, ...]
    product: Dtype
    logits: Dtype
    trains_head: bool
    repeats_entropy: bool
    rows_gradient: Number  # of all rows

    def forward(self) -> tuple[Number, ...]:
        entropy = (self._words(self.logits), *3 * (self._words(F32),))
        return _largest(self._multiplying(), self._softmax(), entropy)

    def backward(self) -> tuple[Number, ...]:
        """The chunk again, then its gradients; beside those of the chunks before."""
        kept = self._kept_by_product()
        entropy = (2 + self.repeats_entropy) * (self._words(F32),)
        moments = [
            self._multiplying(),
            (*kept, *self._softmax()),
            (*kept, self._words(self.logits), *entropy),
            (
                *kept,
                *3 * (self._words(F32),),
            ),  # log-softmax, and the gradients before and behind it
        ]
        if self.trains_head:
            gradients = [self._of_head(dtype) for dtype in reversed(self.head)]
            moments += [(*kept, self._words(self.product), gradients[0]), *pairwise(gradients)]
            moments.append(
                (gradients[-1], gradients[-1])
            )  # the chunk's own, and its sum with those before
        before = (self._of_head(self.head[0]),) if self.trains_head else ()
        return (*before, self.rows_gradient, *_largest(*moments))

    def _multiplying(self) -> tuple[Number, ...]:
        rows = [self.num_rows * self.width * dtype.nbytes for dtype in self.rows[1:]]
        head = [self._of_head(dtype) for dtype in self.head[1:]]
        return (*rows, *head, self._words(self.product))

    def _softmax(self) -> tuple[Number, ...]:
        raised = (self._words(F32),) if self.product != F32 else ()
        return (self._words(self.product), *raised, self._words(F32))

    def _kept_by_product(self) -> tuple[Number, ...]:
        """For its backward: the copy of the head, and that of the rows if the head is trained."""
        head = [self._of_head(self.head[-1])] if len(self.head) > 1 else []
        needs_rows = self.trains_head and len(self.rows) > 1
        rows = [self.num_rows * self.width * self.rows[-1].nbytes] if needs_rows else []
        return (*head, *rows)

    def _words(self, dtype: Dtype) -> Number:
        return self.num_rows * self.vocab * dtype.nbytes

    def _of_head(self, dtype: Dtype) -> Number:
        return self.vocab * self.width * dtype.nbytes


def _largest(*moments: tuple[Number, ...]) -> tuple[Number, ...]:
    return max(moments, key=lambda sizes: int(sum(sizes)))
