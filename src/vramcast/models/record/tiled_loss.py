"""TRL's fused head (since 1.15): log-probabilities of the labels from tiles of logits, which never exist whole.

Tokens without a label are left out: of b samples of s tokens, b·(s−1) rows of the hidden state are copied. The rows are
taken 4,096 at a time, the vocabulary 32,768 columns at a time, and one buffer of that size holds every tile in turn.
Backward computes the tiles again, and sums the gradients of rows and head in fp32.

Example: 2 samples of 1,025 tokens, a vocabulary of 128,256 and a width of 4,096, all in bf16 with a frozen head: the
buffer has 2,048 · 32,768 · 2 bytes = 134 MB instead of 525 MB of logits and twice that for each copy in fp32; backward
adds the rows' gradient of 2,048 · 4,096 · 4 bytes = 34 MB.

Source: trl/kernels/chunked_logprob.py ChunkedLogProbFunction, trl/trainer/utils.py add_fused_lm_head.
"""

from __future__ import annotations

from math import prod

from vramcast.errors import InputError
from vramcast.models.record.dims import Number, maximum, minimum
from vramcast.models.record.ops import Ops
from vramcast.models.record.values import BOOL, F32, I64, Dtype, Value

TILE_ROWS = 4096
TILE_COLUMNS = 32768
SUMS_PER_ROW = 7  # running maximum, sums and target logit in fp32


def check_words(x: Value, loss: str) -> None:
    """Raise InputError unless x has a row for every word."""
    if len(x.shape) != 3:
        raise InputError(
            f"loss {loss} scores one word after the other, and this model's head gives one answer per sample: leave "
            "out --loss"
        )


def tiled_cross_entropy(t: Ops, x: Value, weight: Value) -> Value:
    """The loss of x (the last hidden state) under the head's weight of shape [vocabulary, width]."""
    check_words(x, "tiled")
    b, s, width = x.shape
    num_rows = b * _scored(t, s)
    mask = Value((b, s - 1), BOOL, label="which tokens have a label")
    labels = Value((num_rows,), I64, label="labels of the rows")
    shifted = t.select(x, (b, s - 1, width))
    rows = t.op(
        "index", (shifted,), (num_rows, width), x.dtype, saves=(mask,), label="rows with a label"
    )
    log_probs = _log_probs(t, rows, weight, labels)
    per_token = t.op(
        "masked scatter", (log_probs,), (b, s - 1), F32, saves=(mask,), label="log-probabilities"
    )
    loss = t.op("sum", (per_token,), (), F32, label="loss")
    return t.hold(loss, per_token, x)  # `backbone_outputs` has the hidden state still


def _scored(t: Ops, s: Number) -> Number:
    """Tokens of a sample that have a label: none of the prompt, and never the first."""
    return s - s // 2 if t.regime.is_half_prompt else maximum(s - max(t.regime.prompt, 1), 1)


def _log_probs(t: Ops, rows: Value, weight: Value, labels: Value) -> Value:
    num_rows = rows.shape[0]
    compute = t.regime.autocast or rows.dtype
    tile_bytes = minimum(num_rows, TILE_ROWS) * TILE_COLUMNS * compute.nbytes
    rows_cast, *columns_casts = _casts(rows, weight, compute)
    sums_bytes = SUMS_PER_ROW * num_rows * F32.nbytes
    sums, copies = _sums(rows, weight)
    forward = (sums_bytes, tile_bytes, rows_cast, *columns_casts[:1])
    backward = (*sums, tile_bytes, rows_cast, *columns_casts, *copies)
    statistics = [
        Value((num_rows,), F32, label=f"{name} of each row") for name in ("log-sum", "entropy")
    ]
    return t.op(
        "tiled log-probabilities",
        (rows, weight),
        (num_rows,),
        F32,
        saves=(rows, weight, labels, *statistics),
        label="log-probabilities of the rows",
        forward_temp_bytes=sum(forward),
        forward_temps=forward,
        backward_temp_bytes=sum(backward),
        backward_temps=backward,
        flops=2 * prod(rows.shape) * weight.shape[0],
    )


def _casts(rows: Value, weight: Value, compute: Dtype) -> tuple[Number, ...]:
    """A tile's rows and columns in the dtype that is computed in. In backward a variable holds a tile's columns while
    those of the next tile are cast."""
    num_rows, width = rows.shape
    rows_bytes = minimum(num_rows, TILE_ROWS) * width * compute.nbytes
    if weight.dtype == compute:
        return (rows_bytes if rows.dtype != compute else 0,)
    vocab = int(weight.shape[0])
    first = min(vocab, TILE_COLUMNS)
    second = min(vocab - first, TILE_COLUMNS)
    columns_bytes = [columns * width * compute.nbytes for columns in (first, second) if columns]
    return (rows_bytes if rows.dtype != compute else 0, *columns_bytes)


def _sums(rows: Value, weight: Value) -> tuple[list[Number], list[Number]]:
    """Gradients are summed in fp32, then copied if what they belong to has another dtype; a variable holds the tile
    meanwhile."""
    trained = [value for value in (rows, weight) if value.requires_grad]
    sums = [prod(value.shape) * F32.nbytes for value in trained]
    copies = [value.nbytes for value in trained if value.dtype != F32]
    return sums, copies
