"""The Tape that families write to: a Recorder with torch's ops and the modules that a job may change.

An nn.Linear of a family may meet an adapter (`adapters`), a quantised weight, a loss kernel that takes the head's place
(`fused_loss`), and the collectives of tensor parallelism; an nn.Embedding may meet the latter. That is decided here, so
that a family just calls `t.linear("q_proj", x, width)`. What a linear layer records under autocast is worked out with
numbers in `ops`.

With sequence parallelism over 2 ranks, a column-parallel `t.linear` on x of shape (b, s/2, h) records an all-gather to
(b, s, h), which further linears on the same x share, and the product; a row-parallel one records the product and a
reduce-scatter back to (b, s/2, h).

The records are in `values` and `regime`; whoever records needs them all, so they are exported here as well.
"""

from __future__ import annotations

from typing import Any

from vramcast.models.record.activations import activate
from vramcast.models.record.adapters import Linear, adapt
from vramcast.models.record.chunked_nll import chunked_nll
from vramcast.models.record.dims import Number
from vramcast.models.record.fused_loss import fused_linear_cross_entropy
from vramcast.models.record.ops import Ops
from vramcast.models.record.regime import WHOLE, Lora, Quantized, Regime, Split
from vramcast.models.record.tiled_loss import tiled_cross_entropy
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
    PlacedSection,
    Section,
    Value,
    name_in_layer,
    promote,
)
from vramcast.models.record.virtual_tokens import put_before

__all__ = [
    "BF16",
    "BOOL",
    "DTYPES",
    "F16",
    "F32",
    "I32",
    "I64",
    "WHOLE",
    "Dtype",
    "Lora",
    "Op",
    "Param",
    "PlacedSection",
    "Quantized",
    "Regime",
    "Section",
    "Split",
    "Tape",
    "Value",
    "name_in_layer",
    "promote",
]

# Column-parallel although their input is whole along the sequence: it comes from a projection that every
# tensor-parallel rank computes in full.
COLUMNS_OF_WHOLE_INPUT = ("q_b_proj", "kv_b_proj")
REPLICATED_KINDS = ("router", "classifier")  # linears that tensor parallelism does not divide


