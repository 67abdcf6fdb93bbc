"""The dispatch mode: every op of the script passes here, below autograd, on its way to a kernel.

In comes an op with its arguments, out comes its result, with every new storage counted by `accounting`. Tensors of a
virtual card have no data: they are meta tensors. Small tensors whose values are known (masks, ids, random draws,
counters) are real tensors, on the host and on virtual cards, so what a script decides from them is true. An op that
meets both runs on meta twins of the real ones, and what it writes is unknown from then on. Does not know how CUDA's
kernels differ from torch's shape functions (`cuda_kernels`), nor ops whose answer depends on values
(`unknown_values`).

    mask = torch.ones(4, 512, device="cuda")       a factory: 2048 values are few, so a real tensor, counted on cuda:0
    mask[:, 500:] = 0                              all inputs known: the CPU's kernel writes the true values
    mask.sum().item()                              2000.0, as on a real card
    h = torch.randn(4, 512, 768, device="cuda")    1.5 million values are too many: a meta tensor of 6 MiB
    h = h * mask.unsqueeze(-1)                     real and meta mixed: runs on a twin of the mask; 6 MiB more, unknown
    h.sum().item()                                 unknown: 1.0 stands in, and the report says where
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.virtual.accounting.cards import Cards
from vramcast.virtual.accounting.storages import (
    HOST_PLACE,
    NOWHERE,
    Record,
    is_meta,
    meta_twin,
    storage_of,
    strided_parts,
)
from vramcast.virtual.kernels import sparse
from vramcast.virtual.kernels.cuda_kernels import Kernels
from vramcast.virtual.kernels.fallback import run_on_zeros, says_no_meta_function
from vramcast.virtual.kernels.op_schemas import Op, replace_tensors, tensors_in, without_option
from vramcast.virtual.kernels.shapes import Shapes

KNOWN_DEVICE_INTEGERS = 1 << 22  # elements; larger tensors of a virtual card carry no values
KNOWN_DEVICE_FLOATS = 1 << 16
KNOWN_HOST_BYTES = 64 << 20
_CHECK_SIZE_FIRST = 1024  # elements; from here on, a broadcast of known tensors could become large

Special = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_META = torch.device("meta")
_STRIDED = torch.strided
_CPU = torch.device("cpu")
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_Generator = torch.Generator
_get_mode, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
_PROXY = torch._C._TorchDispatchModeKey.PROXY
_numel = torch._C.TensorBase.numel


class VirtualMode(TorchDispatchMode):  # type: ignore[misc]
    """`specials` are ops with an answer of their own; one that returns NotImplemented leaves the op to this class."""

    def __init__(self, cards: Cards, kernels: Kernels) -> None:
        super().__init__()
        self.cards = cards
        self.storages = cards.storages
        self.records = cards.storages.records
        self.target: str | None = None  # the place a transfer or a factory was asked for
        self.specials: dict[Any, Special] = {}
        self.asleep = 0  # the thread in which somebody else's FakeTensorMode works out shapes: nothing is counted
        self._lock = RLock()  # of the one thread that is in here
        self._busy_thread = 0
        self.shapes = Shapes(self.records)
        self._kernels = kernels
        self._ops: dict[Any, Op] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides a mode from dynamo costs more than most ops here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (self.asleep and self.asleep == get_ident()) or _get_mode(_FAKE) is not None:
            return func(*args, **(kwargs or {}))
        if types and any(kind.__torch_dispatch__ is not _NO_DISPATCH for kind in types):
            return NotImplemented  # a tensor subclass with ops of its own unwraps itself first
        if self.cards.is_uncounted and _get_mode(_PROXY) is not None:
            return self._write_down(func, types, args, kwargs or {})
        thread = get_ident()
        if self._busy_thread == thread:
            return self.dispatch(func, args, kwargs or {})
        with self._lock:
            self._busy_thread = thread
            try:
                return self.dispatch(func, args, kwargs or {})
            finally:
                self._busy_thread = 0

    def _write_down(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A tracer sees the op before this mode does, although torch puts tracers below all other modes."""
        tracer = torch._C._unset_dispatch_mode(_PROXY)
        try:
            with self:
                return tracer.__torch_dispatch__(func, types, args, kwargs)
        finally:
            torch._C._set_dispatch_mode(tracer)

    @property
    def busy(self) -> bool:
        """True while a kernel runs in this thread: its tensors tell their true, meta device."""
        return self._busy_thread == get_ident()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What this thread does is not the script's memory: somebody else's fake tensors work out shapes."""
        with self._lock:
            before = self.asleep, self._busy_thread
            self.asleep = self._busy_thread = get_ident()
            try:
                yield
            finally:
                self.asleep, self._busy_thread = before

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        special = self.specials.get(func)
        if special is not None:
            result = special(func, args, kwargs)
            if result is not NotImplemented:
                return result
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = Op(func)
        if op.composite and op.has_tensor_arguments:
            result = self._decompose(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if op.is_view:
            return self._view(func, op, args, kwargs)
        if op.device_argument and not tensors_in(args, kwargs):
            return self._make(func, op, args, kwargs)
        return self._compute(func, op, args, kwargs)

    def _decompose(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Take a composite op apart: inference mode skips the level of torch's dispatcher that does it."""
        self._busy_thread = 0
        try:
            with self:
                return func.decompose(*args, **kwargs)
        finally:
            self._busy_thread = get_ident()

    def _view(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        layout = getattr(args[0], "layout", _STRIDED)  # a number may be viewed as well: conj(1j)
        if layout is not _STRIDED:  # some views of sparse tensors make new indices
            self.cards.enroll_all(result, self.cards.recorded_place(args[0]), op.name)
        return result

    # -- ops without tensor inputs: factories ----------------------------------------------------------------------

    def _make(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        place = self._place_asked_for(device)
        pinned = bool(kwargs.get("pin_memory")) and place == HOST_PLACE
        generator = kwargs.get("generator")
        kwargs = {**kwargs, "device": _META}
        for option in ("pin_memory", "generator"):
            if option in kwargs:
                kwargs[option] = None
        result = func(*args, **kwargs)
        asked_for_meta = device is not None and device.type == "meta"  # by torch's own code
        if not asked_for_meta and self._values_are_kept(op, result, place):
            kwargs["device"] = _CPU
            if generator is not None:
                kwargs["generator"] = generator
            result = func(*args, **kwargs)
        record = self.cards.enroll(result, place, op.name, pinned=pinned)
        if record is not None and place == HOST_PLACE and self.target is None:
            record.call_site = call_site()
        return result

    def _values_are_kept(self, op: Op, result: torch.Tensor, place: str) -> bool:
        """Whether a factory's result is made a real tensor."""
        if place == NOWHERE:
            return False
        on_card = place != HOST_PLACE
        if on_card and "aten::empty" in op.name and result.is_floating_point():
            return (
                False  # nothing is in it yet, and what comes is often gradients or gathered weights
            )
        return self.keeps_values(result, place)

    def _place_asked_for(self, device: torch.device | None) -> str:
        if self.target is not None:
            return self.target
        if device is None or device.type == "cpu":
            return HOST_PLACE
        if device.type == "meta":
            return self.cards.place_of_bare_meta()
        return self.cards.place_named(device)

    def keeps_values(self, like: Any, place: str) -> bool:
        """Whether a tensor of this size may carry values at this place."""
        if not isinstance(like, torch.Tensor):
            return False
        if place == HOST_PLACE:
            return bool(_numel(like) * like.element_size() <= KNOWN_HOST_BYTES)
        limit = KNOWN_DEVICE_FLOATS if like.is_floating_point() else KNOWN_DEVICE_INTEGERS
        return bool(_numel(like) <= limit)

    # -- ops on tensors --------------------------------------------------------------------------------------------

    def _compute(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        inputs = tensors_in(args, kwargs)
        if any(tensor.layout is not _STRIDED for tensor in inputs):
            return self._compute_sparse(func, op, args, kwargs, inputs)
        place, any_real, any_unknown = self._survey(op, inputs)
        if "device" in kwargs:
            place, kwargs = self._redirect(place, kwargs, any_real)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": None}
        if place != NOWHERE:
            self.cards.place_of_latest_op = place
        is_arithmetic = not inputs and place == HOST_PLACE  # of plain numbers: torch.div(7, 2, …)
        if not any_real and not is_arithmetic:
            return self._run_without_values(func, op, args, kwargs, place)
        if not any_unknown and self._stays_small(func, args, kwargs, inputs, place):
            return self._run_with_values(func, op, args, kwargs, place)
        return self._run_on_twins(func, op, args, kwargs, place, inputs)

    def _survey(self, op: Op, inputs: list[torch.Tensor]) -> tuple[str, bool, bool]:
        """Where the result belongs, whether any input is a real tensor, and whether any has unknown values."""
        records = self.records
        place = None
        any_real = any_unknown = False
        for tensor in inputs:
            record = records.get(storage_of(tensor)._cdata)
            if record is None:
                record = self.cards.adopt(tensor)
            if is_meta(tensor):
                any_unknown = True
            else:
                any_real = True
                any_unknown = any_unknown or not record.known
            if record.place == place:
                continue
            if place is None:
                place = record.place
            elif not op.across_devices:
                place = self._settle(op, place, record, tensor, inputs)
        return place or HOST_PLACE, any_real, any_unknown

    def _settle(
        self, op: Op, place: str, record: Record, tensor: torch.Tensor, inputs: list[torch.Tensor]
    ) -> str:
        """Inputs of two places in one op: scalars of the host may mix, and so may what the same call has just made."""
        if record.place == HOST_PLACE and self._follows(tensor, record, place):
            return place
        if place == HOST_PLACE and self._all_hosts_follow(inputs, record.place):
            return record.place
        if place == NOWHERE:
            return record.place
        if record.place == NOWHERE:
            return place
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {place} and "
            f"{record.place}! (when checking arguments for {op.name})"
        )

    def _all_hosts_follow(self, inputs: list[torch.Tensor], place: str) -> bool:
        for tensor in inputs:
            record = self.storages.find(tensor)
            if record is None or record.place != HOST_PLACE:
                continue
            if not self._follows(tensor, record, place):
                return False
        return True

    def _follows(self, tensor: torch.Tensor, record: Record, place: str) -> bool:
        """Whether a host tensor may be used at another place: a scalar, or one made inside the same Python call.

        Composite ops make helpers without a device; on CUDA these would be made on the card, so they are moved there.
        """
        if tensor.dim() == 0:
            return True
        if record.call_site is None or record.call_site != call_site():
            return False
        self.cards.move(record, place)
        return True

    def _redirect(
        self, place: str, kwargs: dict[str, Any], any_real: bool
    ) -> tuple[str, dict[str, Any]]:
        """`zeros_like(x, device="cuda:1")`: the place asked for, and the call without it.

        torch's own code passes on the device of the backing tensor, which means: the same place.
        """
        device = kwargs["device"]
        kwargs = without_option(kwargs, "device")
        if self.target is not None:
            return self.target, kwargs
        backing = "cpu" if any_real else "meta"
        if device is None or (device.type == backing and place != NOWHERE):
            return place, kwargs
        if device.type == "cpu":
            return HOST_PLACE, kwargs
        if device.type == "cuda":
            return self.cards.place_named(device), kwargs
        return NOWHERE, kwargs

    def _reallocate_resized(self, op: Op, args: Any, kwargs: dict[str, Any]) -> None:
        if op.resizes:
            for tensor in op.written(args, kwargs):
                self.storages.reallocate(storage_of(tensor))

    # -- no input has values ---------------------------------------------------------------------------------------

    def _run_without_values(
        self, func: Any, op: Op, args: Any, kwargs: dict[str, Any], place: str
    ) -> Any:
        if place == NOWHERE:
            result = func(*args, **kwargs)
            self.cards.enroll_all(result, place, op.name)
        elif place == HOST_PLACE:
            result = self._run_shapes(func, op, args, kwargs)
            self.cards.enroll_all(result, place, op.name)
        else:
            result = self._run_on_card(func, op, args, kwargs, place)
        self._reallocate_resized(op, args, kwargs)
        return result

    def _run_on_card(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any], place: str) -> Any:
        kernels = self._kernels
        blocks = kernels.allocate_before_outputs(func, args, place)
        try:
            meta_function = kernels.meta_function(func)
            if meta_function is not None:
                result = meta_function(*args, **kwargs)
            else:
                result = self._run_shapes(func, op, args, kwargs)
            self.cards.enroll_all(kernels.in_allocation_order(func, result), place, op.name)
            blocks += kernels.allocate_after_outputs(func, args, place)
            kernels.note_workspace(func, args, result, place)
        finally:
            if blocks:
                kernels.free_temporaries(blocks, place)
        return result

    def _run_shapes(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            return self.shapes.call(func, op, args, kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if not says_no_meta_function(error):
                raise
            return run_on_zeros(func, args, kwargs)

    # -- all inputs have values ------------------------------------------------------------------------------------

    def _run_with_values(
        self, func: Any, op: Op, args: Any, kwargs: dict[str, Any], place: str
    ) -> Any:
        result = func(*args, **kwargs)
        self.cards.enroll_all(result, place, op.name)
        if place == HOST_PLACE and isinstance(result, torch.Tensor):
            self._pass_on_call_site(result, tensors_in(args, kwargs))
        self._reallocate_resized(op, args, kwargs)
        return result

    def _pass_on_call_site(self, result: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        """What a composite makes of tensors it has just made follows them: `ones(L, S).tril().logical_not()`."""
        sites = set()
        for tensor in inputs:
            if tensor.layout is _STRIDED:
                record = self.storages.find(tensor)
                sites.add(None if record is None else record.call_site)
        if len(sites) != 1 or None in sites:
            return
        site = call_site()
        made = self.storages.find(result)
        if sites == {site} and made is not None:
            made.call_site = site

    def _stays_small(
        self, func: Any, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor], place: str
    ) -> bool:
        """Whether the result of known values may be real too; a run on meta tensors tells, and costs nothing."""
        if sum(map(_numel, inputs)) < _CHECK_SIZE_FIRST:
            return True
        twins = {id(tensor): meta_twin(tensor) for tensor in inputs}
        try:
            result = func(*replace_tensors(tuple(args), twins), **_twin_options(kwargs, twins))
        except (NotImplementedError, RuntimeError):
            return True  # the size depends on the values, which are there
        return all(self.keeps_values(out, place) for out in tensors_in((result,), {}))

    # -- some inputs have values -----------------------------------------------------------------------------------

    def _run_on_twins(
        self,
        func: Any,
        op: Op,
        args: Any,
        kwargs: dict[str, Any],
        place: str,
        inputs: list[torch.Tensor],
    ) -> Any:
        twins = {id(tensor): meta_twin(tensor) for tensor in inputs if not is_meta(tensor)}
        originals = {id(twins[id(tensor)]): tensor for tensor in inputs if id(tensor) in twins}
        twin_args = replace_tensors(tuple(args), twins)

        def run() -> Any:
            """An input that the op returns is returned itself."""
            try:
                meta_function = self._kernels.meta_function(func) or func
                result = meta_function(*twin_args, **_twin_options(kwargs, twins))
            except NotImplementedError:
                result = run_on_zeros(func, args, kwargs)
            return replace_tensors(result, originals)

        if place in (NOWHERE, HOST_PLACE):
            result = run()
            self.cards.enroll_all(result, place, op.name)
        else:
            result = self._run_twins_on_card(run, func, op, twin_args, place)
        for tensor in op.written(args, kwargs):
            if not is_meta(tensor):
                self.records[storage_of(tensor)._cdata].known = False
        return result

    def _run_twins_on_card(
        self, run: Callable[[], Any], func: Any, op: Op, twin_args: tuple[Any, ...], place: str
    ) -> Any:
        kernels = self._kernels
        blocks = kernels.allocate_before_outputs(func, twin_args, place)
        try:
            result = run()
            self.cards.enroll_all(kernels.in_allocation_order(func, result), place, op.name)
            blocks += kernels.allocate_after_outputs(func, twin_args, place)
        finally:
            if blocks:
                kernels.free_temporaries(blocks, place)
        return result

    # -- sparse inputs ---------------------------------------------------------------------------------------------

    def _compute_sparse(
        self, func: Any, op: Op, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor]
    ) -> Any:
        """The CPU's kernel where all values are known, otherwise a rule of `sparse`."""
        parts = [part for tensor in inputs for part in strided_parts(tensor)]
        place, _, any_unknown = self._survey(op, parts)
        kwargs = without_option(kwargs, "device")
        if not any_unknown:
            return self._run_with_values(func, op, args, kwargs, place)
        result = sparse.run_without_values(func, op, args, kwargs)
        self.cards.enroll_all(result, place, op.name)
        return result


def _twin_options(kwargs: dict[str, Any], twins: dict[int, torch.Tensor]) -> dict[str, Any]:
    """For a run on meta twins, which draws no random numbers."""
    return {
        name: replace_tensors(value, twins)
        for name, value in kwargs.items()
        if not isinstance(value, _Generator)
    }


# -- whose call it is ----------------------------------------------------------------------------------------------


def call_site() -> tuple[int, int]:
    """The Python instruction whose C++ call we are inside: the same for all ops of one composite."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_between(frame):
        frame = frame.f_back
    return id(frame), frame.f_lasti


def is_between(frame: FrameType) -> bool:
    """Whether a frame lies between the user's call and the dispatcher."""
    return frame.f_code.co_filename.endswith(_BETWEEN)


# Files of this package, and of function modes such as `torch.device`.
_BETWEEN = (
    "virtual/gpu.py",
    "virtual/accounting/cards.py",
    "virtual/accounting/storages.py",
    "virtual/kernels/dispatch_mode.py",
    "virtual/kernels/unknown_values.py",
    "virtual/kernels/sparse.py",
    "virtual/kernels/cuda_kernels.py",
    "virtual/kernels/autocast.py",
    "virtual/torch_patches/tensors.py",
    "virtual/torch_patches/factories.py",
    "virtual/torch_patches/leaves.py",
    "virtual/torch_patches/gradients.py",
    "utils/_device.py",
    "torch/overrides.py",
    "utils/_python_dispatch.py",
    "torch/_ops.py",
)
