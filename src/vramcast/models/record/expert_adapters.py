"""PEFT's adapters on parameters that belong to no linear layer: experts held as one tensor, and their routers.

In come a parameter's shape and kind, out comes the weight that products see. As peft 0.21 does it (tuners/lora/layer.py
`ParamWrapper`): the sum of parameter and adapter is a tensor of its own, as large as the parameter, made anew in every
forward and kept for backward, where its gradient is as large again. PEFT before 0.21 made the product of the factors
first, one more such tensor; that is not described.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from vramcast.models.record.tape import Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter with one slice for each expert, and the factors that are added to it."""

    base: Value
    bias: Value | None = None
    factors: tuple[Value, ...] = ()  # [experts, out, rank] and [experts, rank, in], in the parameter's dtype

    def folded(self, t: Tape) -> Value:
        """The weight as the product sees it, made when it is first read."""
        if not self.factors:
            return self.base
        flops = 2 * prod(self.base.shape) * self.factors[0].shape[-1]
        shape, dtype, label = self.base.shape, self.base.dtype, "experts with their adapter"
        return t.op("baddbmm", (self.base, *self.factors), shape, dtype, saves=self.factors, label=label, flops=flops)


def expert_factors(t: Tape, base: Value, joined: int, *, transposed: bool) -> tuple[Value, ...]:
    """All experts' adapters lie in one pair of matrices; views of them, cast to the parameter's dtype, are the factors.
    `joined` projections lie in the parameter; `transposed`: it is [experts, in, out]."""
    assert t.regime.lora is not None
    rank = joined * t.regime.lora.rank
    num, out, width = (int(size) for size in base.shape)
    if transposed:
        out, width = width, out
    a = t.factor("lora_A.default.weight", (rank * num, width))
    b = t.factor("lora_B.default.weight", (out, rank * num))
    shapes = ((num, width, rank), (num, rank, out)) if transposed else ((num, out, rank), (num, rank, width))
    left, right = (a, b) if transposed else (b, a)
    return tuple(t.cast(t.view(x, shape), base.dtype) for x, shape in zip((left, right), shapes, strict=True))


def router_weight(t: Tape, num: int, width: int) -> Value:
    """The weight of the open scope's router, its adapter's product added."""
    adapted = t.adapts("", "router")
    with t.scope("base_layer" if adapted else ""):
        weight = t.param("weight", (num, width), "router")
    if not adapted or t.regime.lora is None:
        return weight
    a = t.factor("lora_A.default.weight", (t.regime.lora.rank, width))
    b = t.factor("lora_B.default.weight", (num, t.regime.lora.rank))
    delta = t.scale(t.matmul(b, a, (num, width), "adapter of the router"))
    return t.add(weight, t.cast(delta, weight.dtype), "router with its adapter")
