"""What CUDA's kernels do that the CPU's do not: other ops for the same call, workspaces, memory inside a kernel.

Composite ops are replaced at the level where torch itself would take them apart, for meta tensors only. Convolution
workspaces are a range: see `convolution`; LSTM and GRU: see `recurrent`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from vramcast.allocator import OutOfMemory
from vramcast.ledger import Category
from vramcast.units import KiB, MiB, round_up
from vramcast.virtual.accounting.storages import Record, is_meta
from vramcast.virtual.kernels import convolution, recurrent
from vramcast.virtual.kernels.attention import cpu_attention, cuda_attention
from vramcast.virtual.kernels.op_schemas import replaced, tensors_in

if TYPE_CHECKING:
    from vramcast.virtual.gpu import VirtualGpu

aten = torch.ops.aten
_MATMULS = frozenset(
    {
        aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addmv.default,
        aten._addmm_activation.default, aten.addbmm.default, aten.mv.default,
    }
)  # fmt: skip
_RECURRENT = tuple(f"{kind}.{form}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data"))
_CHECKING = (  # composites that compare devices, and would find a tensor with values and one without to differ
    "inner", "linalg_multi_dot", "meshgrid", "meshgrid.indexing", "stft", "stft.center", "take_along_dim",
)  # fmt: skip
_RECURRENT_NOTE = "plain recurrent layers are billed step by step; cuDNN keeps one reserve buffer instead"


class Kernels:
    """As a context: the replacements are registered with torch's dispatcher, and gone afterwards."""

    def __init__(self, gpu: VirtualGpu, *, cuda: bool) -> None:
        self._gpu = gpu
        self._cuda = cuda
        self._workspaces: set[tuple[str, int, bool]] = set()
        self._held: list[object] = []

    def __enter__(self) -> Kernels:
        self._library = torch.library.Library("aten", "IMPL")
        replacements: dict[str, Any] = {"scaled_dot_product_attention": cpu_attention, "linear": linear}
        if self._cuda:
            replacements |= {
                "scaled_dot_product_attention": cuda_attention(self._gpu.capability),
                "dropout": dropout,
                "rms_norm": rms_norm(self._gpu),
            }
        for name in _RECURRENT:
            kind, _, overload = name.partition(".")
            replacements[name] = recurrent_kernel(self._gpu, kind, overload, cuda=self._cuda)
        replacements |= {name: without_values(self._gpu, name) for name in _CHECKING}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in replacements.items():
                self._library.impl(name, kernel, "AutogradMeta")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library._destroy()

    def before(self, func: Any, args: tuple[Any, ...], place: str) -> list[object]:
        """Memory the kernel takes before its outputs, which it gives back when it is done."""
        inside = _ON_ANY_DEVICE.get(func) or (_BEFORE if self._cuda else _BEFORE_ON_CPU).get(func)
        return [] if inside is None else self._momentary(func, inside(args), place)

    def beside(self, func: Any, args: tuple[Any, ...], place: str) -> list[object]:
        """Memory the kernel takes once its outputs are there; persistent workspaces on first use."""
        if not self._cuda:
            return []
        if func in _MATMULS:
            self._workspace(place)
        inside = _BESIDE.get(func)
        return [] if inside is None else self._momentary(func, inside(args), place)

    def _momentary(self, func: Any, sizes: list[int], place: str) -> list[object]:
        gpu = self._gpu
        try:
            return gpu.meters[place].momentary(sizes, gpu.clock, gpu.phases.current)
        except OutOfMemory as error:
            record = Record(place, 0, known=False)
            record.cause, record.category = func._schema.name, Category.TEMPORARY
            raise gpu.short_of_memory(record, error.moment.requested_bytes, error) from None

    def after(self, blocks: list[object], place: str) -> None:
        self._gpu.meters[place].release(blocks)

    def shape(self, func: Any) -> Any:
        """A function that knows what CUDA's kernel writes, where torch's own meta function does not."""
        return (convolution.SHAPES.get(func) if self._cuda else None) or SHAPES.get(func)

    def in_order(self, func: Any, result: Any) -> Any:
        """The outputs as CUDA's kernel asks for them, where that is not the order in which it returns them."""
        order = _BORN_FIRST.get(func) if self._cuda else None
        return result if order is None else tuple(result[index] for index in order)

    def done(self, func: Any, args: tuple[Any, ...], result: Any, place: str) -> None:
        """A convolution has run: what its workspace may have added is kept for the report."""
        if self._cuda and func in convolution.SHAPES:
            gpu = self._gpu
            limit_bytes = convolution.workspace_limit_bytes(func, args, result)
            gpu.meters[place].might_take(limit_bytes, gpu.phases.current)
            if limit_bytes:
                gpu.notes.setdefault(convolution.NOTE, 1)

    def _workspace(self, place: str) -> None:
        """cuBLAS takes one per handle and stream, for good; the backward thread has a handle of its own."""
        gpu = self._gpu
        stream = gpu.memory_at(place).stream
        key = (place, stream, torch._C._current_autograd_node() is not None)
        if key in self._workspaces:
            return
        self._workspaces.add(key)
        size = cublas_workspace_bytes(gpu.capability)
        if not size:
            return
        record = Record(place, 0, known=False)
        record.category = Category.WORKSPACE
        record.name = f"cuBLAS workspace, {'backward' if key[2] else 'forward'}, stream {stream}"
        gpu.cause = "cublas"
        gpu.born(record, size)


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


