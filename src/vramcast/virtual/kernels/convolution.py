"""Convolutions on CUDA: the layout of what they write, and how much workspace cuDNN may take.

cuDNN picks an engine per shape at run time, and PyTorch runs the first one of its list whose workspace can be had, so a
workspace never ends a run; its size is a range. Not known: which engine a given cuDNN and card choose.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from vramcast.units import MiB

aten = torch.ops.aten
FORWARD, BACKWARD = aten.convolution.default, aten.convolution_backward.default

SOURCE = (
    "at most copies of input, output and filter in the other layout (cuDNN transposes NCHW to NHWC inside: "
    "discuss.pytorch.org/t/123686); an engine whose workspace does not fit is passed over (pytorch/pytorch#49207); "
    "CUDNN_CONV_WSCAP_DBG caps it"
)

NOTE = (
    "convolution workspaces are left out of the replay: cuDNN chooses them, and they change which cached blocks are "
    "used again, so reserved memory lies anywhere in its range, from what is allocated upwards (see "
    "docs/accuracy-traces.md)"
)

# New segments that workspaces may cost beyond the replay, each as large as copies of the three tensors: the gradients
# of input and filter are two kernels, and on tensor cores each may want a transposed and a rounded copy
# (tensorflow/tensorflow#56055: "the rounding of fp32->tf32").
EXTRA_SEGMENTS = 4


def cuda_layout(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """cudnn_conv_suggest_memory_format: channels last if the input or the filter is."""
    if x.dim() not in (4, 5) or x.dtype == torch.float64:
        return torch.contiguous_format
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    return last if last in (suggest_memory_format(x), suggest_memory_format(weight)) else torch.contiguous_format


def forward(x: torch.Tensor, weight: torch.Tensor, *args: Any) -> torch.Tensor:
    """torch's meta function always answers contiguous: it cannot know the device."""
    out: torch.Tensor = FORWARD(x, weight, *args)
    return _in_layout(out, cuda_layout(x, weight))


def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any) -> tuple[Any, ...]:
    layout = cuda_layout(x, weight)
    return tuple(None if out is None else _in_layout(out, layout) for out in BACKWARD(gradient, x, weight, *args))


SHAPES: dict[Any, Any] = {FORWARD: forward, BACKWARD: backward}


def workspace_limit_bytes(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """The most one convolution call would take: copies of its three tensors, unless they already lie channels last."""
    x, weight = (args[0], args[1]) if func is FORWARD else (args[1], args[2])
    outer = result if func is FORWARD else args[0]
    if cuda_layout(x, weight) != torch.contiguous_format or _depthwise(x, weight):
        return 0
    return min(_bytes(x) + _bytes(weight) + _bytes(outer), _cap_bytes())


def copy_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """Convolution.cpp, ConvShared.cpp: input, filter and gradient are copied where they lie in another layout."""
    tensors = args[:2] if func is FORWARD else args[:3]
    layout = cuda_layout(*tensors[-2:])
    return [_bytes(tensor) for tensor in tensors if not tensor.is_contiguous(memory_format=layout)]


def column_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """The CPU's plain kernel unfolds its input, a column per output position: all images, in backward one at a time.

    ConvolutionMM2d.cpp and NaiveDilatedConvolution.cpp; a 1×1 filter needs no columns in forward.
    """
    forward = func is FORWARD
    x, weight = (args[0], args[1]) if forward else (args[1], args[2])
    stride, padding, dilation, transposed = args[3:7] if forward else args[4:8]
    kernel = weight.shape[2:]
    if x.dim() != 4 or transposed or weight.size(1) != x.size(1) or set(dilation) != {1}:
        return []
    positions = (x.size(0) if kernel.numel() > 1 else 0) if forward else 1
    for side, step, edge, width in zip(x.shape[2:], stride, padding, kernel, strict=True):
        positions *= (side + 2 * edge - width) // step + 1
    return [x.size(1) * kernel.numel() * positions * x.element_size()] if positions else []


def _depthwise(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """ATen has a kernel of its own for one filter per channel, which needs no workspace."""
    return bool(weight.size(1) == 1 and x.size(1) > 1)


def _cap_bytes() -> int:
    """CUDNN_CONV_WSCAP_DBG, in MiB."""
    text = os.environ.get("CUDNN_CONV_WSCAP_DBG", "")
    return int(text) * MiB if text.isdigit() else 1 << 62


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _in_layout(out: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    if out.dim() not in (4, 5) or layout == torch.contiguous_format:
        return out
    return torch.empty_like(out, memory_format=layout)
