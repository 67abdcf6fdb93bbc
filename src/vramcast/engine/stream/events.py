"""One section's allocations and frees, forward and backward, in the order torch makes them.

Example: linear 4 → 8 (`up`), relu, linear 8 → 4 (`down`) on x of shape (2, 4) in fp32. x has 32 bytes, what `up` and
relu return has 64 bytes each. relu and `down` both save relu's output for backward, so only `up`'s output is freed:

    forward_events(section)      +64 up   +64 relu   -64 up   +32 down
    running sum, with x: 32       96       160        96       128        peak_above(events, 32) == 160

With `keep="none"` (checkpointing) the section ends with 32 bytes alive, its output alone.

Sizes are ints or numpy arrays (see `dims`). The order of events does not depend on them, so the same events give the
bytes of one job or of a grid of jobs. Phases, optimizers and devices are not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.tape import F32, Op, Param, Section, Value

IN, OUT = "in", "out"  # keys of a section's first input and first output
GRAD_IN, GRAD_OUT = "gradient of in", "gradient of out"


class Event(
    NamedTuple
):  # thousands are made: constructing a tuple is three times as fast as a frozen dataclass
    """An allocation (sign 1) or a free (sign -1) of `nbytes`. `key` names the tensor."""

    sign: int
    key: Hashable
    nbytes: Number
    kind: str  # activation, kv cache, pinned, weight copy, working, gradient
    label: str


@dataclass(slots=True)
class _Books:
    """Collects events. At most one tensor is alive under a key."""

    events: list[Event]
    alive: dict[Hashable, Event]

    def allocate(self, key: Hashable, nbytes: Number, kind: str, label: str) -> None:
        event = Event(1, key, nbytes, kind, label)
        self.events.append(event)
        self.alive[key] = event

    def free(self, key: Hashable) -> None:
        event = self.alive.pop(key)
        self.events.append(Event(-1, key, event.nbytes, event.kind, event.label))

    def passing(self, nbytes: Number, label: str) -> None:
        """A temporary: allocated and freed at once."""
        if not (isinstance(nbytes, int) and nbytes == 0):
            self.allocate(("temporary",), nbytes, "working", label)
            self.free(("temporary",))

    def summed(
        self, nbytes: Number, label: str, key: Hashable | None = None, kind: str = "working"
    ) -> None:
        """A second gradient of the same value. autograd adds it to the first in a new tensor, so three tensors are
        alive for a moment (torch/csrc/autograd/input_buffer.cpp; observed on the CPU with torch 2.13). The sum stays
        alive as `key`. Without a key it replaces the first gradient, which has the same size."""
        self.allocate(("temporary",), nbytes, "working", label)
        self.allocate(key or ("sum",), nbytes, kind, label)
        self.free(("temporary",))
        if key is None:
            self.free(("sum",))

    def workspace(self, temps: tuple[Number, ...], nbytes: Number, label: str) -> None:
        """Memory that an op needs only while it runs. `temps` lists it tensor by tensor, else `nbytes` is one block."""
        if not temps:
            return self.passing(nbytes, label)
        keys = [("temporary", index) for index in range(len(temps))]
        for key, each in zip(keys, temps, strict=True):
            self.allocate(key, each, "working", label)
        for key in keys:
            self.free(key)

    def forward_workspace(self, op: Op) -> None:
        self.workspace(op.forward_temps, op.forward_temp_bytes, f"{op.name} workspace")

    def backward_workspace(self, op: Op) -> None:
        self.workspace(op.backward_temps, op.backward_temp_bytes, f"{op.name} backward workspace")


def own_storages(section: Section) -> set[int]:
    """Ids of storages made by this section's ops, including extra tensors that ops save for their backward."""
    born = {id(op.output) for op in section.ops if op.output.owner is None}
    seen = {id(value.storage) for op in section.ops for value in op.inputs}
    return born | {id(value) for op in section.ops for value in op.saved if id(value) not in seen}


def outside_values(section: Section) -> dict[int, Value]:
    """Storages that the section uses and did not make, except its first input and parameters."""
    own, entry = own_storages(section), section.inputs[0].storage
    used = (
        value.storage
        for op in section.ops
        for value in (*op.inputs, *op.saved)
        if value.param is None
    )
    return {id(value): value for value in used if id(value) not in own and value is not entry}