def rms_norm(gpu: VirtualGpu) -> Any:
    """CUDA fuses it where dtypes agree (layer_norm.cpp rms_norm_symint); for meta tensors torch would take it apart."""

    def run(x: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None) -> Any:
        if weight is not None and weight.dtype != x.dtype:
            return aten.rms_norm.default.decompose(x, shape, weight, eps)
        if type(x) is not torch.Tensor:
            return aten._fused_rms_norm(x, shape, weight, eps)[0]  # a DTensor has its own way
        x, weight = (t if t is None or is_meta(t) else gpu.mode.valueless(t) for t in (x, weight))
        return FusedRmsNorm.apply(x, weight, shape)

    return run


class FusedRmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """Input and one statistic per row, in fp32, are kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, shape: list[int]) -> torch.Tensor:
        ctx.shape = shape
        rows = (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        ctx.save_for_backward(x, weight, x.new_empty(rows, dtype=kind))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, weight, _ = ctx.saved_tensors
        wanted = [t for t, needed in zip((x, weight), ctx.needs_input_grad, strict=False) if needed]
        if torch.is_grad_enabled():  # a gradient of gradients is taken op by op
            out = aten.rms_norm.default.decompose(x, ctx.shape, weight)
            found = iter(torch.autograd.grad(out, wanted, gradient, create_graph=True))
        else:
            found = iter([torch.empty_like(t) for t in wanted])
        return *(next(found) if needed else None for needed in ctx.needs_input_grad[:2]), None


def without_values(gpu: VirtualGpu, name: str) -> Any:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")

    def run(*args: Any, **kwargs: Any) -> Any:
        twins = {id(t): gpu.mode.valueless(t) for t in tensors_in(args, kwargs) if not is_meta(t)}
        return op.decompose(*replaced(args, twins), **{key: replaced(value, twins) for key, value in kwargs.items()})

    return run


def recurrent_kernel(gpu: VirtualGpu, kind: str, overload: str, *, cuda: bool) -> Any:
    """The composite checks devices itself, so inputs with values must give them up before."""
    op = getattr(getattr(aten, kind), overload)

    def run(*args: Any, **kwargs: Any) -> Any:
        sizes = id(args[1]) if overload == "data" else None  # of a packed sequence: on the host by design
        inputs = [t for t in tensors_in(args, kwargs) if not is_meta(t) and id(t) != sizes]
        args = replaced(args, {id(t): gpu.mode.valueless(t) for t in inputs})
        if cuda and kind in recurrent.VALUES_KEPT and torch.backends.cudnn.enabled:
            gpu.notes.setdefault(recurrent.NOTE, 1)
            return _as_cudnn(kind, overload, *args, **kwargs)
        gpu.notes.setdefault(_RECURRENT_NOTE, 1)
        return op.decompose(*args, **kwargs)

    return run


def _as_cudnn(kind: str, overload: str, x: torch.Tensor, *args: Any) -> Any:
    states, weights, _, layers, _, trains, bidirectional = args[1:8] if overload == "data" else args[:7]
    call = recurrent.Call(kind=kind, layers=layers, directions=2 if bidirectional else 1, trains=trains)
    return recurrent.run(call, x, states if kind == "lstm" else [states], weights)


def grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor:
    """The shape of a grouped product for any dtype; torch's own meta function knows bfloat16 only."""
    if a.dim() == b.dim() == 2 and offs is not None:
        shape: tuple[int, ...] = (offs.numel(), a.size(0), b.size(1))
    elif a.dim() == b.dim() == 3:
        shape = (a.size(0), a.size(1), b.size(2))
    else:
        shape = (a.size(-2), b.size(-1))
    return torch.empty(shape, dtype=out_dtype or a.dtype, device="meta")


