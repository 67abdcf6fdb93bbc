"""What vision models are made of besides linear layers: convolutions, batch norms, pooling, patch embeddings."""

from __future__ import annotations

from math import prod

from vramcast.errors import InputError
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.dims import Dim, Number
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
    t: Tape, name: str, x: Value, out: int, kernel: tuple[int, ...], *, stride: int | tuple[int, ...] = 1,
    padding: int = 0, groups: int = 1, bias: bool = False, label: str = "",
) -> Value:  # fmt: skip
    """x is [n, channels, …]. Keeps its input; the weight is a parameter (or its copy under autocast)."""
    channels = int(x.shape[1])
    with t.scope(name):
        inner = int(exact_division(channels, groups, f"{t.path()}: channels by groups"))
        w = t.param("weight", (int(out), inner, *(int(k) for k in kernel)), "conv")
        b = t.param("bias", (int(out),), "bias") if bias else None
        x, copy = t.autocasted(x), t.autocasted(w)
        steps = stride if isinstance(stride, tuple) else (stride,) * len(kernel)
        sides = tuple(strided(n, k, s, padding) for n, k, s in zip(x.shape[2:], kernel, steps, strict=True))
        saves = tuple(kept for kept, other in ((x, copy), (copy, x)) if other.requires_grad)
        shape = (x.shape[0], out, *sides)
        return t.op(
            "convolution", (x, copy) if b is None else (x, copy, b), shape, promote(x.dtype, copy.dtype), saves=saves,
            label=label or name, flops=2 * prod(shape) * inner * prod(int(k) for k in kernel),
        )  # fmt: skip


def strided(side: Number, kernel: int, stride: int, padding: int) -> Number:
    if isinstance(side, int) and int(side) + 2 * padding < int(kernel):
        raise InputError(f"an image side of {int(side)} is smaller than the kernel of {int(kernel)}")
    return (side + 2 * padding - kernel) // stride + 1


def batch_norm(t: Tape, name: str, x: Value) -> Value:
    """Keeps its input and two fp32 statistics per channel. Running averages are buffers."""
    channels = int(x.shape[1])
    with t.scope(name):
        w, b = t.param("weight", (channels,), "norm"), t.param("bias", (channels,), "norm")
        dtype = F32 if t.regime.cuda else t.regime.weights  # the CPU kernel's follow the weights
        statistics = Value((2, channels), dtype, label=f"{name} mean, rstd")
        saves = (x, statistics) if t.regime.training else (x,)
        return t.op("batch_norm", (x, w, b), x.shape, x.dtype, saves=saves, label=name)


def max_pool(t: Tape, x: Value, kernel: int, stride: int, padding: int) -> Value:
    """Keeps its input and where the maxima were."""
    shape = (*x.shape[:2], *(strided(side, kernel, stride, padding) for side in x.shape[2:]))
    places = Value(shape, I64, label="places of the maxima")
    return t.op("max_pool2d", (x,), shape, x.dtype, saves=(x, places), label="pooled")


def average(t: Tape, x: Value, shape: tuple[Number, ...]) -> Value:
    """Average pooling keeps its input (of which it needs the shape only)."""
    return t.op("avg_pool", (x,), shape, x.dtype, saves=(x,), label="pooled")


def patches(t: Tape, name: str, pixels: Value, width: int, patch: tuple[int, int], *, bias: bool) -> Value:
    """One convolution step per patch: [n, channels, height, width] → [n, patches, width]."""
    x = t.cast(pixels, t.regime.weights, "pixels")
    y = conv(t, name, x, width, patch, stride=patch, bias=bias, label="patches")
    return t.view(y, (y.shape[0], y.shape[2] * y.shape[3], width))


def pixels(t: Tape, c: Config, images: Number, *, default_side: int) -> Value:
    height, width = pair(c, "image_size", default_side, "side")
    return t.input("pixels", (images, c.dim("num_channels", "c", default=3), height, width), F32)


def grid(c: Config, *, default_side: int, default_patch: int) -> tuple[tuple[int, int], Dim]:
    """The patch and how many of them an image has."""
    sides, patch = pair(c, "image_size", default_side, "side"), pair(c, "patch_size", default_patch, "p")
    num = prod(int(side) // int(step) for side, step in zip(sides, patch, strict=True))
    if not num:
        raise InputError(f"{c.where}: image_size {[int(n) for n in sides]} holds no patch of {[int(n) for n in patch]}")
    return patch, Dim(num, "p")
