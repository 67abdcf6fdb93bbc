"""Experts of a mixture, run by one grouped matmul or in a loop, as transformers 5 writes them.

Rows are counted over all experts together, tokens × k: 1,000 tokens with k = 2 and h = 4,096 in bf16 become 2,000
routed rows of 16.4 MB; with an inner width of 14,336, "gate and up" has 2,000 · 28,672 · 2 bytes = 115 MB. How evenly
experts are hit does not change what is saved. Routers are in `routers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramcast.models.record.dims import Number
from vramcast.models.record.expert_adapters import Weight, expert_factors
from vramcast.models.record.expert_modules import must_be_told_apart, run_expert_modules
from vramcast.models.record.layers import split
from vramcast.models.record.ops import saved_factors
from vramcast.models.record.routers import Experts, Routing
from vramcast.models.record.tape import I32, I64, Tape, Value, promote

# Applies a weight: rows, the weight, the width of the result, a label.
Linear = Callable[[Value, Weight, int, str], Value]


def run_experts(t: Tape, x: Value, routing: Routing, e: Experts) -> Value:
    """x is [tokens, h]. The parameters are three-dimensional, one slice for each expert."""
    are_modules = t.regime.experts == "modules" and not e.clamped_gate
    if are_modules and must_be_told_apart(t, e):
        return run_expert_modules(t, x, routing, e)
    e = replace(e, inner=e.inner // t.regime.split.expert_tp)
    run = _run_grouped if t.regime.experts == "grouped" else _run_in_loop
    with t.scope("experts"):
        up, down = _declare_weights(t, int(x.shape[-1]), e)
        return run(t, x, routing, e, up, down)


# ---- weights


def _declare_weights(t: Tape, h: int, e: Experts) -> tuple[Weight, Weight]:
    """Into hidden and gate, and back. PEFT wraps the module once for each parameter that has an adapter."""
    inner, num = int(e.inner), int(e.num) // t.regime.split.ep
    shapes = {"gate_up_proj": (h, 2 * inner), "down_proj": (inner, h)}  # in, out
    num_projections = {"gate_up_proj": 2, "down_proj": 1}
    adapted = [name for name in shapes if t.has_adapter(name, "experts")]
    with t.scope(_wrappers(len(adapted))):
        bases = {name: _base(t, name, num, *shape, e) for name, shape in shapes.items()}
        biases = {name: _bias(t, name, num, out, e) for name, (_, out) in shapes.items()}
    factors: dict[str, tuple[Value, ...]] = {}
    for index, name in enumerate(adapted):
        with t.scope(_wrappers(len(adapted) - index - 1)):
            factors[name] = expert_factors(
                t, bases[name], num_projections[name], transposed=e.transposed
            )
    up, down = (
        Weight(base=bases[name], bias=biases[name], factors=factors.get(name, ()))
        for name in shapes
    )
    return up, down


def _wrappers(num: int) -> str:
    return ".".join(["base_layer"] * num)


def _base(t: Tape, name: str, num: int, width: int, out: int, e: Experts) -> Value:
    shape = (num, width, out) if e.transposed else (num, out, width)
    return t.param(name, shape, "experts")


def _bias(t: Tape, name: str, num: int, out: int, e: Experts) -> Value | None:
    return t.param(f"{name}_bias", (num, out), "experts") if e.bias else None


# ---- two ways to run them


def _run_grouped(
    t: Tape, x: Value, routing: Routing, e: Experts, up: Weight, down: Weight
) -> Value:
    """Rows sorted by expert, two grouped matmuls (which autocast does not reach), rows put back and added up."""
    rows, h = x.shape[0] * e.k, x.shape[-1]
    expert_of_row = Value((rows,), I64, label="expert of each row")
    order = Value((rows,), I64, label="order of rows")
    offsets = Value((e.num,), I32, label="offsets of experts")
    token_of_row = Value((rows,), I64, label="token of each row")
    chosen = _index(t, x, (rows, h), token_of_row, "routed rows")
    weights = _index(t, routing.weights, (rows, 1), order, "row weights")
    chosen = _send(t, chosen)
    used_weights: list[Value] = []

    def linear(y: Value, w: Weight, out: int, label: str) -> Value:
        weight = w.with_adapter(t)
        used_weights.append(weight)
        y = t.cast(y, weight.dtype)
        saves = (*saved_factors(y, weight), offsets)
        y = _product(t, "grouped_mm", y, weight, out, label, saves)
        if w.bias is None:
            return y
        return _add_bias(t, y, _index(t, w.bias, y.shape, expert_of_row, "bias of each row"), label)

    y = _run_mlp(t, chosen, e, up, down, linear, h)
    y = t.mul(_return(t, y, rows), weights, "weighted rows")
    order_back = Value((rows,), I64, label="order back")
    y = _index(t, y, y.shape, order_back, "weighted rows in order")
    y = t.cast(t.op("sum", (y,), x.shape, y.dtype, label="mixture"), x.dtype)
    if up.factors or down.factors:
        return t.hold(y, *used_weights)  # torch's parametrize.cached() around the forward
    return y


def _run_in_loop(
    t: Tape, x: Value, routing: Routing, e: Experts, up: Weight, down: Weight
) -> Value:
    """Expert by expert; what the turns save, as one tensor each."""
    rows, h = x.shape[0] * e.k, x.shape[-1]
    token_and_place = Value((rows, 2), I64, label="token and place of each row")
    chosen = _index(t, x, (rows, h), token_and_place, "routed rows")
    chosen = _send(t, chosen)

    def linear(y: Value, w: Weight, out: int, label: str) -> Value:
        y, weight = t.autocast(y), t.autocast(w.with_adapter(t))
        y = _product(t, "linear", y, weight, out, label, saved_factors(y, weight))
        return y if w.bias is None else _add_bias(t, y, w.bias, label)

    y = _run_mlp(t, chosen, e, up, down, linear, h)
    weights = _index(t, routing.weights, (rows, 1), token_and_place, "row weights")
    y = t.cast(t.mul(_return(t, y, rows), weights, "weighted rows"), x.dtype)
    return t.op("index_add", (y,), x.shape, x.dtype, saves=(token_and_place, y), label="mixture")


def _run_mlp(
    t: Tape, rows: Value, e: Experts, up: Weight, down: Weight, linear: Linear, h: int
) -> Value:
    """down(gate(up(rows)))"""
    gate_and_up = linear(rows, up, 2 * e.inner, "gate and up")
    return linear(_apply_gate(t, gate_and_up, e), down, h, "expert output")


def _apply_gate(t: Tape, gate_and_up: Value, e: Experts) -> Value:
    gate, up = split(t, gate_and_up, (e.inner, e.inner))
    if not e.clamped_gate:
        return t.mul(t.activation(gate, e.act), up, "gated rows")
    gate, up = _clamp(t, gate), _clamp(t, up)
    sigmoid = t.activation(t.scale(gate), "sigmoid")
    shifted_up = t.scale(up, "up + 1")
    return t.mul(shifted_up, t.mul(gate, sigmoid, "glu"), "gated rows")


def _clamp(t: Tape, x: Value) -> Value:
    return t.op("clamp", (x,), x.shape, x.dtype, saves=(x,))


# ---- rows


def _send(t: Tape, rows: Value) -> Value:
    """All-to-all to the ranks that hold the experts: an even share comes back, or more on the fullest rank."""
    parts = t.regime.split
    if parts.ep == 1:
        return rows
    num, width = rows.shape
    return t.copy(rows, (num * parts.expert_load // 100, width), "rows received")


def _return(t: Tape, y: Value, rows: Number) -> Value:
    return y if t.regime.split.ep == 1 else t.copy(y, (rows, y.shape[1]), "rows returned")


def _index(t: Tape, x: Value, shape: tuple[Number, ...], index: Value, label: str) -> Value:
    return t.op("index", (x,), shape, x.dtype, saves=(index,), label=label)


def _product(
    t: Tape, name: str, y: Value, weight: Value, out: int, label: str, saves: tuple[Value, ...]
) -> Value:
    rows, width = y.shape
    flops = 2 * rows * width * out
    return t.op(name, (y, weight), (rows, out), y.dtype, saves=saves, label=label, flops=flops)


def _add_bias(t: Tape, y: Value, bias: Value, label: str) -> Value:
    dtype = promote(y.dtype, bias.dtype)
    return t.op("add", (y, bias), y.shape, dtype, label=label, passes_grad=True)