def forward_events(
    section: Section,
    *,
    keep: str = "all",
    input_kept: bool = False,
    exported: frozenset[int] = frozenset(),
    stops: bool = False,
) -> list[Event]:
    """Starts with `in` alive and ends with `out` alive.

    `keep` says what stays for backward: everything that ops save ("all"), nothing ("none"), or only the results of
    matrix products ("products", torch's selective checkpointing). `input_kept`: the section before holds `in`, so it is
    not freed here. Copies that autocast caches stay alive, and so do `exported` storages, which later sections use.
    `stops`: run only until everything that ops save exists.
    """
    books, own = _Books([], {}), own_storages(section)
    entry, out = section.inputs[0].storage, section.outputs[0].storage
    books.alive[IN] = Event(1, IN, entry.nbytes, "activation", entry.label)
    saved = kept_ids(section, keep)
    unneeded = _unneeded_keys(section, own, saved, exported, input_kept)
    for index, op in enumerate(_until_all_is_saved(section) if stops else section.ops):
        for value in _made_by(op, own, keep == "all", books):
            kind = _kind(value, id(value) in saved)
            books.allocate(OUT if value is out else id(value), value.nbytes, kind, value.label)
        books.forward_workspace(op)
        for key in unneeded.get(index, ()):
            if key in books.alive:
                books.free(key)
    if stops:
        _unwind(section, books, saved | exported)
    return books.events


def _unneeded_keys(
    section: Section, own: set[int], saved: set[int], exported: frozenset[int], input_kept: bool
) -> dict[int, list[Hashable]]:
    """For each op, by index: keys of the tensors that are not needed after it."""
    entry, out = section.inputs[0].storage, section.outputs[0].storage
    kept = {*saved, *exported, id(out), *((id(entry),) if input_kept else ())}
    unneeded: dict[int, list[Hashable]] = {}
    for index, storages in _last_uses(section).items():
        unneeded[index] = [
            IN if storage is entry else id(storage)
            for storage in storages
            if id(storage) not in kept
            and (storage is entry or id(storage) in own)
            and not _is_cached(storage)
        ]
    return unneeded


def _until_all_is_saved(section: Section) -> Sequence[Op]:
    """The ops that a recomputation runs before it stops."""
    last = last_saving(section)
    ops = section.ops[: last + 1]
    return ops if any(map(_saves_result, ops[last:])) else ops[:last]


def last_saving(section: Section) -> int:
    """The last op that saves something, a weight included."""
    return max((index for index, op in enumerate(section.ops) if _saves(op)), default=0)


def _saves(op: Op) -> bool:
    return bool(op.saved) or any(value.param is not None for value in op.inputs)


def _saves_result(op: Op) -> bool:
    """Does the op save a tensor that it makes itself, so that it has to run?"""
    given = {id(value.storage) for value in op.inputs}
    return any(id(value.storage) not in given for value in op.saved)


def _unwind(section: Section, books: _Books, stays: AbstractSet[int]) -> None:
    """Free intermediate results when the recomputation stops, except those in `stays`."""
    for op in section.ops:
        value = op.output.storage
        if id(value) in books.alive and id(value) not in stays and not _is_cached(value):
            books.free(id(value))


def _is_cached(storage: Value) -> bool:
    """Is it held from outside: by autocast's weight cache, the key/value cache or a variable of the loop?"""
    return is_cached_copy(storage) or storage.is_cache or storage.is_handed_on


def is_cached_copy(storage: Value) -> bool:
    """autocast keeps the copy of a leaf weight in fp32 that requires grad until the outermost autocast exits
    (aten/src/ATen/autocast_mode.cpp, can_try_cache). Other copies are freed after their last use."""
    weight = storage.copy_of
    return weight is not None and weight.dtype == F32 and storage.requires_grad


OWN_GRADIENTS = (
    "to",
    "native_dropout",
    "tiled log-probabilities",
    "slice of pairs",
)  # their backward makes a tensor that nothing else refers to
PRODUCTS = ("linear", "bmm", "flash attention", "efficient attention", "cudnn attention")


def is_selected(op: Op) -> bool:
    """Does selective checkpointing keep the op's output?"""
    return op.name in PRODUCTS if op.saved_by_selective is None else op.saved_by_selective


def kept_ids(section: Section, keep: str) -> set[int]:
    if keep == "none":
        return set()
    if keep == "products":
        return {id(op.output) for op in section.ops if is_selected(op)}
    return {id(value) for op in section.ops for value in op.saved}


