"""Mixtures of experts: routers, and experts run by one grouped matmul or in a loop, as transformers 5 writes them.

Numbers of rows are those of all experts together: tokens × k. How evenly experts are hit does not change what is kept,
only what one expert's rows cost; `busiest_rows` bounds that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramcast.models.record.dims import Number, minimum
from vramcast.models.record.expert_adapters import Weight, expert_factors, router_weight
from vramcast.models.record.layers import split
from vramcast.models.record.tape import BOOL, F32, I32, I64, Tape, Value, promote


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


@dataclass(frozen=True, slots=True)
class Routing:
    """What a router hands to the experts: a weight and an expert's number for each chosen pair."""

    weights: Value  # [tokens, k]
    index: Value  # [tokens, k]


# ---- routers


def top_k(t: Tape, scores: Value, k: Number) -> Routing:
    """torch.topk: the values carry the gradient, the indices are kept."""
    index = Value((scores.shape[0], k), I64, label="chosen experts")
    weights = t.op("topk", (scores,), index.shape, scores.dtype, saves=(index,), label="routing weights")
    return Routing(weights, index)


def normalised(t: Tape, weights: Value) -> Value:
    """weights /= weights.sum(-1): an in-place division keeps its operands as they were."""
    total = t.op("sum", (weights,), (*weights.shape[:-1], 1), weights.dtype, label="sum of routing weights")
    before = Value(weights.shape, weights.dtype, label="routing weights before division")
    return t.op("div", (weights, total), weights.shape, weights.dtype, saves=(before, total), label="routing weights")


def softmax_router(t: Tape, name: str, x: Value, e: Experts, *, normalise: bool, keeps_fp32: bool = False) -> Routing:
    """Softmax over all experts in fp32, then the k best."""
    logits = router_logits(t, name, x, e)
    routing = top_k(t, t.softmax(logits, F32, "router probabilities"), e.k)
    weights = normalised(t, routing.weights) if normalise else routing.weights
    return Routing(weights if keeps_fp32 else t.cast(weights, logits.dtype), routing.index)


def chosen_softmax_router(t: Tape, name: str, x: Value, e: Experts) -> Routing:
    """gpt-oss: the k best logits, then softmax over them in their own dtype."""
    logits = t.linear(name, x, e.num, bias=True, label="router logits", kind="router")
    routing = top_k(t, logits, e.k)
    return Routing(t.softmax(routing.weights, logits.dtype, "routing weights"), routing.index)


def router_logits(t: Tape, name: str, x: Value, e: Experts) -> Value:
    if not t.adapts(name, "router"):
        return t.linear(name, x, e.num, label="router logits", kind="router")
    with t.scope(name):
        return _logits(t, x, router_weight(t, int(e.num), int(x.shape[-1])), e)


def fp32_logits(t: Tape, name: str, x: Value, e: Experts) -> Value:
    """DeepSeek: input and weight raised to fp32 before the product (which autocast may lower again)."""
    with t.scope(name):
        weight = t.cast(router_weight(t, int(e.num), int(x.shape[-1])), F32)
        return _logits(t, t.cast(x, F32), weight, e)


def _logits(t: Tape, x: Value, weight: Value, e: Experts) -> Value:
    x, weight = t.autocasted(x), t.autocasted(weight)
    saves = _factors_kept(x, weight)
    return t.op("linear", (x, weight), (x.shape[0], e.num), x.dtype, saves=saves, label="router logits")


def _factors_kept(x: Value, weight: Value) -> tuple[Value, ...]:
    """Each factor for the gradient of the other; a parameter takes no more room for that."""
    return tuple(kept for kept, other in ((x, weight), (weight, x)) if other.requires_grad)


def group_softmax_router(t: Tape, name: str, x: Value, e: Experts, *, grouped: bool) -> Routing:
    """DeepSeek-V2: softmax, groups that are not among the best masked out, the k best, scaled."""
    scores = t.softmax(fp32_logits(t, name, x, e), F32, "router probabilities")
    if grouped:
        mask = Value(scores.shape, BOOL, label="group mask")
        scores = t.op("masked_fill", (scores,), scores.shape, F32, saves=(mask,))
    routing = top_k(t, scores, e.k)
    return Routing(t.scale(routing.weights), routing.index)