class Tape(Ops):
    """Records a model's forward pass as one rank of a job runs it."""

    def __init__(self, regime: Regime, *, one_sample: bool | None = None) -> None:
        super().__init__(regime)
        self._one_sample = one_sample
        # Where a grid has batches of one sample, which take other tensors than the several that are recorded.
        self.points_of_one_sample: Any = None
        # id(x) → x and what was gathered from it; x is kept so that no other value can have its id.
        self._gathered: dict[int, tuple[Value, Value]] = {}
        self._head_input: Value | None = None
        self._held_by_peft: tuple[Value, ...] = ()  # labels and mask with places for virtual tokens

    def activation(self, x: Value, kind: str, label: str = "activated") -> Value:
        """gelu, silu, tanh … and what else configs name."""
        return activate(self, x, kind, label)

    def has_several_samples(self, batch: Number) -> bool:
        """Where code asks for more than one sample. In a grid that has both, several: whoever prices the grid records
        the points of one sample on their own."""
        if self._one_sample is not None:
            return not self._one_sample
        if isinstance(batch, int):
            return batch != 1
        several = batch != 1
        if several.any() and not several.all():
            self.points_of_one_sample = ~several
        return bool(several.any())

    # ---- linear

    def linear(
        self,
        name: str,
        x: Value,
        out: int,
        *,
        bias: bool = False,
        weight: Value | None = None,
        label: str = "",
        transposed: bool = False,
        kind: str = "linear",
        adapted: bool = True,
    ) -> Value:
        """nn.Linear (or Conv1D when transposed), with whatever adapter and quantisation the regime puts on it.
        `weight`: tied to this one. `adapted=False`: the caller writes its own adapter."""
        if kind == "head":
            self._head_input = x

        def base(x: Value) -> Value:
            with self.scope("base_layer"):
                return self._multiply_with_collectives(x, w, b, out, label or name, kind)

        with self.scope(name):
            has_adapter = adapted and self.has_adapter("", kind)
            quantizable_name = self.layer_path()
            with self.scope("base_layer" if has_adapter else ""):
                if weight is not None:
                    w = self.tie("weight", weight)
                else:
                    size = (x.shape[-1], out) if transposed else (out, x.shape[-1])
                    w = self._linear_weight(size, quantizable_name, kind)
                b = self.param("bias", (out,), "bias") if bias else None
                if kind == "head" and "loss" in self.regime.fused:
                    return self._fused_loss(self._gather_sequence(x), w)
                if not has_adapter:
                    return self._multiply_with_collectives(x, w, b, out, label or name, kind)
            return adapt(self, Linear(x=x, weight=w, bias=b, out=out, transposed=transposed), base)

    def _fused_loss(self, x: Value, weight: Value) -> Value:
        if not self.regime.tiled_loss:
            return fused_linear_cross_entropy(self, x, weight)
        if self.regime.checkpoints_loss is not None:
            return chunked_nll(self, x, weight, self.regime.checkpoints_loss)
        return tiled_cross_entropy(self, x, weight)

    def use_head_input(self) -> None:
        """`hidden_states` in the forward of a model with a head holds it until that returns, with the loss."""
        if self._head_input is not None:
            self.read(self._head_input)
        for held in self._held_by_peft:
            self.read(held)

    def _linear_weight(self, size: tuple[int, int], full_name: str, kind: str) -> Value:
        quantized = self.regime.quantized
        if quantized is None or not quantized.matches(full_name, kind):
            return self.param("weight", size, kind)
        param = Param(
            name=self.path("weight"),
            shape=size,
            kind=kind,
            dtype=quantized.compute,
            trainable=False,
            stored_bytes=quantized.stored_bytes(int(size[0]) * int(size[1])),
        )
        return self.declare(param)

    # ---- collectives between tensor-parallel ranks

    def _multiply_with_collectives(
        self, x: Value, weight: Value, bias: Value | None, out: int, label: str, kind: str
    ) -> Value:
        """With sequence parallelism, a column-parallel linear gathers its input and a row-parallel one (its input is
        whole along the sequence) scatters its output."""
        split = self.regime.split
        if split.tp == 1 or kind in REPLICATED_KINDS:
            return self.multiply_weight(x, weight, bias, out, label)
        y = self.multiply_weight(self._gather_sequence(x), weight, bias, out, label)
        if x.sequence_sharded and not split.keeps_gathered:
            self._gather_again_in_backward(x)
        if kind == "head":
            return y if split.vocab_logits else self._gather_logits(y, label)
        is_row_parallel = not x.sequence_sharded and self._scopes[-2] not in COLUMNS_OF_WHOLE_INPUT
        return self._scatter_sequence(y) if split.sequence_parallel and is_row_parallel else y

    def _gather_sequence(self, x: Value) -> Value:
        """x along the whole sequence, gathered once for all linears that read it."""
        if not x.sequence_sharded:
            return x
        if id(x) not in self._gathered:
            b, s, width = x.shape
            whole = (b, s * self.regime.split.tp, width)
            gathered = self.op("all gather", (x,), whole, x.dtype, label=f"{x.label} gathered")
            gathered.sequence_sharded = False
            self._gathered[id(x)] = (x, gathered)
        return self._gathered[id(x)][1]

    def _gather_again_in_backward(self, x: Value) -> None:
        """The last linear saves x instead of what was gathered from it; backward gathers it anew (Megatron)."""
        linear = self.ops()[-1]
        gathered = self._gathered[id(x)][1]
        linear.saved = tuple(x.storage if value is gathered else value for value in linear.saved)
        linear.backward_temp_bytes = linear.backward_temp_bytes + gathered.nbytes

    def _scatter_sequence(self, x: Value) -> Value:
        """Partial sums over all ranks to each rank's share of the sequence."""
        b, s, width = x.shape
        share = (b, s // self.regime.split.tp, width)
        y = self.op("reduce scatter", (x,), share, x.dtype, label=x.label)
        y.sequence_sharded = True
        return y

    def _gather_logits(self, y: Value, label: str) -> Value:
        """DTensor gathers along the first axis, then concatenates the parts along the last
        (torch/distributed/_functional_collectives.py _maybe_view_chunk_cat)."""
        split = self.regime.split
        whole = (*y.shape[:-1], y.shape[-1] * split.tp)
        if not split.keeps_gathered:
            return self.copy(y, whole, label)
        parts = self.copy(y, whole, f"parts of {label}")
        # A variable holds this rank's own logits until all parts are concatenated.
        own = Value(y.shape, y.dtype, label=y.label, owner=y)
        return self.op("cat", (parts, own), whole, y.dtype, label=label, passes_grad=True)

    # ---- embeddings

    def embedding_weight(self, name: str, rows: int, width: int, *, frozen: bool = False) -> Value:
        """The weight of an nn.Embedding, to look up in and perhaps to tie a head to."""
        with self.scope(name):
            return self.param("weight", (rows, width), "embedding", frozen=frozen)

    def embed(self, weight: Value, ids: Value, label: str = "") -> Value:
        """Look up: saves the indices; backward makes a dense gradient of the whole weight. Without a label these are
        the word embeddings."""
        virtual = self.regime.virtual_tokens if not label else None
        places = ids.shape if virtual is None else (ids.shape[0], ids.shape[1] - virtual.count)
        shape = (*places, weight.shape[1])
        x = self.op(
            "embedding",
            (weight, ids),
            shape,
            weight.dtype,
            saves=(ids,),
            label=label or "embeddings",
        )
        if not label:
            x = self.require_input_grads(x)
        if virtual is not None:
            x, self._held_by_peft = put_before(self, x, virtual)
        return self._scatter_sequence(x) if self.regime.split.sequence_parallel else x

    def require_input_grads(self, x: Value) -> Value:
        """x is the output of get_input_embeddings(), which enable_input_require_grads() hooks. Where the embeddings are
        frozen x becomes a leaf of the graph, which holds it and its gradient as long as the graph lives."""
        if self.regime.input_grads and self.regime.grad:
            x.is_leaf = not x.requires_grad
            x.requires_grad = True
        return x