def used_again(section: Section) -> frozenset[int]:
    """Outputs that selective checkpointing kept and that backward does not need. The recomputation reads each of them
    and frees it after its last use, unless it has stopped by then (torch/utils/checkpoint.py stops early, once
    everything that ops save exists)."""
    saved, out = kept_ids(section, "all"), section.outputs[0].storage
    stop = last_saving(section)
    gone = {
        id(storage)
        for index, storages in _last_uses(section).items()
        if index < stop
        for storage in storages
    }
    products = (op.output for op in section.ops if is_selected(op))
    return frozenset(
        id(value) for value in products if value is not out and id(value) in gone - saved
    )


def _kind(value: Value, saved: bool = True) -> str:
    if value.copy_of:
        return "weight copy"
    if value.is_cache:
        return "kv cache"
    if value.is_handed_on:
        return "outputs"
    if value.kept_by_graph and saved:
        return "pinned"
    return "activation" if saved else "working"


def _made_by(op: Op, own: set[int], keep: bool, books: _Books) -> Iterator[Value]:
    """The op's output and, with `keep`, extra tensors that it saves for its backward."""
    if op.output.owner is None:
        yield op.output
    if keep:
        for value in op.saved:
            if id(value) in own and value is not op.output and id(value) not in books.alive:
                made_here = value.storage is value and id(value) not in {
                    id(v.storage) for v in op.inputs
                }
                if made_here:
                    yield value


def _last_uses(section: Section) -> dict[int, list[Value]]:
    last: dict[int, tuple[int, Value]] = {}
    for index, op in enumerate(section.ops):
        for value in (*op.inputs, op.output, *op.held_by_locals):
            last[id(value.storage)] = (index, value.storage)
    uses: dict[int, list[Value]] = {}
    for index, storage in last.values():
        uses.setdefault(index, []).append(storage)
    return uses


@dataclass(slots=True)
class _Gradient:
    """A gradient tensor that several values may share. `is_own`: nothing else refers to its memory, as with the result
    of a cast, a dropout or a sum; autograd then adds the next gradient in place (input_buffer.cpp). The result of a
    matrix product has a view on it, so autograd does not add to it in place."""

    key: Hashable
    holders: int
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backward:
    """A section's backward: its events, the key of the gradient of `in` (None: there is none), and the ids of
    parameters and values of other sections that were given a gradient. The first `tail` events come before any saved
    tensor is needed."""

    events: list[Event]
    grad_in: Hashable | None
    given: frozenset[int]
    tail: int


def backward_events(
    section: Section,
    *,
    fresh_grads: bool,
    has_grad: frozenset[int] = frozenset(),
    input_kept: bool = False,
    exported: frozenset[int] = frozenset(),
    entry_is_outside: bool = False,
) -> Backward:
    """Starts with all saved tensors and the gradient of `out` alive and ends with the gradient of `in` alive.

    `fresh_grads`: a parameter's gradient stays (the first micro-batch); otherwise it is added to the existing one and
    freed. `has_grad`: ids of tied parameters and of values from other sections whose gradient exists already.
    `exported` values are used by later sections, which hold them and have given them gradients. `entry_is_outside`:
    `in` was not made by the section right before.
    """
    books, own = _Books([], {}), own_storages(section)
    entry, out = section.inputs[0], section.outputs[0]
    holds = _kept_counts(section, own - exported, entry, input_kept)
    _open_books(books, section, holds, entry, out)
    grads: dict[int, _Gradient] = {id(out): _Gradient(GRAD_OUT, 1)} if out.requires_grad else {}
    _imported_gradients(books, grads, section, has_grad & exported, out)
    flow = _Flow(
        books=books,
        grads=grads,
        own=own,
        holds=holds,
        entry=entry,
        fresh=fresh_grads,
        exists=set(has_grad),
        entry_is_outside=entry_is_outside,
        own_params=frozenset(map(id, section.params)),
    )
    flow.open_tied_shares(section.params)
    tail = _run_backward(section, flow)
    left = grads.get(id(entry))
    elsewhere = flow.exists.difference(has_grad, flow.own_params)
    return Backward(
        events=books.events,
        grad_in=left.key if left else None,
        given=frozenset(elsewhere),
        tail=tail,
    )


