"""Memory that kernels take from the caching allocator and give back while they run.

In come the arguments of an op, out come the sizes that its kernel asks for, in order: before its outputs are
allocated or after. Each rule names the file of PyTorch it was read from. Does not know libraries that choose a
workspace by themselves: `convolution` has limits for cuDNN's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from vramcast.units import round_up
from vramcast.virtual.kernels import convolution

aten = torch.ops.aten
Sizes = Callable[[tuple[Any, ...]], list[int]]


def _flash_backward_buffers(args: tuple[Any, ...]) -> list[int]:
    """flash_api.cpp mha_bwd: softmax_d and dq_accum in fp32, and dk, dv of all query heads where heads are shared."""
    query, key = args[1], args[2]
    batch, heads, length, head = query.shape
    rows, columns = round_up(length, 128), round_up(head, 32)
    sizes = [4 * batch * heads * rows, 4 * batch * rows * heads * columns]
    if key.size(1) != heads:
        expanded = batch * key.size(2) * heads * head * key.element_size()
        sizes += [expanded, expanded]
    return sizes


def _efficient_backward_copy(args: tuple[Any, ...]) -> list[int]:
    """attention_backward.cu: a gradient that is not stored as (batch, length, heads, head size) is copied."""
    gradient = args[0]
    return [] if gradient.transpose(1, 2).is_contiguous() else [_bytes(gradient)]


def _efficient_backward_buffers(args: tuple[Any, ...]) -> list[int]:
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


def _embedding_backward_sort(args: tuple[Any, ...]) -> list[int]:
    """Embedding.cu: a gradient that is not contiguous is copied; sorted and original indices, and the radix sort's
    double buffers."""
    gradient, indices = args[0], args[1]
    sizes = [] if gradient.is_contiguous() else [_bytes(gradient)]
    if _sorts_indices(args):
        sizes += [8 * indices.numel()] * 4
    return sizes


def _embedding_backward_sums(args: tuple[Any, ...]) -> list[int]:
    """EmbeddingBackwardKernel.cu: offsets of segments and of parts of them, and the sums of the parts."""
    if not _sorts_indices(args):
        return []
    gradient, count = args[0], args[1].numel()
    segments = min(count, args[2])
    partial = count // 10 + segments
    sums = 4 * partial * round_up(gradient.size(-1), 32)
    return [8 * count, 8 * segments, 8 * segments, 8 * partial, sums]


def _layer_norm_copies(args: tuple[Any, ...]) -> list[int]:
    """layer_norm_kernel.cu works on contiguous inputs and copies others."""
    tensors = [value for value in args[:2] if isinstance(value, torch.Tensor)]
    return [_bytes(tensor) for tensor in tensors if not tensor.is_contiguous()]


def _batch_norm_backward_copy(args: tuple[Any, ...]) -> list[int]:
    """batch_norm_kernel.cpp on a CPU: one more tensor like the input; seen with torch.profiler."""
    return [_bytes(args[1])]


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


ON_ANY_DEVICE: Mapping[Any, Sizes] = {
    aten.native_layer_norm.default: _layer_norm_copies,
    aten.native_layer_norm_backward.default: _layer_norm_copies,
}
BEFORE_OUTPUTS_ON_CPU: Mapping[Any, Sizes] = {
    aten.native_batch_norm_backward.default: _batch_norm_backward_copy,
    **{func: partial(convolution.column_bytes, func) for func in convolution.SHAPES},
}
BEFORE_OUTPUTS: Mapping[Any, Sizes] = {
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward_copy,
    aten.embedding_dense_backward.default: _embedding_backward_sort,
    **{func: partial(convolution.copy_bytes, func) for func in convolution.SHAPES},
}
AFTER_OUTPUTS: Mapping[Any, Sizes] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward_buffers,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward_buffers,
    aten.embedding_dense_backward.default: _embedding_backward_sums,
}
