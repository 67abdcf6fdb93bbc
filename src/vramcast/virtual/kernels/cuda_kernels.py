"""What CUDA's kernels do that torch's functions for meta tensors do not: other ops for the same call, other outputs,
workspaces.

In come composite ops, replaced at the level where torch itself would take them apart, for meta tensors only; out come
the ops that CUDA would run. The dispatch mode asks `Kernels` what a single op takes while it runs: see
`temporary_buffers`, `convolution` for cuDNN's workspaces, which are a range, and `recurrent` for LSTM and GRU. Does
not know compiled kernels.
"""

from __future__ import annotations

import os
import re
import warnings
from types import TracebackType
from typing import Any

import torch

from vramcast.allocator import OutOfMemory
from vramcast.ledger import Category
from vramcast.units import KiB, MiB
from vramcast.virtual.accounting.cards import Cards
from vramcast.virtual.accounting.storages import Record, is_meta
from vramcast.virtual.kernels import convolution, recurrent, temporary_buffers
from vramcast.virtual.kernels.attention import cpu_attention, cuda_attention
from vramcast.virtual.kernels.op_schemas import replace_in_options, replace_tensors, tensors_in

aten = torch.ops.aten
_MATMULS = frozenset(  # they take a cuBLAS workspace
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.addmv.default,
        aten._addmm_activation.default,
        aten.addbmm.default,
        aten.mv.default,
    }
)
_RECURRENT = tuple(
    f"{kind}.{form}"
    for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for form in ("input", "data")
)
_COMPARE_DEVICES = (  # composites that would find a tensor with values and one without to be on two devices
    "inner",
    "linalg_multi_dot",
    "meshgrid",
    "meshgrid.indexing",
    "stft",
    "stft.center",
    "take_along_dim",
)
_RECURRENT_NOTE = (
    "plain recurrent layers are counted step by step; cuDNN keeps one reserve buffer instead"
)


class Kernels:
    """As a context: the replacements are registered with torch's dispatcher, and gone afterwards."""

    def __init__(self, cards: Cards, *, cuda: bool) -> None:
        self._cards = cards
        self._cuda = cuda
        self._workspaces: set[tuple[str, int, bool]] = set()  # place, stream, in backward

    def __enter__(self) -> Kernels:
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in self._replacements().items():
                self._library.impl(name, kernel, "AutogradMeta")
        return self

    def _replacements(self) -> dict[str, Any]:
        cards = self._cards
        found: dict[str, Any] = {"scaled_dot_product_attention": cpu_attention, "linear": linear}
        if self._cuda:
            found["scaled_dot_product_attention"] = cuda_attention(cards.capability)
            found["dropout"] = dropout
            found["rms_norm"] = rms_norm(cards)
        for name in _RECURRENT:
            kind, _, overload = name.partition(".")
            found[name] = recurrent_kernel(cards, kind, overload, cuda=self._cuda)
        for name in _COMPARE_DEVICES:
            found[name] = on_twins(cards, name)
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._library._destroy()

    # -- what the dispatch mode asks for one op on a card ----------------------------------------------------------

    def allocate_before_outputs(self, func: Any, args: tuple[Any, ...], place: str) -> list[object]:
        """Memory that the kernel takes before its outputs, and gives back when it is done."""
        sizes_of = temporary_buffers.ON_ANY_DEVICE.get(func)
        if sizes_of is None and self._cuda:
            sizes_of = temporary_buffers.BEFORE_OUTPUTS.get(func)
        elif sizes_of is None:
            sizes_of = temporary_buffers.BEFORE_OUTPUTS_ON_CPU.get(func)
        return [] if sizes_of is None else self._allocate(func, sizes_of(args), place)

    def allocate_after_outputs(self, func: Any, args: tuple[Any, ...], place: str) -> list[object]:
        """Memory that the kernel takes once its outputs are allocated; on first use, a workspace that stays."""
        if not self._cuda:
            return []
        if func in _MATMULS:
            self._ensure_cublas_workspace(place)
        sizes_of = temporary_buffers.AFTER_OUTPUTS.get(func)
        return [] if sizes_of is None else self._allocate(func, sizes_of(args), place)

    def _allocate(self, func: Any, sizes: list[int], place: str) -> list[object]:
        cards, meter = self._cards, self._cards.meters[place]
        if cards.is_uncounted:
            return []
        try:
            return meter.allocate_temporaries(sizes, cards.clock, cards.phases.current)
        except OutOfMemory as error:
            record = Record(place, 0, known=False)
            record.cause, record.category = func._schema.name, Category.TEMPORARY
            cards.run_out(record, error.moment.requested_bytes, error)
        return meter.allocate_temporaries(sizes, cards.clock, cards.phases.current)

    def free_temporaries(self, blocks: list[object], place: str) -> None:
        self._cards.meters[place].free_temporaries(blocks)

    def meta_function(self, func: Any) -> Any:
        """A function that knows what CUDA's kernel returns, where torch's own meta function does not."""
        found = convolution.SHAPES.get(func) if self._cuda else None
        return found or SHAPES.get(func)

    def in_allocation_order(self, func: Any, result: Any) -> Any:
        """The outputs as CUDA's kernel asks for them, where that is not the order in which it returns them."""
        order = _ALLOCATION_ORDER.get(func) if self._cuda else None
        return result if order is None else tuple(result[index] for index in order)

    def note_workspace(self, func: Any, args: tuple[Any, ...], result: Any, place: str) -> None:
        """After a convolution: keep what its workspace may have added for the report."""
        if not self._cuda or func not in convolution.SHAPES or self._cards.is_uncounted:
            return
        cards = self._cards
        limit_bytes = convolution.workspace_limit_bytes(func, args, result)
        cards.meters[place].note_possible_workspace(limit_bytes, cards.phases.current)
        if limit_bytes:
            cards.note_once(convolution.NOTE)

    def _ensure_cublas_workspace(self, place: str) -> None:
        """cuBLAS takes one per handle and stream, for good; the backward thread has a handle of its own."""
        cards = self._cards
        if cards.is_uncounted:
            return
        stream = cards.memory_at(place).stream
        in_backward = torch._C._current_autograd_node() is not None
        key = (place, stream, in_backward)
        if key in self._workspaces:
            return
        self._workspaces.add(key)
        size = cublas_workspace_bytes(cards.capability)
        if not size:
            return
        record = Record(place, 0, known=False)
        record.category = Category.WORKSPACE
        handle = "backward" if in_backward else "forward"
        record.name = f"cuBLAS workspace, {handle}, stream {stream}"
        cards.cause = "cublas"
        cards.record_allocation(record, size)