def _run_backward(section: Section, flow: _Flow) -> int:
    """Every op's backward, last op first. Returns how many events come before the first op that saved something."""
    books = flow.books
    uses_left = Counter(id(value) for op in section.ops for value in op.restored)
    tail: int | None = None
    for op in reversed(section.ops):
        if tail is None and _saves(op):
            tail = len(books.events)
        for value in op.restored_here:
            books.allocate(("again", id(value)), value.nbytes, "working", value.label)
        flow.through(op)
        for value in op.restored:
            uses_left[id(value)] -= 1
            if uses_left[id(value)] == 0:
                books.free(("again", id(value)))
    return tail or 0


def _gradient_order(op: Op) -> tuple[Value, ...]:
    """torch's generated backward functions compute gradients in this order: mat2 before self; with a bias mat1, mat2,
    self."""
    backwards = op.name in ("bmm", "mul") or (op.name == "linear" and len(op.inputs) == 2)
    return op.inputs[::-1] if backwards else op.inputs


def _imported_gradients(
    books: _Books, grads: dict[int, _Gradient], section: Section, ids: frozenset[int], out: Value
) -> None:
    """Gradients that later sections have given to values made in this section, other than its output."""
    for op in section.ops:
        value = op.output
        if id(value) in ids and value is not out and value.storage is not out.storage:
            key = ("outer", id(value))
            books.alive[key] = Event(1, key, value.nbytes, "working", f"gradient of {value.label}")
            grads[id(value)] = _Gradient(key, 1)


def _key(storage: Value, entry: Value) -> Hashable:
    return IN if storage is entry.storage else id(storage)


def _kept_counts(section: Section, own: set[int], entry: Value, input_kept: bool) -> Counter[int]:
    holds: Counter[int] = Counter()
    for op in section.ops:
        for value in op.saved:
            if id(value) in own or (value is entry.storage and not input_kept):
                holds[id(value)] += 1
    return holds


def _open_books(
    books: _Books, section: Section, holds: Counter[int], entry: Value, out: Value
) -> None:
    for op in section.ops:
        for value in op.saved:
            key = _key(value, entry)
            if id(value) in holds and key not in books.alive:
                books.alive[key] = Event(1, key, value.nbytes, _kind(value), value.label)
    if out.requires_grad:
        books.alive[GRAD_OUT] = Event(
            1, GRAD_OUT, out.nbytes, "working", f"gradient of {out.label}"
        )


