"""Every storage that is alive, where it lives, and what it was for. Births and deaths come in, places keep count.

A place is a virtual device ("cuda:0"), the host ("cpu") or nowhere ("meta", costs nothing). A storage of a virtual
device is backed by a meta storage, or by a real one while it is small and its values are known.
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
PINNED_PLACE = "pinned"  # where page-locked host memory is billed; its tensors are host tensors

HOST_PLACES = (HOST_PLACE, PINNED_PLACE)
FROM_HOST = "copied from the host"  # the cause of a storage that a batch was moved to

storage_of = torch._C.TensorBase.untyped_storage
_true_is_meta = torch._C.TensorBase.is_meta.__get__


def is_meta(tensor: torch.Tensor) -> bool:
    """Whether it has no data, whatever `Tensor.is_meta` says: a function mode (`torch.device`) would ask that one."""
    if torch._C._is_torch_function_mode_enabled():
        return bool(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Meta))
    return bool(_true_is_meta(tensor))


def has_storage(tensor: torch.Tensor) -> bool:
    """Sparse tensors and the wrappers of torch.func have none of their own, a lazy layer's parameters none yet."""
    if is_lazy(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return bool(tensor.layout == torch.strided)


def inner_tensors(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What owns the bytes of a sparse tensor."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout == torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    raise NotImplementedError(f"a tensor of layout {tensor.layout} cannot be followed on a virtual device.")


class Record:
    """One storage. Mutable: what it turned out to be is often known only later."""

    __slots__ = (
        "birth", "block", "category", "cause", "death", "known", "line", "module", "name", "nbytes", "phase", "pinned",
        "place", "recomputed", "site",
    )  # fmt: skip

    def __init__(self, place: str, nbytes: int, known: bool) -> None:
        self.place = place
        self.pinned = False  # page-locked memory of the host
        self.nbytes = nbytes  # as the allocator counts it, so after rounding
        self.known = known  # the values in the backing storage are the true ones
        self.block: Any = None
        self.birth = 0
        self.death: int | None = None
        self.category: Category | None = None
        self.cause = ""  # the op that made it
        self.module = ""
        self.line: Line = None
        self.phase = ""
        self.recomputed = False  # made by a forward that checkpointing runs again
        self.name = ""  # of the parameter it belongs to
        self.site: tuple[int, int] | None = None  # the Python call that made it, while its place is in doubt


class _Ref(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: int


class Storages:
    """storage → record, for as long as the storage lives."""

    def __init__(self, born: Callable[[Record, int], None], died: Callable[[Record], None]) -> None:
        self._born = born
        self._died = died
        self.records: dict[int, Record] = {}
        self._refs: dict[int, _Ref] = {}
        self._shared: dict[int, torch.UntypedStorage] = {}  # by a storage that stands for the same bytes
        self._closed = False

    def find(self, tensor: torch.Tensor) -> Record | None:
        return self.records.get(storage_of(tensor)._cdata)

    def add(self, tensor: torch.Tensor, place: str, *, known: bool, pinned: bool = False) -> Record:
        """A storage not seen before. Raises what the place raises when it is full."""
        storage = storage_of(tensor)
        requested = storage.nbytes()
        record = Record(place, requested, known)
        record.pinned = pinned
        if place != NOWHERE:
            self._born(record, requested)
        self._hold(storage, record)
        return record

    def hand_over(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """`new` stands for what `old` was; nothing is born and nothing dies."""
        key = storage_of(old)._cdata
        record = self.records.pop(key)
        del self._refs[key]
        record.known = False
        self._hold(storage_of(new), record)

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether other tensors see the same bytes, or this one not all of them."""
        storage = storage_of(tensor)
        held_by_tensor_and_here = 2
        in_others = torch._C._storage_Use_Count(storage._cdata) > held_by_tensor_and_here
        return bool(in_others or storage.nbytes() != tensor.numel() * tensor.element_size())

    def share(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """`new` is another sight of what `old` is: the bytes are billed once, and live as long as one of them."""
        storage = storage_of(new)
        key = storage._cdata
        ref = _Ref(storage, self._no_longer_shared)
        ref.key = key
        self.records[key] = self.records[storage_of(old)._cdata]
        self._refs[key] = ref
        self._shared[key] = storage_of(old)

    def _no_longer_shared(self, ref: Any) -> None:
        for held in (self._refs, self.records, self._shared):
            held.pop(ref.key, None)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """The same storage with other bytes: the old ones die, the new ones are born."""
        record = self.records.get(storage._cdata)
        if record is None or record.place == NOWHERE:
            return
        self._died(record)
        fresh = Record(record.place, storage.nbytes(), record.known)
        fresh.category, fresh.name, fresh.pinned = record.category, record.name, record.pinned
        self._born(fresh, storage.nbytes())
        self.records[storage._cdata] = fresh

    def close(self) -> None:
        """Deaths no longer count."""
        self._closed = True
        self._refs.clear()
        self._shared.clear()

    def _hold(self, storage: torch.UntypedStorage, record: Record) -> None:
        key = storage._cdata
        ref = _Ref(storage, self._gone)
        ref.key = key
        self.records[key] = record
        self._refs[key] = ref

    def _gone(self, ref: Any) -> None:
        if self._closed:
            return
        self._refs.pop(ref.key, None)
        record = self.records.pop(ref.key, None)
        if record is not None and record.place != NOWHERE:
            self._died(record)
