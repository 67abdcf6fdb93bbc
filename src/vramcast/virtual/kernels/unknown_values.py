"""Ops whose answer depends on values: true where the values are known, otherwise a stand-in that the report names.

In comes an op that the dispatch mode has a special for, out comes its result, or NotImplemented where the ordinary
way is right. Unknown values are taken to be those of a healthy run: finite, checks pass, routers load their experts
evenly, and masks select everything, which is an upper bound. Does not know which branch a script would take on real
data.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

from vramcast.virtual.accounting.cards import Cards
from vramcast.virtual.accounting.source_lines import format_line, source_line
from vramcast.virtual.accounting.storages import (
    FROM_HOST,
    HOST_PLACE,
    HOST_PLACES,
    NOWHERE,
    Record,
    is_meta,
    meta_twin,
)
from vramcast.virtual.kernels import sparse
from vramcast.virtual.kernels.dispatch_mode import Special, VirtualMode
from vramcast.virtual.kernels.op_schemas import without_option

aten = torch.ops.aten


def install(mode: VirtualMode) -> None:
    specials = mode.specials
    _install_transfers(mode)
    _install_selections(mode)
    specials[aten._local_scalar_dense.default] = lambda func, args, kwargs: _item(mode, func, args)
    for op in (aten.equal.default, aten.allclose.default):
        specials[op] = lambda func, args, kwargs: _equal(mode, func, args, kwargs)
    for op in (aten.all.default, aten._is_all_true.default):
        specials[op] = lambda func, args, kwargs: _all(mode, func, args[0])
    # Gradients are taken to be finite: they are unscaled in place, and no infinity is found.
    unscale = aten._amp_foreach_non_finite_check_and_unscale_.default
    specials[unscale] = lambda func, args, kwargs: None
    for op in (aten.bitwise_or.Tensor, aten.logical_or.default):
        specials[op] = _decided_by(mode, True)
    for op in (aten.bitwise_and.Tensor, aten.logical_and.default):
        specials[op] = _decided_by(mode, False)
    specials[aten.histc.default] = lambda func, args, kwargs: _histc(mode, func, args, kwargs)
    specials[aten.isnan.default] = _all_finite(mode, False)
    specials[aten.isinf.default] = _all_finite(mode, False)
    # Unknown whole numbers are taken to differ from a constant: no token is padding, no picture is empty.
    specials[aten.ne.Scalar] = _all_finite(
        mode,
        True,
        lambda args: args[1] in (math.inf, -math.inf) or not args[0].is_floating_point(),
    )
    specials[aten.eq.Tensor] = _all_finite(mode, True, lambda args: args[0] is args[1])


def _install_transfers(mode: VirtualMode) -> None:
    specials = mode.specials
    specials[aten._to_copy.default] = lambda func, args, kwargs: _to_copy(mode, func, args, kwargs)
    specials[aten._pin_memory.default] = lambda func, args, kwargs: _pin(mode, args[0])
    specials[aten.is_pinned.default] = lambda func, args, kwargs: _is_pinned(mode, args[0])
    specials[aten._pack_padded_sequence.default] = lambda func, args, kwargs: _pack(
        mode, func, *args
    )
    from_parts = aten._sparse_coo_tensor_with_dims_and_tensors.default
    specials[from_parts] = lambda func, args, kwargs: _sparse_coo(mode, args, kwargs)


def _install_selections(mode: VirtualMode) -> None:
    specials = mode.specials
    specials[aten.topk.default] = lambda func, args, kwargs: _topk(mode, func, args, kwargs)
    for op in (aten.max.dim, aten.argmax.default):
        specials[op] = lambda func, args, kwargs: _argmax(mode, func, args, kwargs)
    specials[aten.nonzero.default] = lambda func, args, kwargs: _nonzero(mode, args[0])
    specials[aten.masked_select.default] = lambda func, args, kwargs: _masked_select(mode, *args)
    specials[aten.index.Tensor] = lambda func, args, kwargs: _index(mode, func, args)


# -- what is known -------------------------------------------------------------------------------------------------


def has_values(cards: Cards, tensor: torch.Tensor) -> bool:
    if is_meta(tensor):
        return False
    record = cards.storages.find(tensor)
    return record is None or record.known


def stand_in(cards: Cards, tensor: torch.Tensor) -> torch.Tensor:
    """Real values of the same shape: 1 for floats (a loss, a norm), 0 for the rest."""
    value = 1 if tensor.is_floating_point() else 0
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not _is_initializing():
        cards.note(f"{dtype} {list(tensor.shape)} read at {_here()}: {value} stood in")
    with torch._C._DisableTorchDispatch():
        return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype, device="cpu")


def _is_initializing() -> bool:
    """Weights that are being drawn have no values to report."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("torch/nn/init.py"):
            return True
        frame = frame.f_back
    return False


