"""The dispatch mode: every op of the script passes here, below autograd, on its way to a kernel.

Tensors of a virtual device have no data: they are meta tensors. Small tensors whose values are known (masks, ids,
random draws, counters) are real, on the host and on virtual devices alike, so what a script decides from them is
true. An op that meets both runs on meta twins, and what it writes is unknown from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.virtual.accounting.storages import HOST_PLACE, NOWHERE, Record, inner_tensors, is_meta, storage_of
from vramcast.virtual.kernels import sparse
from vramcast.virtual.kernels.fallback import run_on_zeros, without_shape
from vramcast.virtual.kernels.op_schemas import Op, replaced, tensors_in
from vramcast.virtual.kernels.shapes import Shapes

if TYPE_CHECKING:
    from vramcast.virtual.gpu import VirtualGpu

KNOWN_DEVICE_INTEGERS = 1 << 22  # elements; larger tensors of a virtual device carry no values
KNOWN_DEVICE_FLOATS = 1 << 16
KNOWN_HOST_BYTES = 64 << 20
_CHECK_SIZE_FIRST = 1024  # from here on, a broadcast of known tensors could become large

Special = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_META = torch.device("meta")
_STRIDED = torch.strided
_CPU = torch.device("cpu")
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_Generator = torch.Generator
_get_mode, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
_numel = torch._C.TensorBase.numel


class VirtualMode(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, gpu: VirtualGpu) -> None:
        super().__init__()
        self.gpu = gpu
        self.storages = gpu.storages
        self.records = gpu.storages.records
        self.target: str | None = None  # the place a transfer or a factory was asked for
        self.specials: dict[Any, Special] = {}
        self.busy = False  # a kernel runs: tensors tell their true, meta device
        self.asleep = False  # a FakeTensorMode of somebody else's works out shapes: none of our business
        self.shapes = Shapes(self.records)
        self._ops: dict[Any, Op] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides a mode from dynamo costs more than most ops here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.asleep or _get_mode(_FAKE) is not None:
            return func(*args, **(kwargs or {}))
        if types and any(kind.__torch_dispatch__ is not _NO_DISPATCH for kind in types):
            return NotImplemented  # a tensor subclass with ops of its own unwraps itself first
        if self.busy:
            return self.dispatch(func, args, kwargs or {})
        self.busy = True
        try:
            return self.dispatch(func, args, kwargs or {})
        finally:
            self.busy = False

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = Op(func)
        special = self.specials.get(func)
        if special is not None:
            result = special(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if op.composite and op.has_tensor_arguments:
            result = self._decompose(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if op.is_view:
            result = func(*args, **kwargs)
            if args[0].layout is not _STRIDED:  # of sparse tensors, some make new indices
                self.enroll_all(result, self.place_beside(args[0]), op.name)
            return result
        if op.device_argument and not tensors_in(args, kwargs):
            return self._make(func, op, args, kwargs)
        return self._compute(func, op, args, kwargs)

    def _decompose(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Inference mode skips the level that takes composites apart."""
        self.busy = False
        try:
            with self:
                return func.decompose(*args, **kwargs)
        finally:
            self.busy = True

    # -- ops without tensor inputs ---------------------------------------------------------------------------------

    def _make(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        place = self._place_asked_for(device)
        pinned = bool(kwargs.get("pin_memory")) and place == HOST_PLACE
        may_be_known = place != NOWHERE and (
            device is None or device.type != "meta"
        )  # torch's own code wants a meta one
        kwargs = (
            {**kwargs, "device": _META, "pin_memory": None} if "pin_memory" in kwargs else {**kwargs, "device": _META}
        )
        generator = kwargs.get("generator")
        if generator is not None:
            kwargs["generator"] = None
        result = func(*args, **kwargs)
        if "aten::empty" in op.name and place != HOST_PLACE and result.is_floating_point():
            may_be_known = False  # nothing is in it yet; what comes is often gradients or gathered weights
        if may_be_known and self.keeps_values(result, place):
            kwargs["device"] = _CPU
            if generator is not None:
                kwargs["generator"] = generator
            result = func(*args, **kwargs)
        record = self.enroll(result, place, op.name, pinned=pinned)
        if record is not None and place == HOST_PLACE and self.target is None:
            record.site = call_site()
        return result

    def _place_asked_for(self, device: torch.device | None) -> str:
        if self.target is not None:
            return self.target
        if device is None or device.type == "cpu":
            return HOST_PLACE
        if device.type == "meta":
            return self.gpu.place_of_bare_meta()
        return self.gpu.place_named(device)

    def keeps_values(self, like: Any, place: str) -> bool:
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
            return sparse.compute(self, func, op, args, kwargs, inputs)
        place, real, unknown = self.survey(op, inputs)
        if "device" in kwargs:
            place, kwargs = self._redirected(place, kwargs, real)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": None}
        if not real:
            return self._run(func, op, args, kwargs, place)
        if not unknown and self._stays_small(func, args, kwargs, inputs, place):
            return self.run_known(func, op, args, kwargs, place)
        return self._run_on_twins(func, op, args, kwargs, place, inputs)

    def survey(self, op: Op, inputs: list[torch.Tensor]) -> tuple[str, bool, bool]:
        """Where the result belongs, whether real tensors take part, and whether unknown values do."""
        records = self.records
        place = None
        real = unknown = False
        for tensor in inputs:
            record = records.get(storage_of(tensor)._cdata)
            if record is None:
                record = self.adopt(tensor)
            if is_meta(tensor):
                unknown = True
            else:
                real = True
                unknown = unknown or not record.known
            if record.place == place:
                continue
            if place is None:
                place = record.place
            elif not op.across_devices:
                place = self._settle(op, place, record, tensor, inputs)
        return place or HOST_PLACE, real, unknown

    def _settle(self, op: Op, place: str, record: Record, tensor: torch.Tensor, inputs: list[torch.Tensor]) -> str:
        """Two places in one op: scalars of the host may mix, and so may what the same call has just made."""
        if record.place == HOST_PLACE and (tensor.dim() == 0 or self._adopted_by(record, place)):
            return place
        if place == HOST_PLACE:
            others = [(self.storages.find(t), t) for t in inputs]
            hosts = [(found, t) for found, t in others if found is not None and found.place == HOST_PLACE]
            if all(t.dim() == 0 or self._adopted_by(found, record.place) for found, t in hosts):
                return record.place
        if NOWHERE in (place, record.place):
            return record.place if place == NOWHERE else place
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {place} and "
            f"{record.place}! (when checking arguments for {op.name})"
        )

    def _adopted_by(self, record: Record, place: str) -> bool:
        if record.site is None or record.site != call_site():
            return False
        self.gpu.move(record, place)
        return True

    def _redirected(self, place: str, kwargs: dict[str, Any], real: bool) -> tuple[str, dict[str, Any]]:
        """`zeros_like(x, device="cuda:1")`: the place asked for, and the call without it.

        torch's own code passes on the device of the backing tensor, which means: the same place.
        """
        device = kwargs["device"]
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        if self.target is not None:
            return self.target, kwargs
        if device is None or (device.type == ("cpu" if real else "meta") and place != NOWHERE):
            return place, kwargs
        if device.type == "cpu":
            return HOST_PLACE, kwargs
        return self.gpu.place_named(device) if device.type == "cuda" else NOWHERE, kwargs

    def _run(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any], place: str) -> Any:
        if place in (NOWHERE, HOST_PLACE):
            result = self._shaped(func, op, args, kwargs) if place == HOST_PLACE else func(*args, **kwargs)
            self.enroll_all(result, place, op.name)
        else:
            kernels = self.gpu.kernels
            blocks = kernels.before(func, args, place)
            try:
                written_out = kernels.shape(func)
                result = written_out(*args, **kwargs) if written_out else self._shaped(func, op, args, kwargs)
                self.enroll_all(kernels.in_order(func, result), place, op.name)
                blocks += kernels.beside(func, args, place)
                kernels.done(func, args, result, place)
            finally:
                if blocks:
                    kernels.after(blocks, place)
        if op.resizes:
            for tensor in op.written(args, kwargs):
                self.storages.resized(storage_of(tensor))
        return result

    def _shaped(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            return self.shapes.call(func, op, args, kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if not without_shape(error):
                raise
            return run_on_zeros(func, args, kwargs)

    def run_known(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any], place: str) -> Any:
        result = func(*args, **kwargs)
        self.enroll_all(result, place, op.name)
        if place == HOST_PLACE and isinstance(result, torch.Tensor):
            self._stays_in_doubt(result, tensors_in(args, kwargs))
        if op.resizes:
            for tensor in op.written(args, kwargs):
                self.storages.resized(storage_of(tensor))
        return result

    def _stays_in_doubt(self, result: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        """What a composite makes of tensors it has just made: `ones(L, S).tril().logical_not()`."""
        records = [self.storages.find(tensor) for tensor in inputs if tensor.layout is _STRIDED]
        made_by = {record.site if record is not None else None for record in records}
        if len(made_by) == 1 and None not in made_by and made_by == {call_site()}:
            found = self.storages.find(result)
            if found is not None:
                found.site = call_site()

    def _run_on_twins(
        self, func: Any, op: Op, args: Any, kwargs: dict[str, Any], place: str, inputs: list[torch.Tensor]
    ) -> Any:
        twins = {id(tensor): meta_twin(tensor) for tensor in inputs if not is_meta(tensor)}
        originals = {id(twins[id(tensor)]): tensor for tensor in inputs if id(tensor) in twins}
        plain = {name: replaced(value, twins) for name, value in kwargs.items() if not isinstance(value, _Generator)}
        on_twins = replaced(tuple(args), twins)
        kernels, on_card = self.gpu.kernels, place not in (NOWHERE, HOST_PLACE)
        blocks = kernels.before(func, on_twins, place) if on_card else []
        try:
            try:
                result = (kernels.shape(func) or func)(*on_twins, **plain)
            except NotImplementedError:
                result = run_on_zeros(func, args, kwargs)
            result = replaced(result, originals)
            self.enroll_all(kernels.in_order(func, result) if on_card else result, place, op.name)
            if on_card:
                blocks += kernels.beside(func, on_twins, place)
        finally:
            if blocks:
                kernels.after(blocks, place)
        for tensor in op.written(args, kwargs):
            if not is_meta(tensor):
                self.records[storage_of(tensor)._cdata].known = False
        return result

    def _stays_small(
        self, func: Any, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor], place: str
    ) -> bool:
        """Whether the result of known values may itself be computed; asked of a meta run, which costs nothing."""
        if sum(map(_numel, inputs)) < _CHECK_SIZE_FIRST:
            return True
        twins = {id(tensor): meta_twin(tensor) for tensor in inputs}
        plain = {name: replaced(value, twins) for name, value in kwargs.items() if not isinstance(value, _Generator)}
        try:
            result = func(*replaced(tuple(args), twins), **plain)
        except (NotImplementedError, RuntimeError):
            return True  # the size depends on the values, which are there
        return all(self.keeps_values(out, place) for out in tensors_in((result,), {}))

    # -- enrolling -------------------------------------------------------------------------------------------------

    def enroll_all(self, result: Any, place: str, cause: str) -> None:
        if isinstance(result, torch.Tensor):
            self.enroll(result, place, cause)
        elif isinstance(result, (list, tuple)):
            for item in result:
                if isinstance(item, torch.Tensor):
                    self.enroll(item, place, cause)
                elif isinstance(item, (list, tuple)):
                    self.enroll_all(item, place, cause)

    def enroll(self, tensor: torch.Tensor, place: str, cause: str, *, pinned: bool = False) -> Record | None:
        """Bill the storage of a new tensor; None when it is an old one."""
        if tensor.layout != torch.strided:
            for part in inner_tensors(tensor):
                self.enroll(part, place, cause)
            return None
        if storage_of(tensor)._cdata in self.records:
            return None
        self.gpu.cause = cause
        return self.storages.add(tensor, place, known=not is_meta(tensor), pinned=pinned)

    def valueless(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same bytes, seen without their values."""
        if self.storages.find(tensor) is None:
            self.adopt(tensor)
        with torch._C._DisableTorchDispatch():
            twin = meta_twin(tensor)
        self.storages.share(tensor, twin)
        return twin

    def without_values(self, tensor: Any) -> Any:
        """The tensor itself, unless it is a known one of a virtual device."""
        if not isinstance(tensor, torch.Tensor) or type(tensor) not in _ORDINARY or is_meta(tensor):
            return tensor
        record = self.storages.find(tensor)
        return tensor if record is None or record.place == HOST_PLACE else self.valueless(tensor)

    def place_beside(self, tensor: torch.Tensor) -> str:
        record = self.storages.find(sparse.parts_of(tensor)[-1])
        return NOWHERE if record is None else record.place

    def adopt(self, tensor: torch.Tensor) -> Record:
        """A tensor that no op of ours made: from numpy, a file, another process, or from before."""
        self.gpu.cause = "adopted"
        if is_meta(tensor):
            return self.storages.add(tensor, NOWHERE, known=False)
        return self.storages.add(tensor, HOST_PLACE, known=True)


def meta_twin(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)


def call_site() -> tuple[int, int]:
    """The Python instruction whose C++ call we are inside: the same for all ops of one composite."""
    frame = sys._getframe(1)
    while frame.f_back is not None and between(frame):
        frame = frame.f_back
    return id(frame), frame.f_lasti


def between(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(_BETWEEN)


# Frames between the user's call and the dispatcher: this package, and function modes such as `torch.device`.
_BETWEEN = (
    "virtual/gpu.py", "virtual/accounting/storages.py", "virtual/kernels/dispatch_mode.py",
    "virtual/kernels/unknown_values.py", "virtual/kernels/sparse.py", "virtual/kernels/cuda_kernels.py",
    "virtual/kernels/autocast.py", "virtual/torch_patches/tensors.py", "virtual/torch_patches/leaves.py",
    "virtual/torch_patches/gradients.py",
    "utils/_device.py", "torch/overrides.py", "utils/_python_dispatch.py", "torch/_ops.py",
)  # fmt: skip