def cublas_workspace_bytes(capability: tuple[int, int]) -> int:
    """aten/src/ATen/cuda/CublasHandlePool.cpp: as CUBLAS_WORKSPACE_CONFIG says (":KiB:COUNT"), else its default."""
    asked = re.findall(r":([0-9]+):([0-9]+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if asked:
        return sum(int(size) * int(count) for size, count in asked) * KiB
    if capability[0] in (9, 10, 12):
        return 32 * MiB
    return (2 * 4096 + 8 * 16) * KiB


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The bias goes onto the product in place; under a dispatch mode torch would make another tensor for the sum."""
    if bias is None or x.dim() < 3 or x.is_contiguous():
        plain: torch.Tensor = aten.linear.default.decompose(x, weight, bias)
        return plain
    return torch.matmul(x, weight.t()).add_(bias)


def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """CUDA fuses it: a mask of one byte per element is kept."""
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1:
        return x.mul(torch.zeros((), dtype=x.dtype))
    out: torch.Tensor = aten.native_dropout(x, p, train)[0]
    return out


def rms_norm(cards: Cards) -> Any:
    """CUDA fuses it where dtypes agree (layer_norm.cpp rms_norm_symint); for meta tensors torch would take it apart."""

    def run(
        x: torch.Tensor,
        shape: list[int],
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> Any:
        in_a_graph = cards.is_uncounted  # of a compiled function: Inductor fuses by itself
        if in_a_graph or (weight is not None and weight.dtype != x.dtype):
            return aten.rms_norm.default.decompose(x, shape, weight, eps)
        if type(x) is not torch.Tensor:
            return aten._fused_rms_norm(x, shape, weight, eps)[0]  # a DTensor has its own way
        if not is_meta(x):
            x = cards.shared_twin(x)
        if weight is not None and not is_meta(weight):
            weight = cards.shared_twin(weight)
        return FusedRmsNorm.apply(x, weight, shape)

    return run


class FusedRmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """Saves the input and one statistic per row, in fp32."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, shape: list[int]
    ) -> torch.Tensor:
        ctx.shape = shape
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        statistic = x.new_empty(_rows_shape(x, shape), dtype=_statistics_dtype(x))
        ctx.save_for_backward(x, weight, statistic)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, weight, _ = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # a gradient of gradients is taken op by op
            out = aten.rms_norm.default.decompose(x, ctx.shape, weight)
            wanted = [t for t, needed in ((x, needs_x), (weight, needs_weight)) if needed]
            found = list(torch.autograd.grad(out, wanted, gradient, create_graph=True))
            x_gradient = found.pop(0) if needs_x else None
            weight_gradient = found.pop(0) if needs_weight else None
        else:
            x_gradient = torch.empty_like(x) if needs_x else None
            weight_gradient = torch.empty_like(weight) if needs_weight else None
        return x_gradient, weight_gradient, None


