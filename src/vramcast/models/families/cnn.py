"""Convolutional classifiers as transformers ships them: ResNet, ConvNeXt.

Their configs say nothing about the picture's size where the network takes any: 224 × 224 unless `image_size` is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.errors import InputError, UndescribedModelError
from vramcast.models.read.config import Config
from vramcast.models.read.tasks import num_labels
from vramcast.models.record.dims import Dim
from vramcast.models.record.images import average, batch_norm, conv, max_pool, pixels
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import I64, Tape, Value


def sizes_of(c: Config, name: str, default: tuple[int, ...]) -> list[Dim]:
    """A list of positive integers."""
    values = c.list(name) or list(default)
    return [Config({name: value}, c.where).dim(name, "c") for value in values]


def stages(c: Config, depths: tuple[int, ...], widths: tuple[int, ...]) -> list[tuple[Dim, Dim]]:
    found = sizes_of(c, "depths", depths), sizes_of(c, "hidden_sizes", widths)
    if len(found[0]) != len(found[1]):
        raise InputError(
            f"{c.where}: depths has {len(found[0])} stages and hidden_sizes {len(found[1])}"
        )
    return list(zip(*found, strict=True))


def classifier(
    t: Tape, c: Config, sizes: Sizes, body: Callable[[Value], Value], head: Callable[[Value], Value]
) -> Program:
    """`body` records the backbone under the model's name; `head` gives the logits of what it gave."""
    name = c.architecture
    if name and not name.endswith(("ForImageClassification", "Model")):
        raise UndescribedModelError(
            f"{c.where}: {name} is not described. Known endings: ForImageClassification, Model."
        )
    images, whole = sizes.batch * sizes.images, name.endswith("Model")
    image = pixels(t, c, images, default_side=224)
    with t.scope("" if whole else c.model_type):
        x = body(image)
    if whole:
        return Program(tape=t, output=x, labels=None, loss="none")
    with t.section("head", x) as section:
        logits = head(x)
        section.outputs = (logits,)
    return Program(tape=t, output=logits, labels=t.input("labels", (images,), I64), loss="classify")


# ---- ResNet


def resnet(t: Tape, c: Config, sizes: Sizes) -> Program:
    def body(image: Value) -> Value:
        with t.section(t.path("stem"), image) as section, t.scope("embedder"):
            width = c.dim("embedding_size", "c", default=64)
            x = t.cast(image, t.regime.weights, "pixels")
            x = conv_norm(
                t, "embedder", x, width, kernel=7, stride=2, act=c.word("hidden_act", "relu")
            )
            x = max_pool(t, x, 3, 2, 1)
            section.outputs = (x,)
        for index, (depth, width) in enumerate(stages(c, (3, 4, 6, 3), (256, 512, 1024, 2048))):
            stride = 2 if index or c.flag("downsample_in_first_stage", False) else 1
            kinds = [(int(x.shape[1]), width, stride), *[(int(width), width, 1)] * (depth - 1)]
            x = t.layers(f"encoder.stages.{index}.layers", kinds, residual_layer(t, c), x)
        with t.section(t.path("pooler"), x) as section:
            x = average(t, x, (x.shape[0], x.shape[1], 1, 1))
            section.outputs = (x,)
        return x

    def head(x: Value) -> Value:
        return t.linear(
            "classifier.1",
            t.view(x, x.shape[:2]),
            num_labels(c),
            bias=True,
            label="logits",
            kind="head",
        )

    return classifier(t, c, sizes, body, head)