@dataclass(slots=True, kw_only=True)
class _Flow:
    """The state of a section's backward: gradients flow from its output to its input and parameters."""

    books: _Books
    grads: dict[int, _Gradient]
    own: set[int]
    holds: Counter[int]  # ids of saved tensors, and how many ops still have to use each
    entry: Value
    fresh: bool
    exists: set[
        int
    ]  # ids of what has a gradient; negative: another section's share is the result of a cast or of a sum
    entry_is_outside: bool
    own_params: frozenset[int]

    def open_tied_shares(self, params: Iterable[Param]) -> None:
        """Other sections have left their shares of tied parameters' gradients."""
        for param in params:
            if id(param) in self.exists:
                key, label = share_of(id(param)), f"gradient of {param.name}"
                self.books.alive[key] = Event(1, key, param.nbytes, self.kind, label)

    @property
    def kind(self) -> str:
        """The kind of a parameter's gradient. One that is added to an existing `.grad` is freed at once."""
        return "gradient" if self.fresh else "working"

    def through(self, op: Op) -> None:
        """The op's backward: allocate the gradients of its inputs, then free what it saved. A kernel that writes
        gradients in place of what it saved frees first."""
        flowing = self.grads.pop(id(op.output), None)
        if op.grad_in_place_of_saved:
            self.books.backward_workspace(op)
            self._let_go(op)
            if flowing is not None:
                self._spread(flowing, op)
        else:
            if flowing is not None:
                self.books.backward_workspace(op)
                self._spread(flowing, op)
            if flowing is not None and op.output.is_leaf:
                self._keep_gradient(op.output)
            self._let_go(op)

    def _keep_gradient(self, leaf: Value) -> None:
        """`.grad` of a leaf, which goes with the graph."""
        key = ("gradient of a leaf", id(leaf))
        self.books.allocate(key, leaf.nbytes, "pinned", f"gradient of {leaf.label}")
        self.books.free(key)

    def _spread(self, flowing: _Gradient, op: Op) -> None:
        """Give all inputs of the op their gradients, then free the gradient of its output."""
        for value in _gradient_order(op):
            if value.requires_grad:
                self.into(value, flowing, op)
        self.release(flowing)

    def _let_go(self, op: Op) -> None:
        """Free what the op saved, unless another op still needs it."""
        for value in op.saved:
            if id(value) in self.holds:
                self.holds[id(value)] -= 1
                if self.holds[id(value)] == 0:
                    self.books.free(_key(value, self.entry))

    def _is_outside(self, value: Value) -> bool:
        if value.storage is self.entry.storage:
            return self.entry_is_outside
        return id(value.storage) not in self.own

    def into(self, value: Value, flowing: _Gradient, op: Op) -> None:
        """Give `value` its share of the gradient that reached the op's output."""
        label = f"gradient of {value.label}"
        if value.param is not None:
            self._into_parameter(value, id(value.param), label, op)
        elif self._is_outside(value):
            self._outside(value, label)
        elif id(value) in self.grads:
            self._second(self.grads[id(value)], value.nbytes, label, op)
        elif op.passes_grad:
            flowing.holders += 1
            self.grads[id(value)] = flowing
        else:
            key: Hashable = GRAD_IN if value is self.entry else ("flow", id(value))
            self.books.allocate(key, value.nbytes, "working", label)
            self.grads[id(value)] = _Gradient(key, 1, op.name in OWN_GRADIENTS)

    def _into_parameter(self, value: Value, what: int, label: str, op: Op) -> None:
        """Allocate a parameter's gradient, unless a fused kernel adds it to the existing one."""
        if self.fresh or not op.adds_weight_grad or len(value.shape) == 1:
            self._parameter(value, what, label)
        is_cast = op.output.copy_of is not None
        is_from_loss = op.grad_in_place_of_saved or op.name in OWN_GRADIENTS
        is_nobodys = is_cast or is_from_loss
        if is_nobodys and what not in self.own_params:
            self.exists.add(-what)

    def _second(self, first: _Gradient, nbytes: Number, label: str, op: Op) -> None:
        """Another gradient of the same value."""
        in_place = first.is_own and first.holders == 1
        if not op.passes_grad and not in_place:
            self.books.summed(nbytes, label)
        elif not (
            op.passes_grad and in_place
        ):  # a new tensor for the sum, or for the gradient that is added in place
            self.books.passing(nbytes, label)
        first.is_own = first.holders == 1

    def _parameter(self, value: Value, what: int, label: str) -> None:
        """A tied parameter's gradients are summed before they reach `.grad`, in the section that declares it."""
        is_own = what in self.own_params
        if what in self.exists:
            self._further_share(value, what, label)
        elif is_own and not self.fresh:
            self.books.passing(value.nbytes, label)
        else:
            key = ("gradient", what) if is_own else share_of(what)
            self.books.allocate(key, value.nbytes, self.kind, label)
            self.exists.add(what)

    def _further_share(self, value: Value, what: int, label: str) -> None:
        """One more gradient of a tied parameter."""
        is_own, is_nobodys = what in self.own_params, -what in self.exists
        has_share = is_own and share_of(what) in self.books.alive
        if is_nobodys and has_share:
            self._added(what, value.nbytes, label)
        elif is_nobodys and not is_own:
            self.books.passing(value.nbytes, label)
        elif has_share:
            key = ("gradient", what) if self.fresh else None
            self.books.summed(value.nbytes, label, key, self.kind)
            self.books.free(share_of(what))
        else:
            self.books.summed(value.nbytes, label, None, self.kind)
            if not is_own:
                self.exists.add(-what)  # nothing else refers to the sum: a third is added in place

    def _added(self, what: int, nbytes: Number, label: str) -> None:
        """The gradient so far is the result of a cast or a sum, which nothing else refers to. autograd adds the next
        one in place (input_buffer.cpp), and it becomes `.grad`."""
        self.books.passing(nbytes, label)
        if not self.fresh:
            self.books.free(share_of(what))

    def _outside(self, value: Value, label: str) -> None:
        what = id(value.storage)
        if what in self.exists:
            self.books.summed(value.nbytes, label)
        else:
            self.books.allocate(("outer", what), value.nbytes, "working", label)
            self.exists.add(what)

    def release(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if gradient.holders == 0:
            self.books.free(gradient.key)


def share_of(param: int) -> Hashable:
    """The key of a tied parameter's gradient as summed so far by sections other than the one that declares it."""
    return ("outer", "gradient", param)


def peak_above(events: list[Event], start: Number = 0) -> Number:
    """The largest running sum, starting at `start`."""
    level = peak = start
    for event in events:
        level = level + event.sign * event.nbytes
        if event.sign > 0:
            peak = maximum(peak, level)
    return peak