def on_twins(cards: Cards, name: str) -> Any:
    """Take a composite apart after its inputs with values have given them up."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")

    def run(*args: Any, **kwargs: Any) -> Any:
        with_values = [tensor for tensor in tensors_in(args, kwargs) if not is_meta(tensor)]
        twins = {id(tensor): cards.shared_twin(tensor) for tensor in with_values}
        return op.decompose(*replace_tensors(args, twins), **replace_in_options(kwargs, twins))

    return run


def recurrent_kernel(cards: Cards, kind: str, overload: str, *, cuda: bool) -> Any:
    """The composite checks devices itself, so inputs with values must give them up before."""
    op = getattr(getattr(aten, kind), overload)

    def run(*args: Any, **kwargs: Any) -> Any:
        # the batch sizes of a packed sequence are on the host by design
        batch_sizes = args[1] if overload == "data" else None
        inputs = [t for t in tensors_in(args, kwargs) if not is_meta(t) and t is not batch_sizes]
        args = replace_tensors(args, {id(t): cards.shared_twin(t) for t in inputs})
        if cuda and kind in recurrent.VALUES_KEPT and torch.backends.cudnn.enabled:
            cards.note_once(recurrent.NOTE)
            return _run_on_cudnn(kind, overload, *args, **kwargs)
        cards.note_once(_RECURRENT_NOTE)
        return op.decompose(*args, **kwargs)

    return run


def _run_on_cudnn(kind: str, overload: str, x: torch.Tensor, *args: Any) -> Any:
    common = args[1:8] if overload == "data" else args[:7]
    states, weights, _, layers, _, trains, bidirectional = common
    directions = 2 if bidirectional else 1
    call = recurrent.Call(kind=kind, layers=layers, directions=directions, trains=trains)
    return recurrent.run(call, x, states if kind == "lstm" else [states], weights)


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> torch.Tensor:
    """The shape of a grouped product for any dtype; torch's own meta function knows bfloat16 only."""
    if a.dim() == b.dim() == 2 and offs is not None:
        shape: tuple[int, ...] = (offs.numel(), a.size(0), b.size(1))
    elif a.dim() == b.dim() == 3:
        shape = (a.size(0), a.size(1), b.size(2))
    else:
        shape = (a.size(-2), b.size(-1))
    return torch.empty(shape, dtype=out_dtype or a.dtype, device="meta")


def layer_norm(
    x: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[torch.Tensor, ...]:
    """Contiguous, with statistics in fp32, as the kernel writes them; torch's meta function keeps odd strides."""
    rows, dtype = _rows_shape(x, shape), _statistics_dtype(x)
    mean = torch.empty(rows, dtype=dtype, device="meta")
    rstd = torch.empty(rows, dtype=dtype, device="meta")
    return torch.empty(x.shape, dtype=x.dtype, device="meta"), mean, rstd


def _rows_shape(x: torch.Tensor, normalized: Any) -> tuple[int, ...]:
    """One number per row: the normalized dimensions become 1."""
    kept = x.shape[: x.dim() - len(normalized)]
    return (*kept, *(1 for _ in normalized))


def _statistics_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def layer_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    shape: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    wanted: Any,
) -> tuple[torch.Tensor | None, ...]:
    def like(tensor: Any, size: Any, index: int) -> torch.Tensor | None:
        if tensor is None or not wanted[index]:
            return None
        return torch.empty(size, dtype=tensor.dtype, device="meta")

    return like(x, x.shape, 0), like(weight, list(shape), 1), like(bias, list(shape), 2)


def same_shapes(tensors: list[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors]


# Dropout.cu, dropout_cuda: the mask comes first.
_ALLOCATION_ORDER: dict[Any, tuple[int, ...]] = {aten.native_dropout.default: (1, 0)}

SHAPES: dict[Any, Any] = {
    aten._foreach_sqrt.default: same_shapes,
    aten._foreach_neg.default: same_shapes,
    aten._foreach_abs.default: same_shapes,
    aten._foreach_mul.Scalar: same_shapes,
    aten._foreach_div.Scalar: same_shapes,
    aten._grouped_mm.default: grouped_mm,
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
}
