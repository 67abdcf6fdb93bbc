"""Experts that are modules of their own, run one after the other, as transformers before 5.0 holds them.

Adapters and 4-bit weights are put on the linear layers of each expert, so that every expert is recorded by itself: 8
experts with 1,152 rows each save eight inputs of 1,152 rows. How evenly experts are hit is not known before a job runs;
all get the same number of rows. Experts that are one tensor are in `experts`.
"""

from __future__ import annotations

from vramcast.models.record.dims import Number
from vramcast.models.record.layers import gated_mlp
from vramcast.models.record.routers import Experts, Routing
from vramcast.models.record.tape import I64, Tape, Value

FEW = 16  # experts that are recorded one by one in any case


def must_be_told_apart(t: Tape, e: Experts) -> bool:
    """Do the experts have to be recorded one by one? Adapters and 4-bit weights belong to each; with neither, many
    small tensors take what a large one does, and a hundred experts make a long recording."""
    if int(e.num) <= FEW or t.regime.quantized is not None:
        return True
    with t.scope("experts.0"):
        return any(t.has_adapter(name, "linear") for name in e.projections)


def run_expert_modules(t: Tape, x: Value, routing: Routing, e: Experts) -> Value:
    """x is [tokens, h]. Each expert reads its rows, and adds what it makes of them to the mixture in place."""
    rows = -(-x.shape[0] * e.k // int(e.num))
    mixture = t.op("zeros", (), x.shape, x.dtype, label="mixture", requires_grad=False)
    with t.scope("experts"):
        for number in range(int(e.num)):
            with t.scope(str(number)):
                mixture = _add_expert(t, x, mixture, rows, routing, e)
    return mixture


def _add_expert(
    t: Tape, x: Value, mixture: Value, rows: Number, routing: Routing, e: Experts
) -> Value:
    """`mixture.index_add_(0, token, expert(x[token]) * weights[token, place])`"""
    h = int(x.shape[-1])
    token_and_place = t.op("nonzero", (routing.index,), (rows, 2), I64, label="rows of an expert")
    chosen = _index(t, x, (rows, h), token_and_place, "routed rows")
    y = gated_mlp(t, chosen, e.inner, e.act, names=e.projections)
    weights = _index(t, routing.weights, (rows, 1), token_and_place, "row weights")
    y = t.cast(t.mul(y, weights, "weighted rows"), x.dtype)
    return t.add_rows_in_place(mixture, y, token_and_place, "mixture")


def _index(t: Tape, x: Value, shape: tuple[Number, ...], index: Value, label: str) -> Value:
    return t.op("index", (x,), shape, x.dtype, saves=(index,), label=label)
