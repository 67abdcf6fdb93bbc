"""Activation functions by the names configs use, as transformers writes them (activations.py, ACT2FN).

Most are one op of torch that keeps its input. Some are Python expressions, whose every product keeps its factors. What
learns parameters of its own (prelu, xielu) is not described.
"""

from __future__ import annotations

from collections.abc import Callable

from vramcast.errors import unknown
from vramcast.models.record.ops import Ops
from vramcast.models.record.values import Value

KEEP_INPUT = frozenset(
    {
        "gelu",
        "gelu_pytorch_tanh",
        "silu",
        "swish",
        "mish",
        "hardswish",
        "leaky_relu",
        "relu6",
    }
)
KEEP_OUTPUT = frozenset({"relu", "tanh", "sigmoid"})


def activate(t: Ops, x: Value, kind: str, label: str) -> Value:
    if kind in KEEP_OUTPUT:
        return t.op(kind, (x,), x.shape, x.dtype, saves_output=True, label=label)
    if kind in KEEP_INPUT:
        return t.op(kind, (x,), x.shape, x.dtype, saves=(x,), label=label)
    if kind not in EXPRESSIONS:
        raise unknown(
            "activation",
            kind,
            {*KEEP_INPUT, *KEEP_OUTPUT, *EXPRESSIONS},
            "Trace the model instead.",
        )
    return EXPRESSIONS[kind](t, x, label)


def _gelu_new(t: Ops, x: Value, label: str) -> Value:
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))"""
    half = t.scale(x, "0.5·x")
    base = t.autocast_fp32(x)
    cube = t.op("pow", (base,), x.shape, base.dtype, saves=(base,), label="x³")
    inner = t.scale(t.add(x, t.scale(cube)), "inner")
    return t.mul(half, t.scale(activate(t, inner, "tanh", "tanh"), "1+tanh"), label)


def _bloom_gelu(t: Ops, x: Value, label: str) -> Value:
    """A Function of its own whose forward and backward are written in torch's ops (modeling_bloom.py bloom_gelu_forward
    and bloom_gelu_back): at most three tensors of x's size beside the result, and five before there is one."""
    return t.op(
        "bloom_gelu",
        (x,),
        x.shape,
        x.dtype,
        saves=(x,),
        label=label,
        forward_temp_bytes=3 * x.nbytes,
        backward_temp_bytes=5 * x.nbytes,
    )


def _gelu_fast(t: Ops, x: Value, label: str) -> Value:
    """0.5·x·(1 + tanh(0.7979·x·(1 + 0.044715·x·x)))"""
    square = t.scale(t.mul(t.scale(x, "0.044715·x"), x), "1+0.044715·x²")
    inner = t.mul(t.scale(x, "0.7979·x"), square, "inner")
    return t.mul(t.scale(x, "0.5·x"), t.scale(activate(t, inner, "tanh", "tanh"), "1+tanh"), label)


def _gelu_python(t: Ops, x: Value, label: str) -> Value:
    """x·0.5·(1 + erf(x/√2))"""
    root = t.scale(x, "x/√2")
    bent = t.scale(t.op("erf", (root,), x.shape, x.dtype, saves=(root,)), "1+erf")
    return t.mul(t.scale(x, "0.5·x"), bent, label)


def _clipped_gelu(t: Ops, x: Value, label: str) -> Value:
    gelu = activate(t, x, "gelu", "gelu")
    return t.op("clamp", (gelu,), x.shape, x.dtype, saves=(gelu,), label=label)


def _quick_gelu(t: Ops, x: Value, label: str) -> Value:
    """x·sigmoid(1.702·x)"""
    return t.mul(x, activate(t, t.scale(x), "sigmoid", "sigmoid"), label)


def _squared_relu(t: Ops, x: Value, label: str) -> Value:
    relu = t.autocast_fp32(activate(t, x, "relu", "relu"))
    return t.op("pow", (relu,), x.shape, relu.dtype, saves=(relu,), label=label)


EXPRESSIONS: dict[str, Callable[[Ops, Value, str], Value]] = {
    "gelu_new": _gelu_new,
    "gelu_accurate": _gelu_new,
    "gelu_python_tanh": _gelu_new,
    "bloom_gelu": _bloom_gelu,
    "gelu_fast": _gelu_fast,
    "gelu_python": _gelu_python,
    "gelu_10": _clipped_gelu,
    "quick_gelu": _quick_gelu,
    "relu2": _squared_relu,
    "linear": lambda t, x, label: x,
}