def _here() -> str:
    return format_line(source_line()) or "an unknown line"


def _place_if_unknown(cards: Cards, tensor: torch.Tensor) -> str | None:
    """Where a tensor of unknown values is; None if they are known, or the tensor is nowhere."""
    record = cards.storages.find(tensor)
    if record is None or record.place == NOWHERE or has_values(cards, tensor):
        return None
    return record.place


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if is_meta(tensor) else meta_twin(tensor)


# -- reading values and checks -------------------------------------------------------------------------------------


def _item(mode: VirtualMode, func: Any, args: Any) -> Any:
    cards, tensor = mode.cards, args[0]
    cards.complete_streams()  # reading a value waits for the device
    return func(tensor if has_values(cards, tensor) else stand_in(cards, tensor))


def _equal(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    if all(has_values(mode.cards, tensor) for tensor in args[:2]):
        return func(*args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    mode.cards.note(f"torch.{name} at {_here()}: False stood in")
    return False


def _all(mode: VirtualMode, func: Any, conditions: torch.Tensor) -> Any:
    """A check of all values guards a script, or a distribution its samples: unknown values pass it."""
    place = _place_if_unknown(mode.cards, conditions)
    if place is None:
        return NotImplemented
    mode.cards.note(f"torch.all at {_here()}: True stood in")
    result = torch.ones((), dtype=torch.bool)
    mode.cards.enroll(result, place, func._schema.name)
    return result


def _all_finite(mode: VirtualMode, answer: bool, applies: Any = None) -> Special:
    """The same answer for every unknown value: training is taken to be healthy, so all are finite numbers."""

    def special(func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        place = _place_if_unknown(mode.cards, tensor)
        if place is None or (applies is not None and not applies(args)):
            return NotImplemented
        if not mode.keeps_values(tensor, place):
            return NotImplemented
        result = torch.full(tuple(tensor.shape), answer, dtype=torch.bool)
        mode.cards.enroll(result, place, func._schema.name)
        return result

    return special


def _decided_by(mode: VirtualMode, decider: bool) -> Special:
    """`known True | unknown` is True, `known False & unknown` is False: how a generation loop finds its end."""

    def special(func: Any, args: Any, kwargs: Any) -> Any:
        known = [tensor for tensor in args if has_values(mode.cards, tensor)]
        if len(known) != 1 or not _decides(known[0], decider):
            return NotImplemented
        record = mode.cards.storages.find(args[0])
        like = func(*(_as_meta(tensor) for tensor in args))
        if record is None or not mode.keeps_values(like, record.place):
            return NotImplemented
        if decider and like.dtype != torch.bool:
            return NotImplemented
        result = torch.full(tuple(like.shape), decider, dtype=like.dtype)
        mode.cards.enroll(result, record.place, func._schema.name)
        return result

    return special


def _decides(known: torch.Tensor, decider: bool) -> bool:
    """Whether all values are true for an `or`, or all false for an `and`."""
    if decider:
        return bool((known != 0).all())
    return not known.any()


def _histc(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """CUDA counts integers, the CPU's kernel floats only."""
    tensor = args[0]
    record = mode.cards.storages.find(tensor)
    if record is None or tensor.is_floating_point() or not has_values(mode.cards, tensor):
        return NotImplemented
    result = func(tensor.float(), *args[1:], **kwargs).to(tensor.dtype)
    mode.cards.enroll(result, record.place, "aten::histc")
    return result


# -- copies between places -----------------------------------------------------------------------------------------


def _is_pinned(mode: VirtualMode, tensor: torch.Tensor) -> bool:
    record = mode.cards.storages.find(tensor)
    return record is not None and record.pinned


def _pin(mode: VirtualMode, tensor: torch.Tensor) -> torch.Tensor:
    """A page-locked copy; the pageable one stays allocated as long as the script holds it."""
    if _is_pinned(mode, tensor):
        return tensor
    copy = aten.clone(tensor)
    mode.cards.enroll(copy, HOST_PLACE, "aten::_pin_memory", pinned=True)
    return copy


def _to_copy(mode: VirtualMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A copy to another place; casts at one place take the ordinary way."""
    tensor, cards = args[0], mode.cards
    if tensor.layout != torch.strided:
        return sparse.map_parts(
            tensor, lambda part: mode.dispatch(func, (part,), _options_of_part(part, kwargs))
        )
    record = cards.storages.find(tensor) or cards.adopt(tensor)
    if mode.target is not None:
        return _copy(mode, func, tensor, record, mode.target, kwargs)
    device = kwargs.get("device")
    if device is None or device.type != "cuda":
        return _cast(mode, func, tensor, kwargs)
    place = cards.place_named(device)
    if place == record.place:
        return NotImplemented
    return _copy(mode, func, tensor, record, place, kwargs)


def _copy(
    mode: VirtualMode,
    func: Any,
    tensor: torch.Tensor,
    record: Record,
    place: str,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    options = {
        name: value
        for name, value in kwargs.items()
        if name in ("dtype", "memory_format", "layout")
    }
    result: torch.Tensor = func(_as_meta(tensor), **options)
    if has_values(mode.cards, tensor) and mode.keeps_values(result, place):
        result = func(tensor, **options)
    cause = FROM_HOST if record.place in HOST_PLACES else "aten::_to_copy"
    mode.cards.enroll(result, place, cause)
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
    return mode.dispatch(func, (tensor,), without_option(kwargs, "device"))


def _options_of_part(part: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """A sparse tensor's dtype is that of its values; its indices keep theirs."""
    return options if part.is_floating_point() else without_option(options, "dtype")


def _pack(
    mode: VirtualMode, func: Any, tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> Any:
    """The lengths are on the host and known, so a narrow stand-in tells how many rows remain."""
    cards = mode.cards
    if not has_values(cards, lengths):
        return NotImplemented
    narrow, sizes = func(torch.zeros(*tensor.shape[:2], 1), lengths, batch_first)
    data = torch.empty((narrow.size(0), *tensor.shape[2:]), dtype=tensor.dtype, device="meta")
    if has_values(cards, tensor):
        data = func(tensor, lengths, batch_first)[0]
    cards.enroll(data, cards.recorded_place(tensor), "aten::_pack_padded_sequence")
    cards.enroll(sizes, HOST_PLACE, "aten::_pack_padded_sequence")
    return data, sizes


def _sparse_coo(mode: VirtualMode, args: Any, kwargs: Any) -> Any:
    """`sparse_coo_tensor(indices, values)` takes both as they are; with unknown values it has none."""
    if len(args) > 4:
        indices, values = args[3], args[4]
    else:
        indices, values = kwargs["indices"], kwargs["values"]
    if not is_meta(values):
        return NotImplemented
    result = sparse.coo_without_values(args[2], indices, values)
    mode.cards.enroll(result._indices(), NOWHERE, "aten::sparse_coo_tensor")
    return result


# -- which elements are selected -----------------------------------------------------------------------------------


def _topk(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Which experts a router picks is unknown: each gets its turn, so the load is balanced and what follows is true."""
    tensor, cards = args[0], mode.cards
    place = _place_if_unknown(cards, tensor)
    if place is None:
        return NotImplemented
    values, indices = func(_as_meta(tensor), *args[1:], **kwargs)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    if mode.keeps_values(indices, place) and dim in (-1, tensor.dim() - 1):
        indices = _each_in_turn(tensor.size(dim), indices)
        cards.note(f"topk at {_here()}: every index gets its turn (balanced load)")
    cards.enroll(values, place, "aten::topk")
    cards.enroll(indices, place, "aten::topk")
    return values, indices


def _argmax(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """A router that picks one expert: as topk, where there are at least as many rows as choices.

    With fewer rows it is no router: a batch that picks its next token would end its sentence in its turn.
    """
    tensor, cards = args[0], mode.cards
    place = _place_if_unknown(cards, tensor)
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if place is None or dim is None or not tensor.is_floating_point():
        return NotImplemented
    result = func(_as_meta(tensor), *args[1:], **kwargs)
    returns_one = isinstance(result, torch.Tensor)  # argmax; max returns values and indices
    indices = result if returns_one else result[1]
    choices = tensor.size(dim)
    if choices > indices.numel() or not mode.keeps_values(indices, place):
        return NotImplemented
    cards.note(f"argmax at {_here()}: every index gets its turn (balanced load)")
    indices = _each_in_turn(choices, indices)
    result = indices if returns_one else (result[0], indices)
    cards.enroll_all(result, place, func._schema.name)
    return result


def _each_in_turn(choices: int, like: torch.Tensor) -> torch.Tensor:
    """0, 1, …, choices - 1, 0, 1, … in the shape of `like`."""
    return (torch.arange(like.numel()) % choices).view(like.shape)


def _count_selected(cards: Cards, what: str, mask: torch.Tensor) -> int:
    """How many elements a mask selects; all, if its values are unknown."""
    if has_values(cards, mask):
        return int(mask.sum())
    cards.note(f"{what} of unknown values at {_here()}: all elements taken as selected")
    return int(mask.numel())


def _nonzero(mode: VirtualMode, mask: torch.Tensor) -> Any:
    cards = mode.cards
    if has_values(cards, mask):
        return NotImplemented
    count = _count_selected(cards, "nonzero", mask)
    result = torch.empty((mask.dim(), count), dtype=torch.int64, device="meta").t()
    cards.enroll(result, cards.recorded_place(mask), "aten::nonzero")
    return result


def _masked_select(mode: VirtualMode, tensor: torch.Tensor, mask: torch.Tensor) -> Any:
    cards = mode.cards
    if has_values(cards, mask) and has_values(cards, tensor):
        return NotImplemented
    whole = mask.expand(torch.broadcast_shapes(mask.shape, tensor.shape))
    count = _count_selected(cards, "masked_select", whole)
    result = torch.empty(count, dtype=tensor.dtype, device="meta")
    cards.enroll(result, cards.recorded_place(tensor), "aten::masked_select")
    return result


def _index(mode: VirtualMode, func: Any, args: Any) -> Any:
    """Boolean masks choose rows: their number is known if the mask is."""
    cards = mode.cards
    tensor, indices = args
    masks = [index for index in indices if _is_mask(index)]
    if not masks or all(has_values(cards, part) for part in (tensor, *masks)):
        return NotImplemented
    chosen: list[torch.Tensor | None] = []
    for index in indices:
        if index is None:
            chosen.append(None)
        elif _is_mask(index):
            count = _count_selected(cards, "a boolean index", index)
            chosen += [_unknown_indices(count) for _ in range(index.dim())]
        else:
            chosen.append(_as_meta(index))
    result = func(_as_meta(tensor), chosen)
    cards.enroll(result, cards.recorded_place(tensor), "aten::index")
    return result


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _unknown_indices(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, device="meta")
