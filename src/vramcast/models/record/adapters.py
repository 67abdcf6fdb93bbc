"""PEFT's LoRA and DoRA on a linear layer, as its code runs them (peft 0.21 lora/layer.py, bnb.py).

A linear layer of 4 → 3 with rank 2 on x of shape (5, 4): A is (2, 4), B is (3, 2), and y + scale · B(A(dropout(x)))
saves x for A (5 · 4 elements) and A's output for B (5 · 2 elements); the frozen layer itself saves nothing of x.
"""

from __future__ import annotations

from vramcast.models.record.ops import Ops
from vramcast.models.record.values import Value


def add_adapter(t: Ops, x: Value, y: Value, out: int) -> Value:
    """y is the frozen layer's output for x. Adds the adapter's: cast, dropout, A, B, scale, add."""
    lora = t.lora
    quantized = t.regime.quantized
    if quantized is not None and quantized.clones:
        y = t.copy(y, label=f"{y.label} cloned")
    keeps_dtype = quantized is not None and t.regime.autocast is not None
    adapter_input = x if keeps_dtype else t.cast(x, lora.dtype)
    dropped = t.dropout(adapter_input, lora.dropout, "lora dropout")
    low_rank = _multiply(t, "lora_A.default", dropped, lora.rank)
    delta = t.scale(_multiply(t, "lora_B.default", low_rank, out), "lora scaled")
    if lora.dora:
        delta = _scale_by_magnitude(t, y, delta, out)
    adapted = t.cast(t.add(y, delta, "adapted"), y.dtype)
    return t.hold(adapted, x, adapter_input)  # the module's argument, and what its code calls x


def _scale_by_magnitude(t: Ops, y: Value, delta: Value, out: int) -> Value:
    """DoRA: both paths are scaled by a trained magnitude over the column norms; each product saves one more tensor."""
    with t.scope("lora_magnitude_vector.default"):
        magnitude = t.adapter_param("weight", (out,))
    return t.add(t.mul(y, magnitude, "dora base"), t.mul(delta, magnitude, "dora delta"))


def _multiply(t: Ops, name: str, x: Value, out: int) -> Value:
    with t.scope(name):
        return t.adapter_linear("weight", x, out)
