"""PEFT's adapters on parameters that belong to no linear layer: experts stored as one tensor, and their routers.

In come a parameter's shape and kind, out comes the weight that products see. As peft 0.21 does it (tuners/lora/layer.py
`ParamWrapper`): the sum of parameter and adapter is a tensor of its own, as large as the parameter, made anew in every
forward and saved for backward, where its gradient is as large again. PEFT before 0.21 made the product of the factors
first, one more such tensor; that is not described.

Example: 8 experts with a down projection of [8, 4, 16] in bf16 have 1,024 bytes; with an adapter, the product reads a
second tensor of 1,024 bytes, which it saves. For linear layers see `adapters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from vramcast.models.record.tape import Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter with one slice for each expert, and an adapter's factors whose product is added to it."""

    base: Value
    bias: Value | None = None
    # [experts, out, rank] and [experts, rank, in], in the parameter's dtype.
    factors: tuple[Value, ...] = ()

    def with_adapter(self, t: Tape) -> Value:
        """The weight as the product sees it, made when it is first read."""
        if not self.factors:
            return self.base
        rank = self.factors[0].shape[-1]
        return t.op(
            "baddbmm",
            (self.base, *self.factors),
            self.base.shape,
            self.base.dtype,
            saves=self.factors,
            label="experts with their adapter",
            flops=2 * prod(self.base.shape) * rank,
        )


def expert_factors(t: Tape, base: Value, joined: int, *, transposed: bool) -> tuple[Value, ...]:
    """All experts' adapters are stored in one pair of matrices; views of them, cast to the parameter's dtype, are the
    factors. `joined`: how many projections the parameter holds; `transposed`: it is [experts, in, out]."""
    rank = joined * t.lora.rank
    num, rows, columns = (int(size) for size in base.shape)
    width, out = (rows, columns) if transposed else (columns, rows)
    a = t.adapter_param("lora_A.default.weight", (rank * num, width))
    b = t.adapter_param("lora_B.default.weight", (out, rank * num))
    left, right = (a, b) if transposed else (b, a)
    left_factor = t.cast(t.view(left, (num, rows, rank)), base.dtype)
    right_factor = t.cast(t.view(right, (num, rank, columns)), base.dtype)
    return left_factor, right_factor


def router_weight(t: Tape, num: int, width: int) -> Value:
    """The weight of the open scope's router, with its adapter's product added."""
    has_adapter = t.has_adapter("", "router")
    with t.scope("base_layer" if has_adapter else ""):
        weight = t.param("weight", (num, width), "router")
    if not has_adapter:
        return weight
    rank = t.lora.rank
    a = t.adapter_param("lora_A.default.weight", (rank, width))
    b = t.adapter_param("lora_B.default.weight", (num, rank))
    delta = t.scale(t.matmul(b, a, (num, width), "adapter of the router"))
    return t.add(weight, t.cast(delta, weight.dtype), "router with its adapter")
