"""What vision models are made of besides linear layers: convolutions, batch norms, pooling, patch embeddings.

Shapes are [n, channels, height, width]. Example: patches of 16 × 16 of an image of 224 × 224 are one convolution with a
kernel and a stride of 16, which gives (224 - 16) // 16 + 1 = 14 by 14 patches, seen as [n, 196, width].
"""

from __future__ import annotations

from math import prod

from vramcast.errors import InputError
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.dims import Dim, Number
from vramcast.models.record.ops import saved_factors
from vramcast.models.record.tape import F32, I64, Tape, Value, promote


def pair(c: Config, name: str, default: int, text: str) -> tuple[int, int]:
    """A size given once for both axes or as [height, width]."""
    value = c.data.get(name, default)
    if isinstance(value, list) and len(value) == 2:
        sides = [Config({name: side}, c.where).dim(name, text) for side in value]
        return sides[0], sides[1]
    if isinstance(value, list | tuple):
        raise InputError(f"{c.where}: {name} must be one size or two, not {value!r}")
    side = c.dim(name, text, default=default)
    return side, side


def conv(
    t: Tape,
    name: str,
    x: Value,
    out: int,
    kernel: tuple[int, ...],
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int = 0,
    groups: int = 1,
    bias: bool = False,
    label: str = "",
) -> Value:
    """x is [n, channels, …]. Saves its input; the weight is a parameter (or its copy under autocast)."""
    channels = int(x.shape[1])
    kernel_sides = [int(side) for side in kernel]
    with t.scope(name):
        channels_in = int(exact_division(channels, groups, f"{t.path()}: channels by groups"))
        param = t.param("weight", (int(out), channels_in, *kernel_sides), "conv")
        b = t.param("bias", (int(out),), "bias") if bias else None
        x, weight = t.autocast(x), t.autocast(param)
        shape = (x.shape[0], out, *_output_sides(x.shape[2:], kernel, stride, padding))
        return t.op(
            "convolution",
            (x, weight) if b is None else (x, weight, b),
            shape,
            promote(x.dtype, weight.dtype),
            saves=saved_factors(x, weight),
            label=label or name,
            flops=2 * prod(shape) * channels_in * prod(kernel_sides),
        )


def _output_sides(
    sides: tuple[Number, ...], kernel: tuple[int, ...], stride: int | tuple[int, ...], padding: int
) -> list[Number]:
    strides = stride if isinstance(stride, tuple) else (stride,) * len(kernel)
    axes = zip(sides, kernel, strides, strict=True)
    return [strided(side, size, step, padding) for side, size, step in axes]


def strided(side: Number, kernel: int, stride: int, padding: int) -> Number:
    if isinstance(side, int) and int(side) + 2 * padding < int(kernel):
        raise InputError(
            f"an image side of {int(side)} is smaller than the kernel of {int(kernel)}"
        )
    return (side + 2 * padding - kernel) // stride + 1


def batch_norm(t: Tape, name: str, x: Value) -> Value:
    """Saves its input and two fp32 statistics per channel. Running averages are buffers."""
    channels = int(x.shape[1])
    with t.scope(name):
        w, b = t.param("weight", (channels,), "norm"), t.param("bias", (channels,), "norm")
        dtype = F32 if t.regime.cuda else t.regime.weights  # the CPU kernel's follow the weights
        statistics = Value((2, channels), dtype, label=f"{name} mean, rstd")
        saves = (x, statistics) if t.regime.training else (x,)
        return t.op("batch_norm", (x, w, b), x.shape, x.dtype, saves=saves, label=name)


def max_pool(t: Tape, x: Value, kernel: int, stride: int, padding: int) -> Value:
    """Saves its input and where the maxima were."""
    shape = (*x.shape[:2], *(strided(side, kernel, stride, padding) for side in x.shape[2:]))
    places = Value(shape, I64, label="places of the maxima")
    return t.op("max_pool2d", (x,), shape, x.dtype, saves=(x, places), label="pooled")


def average(t: Tape, x: Value, shape: tuple[Number, ...]) -> Value:
    """Average pooling saves its input (of which it needs the shape only)."""
    return t.op("avg_pool", (x,), shape, x.dtype, saves=(x,), label="pooled")


def patches(
    t: Tape, name: str, pixels: Value, width: int, patch: tuple[int, int], *, bias: bool
) -> Value:
    """One convolution step per patch: [n, channels, height, width] → [n, patches, width]."""
    x = t.cast(pixels, t.regime.weights, "pixels")
    y = conv(t, name, x, width, patch, stride=patch, bias=bias, label="patches")
    return t.view(y, (y.shape[0], y.shape[2] * y.shape[3], width))


def pixels(t: Tape, c: Config, images: Number, *, default_side: int) -> Value:
    height, width = pair(c, "image_size", default_side, "side")
    return t.input("pixels", (images, c.dim("num_channels", "c", default=3), height, width), F32)


def grid(c: Config, *, default_side: int, default_patch: int) -> tuple[tuple[int, int], Dim]:
    """The patch and how many of them an image has."""
    sides = pair(c, "image_size", default_side, "side")
    patch = pair(c, "patch_size", default_patch, "p")
    num = prod(int(side) // int(step) for side, step in zip(sides, patch, strict=True))
    if not num:
        raise InputError(
            f"{c.where}: image_size {[int(n) for n in sides]} holds no patch of {[int(n) for n in patch]}"
        )
    return patch, Dim(num, "p")
