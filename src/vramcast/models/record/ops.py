"""What torch's ops save for backward, and what autocast does to their inputs.

Each method records one op, or the two or three of which torch makes one. The saving rules are torch's own
(torchgen/packaged/autograd/derivatives.yaml). Under bf16 autocast, with x of shape (2, 4) and a weight of shape (3, 4)
in fp32 that are both trained, `multiply_weight` (nn.Linear without a bias) records three ops:

    op       output                     saved
    to       x in bf16,  2·4·2 = 16 B   -
    to       w in bf16,  3·4·2 = 24 B   -
    linear   y in bf16,  2·3·2 = 12 B   x in bf16 (for w's gradient), w in bf16 (for x's gradient): 40 B

The fp32 x (32 B) is not saved by any of them. Without autocast there is only the `linear` op: it saves x (32 B); the
weight is a parameter and takes no extra room. Softmax adds its output to that, dropout a mask of one byte per element.

Knows type promotion, autocast, quantised weights and the differences between CUDA's and the CPU's kernels; knows
nothing about adapters, tensor parallelism or families.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from vramcast.errors import InvariantError
from vramcast.models.record.dims import Number, maximum, minimum
from vramcast.models.record.recorder import Recorder
from vramcast.models.record.regime import Lora, Quantized, Regime
from vramcast.models.record.values import BOOL, F16, F32, Dtype, Param, Value, promote


class Ops(Recorder):
    """A Recorder that knows what torch's ops save."""

    def __init__(self, regime: Regime) -> None:
        super().__init__(regime)
        self._in_decoder = False

    # ---- element-wise

    def cast(self, x: Value, dtype: Dtype, label: str = "") -> Value:
        if x.dtype == dtype:
            return x
        return self.op("to", (x,), x.shape, dtype, label=label or f"{x.label} {dtype.name}")

    def copy(self, x: Value, shape: tuple[Number, ...] | None = None, label: str = "") -> Value:
        """contiguous, cat, pad, repeat: new bytes, nothing saved."""
        return self.op("copy", (x,), shape or x.shape, x.dtype, label=label or x.label)

    def slice(self, x: Value, width: int) -> Value:
        """Part of the last axis."""
        return self.select(x, (*x.shape[:-1], width))

    def add(self, a: Value, b: Value, label: str = "sum") -> Value:
        """a and b of one shape; the gradient passes through to both."""
        dtype = promote(a.dtype, b.dtype)
        same_dtype = a.dtype == b.dtype
        return self.op("add", (a, b), a.shape, dtype, label=label, passes_grad=same_dtype)

    def add_in_place(self, a: Value, b: Value, label: str = "sum") -> Value:
        """`a += b`: no bytes. The gradient passes to a, and to b in b's own dtype."""
        if b.dtype != a.dtype:
            b = self._alias(b, a.dtype)
        output = self._alias(a, a.dtype, label)
        output.requires_grad = a.requires_grad or b.requires_grad
        op = self.ops()[-1]
        op.name, op.inputs, op.passes_grad = "add_", (a, b), True
        return output

    def add_rows_in_place(self, a: Value, rows: Value, index: Value, label: str = "sum") -> Value:
        """`a.index_add_(0, index, rows)`: no bytes; index and rows are saved. The gradient passes to a; that of rows is
        picked out of it."""
        rows = self._alias(rows, rows.dtype)
        if rows.requires_grad:
            self.ops()[-1].saved = (index.storage, rows.storage)
        return self.add_in_place(a, rows, label)

    def _alias(self, x: Value, dtype: Dtype, label: str = "") -> Value:
        """x read in another dtype inside a kernel; its gradient is cast back."""
        output = self.view(x, x.shape)
        output.dtype, output.label = dtype, label or x.label
        self.ops()[-1].passes_grad = False
        return output

    def scale(self, x: Value, label: str = "scaled") -> Value:
        """Times or plus a constant: nothing saved."""
        return self.op("scale", (x,), x.shape, x.dtype, label=label)

    def mul(self, a: Value, b: Value, label: str = "product") -> Value:
        """a sets the shape (b may broadcast). Each factor is saved for the gradient of the other."""
        dtype = promote(a.dtype, b.dtype)
        return self.op("mul", (a, b), a.shape, dtype, saves=saved_factors(a, b), label=label)

    def softmax(self, x: Value, dtype: Dtype | None = None, label: str = "softmax") -> Value:
        """Saves its output. CUDA's autocast runs it in fp32; fp16 alone is upcast inside the kernel (SoftMax.cpp)."""
        regime = self.regime
        autocast_upcasts = regime.autocast is not None and regime.cuda and dtype is None
        result_dtype = F32 if autocast_upcasts else dtype or x.dtype
        kernel_upcasts = regime.cuda and x.dtype == F16
        if regime.softmax_keeps_input or not kernel_upcasts:
            x = self.cast(x, result_dtype)
        saves = (x,) if regime.softmax_keeps_input else ()
        return self.op(
            "softmax", (x,), x.shape, result_dtype, saves=saves, saves_output=True, label=label
        )

    def dropout(self, x: Value, p: float, label: str = "dropout") -> Value:
        """CUDA saves a mask of one byte per element; the CPU kernel one of x's dtype."""
        if not p or not self.regime.training:
            return x
        mask_dtype = BOOL if self.regime.cuda else x.dtype
        mask = Value(x.shape, mask_dtype, label=f"{label} mask")
        return self.op("native_dropout", (x,), x.shape, x.dtype, saves=(mask,), label=label)

    # ---- autocast

    def autocast(self, x: Value) -> Value:
        """x as a matmul gets it under autocast. A parameter's copy is cached by torch until autocast ends."""
        compute = self.regime.autocast
        if compute is None or x.dtype == compute or not x.dtype.floating:
            return x
        if x.param is None:
            return self.cast(x, compute)
        label = f"{compute.name} copy of {x.param.name}"
        copy = self.op("to", (x,), x.shape, compute, label=label)
        copy.copy_of = x.param
        return copy

    def autocast_fp32(self, x: Value) -> Value:
        """x as CUDA's autocast hands it to ops that it runs in fp32: norms, pow. The CPU's does not."""
        return self.cast(x, F32) if self.regime.autocast and self.regime.cuda else x

    # ---- matrix products

    def matmul(self, a: Value, b: Value, shape: tuple[Number, ...], label: str = "matmul") -> Value:
        """A batched product of two activations; saves both."""
        return self.matmul_no_autocast(self.autocast(a), self.autocast(b), shape, label)

    def matmul_no_autocast(
        self, a: Value, b: Value, shape: tuple[Number, ...], label: str = "matmul"
    ) -> Value:
        """A product inside an op that autocast does not reach into."""
        dtype = promote(a.dtype, b.dtype)
        flops = 2 * prod(shape) * a.shape[-1]
        return self.op("bmm", (a, b), shape, dtype, saves=(a, b), label=label, flops=flops)

    def multiply_weight(
        self, x: Value, weight: Value, bias: Value | None, out: int, label: str
    ) -> Value:
        """x·weightᵀ (+ bias), the product inside nn.Linear. A quantised weight is dequantised for it."""
        quantized = self.regime.quantized
        if quantized is not None and weight.param is not None and _is_quantized(weight.param):
            return self._multiply_quantized(quantized, x, weight, bias, out, label)
        x, weight = self.autocast(x), self.autocast(weight)
        saves = saved_factors(x, weight)
        return self._linear_op(x, weight, bias, out, label, saves)

    def _multiply_quantized(
        self,
        quantized: Quantized,
        x: Value,
        weight: Value,
        bias: Value | None,
        out: int,
        label: str,
    ) -> Value:
        """The weight is dequantised in forward and once more in backward."""
        input_dtype = x.dtype
        x = self.cast(x, weight.dtype)
        saves = saved_factors(x, weight)
        if quantized.graph_keeps_input and x.requires_grad:
            saves = (x,)
            x.storage.kept_by_graph = True
        made = _rows_at_a_time(quantized, x, weight) * out * weight.dtype.nbytes
        y = self._linear_op(
            x,
            weight,
            bias,
            out,
            label,
            saves,
            forward_temp_bytes=_dequantized_bytes(quantized, weight, made),
            backward_temp_bytes=_dequantized_bytes(quantized, weight, x.nbytes),
        )
        return self.cast(y, input_dtype)  # bitsandbytes' Linear4bit.forward ends with .to(x.dtype)

    def _linear_op(
        self,
        x: Value,
        weight: Value,
        bias: Value | None,
        out: int,
        label: str,
        saves: tuple[Value, ...],
        forward_temp_bytes: Number = 0,
        backward_temp_bytes: Number = 0,
    ) -> Value:
        return self.op(
            "linear",
            (x, weight) if bias is None else (x, weight, bias),
            (*x.shape[:-1], out),
            promote(x.dtype, weight.dtype),
            saves=saves,
            label=label,
            flops=2 * prod(x.shape) * out,
            forward_temp_bytes=forward_temp_bytes,
            backward_temp_bytes=backward_temp_bytes,
        )

    # ---- adapters' own matrices

    @property
    def lora(self) -> Lora:
        if self.regime.lora is None:
            raise InvariantError(f"{self.path()}: an adapter is recorded in a job without adapters")
        return self.regime.lora

    def has_adapter(self, name: str, kind: str) -> bool:
        """Does the job put an adapter on this module or parameter of the open scope?"""
        lora = self.regime.lora
        if lora is None:
            return False
        if not lora.by_layer:
            return lora.matches(self.layer_path(name), kind)
        matches = lora.matches
        return self.decide(self.path(name), lambda full_name: matches(full_name, kind))

    def adapter_param(self, name: str, shape: tuple[int, ...]) -> Value:
        param = Param(name=self.path(name), shape=shape, kind="adapter", dtype=self.lora.dtype)
        return self.declare(param)

    def adapter_linear(self, name: str, x: Value, out: int) -> Value:
        """x times one of an adapter's own matrices."""
        weight = self.adapter_param(name, (out, x.shape[-1]))
        label = self.path(name).rpartition(".")[2]
        return self.multiply_weight(x, weight, None, out, label)

    # ---- norms

    def layer_norm(self, name: str, x: Value, *, bias: bool = True, affine: bool = True) -> Value:
        """Saves its input and two fp32 statistics per row. CUDA's autocast runs it in fp32."""
        x = self.autocast_fp32(x)
        width = x.shape[-1]
        with self.scope(name):
            params: list[Value] = []
            if affine:
                params.append(self.param("weight", (width,), "norm"))
            if affine and bias:
                params.append(self.param("bias", (width,), "norm"))
            # The CPU kernel computes its statistics in the weights' dtype.
            statistics_dtype = F32 if self.regime.cuda or not affine else self.regime.weights
            statistics = Value((*x.shape[:-1], 2), statistics_dtype, label=f"{name} mean, rstd")
            saves = (x, statistics)
            return self.op("layer_norm", (x, *params), x.shape, x.dtype, saves=saves, label=name)

    # ---- key/value cache

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Around the layers of a decoder: their self-attention fills the key/value cache, if the job has one."""
        self._in_decoder = True
        yield
        self._in_decoder = False

    def update_kv_cache(self, x: Value, dtype: Dtype | None = None) -> Value:
        """Keys or values as attention sees them after past_key_values.update(), which joins them to an empty tensor of
        that dtype if it copies."""
        if not self._in_decoder or self.regime.kv_cache == "none":
            return x
        if self.regime.kv_cache == "copy":
            joined = promote(x.dtype, dtype or x.dtype)
            x = self.op("cat", (x,), x.shape, joined, label="kv cache")
        x.storage.is_cache = True
        self.note_cached(x)
        return x


def saved_factors(a: Value, b: Value) -> tuple[Value, ...]:
    """What a product saves: each factor for the gradient of the other."""
    if a.requires_grad:
        return (a, b) if b.requires_grad else (b,)
    return (a,) if b.requires_grad else ()


def _dequantized_bytes(quantized: Quantized, weight: Value, made: Number) -> Number:
    """Beside the product and what it makes: the weight as it is multiplied. What it was cast from has gone by then, and
    counts where it is larger than what comes after it."""
    if quantized.loaded in (None, weight.dtype):
        return weight.nbytes
    loaded = weight.nbytes // weight.dtype.nbytes * quantized.loaded.nbytes
    return weight.nbytes + maximum(loaded - made, 0)


def _rows_at_a_time(quantized: Quantized, x: Value, weight: Value) -> Number:
    """Of one product: all, unless the head takes some positions after the others."""
    is_head = weight.param is not None and weight.param.kind == "head"
    if quantized.head_chunk is None or not is_head:
        return prod(x.shape[:-1])
    return prod(x.shape[:-2]) * minimum(x.shape[-2], quantized.head_chunk)


def _is_quantized(param: Param) -> bool:
    return param.stored_bytes is not None
