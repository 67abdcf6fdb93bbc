"""What a recorded model is made of: dtypes, parameters, tensors, the ops between them, and sections of ops.

Plain records without rules: what autograd keeps is decided where an op is recorded (see `tape`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from vramcast.models.record.dims import Number, unnamed


@dataclass(frozen=True, slots=True)
class Dtype:
    name: str
    nbytes: int
    floating: bool = True


F32, BF16, F16 = Dtype("fp32", 4), Dtype("bf16", 2), Dtype("fp16", 2)
I64, I32, BOOL = Dtype("int64", 8, False), Dtype("int32", 4, False), Dtype("bool", 1, False)
DTYPES = {dtype.name: dtype for dtype in (F32, BF16, F16, I64, I32, BOOL)}


def promote(a: Dtype, b: Dtype) -> Dtype:
    """torch's type promotion between tensors, as far as models need it."""
    if a == b or not b.floating:
        return a
    return F32 if a.floating else b


@dataclass(slots=True, kw_only=True, unsafe_hash=True)  # nobody changes one; to have that checked takes thrice as long
class Param:
    """One parameter tensor under its Hugging Face name (with `{i}` for the layer while it is a template)."""

    name: str
    shape: tuple[int, ...]
    kind: str  # linear, embedding, norm, conv, experts, router, table, bias, adapter
    dtype: Dtype
    trainable: bool = True
    tied_to: str | None = None
    stored_bytes: int | None = None  # where quantisation stores it in other than numel × dtype
    _numel: int = field(default=-1, init=False, repr=False, compare=False)  # once it was asked for

    @property
    def numel(self) -> int:
        if self._numel < 0:
            self._numel = prod(map(int, self.shape))
        return self._numel

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.nbytes if self.stored_bytes is None else self.stored_bytes

    def named(self, name: str) -> Param:
        """`replace`, written out here and below: a model has hundreds, and a search asks for them hundreds of times."""
        return Param(
            name=name, shape=self.shape, kind=self.kind, dtype=self.dtype, trainable=self.trainable,
            tied_to=self.tied_to, stored_bytes=self.stored_bytes,
        )  # fmt: skip

    def stored(self, dtype: Dtype, shape: tuple[int, ...], stored_bytes: int | None) -> Param:
        """The same parameter in another dtype, cut, or packed."""
        return Param(
            name=self.name, shape=shape, kind=self.kind, dtype=dtype, trainable=self.trainable, tied_to=self.tied_to,
            stored_bytes=stored_bytes,
        )  # fmt: skip


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
    is_cache: bool = False  # held by past_key_values as well
    scattered: bool = False  # split along the sequence over the tensor-parallel ranks
    is_pinned: bool = False  # an attribute of a custom autograd Function: lives as long as the graph, backward or not
    _nbytes: Number = field(default=None, init=False, repr=False)  # once it was asked for: a shape never changes

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
    """One forward op, with what its backward needs."""

    name: str
    module: str
    inputs: tuple[Value, ...]
    output: Value
    saved: tuple[Value, ...] = ()
    forward_temp_bytes: Number = 0
    backward_temp_bytes: Number = 0
    forward_temps: tuple[Number, ...] = ()  # the same as separate tensors, where it is more than one
    backward_temps: tuple[Number, ...] = ()
    grad_in_place_of_saved: bool = False  # chunk by chunk: what is saved goes as the gradient of the input comes
    passes_grad: bool = False  # the gradient of each input is the gradient of the output, or a view of it
    borrowed: tuple[Value, ...] = ()  # needed in backward and not kept: made again, or fetched from the host
    returning: tuple[Value, ...] = ()  # those that come back when backward reaches this op
    away: tuple[Value, ...] = ()  # of those, what is on the host
    held: tuple[Value, ...] = ()  # by local variables of the code, until this op at least
    adds_weight_grad: bool = False  # the weight's gradient is summed into a buffer by the product, never on its own
    flops: Number = 0
    selected: bool | None = None  # selective checkpointing keeps the output; None: if it is a matrix product


@dataclass(slots=True, eq=False)
class Section:
    """A run of ops that belongs together: the embedding, one layer, the head. Layers of one kind are recorded once."""

    name: str  # with {i} where the layer's number goes
    inputs: tuple[Value, ...]
    is_block: bool = False  # a unit of checkpointing and of sharding
    ops: list[Op] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A section at its place in the model."""

    section: Section
    index: int | None = None

    @property
    def name(self) -> str:
        return numbered(self.section.name, self.index)

    def params(self) -> Iterator[Param]:
        for param in self.section.params:
            yield param if self.index is None else param.named(numbered(param.name, self.index))


def numbered(name: str, index: int | None) -> str:
    return name if index is None else name.replace("{i}", str(index))