def layer_norm(x: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[torch.Tensor, ...]:
    """Contiguous, with statistics in fp32, as the kernel writes them; torch's meta function keeps odd strides."""
    rows = (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    statistics = (torch.empty(rows, dtype=kind, device="meta") for _ in range(2))
    return torch.empty(x.shape, dtype=x.dtype, device="meta"), *statistics


def layer_norm_backward(
    gradient: torch.Tensor, x: torch.Tensor, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, wanted: Any
) -> tuple[torch.Tensor | None, ...]:
    def like(tensor: Any, size: Any, index: int) -> torch.Tensor | None:
        needed = wanted[index] and tensor is not None
        return torch.empty(size, dtype=tensor.dtype, device="meta") if needed else None

    return like(x, x.shape, 0), like(weight, list(shape), 1), like(bias, list(shape), 2)


def same_shapes(tensors: list[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors]


# Dropout.cu, dropout_cuda: the mask comes first.
_BORN_FIRST: dict[Any, tuple[int, ...]] = {aten.native_dropout.default: (1, 0)}

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


# -- memory inside kernels: what each asks the caching allocator for while it runs ---------------------------------


def _beside_flash_backward(args: tuple[Any, ...]) -> list[int]:
    """flash_api.cpp mha_bwd: softmax_d and dq_accum in fp32, and dk, dv of all query heads where heads are shared."""
    query, key = args[1], args[2]
    batch, heads, length, head = query.shape
    rows, columns = round_up(length, 128), round_up(head, 32)
    sizes = [4 * batch * heads * rows, 4 * batch * rows * heads * columns]
    if key.size(1) != heads:
        expanded = batch * key.size(2) * heads * head * key.element_size()
        sizes += [expanded, expanded]
    return sizes


def _before_efficient_backward(args: tuple[Any, ...]) -> list[int]:
    """attention_backward.cu: a gradient that does not lie as (batch, length, heads, head size) is copied."""
    gradient = args[0]
    return [] if gradient.transpose(1, 2).is_contiguous() else [gradient.numel() * gradient.element_size()]


def _beside_efficient_backward(args: tuple[Any, ...]) -> list[int]:
    """attention_backward.cu: delta, one fp32 number per row. For 16-bit inputs the kernel computes it, and dq is summed
    up in an fp32 workspace; for fp32 it is the row sums of gradient times output, put in order by a copy.
    """
    query = args[1]
    batch, heads, length, head = query.shape
    delta = 4 * batch * heads * round_up(length, 32)
    if query.element_size() == 2:
        return [delta, 4 * batch * heads * round_up(length, 64) * round_up(head, 32)]
    rows = batch * heads * length
    return [4 * rows * args[3].size(-1), 4 * rows, 4 * rows]


def _sorts_indices(args: tuple[Any, ...]) -> bool:
    """Embedding.cu: up to 3072 indices are added one by one."""
    return bool(args[1].numel() > 3072)


def _before_embedding_backward(args: tuple[Any, ...]) -> list[int]:
    """Embedding.cu: a gradient that is not contiguous is copied; sorted and original indices, and the radix sort's
    double buffers."""
    gradient = args[0]
    copied = [] if gradient.is_contiguous() else [gradient.numel() * gradient.element_size()]
    return [*copied, *([8 * args[1].numel()] * 4 if _sorts_indices(args) else [])]


def _beside_embedding_backward(args: tuple[Any, ...]) -> list[int]:
    """EmbeddingBackwardKernel.cu: offsets of segments and of parts of them, and the sums of the parts."""
    if not _sorts_indices(args):
        return []
    gradient, count = args[0], args[1].numel()
    segments = min(count, args[2])
    partial = count // 10 + segments
    sums = 4 * partial * round_up(gradient.size(-1), 32)
    return [8 * count, 8 * segments, 8 * segments, 8 * partial, sums]


def _inside_layer_norm(args: tuple[Any, ...]) -> list[int]:
    """layer_norm_kernel.cu works on contiguous inputs and copies others."""
    return [t.numel() * t.element_size() for t in args[:2] if isinstance(t, torch.Tensor) and not t.is_contiguous()]


def _inside_batch_norm_backward(args: tuple[Any, ...]) -> list[int]:
    """batch_norm_kernel.cpp on a CPU: one more tensor like the input; seen with torch.profiler."""
    return [args[1].numel() * args[1].element_size()]


_BEFORE_ON_CPU: dict[Any, Callable[[tuple[Any, ...]], list[int]]] = {
    aten.native_batch_norm_backward.default: _inside_batch_norm_backward,
    **{func: partial(convolution.column_bytes, func) for func in convolution.SHAPES},
}
_ON_ANY_DEVICE: dict[Any, Callable[[tuple[Any, ...]], list[int]]] = {
    aten.native_layer_norm.default: _inside_layer_norm,
    aten.native_layer_norm_backward.default: _inside_layer_norm,
}
_BEFORE: dict[Any, Callable[[tuple[Any, ...]], list[int]]] = {
    aten._scaled_dot_product_efficient_attention_backward.default: _before_efficient_backward,
    aten.embedding_dense_backward.default: _before_embedding_backward,
    **{func: partial(convolution.copy_bytes, func) for func in convolution.SHAPES},
}
_BESIDE: dict[Any, Callable[[tuple[Any, ...]], list[int]]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _beside_flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _beside_efficient_backward,
    aten.embedding_dense_backward.default: _beside_embedding_backward,
}
