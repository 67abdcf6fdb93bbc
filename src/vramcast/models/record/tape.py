"""What torch records when a model runs: values, the ops between them, and what autograd keeps.

A family (see `families/`) is a function that calls these primitives; running it under a Regime with number-like
dimensions leaves a list of sections of ops. Parameters, saved activations, peaks and FLOPs are folds over that
list. Knows torch's saving rules (torchgen/packaged/autograd/derivatives.yaml), type promotion and autocast;
knows nothing about families, GPUs or optimizers. The records themselves are in `values` and `regime`; who records
needs them all, so that they are given out here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

from vramcast.errors import InvariantError
from vramcast.models.record.activations import activate
from vramcast.models.record.adapters import adapt_linear
from vramcast.models.record.dims import Number, minimum, power_of_two_from
from vramcast.models.record.regime import WHOLE, Lora, Quantized, Regime, Split, everything
from vramcast.models.record.values import (
    BF16,
    BOOL,
    DTYPES,
    F16,
    F32,
    I32,
    I64,
    Dtype,
    Op,
    Param,
    Placed,
    Section,
    Value,
    numbered,
    promote,
)

__all__ = [
    "BF16", "BOOL", "DTYPES", "F16", "F32", "I32", "I64", "WHOLE", "Dtype", "Lora", "Op", "Param", "Placed",
    "Quantized", "Regime", "Section", "Split", "Tape", "Value", "numbered", "promote",
]  # fmt: skip

INNER_COLUMNS = ("q_b_proj", "kv_b_proj")  # behind a projection that every tensor-parallel rank computes whole


class Tape:
    """Records a model's forward pass. Names given to primitives are relative to the open scopes."""

    def __init__(self, regime: Regime) -> None:
        self.regime = regime
        self.placed: list[Placed] = []
        self.inputs: list[Value] = []
        self._scopes: list[str] = []
        self._section: Section | None = None
        self._layer: int | None = None
        self._held_in_layer: list[Value] = []
        self._decoding = False
        self.mask = "none"  # what the layer being recorded is given: see `windows.Masks`
        self._gathered: dict[int, tuple[Value, Value]] = {}

    # ---- structure

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        yield
        self._scopes.pop()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Around the layers of a decoder: their self-attention fills the key/value cache, if the regime has one."""
        self._decoding = True
        yield
        self._decoding = False

    def into_cache(self, x: Value) -> Value:
        """Keys or values as attention sees them after past_key_values.update()."""
        if not self._decoding or self.regime.kv_cache == "none":
            return x
        if self.regime.kv_cache == "copy":
            x = self.copy(x, label="kv cache")
        x.storage.is_cache = True
        return x

    def path(self, name: str = "") -> str:
        return ".".join(part for part in (*self._scopes, name) if part)

    def ops(self) -> list[Op]:
        """Of the open section, so far."""
        return self._section.ops if self._section is not None else []

    @contextmanager
    def part(self, name: str, *inputs: Value) -> Iterator[Section]:
        """A section that occurs once: embeddings, a stem, the head. Set its `outputs` before it closes."""
        with self._recording(Section(name=name, inputs=inputs)) as section:
            yield section
        self.placed.append(Placed(section))

    @contextmanager
    def reopened(self, section: Section) -> Iterator[None]:
        """More ops at the end of a section that was closed."""
        with self._recording(section):
            yield

    def stack(
        self, name: str, kinds: Sequence[Any], body: Callable[[Value, Any], Value], x: Value,
        masks: Sequence[str] = (),
    ) -> Value:  # fmt: skip
        """Layers `name.0 … name.n-1`; `body(x, kind)` is recorded once for layers that record alike."""
        recorded: dict[Any, list[tuple[int, Section]]] = {}
        with self.scope(name):
            for index, kind in enumerate(kinds):
                self.mask = masks[index] if masks else "none"
                before = recorded.setdefault((kind, self.mask, x.requires_grad, x.dtype), [])
                section = self._alike(before, index) or self._record(body, x, kind, index)
                before.append((index, section))
                self.placed.append(Placed(section, index))
                x = section.outputs[0]
        self.mask = "none"
        return x

    def _alike(self, before: list[tuple[int, Section]], index: int) -> Section | None:
        """The recording of an earlier layer with the same trainable parameters."""
        if self.regime.trainable is everything:
            return before[-1][1] if before else None
        for earlier, section in reversed(before):
            if self._trainable(section, earlier) == self._trainable(section, index):
                return section
        return None

    def _trainable(self, section: Section, index: int) -> tuple[bool, ...]:
        return tuple(self.regime.trainable(numbered(param.name, index)) for param in section.params)

    def _record(self, body: Callable[[Value, Any], Value], x: Value, kind: Any, index: int) -> Section:
        self._layer = index
        with self.scope("{i}"), self._recording(Section(name=self.path(), inputs=(x,), is_block=True)) as section:
            self._held_in_layer = [x]  # what a module is called with lives until it returns
            section.outputs = (body(x, kind),)
            if section.ops:
                section.ops[-1].held += tuple(self._held_in_layer)
        self._layer = None
        return section

    @contextmanager
    def _recording(self, section: Section) -> Iterator[Section]:
        if self._section is not None:
            raise InvariantError(f"section {section.name} opened inside {self._section.name}")
        self._section = section
        yield section
        self._section = None
        if not section.outputs:
            raise InvariantError(f"section {section.name} has no output")

    @contextmanager
    def without_grad(self) -> Iterator[None]:
        """torch.no_grad(), or a branch whose result the loss does not need: nothing of it is kept."""
        regime, self.regime = self.regime, replace(self.regime, grad=False)
        yield
        self.regime = regime

    # ---- values

    def input(self, label: str, shape: tuple[Number, ...], dtype: Dtype) -> Value:
        """A tensor that comes from outside: token ids, labels, pixels."""
        value = Value(shape, dtype, label=label)
        self.inputs.append(value)
        return value

    def param(self, name: str, shape: tuple[int, ...], kind: str, *, frozen: bool = False) -> Value:
        """Declare a parameter of the open section. `frozen`: the model itself keeps it from training."""
        full = self.path(name)
        concrete = numbered(full, self._layer)
        dtype = F32 if self.regime.upcast(concrete, kind) else self.regime.weights
        trainable = self.regime.lora is None and self.regime.trainable(concrete) and not frozen
        return self._declare(Param(name=full, shape=shape, kind=kind, dtype=dtype, trainable=trainable))

    def tie(self, name: str, value: Value) -> Value:
        """The same parameter under a second name."""
        if value.param is None or self._section is None:
            raise InvariantError(f"{name} can only be tied to a parameter, inside a section")
        self._section.params.append(replace(value.param, name=self.path(name), tied_to=value.param.name))
        return value

    def _declare(self, param: Param) -> Value:
        if self._section is None:
            raise InvariantError(f"{param.name} declared outside of a section")
        self._section.params.append(param)
        return Value(param.shape, param.dtype, param.trainable and self.regime.grad, param.name, param=param)

    def op(
        self, name: str, inputs: tuple[Value, ...], shape: tuple[Number, ...], dtype: Dtype, *, label: str = "",
        saves: tuple[Value, ...] = (), saves_output: bool = False, requires_grad: bool | None = None, **facts: Any,
    ) -> Value:  # fmt: skip
        """Record an op with a fresh output. What it saves counts only if its output needs a gradient."""
        if self._section is None:
            raise InvariantError(f"{name} recorded outside of a section")
        grad = self.regime.grad and any(v.requires_grad for v in inputs) if requires_grad is None else requires_grad
        output = Value(shape, dtype, grad, label or name)
        output.scattered = any(v.scattered for v in inputs)
        saved = (*saves, output) if saves_output else saves
        kept = tuple(v.storage for v in saved if v.param is None) if grad else ()
        self._section.ops.append(Op(name=name, module=self.path(), inputs=inputs, output=output, saved=kept, **facts))
        return output

    def view(self, x: Value, shape: tuple[Number, ...]) -> Value:
        """reshape, transpose, expand: no bytes, and the gradient is a view too."""
        if self._section is None:
            raise InvariantError("view recorded outside of a section")
        output = Value(shape, x.dtype, x.requires_grad, x.label, x.storage, x.param, x.copy_of, x.is_slice)
        output.scattered = x.scattered
        self._section.ops.append(Op(name="view", module=self.path(), inputs=(x,), output=output, passes_grad=True))
        return output

    def slice(self, x: Value, width: int) -> Value:
        """Part of the last axis."""
        return self.select(x, (*x.shape[:-1], width))

    def select(self, x: Value, shape: tuple[Number, ...]) -> Value:
        """Part of x (some columns, the first token): a view forward; backward, a new tensor as large as x."""
        if self._section is None:
            raise InvariantError("select recorded outside of a section")
        output = Value(shape, x.dtype, x.requires_grad, x.label, owner=x.storage, is_slice=True, scattered=x.scattered)
        self._section.ops.append(Op(name="select", module=self.path(), inputs=(x,), output=output))
        return output

    def holding(self, x: Value, *held: Value) -> Value:
        """x, by whose op local variables of the code (`attn_output`) still hold these."""
        if self._section is None:
            raise InvariantError("holding recorded outside of a section")
        self._section.ops[-1].held += held
        return x

    def hold_in_layer(self, x: Value) -> None:
        """A variable of the layer's own code holds x until the layer returns."""
        if self.regime.code == "transformers":
            self._held_in_layer.append(x)

    # ---- element-wise

    def cast(self, x: Value, dtype: Dtype, label: str = "") -> Value:
        return x if x.dtype == dtype else self.op("to", (x,), x.shape, dtype, label=label or f"{x.label} {dtype.name}")

    def copy(self, x: Value, shape: tuple[Number, ...] | None = None, label: str = "") -> Value:
        """contiguous, cat, pad, repeat: new bytes, nothing kept."""
        return self.op("copy", (x,), shape or x.shape, x.dtype, label=label or x.label)

    def add(self, a: Value, b: Value, label: str = "sum") -> Value:
        """a and b of one shape; the gradient passes through to both."""
        dtype = promote(a.dtype, b.dtype)
        same = a.dtype == b.dtype
        return self.op("add", (a, b), a.shape, dtype, label=label, passes_grad=same)

    def scale(self, x: Value, label: str = "scaled") -> Value:
        """Times or plus a constant: nothing kept."""
        return self.op("scale", (x,), x.shape, x.dtype, label=label)

    def mul(self, a: Value, b: Value, label: str = "product") -> Value:
        """a sets the shape (b may broadcast). Each factor is kept for the gradient of the other."""
        saves = tuple(kept for kept, other in ((a, b), (b, a)) if other.requires_grad)
        return self.op("mul", (a, b), a.shape, promote(a.dtype, b.dtype), saves=saves, label=label)

    def activation(self, x: Value, kind: str, label: str = "activated") -> Value:
        """gelu, silu, tanh … and what else configs name."""
        return activate(self, x, kind, label)

    def softmax(self, x: Value, dtype: Dtype | None = None, label: str = "softmax") -> Value:
        """Keeps its output. CUDA's autocast runs it in fp32; only fp16 is raised inside the kernel (SoftMax.cpp)."""
        raised = self.regime.autocast is not None and self.regime.cuda and dtype is None
        dtype = F32 if raised else dtype or x.dtype
        if self.regime.softmax_keeps_input or not (self.regime.cuda and x.dtype == F16):
            x = self.cast(x, dtype)
        saves = (x,) if self.regime.softmax_keeps_input else ()
        return self.op("softmax", (x,), x.shape, dtype, saves=saves, saves_output=True, label=label)

    def dropout(self, x: Value, p: float, label: str = "dropout") -> Value:
        """CUDA keeps a mask of one byte per element; the CPU kernel one of x's dtype."""
        if not p or not self.regime.training:
            return x
        mask = Value(x.shape, BOOL if self.regime.cuda else x.dtype, label=f"{label} mask")
        return self.op("native_dropout", (x,), x.shape, x.dtype, saves=(mask,), label=label)

    # ---- matrix products

    def autocasted(self, x: Value) -> Value:
        """x as a matmul sees it under autocast."""
        compute = self.regime.autocast
        if compute is None or x.dtype == compute or not x.dtype.floating:
            return x
        if x.param is None:
            return self.cast(x, compute)
        copy = self.op("to", (x,), x.shape, compute, label=f"{compute.name} copy of {x.param.name}")
        copy.copy_of = x.param
        return copy

    def raised(self, x: Value) -> Value:
        """x as CUDA's autocast hands it to ops that it runs in fp32: norms, pow. The CPU's does not."""
        return self.cast(x, F32) if self.regime.autocast and self.regime.cuda else x

    def matmul(self, a: Value, b: Value, shape: tuple[Number, ...], label: str = "matmul") -> Value:
        """A batched product of two activations; keeps both."""
        return self.matmul_plain(self.autocasted(a), self.autocasted(b), shape, label)

    def matmul_plain(self, a: Value, b: Value, shape: tuple[Number, ...], label: str = "matmul") -> Value:
        """A product inside an op that autocast does not reach into."""
        flops = 2 * prod(shape) * a.shape[-1]
        return self.op("bmm", (a, b), shape, promote(a.dtype, b.dtype), saves=(a, b), label=label, flops=flops)

    def linear(
        self, name: str, x: Value, out: int, *, bias: bool = False, weight: Value | None = None, label: str = "",
        transposed: bool = False, kind: str = "linear", adapt: bool = True,
    ) -> Value:  # fmt: skip
        """nn.Linear (or Conv1D when transposed), with whatever adapter and quantisation the regime puts on it.
        `adapt=False`: the caller writes its own adapter."""
        with self.scope(name):
            size = (x.shape[-1], out) if transposed else (out, x.shape[-1])
            regime, full = self.regime, numbered(self.path(), self._layer)
            adapted = adapt and self.adapts("", kind)
            with self.scope("base_layer" if adapted else ""):
                w = self.tie("weight", weight) if weight is not None else self._weight(size, full, kind)
                b = self.param("bias", (out,), "bias") if bias else None
                if kind == "head" and "loss" in regime.fused:
                    return self._fused_loss(self._whole(x), w)
                y = self._joined(x, w, b, out, label or name, kind)
            return adapt_linear(self, x, y, out) if adapted else y

    def adapts(self, name: str, kind: str) -> bool:
        """Does the regime put an adapter on this module or parameter of the open scope?"""
        lora = self.regime.lora
        return lora is not None and lora.matches(numbered(self.path(name), self._layer), kind)

    # ---- seams between tensor-parallel ranks

    def _joined(self, x: Value, w: Value, b: Value | None, out: int, label: str, kind: str) -> Value:
        """x·w with the collectives around it: with sequence parallelism, a column-parallel linear gathers its input and
        a row-parallel one (its input is whole along the sequence) scatters its output."""
        split = self.regime.split
        if split.tp == 1 or kind in ("router", "classifier"):
            return self._matmul_weight(x, w, b, out, label)
        y = self._matmul_weight(self._whole(x), w, b, out, label)
        if x.scattered and not split.keeps_gathered:
            self._gathered_again(x)
        if kind == "head":
            return y if split.vocab_logits else self._gathered_logits(y, label)
        is_row = not x.scattered and self._scopes[-2] not in INNER_COLUMNS
        return self._scatter(y) if split.sequence and is_row else y

    def _gathered_logits(self, y: Value, label: str) -> Value:
        """DTensor gathers along the first axis, then puts the parts together along the last
        (torch/distributed/_functional_collectives.py _maybe_view_chunk_cat)."""
        split = self.regime.split
        shape = (*y.shape[:-1], y.shape[-1] * split.tp)
        if not split.keeps_gathered:
            return self.copy(y, shape, label)
        parts = self.copy(y, shape, f"parts of {label}")
        own = Value(y.shape, y.dtype, label=y.label, owner=y)  # a variable holds it until all is put together
        return self.op("cat", (parts, own), shape, y.dtype, label=label, passes_grad=True)

    def _whole(self, x: Value) -> Value:
        """x along the whole sequence, gathered once for all linears that read it."""
        if not x.scattered:
            return x
        if id(x) not in self._gathered:
            b, s, width = x.shape
            y = self.op("all gather", (x,), (b, s * self.regime.split.tp, width), x.dtype, label=f"{x.label} gathered")
            y.scattered = False
            self._gathered[id(x)] = (x, y)
        return self._gathered[id(x)][1]

    def _gathered_again(self, x: Value) -> None:
        """The last linear keeps x instead of what was gathered from it, which backward gathers anew."""
        assert self._section is not None
        op, gathered = self._section.ops[-1], self._gathered[id(x)][1]
        op.saved = tuple(x.storage if value is gathered else value for value in op.saved)
        op.backward_temp_bytes = op.backward_temp_bytes + gathered.nbytes

    def _scatter(self, x: Value) -> Value:
        """Partial sums over all ranks to each rank's share of the sequence."""
        b, s, width = x.shape
        y = self.op("reduce scatter", (x,), (b, s // self.regime.split.tp, width), x.dtype, label=x.label)
        y.scattered = True
        return y

    def _fused_loss(self, x: Value, w: Value) -> Value:
        """Linear and cross entropy in one kernel (Liger's fused_linear_cross_entropy): gradients are made in the
        forward, chunk by chunk, so that the logits never exist whole."""
        rows, vocab, width = prod(x.shape[:-1]), w.shape[0], int(x.shape[-1])
        chunk = minimum(power_of_two_from(-(-rows // -(-int(vocab) // width))), rows)
        compute = self.regime.autocast or x.dtype
        logits = (chunk * vocab * compute.nbytes,) * self.regime.loss_chunks
        saves = [Value(x.shape, x.dtype, label="gradient of the last hidden state")] if x.requires_grad else []
        if w.requires_grad:
            saves.append(Value(w.shape, w.dtype, label="gradient of the head"))
        temps = (*logits, *self._head_copies(w, compute))
        return self.op(
            "fused linear cross entropy", (x, w), (), F32, saves=tuple(saves), label="loss",
            forward_temp_bytes=sum(temps), forward_temps=temps, flops=2 * prod(x.shape) * vocab,
            grad_in_place_of_saved=True,
        )  # fmt: skip

    def _head_copies(self, w: Value, compute: Dtype) -> tuple[Number, ...]:
        """Autocast casts the head's transpose for every chunk and keeps a cast of a trained head until it ends; a
        product that is not added up in place is a tensor of the head's size."""
        numel = prod(w.shape)
        cast = numel * compute.nbytes if w.dtype != compute else 0
        if not w.requires_grad:
            return (cast,)
        product: tuple[Number, ...] = () if compute.nbytes == 2 else (numel * F32.nbytes,)
        if self.regime.loss_sums_copies:
            product = (numel * compute.nbytes, numel * F32.nbytes if compute != F32 else 0)
        return (cast, *(product if sum(product) > cast else (cast,)))

    def _weight(self, size: tuple[int, int], full: str, kind: str) -> Value:
        quantized = self.regime.quantized
        if quantized is None or not quantized.matches(full, kind):
            return self.param("weight", size, kind)
        stored = quantized.stored_bytes(int(size[0]) * int(size[1]))
        param = Param(
            name=self.path("weight"), shape=size, kind=kind, dtype=quantized.compute, trainable=False,
            stored_bytes=stored,
        )  # fmt: skip
        return self._declare(param)

    def _matmul_weight(self, x: Value, w: Value, b: Value | None, out: int, label: str) -> Value:
        quantized = w.param is not None and w.param.stored_bytes is not None
        via_half = self.regime.quantized is not None and self.regime.quantized.via_half
        dequantized = w.nbytes * (1 + via_half) if quantized else 0
        given = x.dtype
        x, w = (self.cast(x, w.dtype), w) if quantized else (self.autocasted(x), self.autocasted(w))
        saves = tuple(kept for kept, other in ((x, w), (w, x)) if other.requires_grad)
        if quantized and self.regime.quantized and self.regime.quantized.pins_input and x.requires_grad:
            saves = (x,)
            x.storage.is_pinned = True
        y = self.op(
            "linear", (x, w) if b is None else (x, w, b), (*x.shape[:-1], out), promote(x.dtype, w.dtype),
            saves=saves, label=label, flops=2 * prod(x.shape) * out,
            forward_temp_bytes=dequantized, backward_temp_bytes=dequantized,
        )  # fmt: skip
        return self.cast(y, given) if quantized else y  # bitsandbytes' Linear4bit.forward ends with .to(x.dtype)

    def low_rank(self, name: str, x: Value, out: int) -> Value:
        """x times one of an adapter's own matrices."""
        return self._matmul_weight(
            x, self.factor(name, (out, x.shape[-1])), None, out, self.path(name).rpartition(".")[2]
        )

    def factor(self, name: str, shape: tuple[int, ...]) -> Value:
        """One of an adapter's own matrices."""
        assert self.regime.lora is not None
        return self._declare(Param(name=self.path(name), shape=shape, kind="adapter", dtype=self.regime.lora.dtype))

    # ---- tables and norms

    def table(self, name: str, rows: int, width: int, *, frozen: bool = False) -> Value:
        """The weight of an embedding, to look up in and perhaps to tie a head to."""
        with self.scope(name):
            return self.param("weight", (rows, width), "embedding", frozen=frozen)

    def lookup(self, table: Value, ids: Value, label: str = "") -> Value:
        """Keeps the indices; the backward makes a dense gradient of the whole table. Without a label: the words."""
        shape = (*ids.shape, table.shape[1])
        x = self.op("embedding", (table, ids), shape, table.dtype, saves=(ids,), label=label or "embeddings")
        x = x if label else self.entered(x)
        return self._scatter(x) if self.regime.split.sequence else x

    def entered(self, x: Value) -> Value:
        """The output of what get_input_embeddings() names: enable_input_require_grads() hooks it."""
        x.requires_grad = x.requires_grad or (self.regime.input_grads and self.regime.grad)
        return x

    def layer_norm(self, name: str, x: Value, *, bias: bool = True, affine: bool = True) -> Value:
        """Keeps its input and two fp32 statistics per row. CUDA autocast runs it in fp32."""
        x = self.raised(x)
        with self.scope(name):
            weights = (self.param("weight", (x.shape[-1],), "norm"),) if affine else ()
            biases = (self.param("bias", (x.shape[-1],), "norm"),) if affine and bias else ()
            # The CPU kernel computes its statistics in the weights' dtype.
            dtype = F32 if self.regime.cuda or not affine else self.regime.weights
            statistics = Value((*x.shape[:-1], 2), dtype, label=f"{name} mean, rstd")
            return self.op("layer_norm", (x, *weights, *biases), x.shape, x.dtype, saves=(x, statistics), label=name)
