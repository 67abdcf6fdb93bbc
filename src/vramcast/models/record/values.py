"""What a recorded model is made of: dtypes, parameters, tensors, the ops between them, and sections of ops.

Plain records without rules: what autograd saves is decided where an op is recorded (see `ops`).

    Dtype           a name, bytes per element, floating or not
    Param           one parameter tensor under its Hugging Face name
    Value           one tensor: shape and dtype, no data. A view shares the storage of the value it looks at
    Op              one forward op: its inputs, its output, and what its backward needs
    Section         ops and parameters that belong together: the embedding, one layer, the head
    PlacedSection   a section at its position in the model

A section is a template. A model of 32 identical layers has one Section named `model.layers.{i}`, whose parameters are
`model.layers.{i}.mlp.up_proj.weight` and so on, and 32 PlacedSections that point to it with index 0 … 31.

Bytes, by example: a Value of shape (2, 5, 4) in bf16 has 2 · 5 · 4 · 2 = 80 bytes; a view of it as (10, 4) has the same
storage, so that the two together are 80 bytes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

from vramcast.models.record.dims import Number, unnamed


@dataclass(frozen=True, slots=True)
class Dtype:
    name: str
    nbytes: int
    floating: bool = True


F32 = Dtype("fp32", 4)
BF16 = Dtype("bf16", 2)
F16 = Dtype("fp16", 2)
I64 = Dtype("int64", 8, False)
I32 = Dtype("int32", 4, False)
BOOL = Dtype("bool", 1, False)
DTYPES = {dtype.name: dtype for dtype in (F32, BF16, F16, I64, I32, BOOL)}


def promote(a: Dtype, b: Dtype) -> Dtype:
    """torch's type promotion between tensors, as far as models need it."""
    if a == b or not b.floating:
        return a
    return F32 if a.floating else b


# Never changed once made. Not frozen: checking that would make construction three times as slow.
@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Param:
    """One parameter tensor under its Hugging Face name (with `{i}` for the layer while it is a template)."""

    name: str
    shape: tuple[int, ...]
    kind: str  # linear, embedding, norm, conv, experts, router, table, bias, adapter
    dtype: Dtype
    trainable: bool = True
    tied_to: str | None = None
    stored_bytes: int | None = None  # where quantisation stores it in other than numel × dtype
    _numel: int = field(default=-1, init=False, repr=False, compare=False)  # computed on first use

    @property
    def numel(self) -> int:
        if self._numel < 0:
            self._numel = prod(map(int, self.shape))
        return self._numel

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.nbytes if self.stored_bytes is None else self.stored_bytes

    # Written out instead of dataclasses.replace, which is slow: a model has hundreds of parameters, and a search
    # renames them hundreds of times.

    def renamed(self, name: str) -> Param:
        return Param(
            name=name,
            shape=self.shape,
            kind=self.kind,
            dtype=self.dtype,
            trainable=self.trainable,
            tied_to=self.tied_to,
            stored_bytes=self.stored_bytes,
        )

    def stored(self, dtype: Dtype, shape: tuple[int, ...], stored_bytes: int | None) -> Param:
        """The same parameter in another dtype, sharded, or packed."""
        return Param(
            name=self.name,
            shape=shape,
            kind=self.kind,
            dtype=dtype,
            trainable=self.trainable,
            tied_to=self.tied_to,
            stored_bytes=stored_bytes,
        )


@dataclass(slots=True, eq=False)
class Value:
    """A tensor. A view points to the value that owns the storage."""

    shape: tuple[Number, ...]
    dtype: Dtype
    requires_grad: bool = False
    label: str = ""
    owner: Value | None = None
    param: Param | None = None
    copy_of: Param | None = None  # a low-precision copy of a weight
    is_slice: bool = False  # a view of part of its storage
    is_leaf: bool = False  # of the graph, though no parameter
    is_cache: bool = False  # past_key_values holds it too
    is_handed_on: bool = (
        False  # what the loop's variable `outputs` holds instead of the model's own
    )
    sequence_sharded: bool = False  # split along the sequence over the tensor-parallel ranks
    # An attribute of a custom autograd Function: lives as long as the graph, whether or not backward runs.
    kept_by_graph: bool = False
    _nbytes: Number = field(default=None, init=False, repr=False)  # computed on first use

    @property
    def storage(self) -> Value:
        return self.owner or self

    @property
    def nbytes(self) -> Number:
        if self._nbytes is None:
            self._nbytes = prod(map(unnamed, self.shape)) * self.dtype.nbytes
        return self._nbytes


@dataclass(slots=True, eq=False)
class Op:
    """One forward op, with what its backward needs. `temp` bytes live only while the kernel runs."""

    name: str
    module: str
    inputs: tuple[Value, ...]
    output: Value
    saved: tuple[Value, ...] = ()  # for backward: torch's saved tensors
    forward_temp_bytes: Number = 0
    backward_temp_bytes: Number = 0
    forward_temps: tuple[Number, ...] = ()  # the same as separate tensors, if more than one
    backward_temps: tuple[Number, ...] = ()
    # Each saved tensor is freed as the gradient of the input is written, chunk by chunk.
    grad_in_place_of_saved: bool = False
    # The gradient of each input is the gradient of the output, or a view of it.
    passes_grad: bool = False
    # Needed in backward and not saved: recomputed, or fetched from the host.
    restored: tuple[Value, ...] = ()
    restored_here: tuple[Value, ...] = ()  # of those, what comes back when backward reaches this op
    offloaded: tuple[Value, ...] = ()  # of those, what is on the host meanwhile
    held_by_locals: tuple[Value, ...] = ()  # by local variables of the code, at least until this op
    # The product adds the weight's gradient to a buffer; it never exists on its own.
    adds_weight_grad: bool = False
    # By whoever called the model, when autocast has ended and its copies of weights are gone.
    by_caller: bool = False
    flops: Number = 0
    # Selective checkpointing saves the output; None: if it is a matrix product.
    saved_by_selective: bool | None = None


@dataclass(slots=True, eq=False)
class Section:
    """Ops that belong together: the embedding, one layer, the head. Identical layers share one Section."""

    name: str  # with {i} where the layer's number goes
    inputs: tuple[Value, ...]
    is_block: bool = False  # a layer: a unit of checkpointing and of sharding
    ops: list[Op] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    cached: list[Value] = field(default_factory=list)  # keys and values in past_key_values
    handed_through: list[Value] = field(default_factory=list)  # returned as they came, for the next
    # Names for which the job decided something, and by which rule: layers that are decided alike are one section.
    asked: list[tuple[str, Callable[[str], bool]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlacedSection:
    """A section at its position in the model; `index` is the layer's number in its stack."""

    section: Section
    index: int | None = None

    @property
    def name(self) -> str:
        return name_in_layer(self.section.name, self.index)

    def params(self) -> Iterator[Param]:
        """The section's parameters under their full names."""
        if self.index is None:
            yield from self.section.params
            return
        for param in self.section.params:
            yield param.renamed(name_in_layer(param.name, self.index))


def name_in_layer(name: str, index: int | None) -> str:
    """`layers.{i}.mlp` → `layers.7.mlp`"""
    return name if index is None else name.replace("{i}", str(index))
