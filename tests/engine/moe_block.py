"""A hand-written mixture of SwiGLU experts behind a normalised, thresholded gate, as research code writes it.

In come the block's sizes (k number-like, so that a dynamic k can be a mean, a bound or a grid), out come the tensors
autograd keeps for one layer, and what schemes that train the gate apart hold between their two backward passes.
Nothing here knows how the loss is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.errors import InputError
from vramcast.models.record.dims import Number, minimum
from vramcast.models.record.tape import BF16, I64, Dtype, Regime, Section, Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeBlock:
    batch: Number
    seq: Number
    hidden: int
    inner: int
    experts: int
    k: Number
    layers: int = 1
    dtype: Dtype = BF16

    def __post_init__(self) -> None:
        if isinstance(self.k, int | float) and not 0 < self.k <= self.experts:
            raise InputError(
                f"k must be more than 0 and at most the {self.experts} experts, not {self.k}"
            )

    @property
    def tokens(self) -> Number:
        return self.batch * self.seq

    @property
    def rows(self) -> Number:
        """Token-expert pairs; k may be a mean, so this is rounded up."""
        rows = self.tokens * self.k
        return -int(-rows // 1) if isinstance(rows, float) else rows


def busiest_rows(tokens: Number, k: Number, num: int, imbalance: float) -> Number:
    """Rows of the busiest expert: `imbalance` times its even share, and never more than all tokens."""
    share = -(-tokens * k * round(imbalance * 1000) // (1000 * num))
    return minimum(tokens, share)


def record_block(block: MoeBlock) -> Section:
    """One layer's forward pass, expert by expert."""
    t = Tape(Regime(weights=block.dtype))
    x = Value((block.tokens, block.hidden), block.dtype, True, "hidden states")
    with t.section("moe", x) as section:
        weights = _gate(t, x, block)
        section.outputs = (_experts(t, x, weights, block),)
    return section


def block_bytes(block: MoeBlock) -> Number:
    """Kept for backward by one layer."""
    return kept_bytes(record_block(block))


def _gate(t: Tape, x: Value, block: MoeBlock) -> Value:
    """relu(sigmoid(cosine logits) − sigmoid(threshold)), divided by its sum: how many are above zero is k."""
    similarity = t.param("gate.sim_matrix", (block.hidden, block.experts), "router")
    threshold = t.param("gate.threshold", (block.experts,), "table")
    unit = _unit_length(t, x, (block.tokens, 1))
    columns = _unit_length(t, similarity, (1, block.experts))
    shape = (block.tokens, block.experts)
    logits = t.op(
        "matmul", (unit, columns), shape, x.dtype, saves=(unit, columns), label="gate logits"
    )
    scores = t.activation(logits, "sigmoid", "gate scores")
    bar = t.activation(threshold, "sigmoid", "thresholds")
    active = t.activation(t.op("sub", (scores, bar), shape, x.dtype), "relu", "active scores")
    total = t.op("sum", (active,), (block.tokens, 1), x.dtype, label="sum of active scores")
    return t.op(
        "div", (active, total), shape, x.dtype, saves=(active, total), label="routing weights"
    )


def _unit_length(t: Tape, x: Value, shape: tuple[Number, ...]) -> Value:
    """torch.nn.functional.normalize: the norm, its clamp, and a division."""
    length = t.op("norm", (x,), shape, x.dtype, saves=(x,), saves_output=True, label="length")
    length = t.op("clamp_min", (length,), shape, x.dtype, saves=(length,), label="clamped length")
    return t.op("div", (x, length), x.shape, x.dtype, saves=(x, length), label="unit vectors")


def _experts(t: Tape, x: Value, weights: Value, block: MoeBlock) -> Value:
    """down(silu(w1·x) · w3·x) for the rows of each expert; four tensors as wide as the expert are kept."""
    rows, h = block.rows, block.hidden
    where = Value((rows, 2), I64, label="token and expert of each row")
    chosen = t.op("index", (x,), (rows, h), x.dtype, saves=(where,), label="routed rows")
    gate = t.linear("experts.w1", chosen, block.inner, label="w1·x")
    up = t.linear("experts.w3", chosen, block.inner, label="w3·x")
    y = t.linear(
        "experts.w2", t.mul(t.activation(gate, "silu"), up, "product"), h, label="expert output"
    )
    share = t.op("index", (weights,), (rows, 1), x.dtype, saves=(where,), label="row weights")
    y = t.mul(y, share, "weighted rows")
    return t.op("index_add", (y,), x.shape, x.dtype, saves=(where, y), label="mixture")


def busiest_expert_bytes(block: MoeBlock, imbalance: float) -> Number:
    """What the busiest expert's turn of the loop makes, if it gets `imbalance` times its even share of rows."""
    if imbalance < 1:
        raise InputError(
            f"imbalance is the busiest expert's share over the even one: at least 1, not {imbalance}"
        )
    rows = busiest_rows(block.tokens, block.k, block.experts, imbalance)
    return rows * (4 * block.inner + 3 * block.hidden) * block.dtype.nbytes


# ---- what schemes with a second backward for the gate hold in between


def simple_inventory_bytes(block: MoeBlock) -> Number:
    """The estimate people write down: the input, three gate tensors, one tensor per expert row. Too small, because a
    SwiGLU expert keeps four such tensors and the rows it was given."""
    gate, inner = 3 * block.tokens * block.experts, block.rows * block.inner
    return block.layers * (block.tokens * block.hidden + gate + inner) * block.dtype.nbytes


def detached_scores_bytes(block: MoeBlock) -> Number:
    """Logits, routing weights, active scores and surprise, detached: small, and useless to train the gate with."""
    return 4 * block.layers * block.tokens * block.experts * block.dtype.nbytes


def detached_inputs_bytes(block: MoeBlock) -> Number:
    """The least from which the gate can be run again: its inputs, detached, layer by layer."""
    return block.layers * block.tokens * block.hidden * block.dtype.nbytes
