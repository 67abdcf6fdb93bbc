"""Convolutions on CUDA: the memory format of their outputs, and how much workspace cuDNN may take.

In come the arguments of a convolution or of its backward, out come its outputs without data, the copies it makes, and
a limit for its workspace. cuDNN picks an engine per shape at run time, and PyTorch runs the first one of its list
whose workspace can be had, so a workspace never ends a run; its size is a range. Not known: which engine a given
cuDNN and card choose.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    "used again, so reserved memory can be anywhere in its range, from what is allocated upwards (see "
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
    channels_last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if channels_last in (suggest_memory_format(x), suggest_memory_format(weight)):
        return channels_last
    return torch.contiguous_format


def forward(x: torch.Tensor, weight: torch.Tensor, *args: Any) -> torch.Tensor:
    """torch's meta function always answers contiguous: it cannot know the device."""
    out: torch.Tensor = FORWARD(x, weight, *args)
    return _with_layout(out, cuda_layout(x, weight))


def backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any
) -> tuple[Any, ...]:
    layout = cuda_layout(x, weight)
    outs = BACKWARD(gradient, x, weight, *args)
    return tuple(None if out is None else _with_layout(out, layout) for out in outs)


SHAPES: dict[Any, Any] = {FORWARD: forward, BACKWARD: backward}


def workspace_limit_bytes(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """The most one convolution call takes: copies of its three tensors, unless they already are channels last."""
    x, weight = _input_and_filter(func, args)
    output_or_gradient = result if func is FORWARD else args[0]
    if cuda_layout(x, weight) != torch.contiguous_format or _is_depthwise(x, weight):
        return 0
    copies = _bytes(x) + _bytes(weight) + _bytes(output_or_gradient)
    return min(copies, _workspace_cap_bytes())


def _input_and_filter(func: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    return (args[0], args[1]) if func is FORWARD else (args[1], args[2])


def copy_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """Convolution.cpp, ConvShared.cpp: input, filter and gradient are copied if they have another memory format."""
    tensors = args[:2] if func is FORWARD else args[:3]
    layout = cuda_layout(*tensors[-2:])
    return [_bytes(tensor) for tensor in tensors if not tensor.is_contiguous(memory_format=layout)]


def column_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """The CPU's plain kernel unfolds its input, a column per output position: all images, in backward one at a time.

    ConvolutionMM2d.cpp and NaiveDilatedConvolution.cpp; a 1×1 filter needs no columns in forward.
    """
    is_forward = func is FORWARD
    x, weight = _input_and_filter(func, args)
    stride, padding, dilation, transposed = args[3:7] if is_forward else args[4:8]
    kernel = weight.shape[2:]
    if transposed or not _is_plain(x, weight, dilation):
        return []
    if is_forward and kernel.numel() == 1:
        return []
    columns = x.size(0) if is_forward else 1
    for side, step, edge, width in zip(x.shape[2:], stride, padding, kernel, strict=True):
        columns *= (side + 2 * edge - width) // step + 1
    if not columns:
        return []
    return [columns * x.size(1) * kernel.numel() * x.element_size()]


def _is_plain(x: torch.Tensor, weight: torch.Tensor, dilation: Sequence[int]) -> bool:
    """Images, every filter over all of their channels, without gaps."""
    return x.dim() == 4 and weight.size(1) == x.size(1) and set(dilation) == {1}


def _is_depthwise(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """ATen has a kernel of its own for one filter per channel, which needs no workspace."""
    return bool(weight.size(1) == 1 and x.size(1) > 1)


def _workspace_cap_bytes() -> int:
    """CUDNN_CONV_WSCAP_DBG, in MiB."""
    text = os.environ.get("CUDNN_CONV_WSCAP_DBG", "")
    return int(text) * MiB if text.isdigit() else 1 << 62


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _with_layout(out: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    if out.dim() not in (4, 5) or layout == torch.contiguous_format:
        return out
    return torch.empty_like(out, memory_format=layout)
