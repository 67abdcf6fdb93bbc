"""Routers of mixtures of experts: which experts a token goes to, and with which weights.

In come tokens [tokens, h], out comes a Routing: weights and expert numbers, both [tokens, k]. What is saved is small:
for 1,000 tokens and 8 experts with k = 2, logits and probabilities have 8,000 elements, weights and indices 2,000. The
experts themselves are in `experts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.models.record.dims import Number
from vramcast.models.record.expert_adapters import router_weight
from vramcast.models.record.ops import saved_factors
from vramcast.models.record.tape import BOOL, F32, I64, Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """One layer's routed experts. `k` is number-like: a router with a dynamic k is priced at its mean or its bound."""

    num: int
    k: Number
    inner: int
    act: str
    bias: bool = False
    transposed: bool = False  # weights stored [experts, in, out]
    clamped_gate: bool = False  # gpt-oss: interleaved columns, clamps, (up + 1) · gate · sigmoid
    # The linear layers of one expert where each expert is a module: gate, up and down.
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Routing:
    """What a router hands to the experts: a weight and an expert's number for each chosen pair."""

    weights: Value  # [tokens, k]
    index: Value  # [tokens, k]


def top_k(t: Tape, scores: Value, k: Number) -> Routing:
    """torch.topk: the values carry the gradient, the indices are saved."""
    index = Value((scores.shape[0], k), I64, label="chosen experts")
    weights = t.op(
        "topk", (scores,), index.shape, scores.dtype, saves=(index,), label="routing weights"
    )
    return Routing(weights, index)


def normalise(t: Tape, weights: Value) -> Value:
    """weights /= weights.sum(-1): an in-place division saves its operands as they were."""
    total = t.op(
        "sum", (weights,), (*weights.shape[:-1], 1), weights.dtype, label="sum of routing weights"
    )
    before = Value(weights.shape, weights.dtype, label="routing weights before division")
    return t.op(
        "div",
        (weights, total),
        weights.shape,
        weights.dtype,
        saves=(before, total),
        label="routing weights",
    )


def softmax_router(
    t: Tape, name: str, x: Value, e: Experts, *, normalised: bool, keeps_fp32: bool = False
) -> Routing:
    """Softmax over all experts in fp32, then the k best."""
    logits = router_logits(t, name, x, e)
    probabilities = t.softmax(logits, F32, "router probabilities")
    routing = top_k(t, probabilities, e.k)
    weights = routing.weights
    if normalised:
        weights = normalise(t, weights)
    if not keeps_fp32:
        weights = t.cast(weights, logits.dtype)
    return Routing(weights, routing.index)


def chosen_softmax_router(t: Tape, name: str, x: Value, e: Experts) -> Routing:
    """gpt-oss: the k best logits, then softmax over them in their own dtype."""
    logits = t.linear(name, x, e.num, bias=True, label="router logits", kind="router")
    routing = top_k(t, logits, e.k)
    weights = t.softmax(routing.weights, logits.dtype, "routing weights")
    return Routing(weights, routing.index)


def router_logits(t: Tape, name: str, x: Value, e: Experts) -> Value:
    if t.regime.experts == "modules":  # an nn.Linear like any other
        return t.linear(name, x, e.num, label="router logits")
    if not t.has_adapter(name, "router"):
        return t.linear(name, x, e.num, label="router logits", kind="router")
    with t.scope(name):
        weight = router_weight(t, int(e.num), int(x.shape[-1]))
        return _multiply(t, x, weight, e)


def fp32_logits(t: Tape, name: str, x: Value, e: Experts) -> Value:
    """DeepSeek: input and weight cast to fp32 before the product (which autocast may lower again)."""
    with t.scope(name):
        weight = t.cast(router_weight(t, int(e.num), int(x.shape[-1])), F32)
        return _multiply(t, t.cast(x, F32), weight, e)


def _multiply(t: Tape, x: Value, weight: Value, e: Experts) -> Value:
    x, weight = t.autocast(x), t.autocast(weight)
    shape = (x.shape[0], e.num)
    saves = saved_factors(x, weight)
    return t.op("linear", (x, weight), shape, x.dtype, saves=saves, label="router logits")


def group_softmax_router(t: Tape, name: str, x: Value, e: Experts, *, grouped: bool) -> Routing:
    """DeepSeek-V2: softmax, groups that are not among the best masked out, the k best, scaled."""
    scores = t.softmax(fp32_logits(t, name, x, e), F32, "router probabilities")
    if grouped:
        mask = Value(scores.shape, BOOL, label="group mask")
        scores = t.op("masked_fill", (scores,), scores.shape, F32, saves=(mask,))
    routing = top_k(t, scores, e.k)
    return Routing(t.scale(routing.weights), routing.index)


def sigmoid_router(t: Tape, name: str, x: Value, e: Experts, *, normalised: bool) -> Routing:
    """DeepSeek-V3: sigmoid scores; the choice (with its correction bias) carries no gradient."""
    scores = t.activation(fp32_logits(t, name, x, e), "sigmoid", "router scores")
    index = Value((scores.shape[0], e.k), I64, label="chosen experts")
    weights = t.op(
        "gather",
        (scores,),
        index.shape,
        scores.dtype,
        saves=(scores, index),
        label="routing weights",
    )
    if normalised:
        weights = normalise(t, weights)
    return Routing(t.scale(weights), index)


def sparse_mixer(t: Tape, name: str, x: Value, e: Experts) -> Routing:
    """Phi-MoE: two experts drawn one after the other, each weighted through its own masked softmax."""
    logits = t.linear(name, x, e.num, label="router logits", kind="router")
    first = _draw_expert(t, logits, logits)
    rest = t.op(
        "scatter",
        (logits,),
        logits.shape,
        logits.dtype,
        saves=(first.index,),
        label="logits without the first",
    )
    second = _draw_expert(t, logits, rest)
    shape = (x.shape[0], 2)
    weights = t.op(
        "copy", (first.weights, second.weights), shape, first.weights.dtype, label="routing weights"
    )
    return Routing(weights, Value(shape, I64, label="chosen experts"))


def _draw_expert(t: Tape, logits: Value, scores: Value) -> Routing:
    """One expert and its weight; in training the weight passes through the mixer's own backward."""
    mask = Value(scores.shape, BOOL, label="threshold mask")
    masked = t.op("masked_fill", (scores,), scores.shape, scores.dtype, saves=(mask,))
    gates = t.softmax(masked, label="masked gates")
    index = Value((scores.shape[0], 1), I64, label="drawn expert")
    weight = t.op("gather", (gates,), index.shape, gates.dtype, saves=(gates, index))
    if not t.regime.training:
        return Routing(weight, index)
    mixed = t.op(
        "mixer",
        (logits, weight),
        index.shape,
        gates.dtype,
        saves=(weight, index, gates),
        label="multiplier",
    )
    return Routing(mixed, index)
