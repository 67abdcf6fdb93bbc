"""PEFT's LoRA and DoRA beside a linear layer, as its code runs them (peft 0.21 lora/layer.py, bnb.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramcast.models.record.values import Value

if TYPE_CHECKING:
    from vramcast.models.record.tape import Tape


def adapt_linear(t: Tape, x: Value, y: Value, out: int) -> Value:
    """Beside y, a frozen layer's output: cast, dropout, A, B, scale, add."""
    lora = t.regime.lora
    assert lora is not None
    keeps_dtype = t.regime.quantized is not None and t.regime.autocast is not None
    if t.regime.quantized is not None and t.regime.quantized.clones:
        y = t.copy(y, label=f"{y.label} cloned")
    h = x if keeps_dtype else t.cast(x, lora.dtype)
    a = _product(t, "lora_A.default", t.dropout(h, lora.dropout, "lora dropout"), lora.rank)
    delta = t.scale(_product(t, "lora_B.default", a, out), "lora scaled")
    if lora.dora:
        delta = _dora(t, y, delta, out)
    adapted = t.cast(t.add(y, delta, "adapted"), y.dtype)
    return t.holding(adapted, x, h)  # the module's argument, and what its code calls x


def _dora(t: Tape, y: Value, delta: Value, out: int) -> Value:
    """Both paths are scaled by a trained magnitude over the column norms, which costs one more kept copy each."""
    with t.scope("lora_magnitude_vector.default"):
        magnitude = t.factor("weight", (out,))
    return t.add(t.mul(y, magnitude, "dora base"), t.mul(delta, magnitude, "dora delta"))


def _product(t: Tape, name: str, x: Value, out: int) -> Value:
    with t.scope(name):
        return t.low_rank("weight", x, out)
