"""Ops whose answer depends on values: true where the values are known, otherwise a stand-in that the report names."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual.accounting.source_lines import format_line, source_line
from vramcast.virtual.accounting.storages import FROM_HOST, HOST_PLACE, HOST_PLACES, NOWHERE, is_meta, storage_of
from vramcast.virtual.kernels import sparse
from vramcast.virtual.kernels.dispatch_mode import meta_twin

if TYPE_CHECKING:
    from vramcast.virtual.gpu import VirtualGpu
    from vramcast.virtual.kernels.dispatch_mode import VirtualMode

aten = torch.ops.aten


def install(gpu: VirtualGpu) -> None:
    specials = gpu.mode.specials
    specials[aten._local_scalar_dense.default] = lambda func, args, kwargs: _item(gpu, func, args)
    specials[aten._to_copy.default] = lambda func, args, kwargs: _to_copy(gpu, func, args, kwargs)
    specials[aten._pin_memory.default] = lambda func, args, kwargs: _pinned(gpu, args[0])
    specials[aten.is_pinned.default] = lambda func, args, kwargs: _is_pinned(gpu, args[0])
    for op in (aten.equal.default, aten.allclose.default):
        specials[op] = lambda func, args, kwargs: _equal(gpu, func, args, kwargs)
    for op in (aten.all.default, aten._is_all_true.default):
        specials[op] = lambda func, args, kwargs: _all_hold(gpu, func, args[0])
    # gradients are taken to be finite: they are unscaled in place, and no infinity is found
    specials[aten._amp_foreach_non_finite_check_and_unscale_.default] = lambda func, args, kwargs: None
    specials[aten.topk.default] = lambda func, args, kwargs: _topk(gpu, func, args, kwargs)
    for op in (aten.max.dim, aten.argmax.default):
        specials[op] = lambda func, args, kwargs: _largest(gpu, func, args, kwargs)
    for op in (aten.bitwise_or.Tensor, aten.logical_or.default):
        specials[op] = _decided(gpu, True)
    for op in (aten.bitwise_and.Tensor, aten.logical_and.default):
        specials[op] = _decided(gpu, False)
    specials[aten._pack_padded_sequence.default] = lambda func, args, kwargs: _pack(gpu, func, *args)
    from_parts = aten._sparse_coo_tensor_with_dims_and_tensors.default
    specials[from_parts] = lambda func, args, kwargs: _sparse(gpu, args, kwargs)
    specials[aten.histc.default] = lambda func, args, kwargs: _histc(gpu, func, args, kwargs)
    specials[aten.nonzero.default] = lambda func, args, kwargs: _nonzero(gpu, func, args)
    specials[aten.masked_select.default] = lambda func, args, kwargs: _masked_select(gpu, args)
    specials[aten.index.Tensor] = lambda func, args, kwargs: _index(gpu, func, args)
    for name, answer in (("isnan", False), ("isinf", False)):
        specials[getattr(aten, name).default] = _healthy(gpu, answer)
    specials[aten.ne.Scalar] = _healthy(gpu, True, lambda args: args[1] in (math.inf, -math.inf))
    specials[aten.eq.Tensor] = _healthy(gpu, True, lambda args: args[0] is args[1])


def _is_pinned(gpu: VirtualGpu, tensor: torch.Tensor) -> bool:
    record = gpu.storages.find(tensor)
    return record is not None and record.pinned


def _pinned(gpu: VirtualGpu, tensor: torch.Tensor) -> torch.Tensor:
    """A page-locked copy; the pageable one lives on as long as the script holds it."""
    if _is_pinned(gpu, tensor):
        return tensor
    copy = aten.clone(tensor)
    gpu.mode.enroll(copy, HOST_PLACE, "aten::_pin_memory", pinned=True)
    return copy


def has_values(gpu: VirtualGpu, tensor: torch.Tensor) -> bool:
    if is_meta(tensor):
        return False
    record = gpu.storages.find(tensor)
    return record is None or record.known


def stand_in(gpu: VirtualGpu, tensor: torch.Tensor) -> torch.Tensor:
    """Real values of the same shape: 1 for floats (a loss, a norm), 0 for the rest."""
    value = 1 if tensor.is_floating_point() else 0
    kind = str(tensor.dtype).removeprefix("torch.")
    if not _initializing():
        gpu.note(
            f"{kind} {list(tensor.shape)} read at {format_line(source_line()) or 'an unknown line'}: {value} stood in"
        )
    with torch._C._DisableTorchDispatch():
        return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype, device="cpu")


def _initializing() -> bool:
    """Weights that are being drawn have no values to report."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("torch/nn/init.py"):
            return True
        frame = frame.f_back
    return False


def _item(gpu: VirtualGpu, func: Any, args: Any) -> Any:
    gpu.streams_caught_up()  # reading a value waits for the device
    tensor = args[0] if has_values(gpu, args[0]) else stand_in(gpu, args[0])
    return func(tensor)