def sigmoid_router(t: Tape, name: str, x: Value, e: Experts, *, normalise: bool) -> Routing:
    """DeepSeek-V3: sigmoid scores; the choice (with its correction bias) carries no gradient."""
    scores = t.activation(fp32_logits(t, name, x, e), "sigmoid", "router scores")
    index = Value((scores.shape[0], e.k), I64, label="chosen experts")
    weights = t.op("gather", (scores,), index.shape, scores.dtype, saves=(scores, index), label="routing weights")
    weights = normalised(t, weights) if normalise else weights
    return Routing(t.scale(weights), index)


def sparse_mixer(t: Tape, name: str, x: Value, e: Experts) -> Routing:
    """Phi-MoE: two experts drawn one after the other, each weighted through its own masked softmax."""
    logits = t.linear(name, x, e.num, label="router logits", kind="router")
    first = _drawn(t, logits, logits)
    rest = t.op(
        "scatter", (logits,), logits.shape, logits.dtype, saves=(first.index,), label="logits without the first"
    )
    second = _drawn(t, logits, rest)
    shape = (x.shape[0], 2)
    weights = t.op("copy", (first.weights, second.weights), shape, first.weights.dtype, label="routing weights")
    return Routing(weights, Value(shape, I64, label="chosen experts"))


def _drawn(t: Tape, logits: Value, scores: Value) -> Routing:
    mask = Value(scores.shape, BOOL, label="threshold mask")
    masked = t.op("masked_fill", (scores,), scores.shape, scores.dtype, saves=(mask,))
    gates = t.softmax(masked, label="masked gates")
    index = Value((scores.shape[0], 1), I64, label="drawn expert")
    weight = t.op("gather", (gates,), index.shape, gates.dtype, saves=(gates, index))
    if not t.regime.training:
        return Routing(weight, index)
    mixed = t.op("mixer", (logits, weight), index.shape, gates.dtype, saves=(weight, index, gates), label="multiplier")
    return Routing(mixed, index)


# ---- experts


