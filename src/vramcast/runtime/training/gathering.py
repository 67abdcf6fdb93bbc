"""Which token each row of a gathered tensor is, seen while a block gathers.

In: a block's input, (..., hidden). Out, while the mode is open: for every tensor that was made from it by indexing rows
or by changing its shape, the number of the token in each row. Observed, not derived from the router's scores: how a
block chooses experts, and in which order it gathers their tokens, differs from model to model. Does not follow
arithmetic: a sum of rows is no token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

_RESHAPE = frozenset(
    {
        "view",
        "reshape",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "contiguous",
        "clone",
        "to",
        "type",
        "type_as",
        "float",
        "half",
        "bfloat16",
    }
)
_PICK = frozenset({"__getitem__", "index_select", "repeat_interleave"})


class Gathering(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed by mypy
    """with Gathering(hidden) as gathering: rows = hidden.view(-1, 8)[chosen]; gathering.tokens_of(rows) == chosen"""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.num_tokens = hidden.numel() // max(hidden.shape[-1], 1)
        self._tokens = WeakTensorKeyDictionary()
        self._tokens[hidden] = torch.arange(self.num_tokens, device=hidden.device).view(
            hidden.shape[:-1]
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
            self._follow(getattr(func, "__name__", ""), func, args, kwargs, result)
        return result

    def tokens_of(self, gathered: Any) -> Tensor | None:
        """The token of each row, flat; None where that was not seen."""
        tokens = self._tokens.get(gathered) if isinstance(gathered, Tensor) else None
        return None if tokens is None else tokens.reshape(-1)

    def _follow(self, name: str, func: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        tokens = self._tokens.get(args[0])
        if tokens is None or result.shape[-1:] != args[0].shape[-1:]:
            return
        if name in _RESHAPE and result.numel() == args[0].numel():
            self._tokens[result] = tokens.reshape(result.shape[:-1])
        elif name in _PICK and _picks_whole_rows(name, args, kwargs):
            picked = func(tokens.unsqueeze(-1), *args[1:], **kwargs).squeeze(-1)
            if picked.shape == result.shape[:-1]:
                self._tokens[result] = picked


def _picks_whole_rows(name: str, args: Any, kwargs: Any) -> bool:
    """Whether the last dimension is left alone, so that the same call can be made on one number per row."""
    if name == "__getitem__":
        return bool(_dimensions(args[1]) < args[0].dim())
    position = 1 if name == "index_select" else 2
    dim = kwargs.get("dim", args[position] if len(args) > position else None)
    return bool(dim == 0 and args[0].dim() > 1)


def _dimensions(index: Any) -> int:
    """How many dimensions an index is about; more than any tensor has where that is not plain."""
    if isinstance(index, tuple):
        return sum(_dimensions(part) for part in index)
    if index is None:
        return 0
    if index is Ellipsis or isinstance(index, bool):
        return 1 << 10
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        return int(index.dim())
    return 1
