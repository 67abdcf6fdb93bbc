"""Which storages are allocated, where each one is, and what it is for: storage → Record, while the storage lives.

In come tensors whose storage is new, each with its place: a virtual card ("cuda:0"), the host ("cpu") or nowhere
("meta", which costs nothing). Out go two calls, `on_allocate` when a storage is added and `on_free` when Python drops
it (a weak reference says so). What backs a storage of a virtual card is a meta storage, or a real one while it is
small and its values are known. Does not know phases, modules or how many bytes an allocator rounds up to: see
`cards`, `meter`.

    a = torch.empty(1000, dtype=torch.uint8, device="cuda")    on_allocate(record, 1000); the card's meter gives a block
                                                               of 512-byte steps: record.nbytes = 1024
    b = a[:10]                                                 a view: same storage, same record, no call
    del a                                                      no call: b still holds the storage
    del b                                                      on_free(record)

Bytes are counted per storage, never per tensor: that is why views cost nothing and keep what they look at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from vramcast.ledger import Category
from vramcast.virtual.accounting.source_lines import Line

NOWHERE = "meta"
HOST_PLACE = "cpu"
PINNED_PLACE = "pinned"  # where page-locked host memory is counted; its tensors are host tensors

HOST_PLACES = (HOST_PLACE, PINNED_PLACE)
# Causes of a storage that are not the name of an op.
FROM_HOST = "copied from the host"
ADOPTED = (
    "adopted"  # no op of the script made it: from numpy, a file, another process, or from before
)

_META = torch.device("meta")
storage_of = torch._C.TensorBase.untyped_storage
_true_is_meta = torch._C.TensorBase.is_meta.__get__


def is_meta(tensor: torch.Tensor) -> bool:
    """True if the tensor has no data.

    `Tensor.is_meta` answers for the virtual device, and is what a function mode (`torch.device`) would call.
    """
    if torch._C._is_torch_function_mode_enabled():
        return bool(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Meta))
    return bool(_true_is_meta(tensor))


def has_storage(tensor: torch.Tensor) -> bool:
    """False for sparse tensors, wrappers of torch.func, and parameters of lazy layers before their first call."""
    if is_lazy(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return bool(tensor.layout == torch.strided)


def inner_tensors(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that own the bytes of a sparse tensor."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout == torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    raise NotImplementedError(
        f"a tensor of layout {tensor.layout} cannot be followed on a virtual device."
    )


def strided_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensor itself, or what owns the bytes of a sparse one."""
    return (tensor,) if tensor.layout == torch.strided else inner_tensors(tensor)


def meta_twin(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape, strides and dtype, without data."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)


class Record:
    """One storage. Mutable: what it is for is often known only after it was allocated."""

    __slots__ = (
        "allocated_at",
        "block",
        "call_site",
        "category",
        "cause",
        "dtype",
        "freed_at",
        "is_uncounted",
        "known",
        "library_line",
        "line",
        "module",
        "name",
        "nbytes",
        "phase",
        "pinned",
        "place",
        "recomputed",
        "shape",
    )

    def __init__(self, place: str, nbytes: int, known: bool) -> None:
        self.place = place
        self.pinned = False  # page-locked memory of the host
        self.is_uncounted = False  # nobody's memory: a compiled function is being written down
        self.nbytes = nbytes  # as the allocator counts it, so after rounding
        self.known = known  # the values in the backing storage are the true ones
        self.block: Any = None
        self.allocated_at = 0  # on the clock of `Cards`
        self.freed_at: int | None = None
        self.category: Category | None = None
        self.cause = ""  # the op that made it
        self.dtype: torch.dtype | None = None  # of the tensor that it was made for
        self.shape: tuple[int, ...] = ()
        self.module = ""
        self.line: Line = None
        self.library_line: Line = None
        self.phase = ""
        self.recomputed = False  # made while a module runs: in backward, by a checkpointed forward
        self.name = ""  # of the parameter it belongs to
        # The Python call that made a host tensor inside a composite op, which may belong on the card instead.
        self.call_site: tuple[int, int] | None = None


class _Ref(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: int


class Storages:
    """The records of all storages that are allocated, by the address of torch's own storage object."""

    def __init__(
        self, on_allocate: Callable[[Record, int], None], on_free: Callable[[Record], None]
    ) -> None:
        self._on_allocate = on_allocate
        self._on_free = on_free
        self.records: dict[int, Record] = {}
        self._refs: dict[int, _Ref] = {}
        # A second storage for the same bytes keeps the first one, which owns them, alive.
        self._owners: dict[int, torch.UntypedStorage] = {}
        self._closed = False

    def find(self, tensor: torch.Tensor) -> Record | None:
        return self.records.get(storage_of(tensor)._cdata)

    def add(self, tensor: torch.Tensor, place: str, *, known: bool, pinned: bool = False) -> Record:
        """Add the storage of a tensor, which was not seen before. Raises what the place raises when it is full."""
        storage = storage_of(tensor)
        requested = storage.nbytes()
        record = Record(place, requested, known)
        record.pinned = pinned
        record.dtype, record.shape = tensor.dtype, tuple(tensor.shape)
        if place != NOWHERE:
            self._on_allocate(record, requested)
        self._watch(storage, record)
        return record

    def hand_over(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Give the record of `old` to `new`: nothing is allocated and nothing is freed."""
        key = storage_of(old)._cdata
        record = self.records.pop(key)
        del self._refs[key]
        record.known = False
        self._watch(storage_of(new), record)

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """True if other tensors see the same bytes, or this one does not see all of them."""
        storage = storage_of(tensor)
        held_by_tensor_and_here = 2
        in_others = torch._C._storage_Use_Count(storage._cdata) > held_by_tensor_and_here
        return bool(in_others or storage.nbytes() != tensor.numel() * tensor.element_size())

    def share(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Count `new` as the same bytes as `old`: allocated once, until both are gone."""
        storage = storage_of(new)
        key = storage._cdata
        ref = _Ref(storage, self._no_longer_shared)
        ref.key = key
        self.records[key] = self.records[storage_of(old)._cdata]
        self._refs[key] = ref
        self._owners[key] = storage_of(old)

    def _no_longer_shared(self, ref: Any) -> None:
        for held in (self._refs, self.records, self._owners):
            held.pop(ref.key, None)

    def reallocate(self, storage: torch.UntypedStorage) -> None:
        """After `resize_`: free the old bytes, then allocate the new ones."""
        record = self.records.get(storage._cdata)
        if record is None or record.place == NOWHERE:
            return
        self._on_free(record)
        fresh = Record(record.place, storage.nbytes(), record.known)
        fresh.category, fresh.name, fresh.pinned = record.category, record.name, record.pinned
        self._on_allocate(fresh, storage.nbytes())
        self.records[storage._cdata] = fresh

    def close(self) -> None:
        """Stop counting: what is freed from now on is not reported."""
        self._closed = True
        self._refs.clear()
        self._owners.clear()

    def _watch(self, storage: torch.UntypedStorage, record: Record) -> None:
        key = storage._cdata
        ref = _Ref(storage, self._freed)
        ref.key = key
        self.records[key] = record
        self._refs[key] = ref

    def _freed(self, ref: Any) -> None:
        if self._closed:
            return
        self._refs.pop(ref.key, None)
        record = self.records.pop(ref.key, None)
        if record is not None and record.place != NOWHERE:
            self._on_free(record)