def _equal(gpu: VirtualGpu, func: Any, args: Any, kwargs: Any) -> Any:
    if all(has_values(gpu, tensor) for tensor in args[:2]):
        return func(*args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    gpu.note(f"torch.{name} at {format_line(source_line()) or 'an unknown line'}: False stood in")
    return False


def _all_hold(gpu: VirtualGpu, func: Any, conditions: torch.Tensor) -> Any:
    """A check of all values guards a script, or a distribution its samples: unknown values pass it."""
    record = gpu.storages.find(conditions)
    if has_values(gpu, conditions) or record is None or record.place == NOWHERE:
        return NotImplemented
    gpu.note(f"torch.all at {format_line(source_line()) or 'an unknown line'}: True stood in")
    result = torch.ones((), dtype=torch.bool)
    gpu.mode.enroll(result, record.place, func._schema.name)
    return result


def _to_copy(gpu: VirtualGpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A copy to another place; casts in one place take the ordinary way."""
    tensor, mode = args[0], gpu.mode
    if tensor.layout != torch.strided:
        return sparse.rebuilt(tensor, lambda part: mode.dispatch(func, (part,), _for_part(part, kwargs)))
    record = gpu.storages.find(tensor) or mode.adopt(tensor)
    place = mode.target
    if place is None:
        device = kwargs.get("device")
        if device is None or device.type != "cuda":
            return _cast(mode, func, tensor, kwargs)
        place = gpu.place_named(device)
    if place == record.place and mode.target is None:
        return NotImplemented
    options = {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format", "layout")}
    result = func(tensor if is_meta(tensor) else meta_twin(tensor), **options)
    if has_values(gpu, tensor) and mode.keeps_values(result, place):
        result = func(tensor, **options)
    mode.enroll(result, place, FROM_HOST if record.place in HOST_PLACES else "aten::_to_copy")
    return result


def _cast(mode: VirtualMode, func: Any, tensor: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    """`.to(device)` of a script comes here with a place; a device named without one is that of torch's own code.

    It read it off another tensor, of the same place, with or without values: on CUDA only the dtype may differ.
    """
    device = kwargs.get("device")
    if device is None or (device.type == "meta") == is_meta(tensor):
        return NotImplemented
    if kwargs.get("dtype") in (None, tensor.dtype):
        return aten.alias(tensor)
    return mode.dispatch(func, (tensor,), {name: option for name, option in kwargs.items() if name != "device"})


def _for_part(part: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """A sparse tensor's dtype is that of its values."""
    return {name: option for name, option in options.items() if name != "dtype" or part.is_floating_point()}


def _healthy(gpu: VirtualGpu, answer: bool, applies: Any = None) -> Any:
    """Training is taken to be healthy: unknown values are finite numbers."""

    def special(func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if has_values(gpu, tensor) or (applies is not None and not applies(args)):
            return NotImplemented
        record = gpu.storages.find(tensor)
        place = NOWHERE if record is None else record.place
        if place == NOWHERE or not gpu.mode.keeps_values(tensor, place):
            return NotImplemented
        result = torch.full(tuple(tensor.shape), answer, dtype=torch.bool)
        gpu.mode.enroll(result, place, func._schema.name)
        return result

    return special


def _topk(gpu: VirtualGpu, func: Any, args: Any, kwargs: Any) -> Any:
    """Which experts a router picks is unknown: each gets its turn, so the load is balanced and what follows is true."""
    tensor = args[0]
    record = gpu.storages.find(tensor)
    if has_values(gpu, tensor) or record is None or record.place == NOWHERE:
        return NotImplemented
    values, indices = func(tensor if is_meta(tensor) else meta_twin(tensor), *args[1:], **kwargs)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    if gpu.mode.keeps_values(indices, record.place) and dim in (-1, tensor.dim() - 1):
        indices = (torch.arange(indices.numel()) % tensor.size(dim)).view(indices.shape)
        gpu.note(
            f"topk at {format_line(source_line()) or 'an unknown line'}: every index gets its turn (balanced load)"
        )
    gpu.mode.enroll(values, record.place, "aten::topk")
    gpu.mode.enroll(indices, record.place, "aten::topk")
    return values, indices


def _largest(gpu: VirtualGpu, func: Any, args: Any, kwargs: Any) -> Any:
    """A router that picks one expert: as topk, where there are at least as many rows as choices.

    With fewer rows it is no router: a batch that picks its next token would end its sentence in its turn.
    """
    tensor = args[0]
    record = gpu.storages.find(tensor)
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is None or not tensor.is_floating_point() or has_values(gpu, tensor):
        return NotImplemented
    if record is None or record.place == NOWHERE:
        return NotImplemented
    result = func(tensor if is_meta(tensor) else meta_twin(tensor), *args[1:], **kwargs)
    found = result if isinstance(result, torch.Tensor) else result[1]
    choices = tensor.size(dim)
    if not choices <= found.numel() or not gpu.mode.keeps_values(found, record.place):
        return NotImplemented
    gpu.note(f"argmax at {format_line(source_line()) or 'an unknown line'}: every index gets its turn (balanced load)")
    indices = (torch.arange(found.numel()) % choices).view(found.shape)
    outputs = (indices,) if found is result else (result[0], indices)
    for output in outputs:
        gpu.mode.enroll(output, record.place, func._schema.name)
    return outputs[0] if found is result else outputs


def _pack(gpu: VirtualGpu, func: Any, tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """The lengths are on the host and known, so a narrow stand-in tells how many rows remain."""
    if not has_values(gpu, lengths):
        return NotImplemented
    narrow, sizes = func(torch.zeros(*tensor.shape[:2], 1), lengths, batch_first)
    data = torch.empty((narrow.size(0), *tensor.shape[2:]), dtype=tensor.dtype, device="meta")
    if has_values(gpu, tensor):
        data = func(tensor, lengths, batch_first)[0]
    _enroll_beside(gpu, data, tensor, "aten::_pack_padded_sequence")
    gpu.mode.enroll(sizes, HOST_PLACE, "aten::_pack_padded_sequence")
    return data, sizes


def _sparse(gpu: VirtualGpu, args: Any, kwargs: Any) -> Any:
    """`sparse_coo_tensor(indices, values)` takes both as they are; with unknown values it has none."""
    indices, values = (args[3], args[4]) if len(args) > 4 else (kwargs["indices"], kwargs["values"])
    if not is_meta(values):
        return NotImplemented
    result = sparse.of_parts(args[2], indices, values)
    gpu.mode.enroll(result._indices(), NOWHERE, "aten::sparse_coo_tensor")
    return result


def _histc(gpu: VirtualGpu, func: Any, args: Any, kwargs: Any) -> Any:
    """CUDA counts integers, the CPU's kernel floats only."""
    tensor = args[0]
    record = gpu.storages.find(tensor)
    if record is None or not has_values(gpu, tensor) or tensor.is_floating_point():
        return NotImplemented
    result = func(tensor.float(), *args[1:], **kwargs).to(tensor.dtype)
    gpu.mode.enroll(result, record.place, "aten::histc")
    return result


def _decided(gpu: VirtualGpu, decider: bool) -> Any:
    """`known True | unknown` is True, `known False & unknown` is False: how a generation loop finds its end."""

    def special(func: Any, args: Any, kwargs: Any) -> Any:
        known = [t for t in args if has_values(gpu, t)]
        if len(known) != 1 or not all(bool((t != 0).all()) if decider else not t.any() for t in known):
            return NotImplemented
        record = gpu.storages.find(args[0])
        like = func(*(t if is_meta(t) else meta_twin(t) for t in args))
        if record is None or not gpu.mode.keeps_values(like, record.place) or (decider and like.dtype != torch.bool):
            return NotImplemented
        result = torch.full(tuple(like.shape), decider, dtype=like.dtype)
        gpu.mode.enroll(result, record.place, func._schema.name)
        return result

    return special


def _all_selected(gpu: VirtualGpu, what: str, mask: torch.Tensor) -> int:
    gpu.note(
        f"{what} of unknown values at {format_line(source_line()) or 'an unknown line'}: all elements taken as selected"
    )
    return int(mask.numel())


def _nonzero(gpu: VirtualGpu, func: Any, args: Any) -> Any:
    mask = args[0]
    if has_values(gpu, mask):
        return NotImplemented
    count = _all_selected(gpu, "nonzero", mask)
    result = torch.empty((mask.dim(), count), dtype=torch.int64, device="meta").t()
    _enroll_beside(gpu, result, mask, "aten::nonzero")
    return result


def _masked_select(gpu: VirtualGpu, args: Any) -> Any:
    tensor, mask = args
    if has_values(gpu, mask) and has_values(gpu, tensor):
        return NotImplemented
    whole = mask.expand(torch.broadcast_shapes(mask.shape, tensor.shape))
    count = int(whole.sum()) if has_values(gpu, mask) else _all_selected(gpu, "masked_select", whole)
    result = torch.empty(count, dtype=tensor.dtype, device="meta")
    _enroll_beside(gpu, result, tensor, "aten::masked_select")
    return result


def _index(gpu: VirtualGpu, func: Any, args: Any) -> Any:
    """Boolean masks choose rows: their number is known if the mask is."""
    tensor, indices = args
    masks = [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if not masks or all(has_values(gpu, t) for t in (tensor, *masks)):
        return NotImplemented
    chosen: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            chosen.append(None if index is None else index if is_meta(index) else meta_twin(index))
            continue
        count = int(index.sum()) if has_values(gpu, index) else _all_selected(gpu, "a boolean index", index)
        chosen += [torch.empty(count, dtype=torch.int64, device="meta") for _ in range(index.dim())]
    result = func(tensor if is_meta(tensor) else meta_twin(tensor), chosen)
    _enroll_beside(gpu, result, tensor, "aten::index")
    return result


def _enroll_beside(gpu: VirtualGpu, result: torch.Tensor, tensor: torch.Tensor, cause: str) -> None:
    record = gpu.storages.records.get(storage_of(tensor)._cdata)
    gpu.mode.enroll(result, NOWHERE if record is None else record.place, cause)