def run_experts(t: Tape, x: Value, routing: Routing, e: Experts) -> Value:
    """x is [tokens, h]. The parameters are three-dimensional, one slice for each expert."""
    e = replace(e, inner=e.inner // t.regime.split.expert_tp)
    run = _grouped if t.regime.experts == "grouped" else _looped
    with t.scope("experts"):
        return run(t, x, routing, e, *_weights(t, int(x.shape[-1]), e))


def _weights(t: Tape, h: int, e: Experts) -> tuple[Weight, Weight]:
    """Into hidden and gate, and back."""
    inner, num = int(e.inner), int(e.num) // t.regime.split.ep
    shapes = {"gate_up_proj": (h, 2 * inner), "down_proj": (inner, h)}
    joined = {"gate_up_proj": 2, "down_proj": 1}
    adapted = [name for name in shapes if t.adapts(name, "experts")]
    with t.scope(".".join("base_layer" for _ in adapted)):  # PEFT wraps the module once for each parameter
        bases = {
            name: t.param(name, (num, *(shape if e.transposed else shape[::-1])), "experts")
            for name, shape in shapes.items()
        }
        biases = {
            name: t.param(f"{name}_bias", (num, out), "experts") if e.bias else None
            for name, (_, out) in shapes.items()
        }
    factors = {}
    for index, name in enumerate(adapted):
        with t.scope(".".join("base_layer" for _ in adapted[index + 1 :])):
            factors[name] = expert_factors(t, bases[name], joined[name], transposed=e.transposed)
    up, down = (Weight(base=bases[n], bias=biases[n], factors=factors.get(n, ())) for n in shapes)
    return up, down


def _grouped(t: Tape, x: Value, routing: Routing, e: Experts, up: Weight, down: Weight) -> Value:
    """Rows sorted by expert, two grouped matmuls (which autocast does not reach), rows put back and added up."""
    rows = x.shape[0] * e.k
    expert_of_row = Value((rows,), I64, label="expert of each row")
    order = Value((rows,), I64, label="order of rows")
    offsets = Value((e.num,), I32, label="offsets of experts")
    chosen = _indexed(t, x, (rows, x.shape[-1]), (Value((rows,), I64, label="token of each row"),), "routed rows")
    weights = _indexed(t, routing.weights, (rows, 1), (order,), "row weights")
    chosen = _sent(t, chosen)

    cache: list[Value] = []

    def linear(y: Value, w: Weight, out: int, label: str) -> Value:
        weight = w.folded(t)
        cache.append(weight)
        y = t.cast(y, weight.dtype)
        saves = (*_factors_kept(y, weight), offsets)
        y = t.op("grouped_mm", (y, weight), (y.shape[0], out), y.dtype, saves=saves, label=label, flops=_flops(y, out))
        if w.bias is None:
            return y
        return _plus(t, y, _indexed(t, w.bias, y.shape, (expert_of_row,), "bias of each row"), label)

    y = linear(_gated(t, linear(chosen, up, 2 * e.inner, "gate and up"), e), down, x.shape[-1], "expert output")
    y = t.mul(_returned(t, y, rows), weights, "weighted rows")
    y = _indexed(t, y, y.shape, (Value((rows,), I64, label="order back"),), "weighted rows in order")
    y = t.cast(t.op("sum", (y,), x.shape, y.dtype, label="mixture"), x.dtype)
    return t.holding(y, *cache) if up.factors or down.factors else y  # torch's parametrize.cached() around the forward


def _looped(t: Tape, x: Value, routing: Routing, e: Experts, up: Weight, down: Weight) -> Value:
    """Expert by expert; what the turns keep, laid end to end."""
    rows = x.shape[0] * e.k
    where = Value((rows, 2), I64, label="token and place of each row")
    chosen = _indexed(t, x, (rows, x.shape[-1]), (where,), "routed rows")
    chosen = _sent(t, chosen)

    def linear(y: Value, w: Weight, out: int, label: str) -> Value:
        y, weight = t.autocasted(y), t.autocasted(w.folded(t))
        saves = _factors_kept(y, weight)
        y = t.op("linear", (y, weight), (y.shape[0], out), y.dtype, saves=saves, label=label, flops=_flops(y, out))
        return y if w.bias is None else _plus(t, y, w.bias, label)

    y = linear(_gated(t, linear(chosen, up, 2 * e.inner, "gate and up"), e), down, x.shape[-1], "expert output")
    weights = _indexed(t, routing.weights, (rows, 1), (where,), "row weights")
    y = t.cast(t.mul(_returned(t, y, rows), weights, "weighted rows"), x.dtype)
    return t.op("index_add", (y,), x.shape, x.dtype, saves=(where, y), label="mixture")


def _sent(t: Tape, rows: Value) -> Value:
    """All-to-all to the ranks that hold the experts: an even share comes back, or more on the fullest rank."""
    split = t.regime.split
    if split.ep == 1:
        return rows
    return t.copy(rows, (rows.shape[0] * split.expert_load // 100, rows.shape[1]), "rows received")


def _returned(t: Tape, y: Value, rows: Number) -> Value:
    return y if t.regime.split.ep == 1 else t.copy(y, (rows, y.shape[1]), "rows returned")


def _indexed(t: Tape, x: Value, shape: tuple[Number, ...], index: tuple[Value, ...], label: str) -> Value:
    return t.op("index", (x,), shape, x.dtype, saves=index, label=label)


def _plus(t: Tape, y: Value, bias: Value, label: str) -> Value:
    return t.op("add", (y, bias), y.shape, promote(y.dtype, bias.dtype), label=label, passes_grad=True)


def _flops(y: Value, out: int) -> Number:
    return 2 * y.shape[0] * y.shape[1] * out


def _gated(t: Tape, both: Value, e: Experts) -> Value:
    gate, up = split(t, both, (e.inner, e.inner))
    if not e.clamped_gate:
        return t.mul(t.activation(gate, e.act), up, "gated rows")
    gate, up = (t.op("clamp", (half,), half.shape, half.dtype, saves=(half,)) for half in (gate, up))
    bent = t.activation(t.scale(gate), "sigmoid")
    return t.mul(t.scale(up, "up + 1"), t.mul(gate, bent, "glu"), "gated rows")


def busiest_rows(tokens: Number, k: Number, num: int, imbalance: float) -> Number:
    """Rows of the busiest expert: `imbalance` times its even share, and never more than all tokens."""
    share = -(-tokens * k * round(imbalance * 1000) // (1000 * num))
    return minimum(tokens, share)