def conv_norm(
    t: Tape, name: str, x: Value, width: int, *, kernel: int = 3, stride: int = 1, act: str = ""
) -> Value:
    with t.scope(name):
        x = conv(t, "convolution", x, width, (kernel, kernel), stride=stride, padding=kernel // 2)
        x = batch_norm(t, "normalization", x)
        return t.activation(x, act) if act else x


def residual_layer(t: Tape, c: Config) -> Callable[[Value, Any], Value]:
    narrow, act = c.word("layer_type", "bottleneck") == "bottleneck", c.word("hidden_act", "relu")
    early = c.flag("downsample_in_bottleneck", False)

    def layer(x: Value, kind: tuple[int, Dim, int]) -> Value:
        channels, width, stride = kind
        with t.scope("layer"):
            if narrow:
                y = conv_norm(
                    t, "0", x, width // 4, kernel=1, stride=stride if early else 1, act="relu"
                )
                y = conv_norm(t, "1", y, width // 4, stride=1 if early else stride, act="relu")
                y = conv_norm(t, "2", y, width, kernel=1)
            else:
                y = conv_norm(t, "1", conv_norm(t, "0", x, width, stride=stride, act="relu"), width)
        if channels != int(width) or stride != 1:
            x = shortcut(t, x, width, stride)
        return t.activation(t.add(y, x, "residual stream"), act)

    return layer


def shortcut(t: Tape, x: Value, width: int, stride: int) -> Value:
    with t.scope("shortcut"):
        return batch_norm(
            t, "normalization", conv(t, "convolution", x, width, (1, 1), stride=stride)
        )


# ---- ConvNeXt


def convnext(t: Tape, c: Config, sizes: Sizes) -> Program:
    def body(image: Value) -> Value:
        plan = stages(c, (3, 3, 9, 3), (96, 192, 384, 768))
        with t.section(t.path("stem"), image) as section, t.scope("embeddings"):
            side = c.dim("patch_size", "p", default=4)
            x = t.cast(image, t.regime.weights, "pixels")
            x = conv(t, "patch_embeddings", x, plan[0][1], (side, side), stride=side, bias=True)
            x = channel_norm(t, "layernorm", x)
            section.outputs = (x,)
        for index, (depth, width) in enumerate(plan):
            with t.scope(f"encoder.stages.{index}"):
                x = downsampled(t, x, width) if index else x
                x = t.layers("layers", ["layer"] * depth, depthwise_layer(t, c, width), x)
        with t.section(t.path("pooler"), x) as section:
            x = t.op("mean", (x,), x.shape[:2], x.dtype, label="mean of the picture")
            x = t.layer_norm("layernorm", x)
            section.outputs = (x,)
        return x

    def head(x: Value) -> Value:
        return t.linear("classifier", x, num_labels(c), bias=True, label="logits", kind="head")

    return classifier(t, c, sizes, body, head)


def channel_norm(t: Tape, name: str, x: Value) -> Value:
    """LayerNorm over channels, which a permutation brings to the end and back."""
    n, channels, *sides = x.shape
    y = t.layer_norm(name, t.view(x, (n, *sides, channels)))
    return t.view(y, x.shape)


def downsampled(t: Tape, x: Value, width: Dim) -> Value:
    with t.section(t.path("downsampling"), x) as section, t.scope("downsampling_layer"):
        x = conv(t, "1", channel_norm(t, "0", x), width, (2, 2), stride=2, bias=True)
        section.outputs = (x,)
    return x


def depthwise_layer(t: Tape, c: Config, width: Dim) -> Callable[[Value, Any], Value]:
    scaled = c.data.get("layer_scale_init_value", 1e-6)

    def layer(x: Value, kind: Any) -> Value:
        n, channels, *sides = x.shape
        scale = t.param("layer_scale_parameter", (int(width),), "table") if scaled else None
        y = conv(t, "dwconv", x, width, (7, 7), padding=3, groups=int(width), bias=True)
        y = t.layer_norm("layernorm", t.view(y, (n, *sides, channels)))
        y = t.activation(t.linear("pwconv1", y, 4 * width, bias=True), c.word("hidden_act", "gelu"))
        y = t.linear("pwconv2", y, width, bias=True)
        y = t.mul(y, scale, "scaled branch") if scale is not None else y
        if c.number("drop_path_rate", 0.0) and t.regime.training:
            keep = Value((n, 1, 1, 1), y.dtype, label="kept samples")
            y = t.op("mul", (y,), y.shape, y.dtype, saves=(keep,), label="branch of kept samples")
        return t.add(x, t.view(y, x.shape), "residual stream")

    return layer


FAMILIES = {"resnet": resnet, "convnext": convnext}
