"""CUDA's autocast on virtual tensors: the same lists, the same casts, the same cache of weight copies.

In come the ops of `autocast_lists`, out come the same ops on inputs that were cast. torch's own kernels of the
AutocastCUDA level refuse tensors that are not on CUDA, so ours take their place there; `torch.autocast("cuda")`
itself switches the level on and off. Does not know DTensors: they are left as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch

from vramcast.ledger import Category
from vramcast.patches import Patches
from vramcast.virtual.accounting.cards import Cards
from vramcast.virtual.kernels.autocast_lists import (
    FLOAT32,
    FLOAT32_APPENDED,
    FLOAT32_RESULT,
    LOWER_PRECISION,
    WIDEST,
)
from vramcast.virtual.kernels.op_schemas import replace_in_options, replace_tensors, tensors_in

_LEVEL = torch._C.DispatchKey.AutocastCUDA
_LEVEL_SET = torch._C.DispatchKeySet(_LEVEL)
_HALF = (torch.float16, torch.bfloat16)


def enter_thread() -> None:
    """The level is one of each thread's own."""
    torch._C._dispatch_tls_set_dispatch_key_included(_LEVEL, True)


class Autocast:
    """As a context: our kernels are registered, and gone afterwards."""

    def __init__(self, cards: Cards, patches: Patches) -> None:
        self._cards = cards
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        clear = torch.clear_autocast_cache

        def clear_autocast_cache() -> None:
            self._cache.clear()
            clear()

        patches.set(torch, "clear_autocast_cache", clear_autocast_cache)

    def __enter__(self) -> Autocast:
        self._library = torch.library.Library("aten", "IMPL")
        self._was_included = torch._C._dispatch_tls_is_dispatch_key_included(_LEVEL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in self._kernels():
                self._library.impl(name, kernel, "AutocastCUDA", allow_override=True)
        enter_thread()
        return self

    def _kernels(self) -> Iterator[tuple[str, Any]]:
        for names, rule in (
            (LOWER_PRECISION, self._lower),
            (FLOAT32, self._float32),
            (FLOAT32_RESULT, self._float32_result),
            (WIDEST, self._widest),
        ):
            for name in names:
                yield name, _kernel(name, rule)
        yield from zip(FLOAT32_APPENDED, (self._norm, self._norm_along), strict=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch._C._dispatch_tls_set_dispatch_key_included(_LEVEL, self._was_included)
        self._library._destroy()
        self._cache.clear()

    # -- norms: the overload that takes a dtype, asked for fp32 ------------------------------------------------------

    def _norm(self, x: torch.Tensor, p: float = 2) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(_LEVEL_SET):
            wide = torch.float32 if self._eligible(x) else x.dtype
            result: torch.Tensor = torch.ops.aten.norm.ScalarOpt_dtype(x, p, dtype=wide)
        return result

    def _norm_along(
        self, x: torch.Tensor, p: float | None, dim: Any, keepdim: bool = False
    ) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(_LEVEL_SET):
            wide = torch.float32 if self._eligible(x) else x.dtype
            result: torch.Tensor = torch.ops.aten.norm.ScalarOpt_dim_dtype(
                x, p, dim, keepdim, dtype=wide
            )
        return result

    # -- the four rules: arguments in, arguments out ---------------------------------------------------------------

    def _lower(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return self._cast(args, kwargs, torch.get_autocast_dtype("cuda"))

    def _float32(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return self._cast(args, kwargs, torch.float32)

    def _float32_result(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """`dtype` is the last argument where it is positional; an explicit one is kept."""
        if not self._eligible(args[0]) or args[0].dtype not in _HALF:
            return args, kwargs
        if kwargs.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in args):
            return args, kwargs
        return _without_trailing_none(args), {**kwargs, "dtype": torch.float32}

    def _widest(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        eligible = [tensor for tensor in tensors_in(args, kwargs) if self._eligible(tensor)]
        wide = any(tensor.dtype == torch.float32 for tensor in eligible)
        return self._cast(args, kwargs, torch.float32) if wide else (args, kwargs)

    def _cast(
        self, args: Any, kwargs: dict[str, Any], dtype: torch.dtype
    ) -> tuple[Any, dict[str, Any]]:
        casts = {
            id(tensor): self._cast_tensor(tensor, dtype)
            for tensor in tensors_in(args, kwargs)
            if tensor.dtype != dtype and self._eligible(tensor)
        }
        if not casts:
            return args, kwargs
        return replace_tensors(tuple(args), casts), replace_in_options(kwargs, casts)

    def _eligible(self, tensor: Any) -> bool:
        """Floating-point tensors of a virtual card, but float64."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return False
        if tensor.dtype == torch.float64:
            return False
        record = self._cards.storages.find(tensor)
        return record is not None and record.place in self._cards.places

    def _cast_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A leaf weight is cast once per outermost region, anything else each time."""
        if not _can_try_cache(tensor, dtype):
            return tensor.to(dtype)
        found = self._cache.get(id(tensor))
        if found is None:
            found = self._cache[id(tensor)] = (tensor, tensor.to(dtype))
            record = self._cards.storages.find(found[1])
            if record is not None:
                record.category = Category.COPIES
        return found[1]


def _can_try_cache(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """can_try_cache of autocast_mode.cpp."""
    if dtype not in _HALF or not torch.is_autocast_cache_enabled():
        return False
    is_weight = tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf
    return is_weight and not tensor._is_view()


def _without_trailing_none(args: Any) -> Any:
    return args[:-1] if len(args) > 2 and args[-1] is None else args


def _kernel(name: str, rule: Any) -> Any:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_LEVEL_SET):
            args, kwargs = rule(args, kwargs)
            return op(*args, **kwargs)

    return kernel
