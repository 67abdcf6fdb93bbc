"""Image classifiers of the measured rows, from their papers, with the modules and in-place flags of common practice.

Only what decides memory matters here: shapes, which ops are in place, where a residual is added. Weights are random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def conv_norm(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


# -- VGG (Simonyan and Zisserman 2014), configurations D and E -----------------------------------------------------


class Vgg(nn.Module):
    def __init__(self, repeats: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, count in zip((64, 128, 256, 512, 512), repeats, strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
            nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


# -- ResNet (He et al. 2015), the stride in the 3×3 convolution ----------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow, self.narrow_norm = conv_norm(inputs, width)
        self.middle, self.middle_norm = conv_norm(width, width, 3, stride)
        self.wide, self.wide_norm = conv_norm(width, 4 * width)
        self.relu = nn.ReLU(inplace=True)
        changes = stride != 1 or inputs != 4 * width
        self.shortcut = nn.Sequential(*conv_norm(inputs, 4 * width, 1, stride)) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.narrow_norm(self.narrow(x)))
        out = self.relu(self.middle_norm(self.middle(out)))
        out = self.wide_norm(self.wide(out))
        identity = x if self.shortcut is None else self.shortcut(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, depths: Sequence[int]) -> None:
        super().__init__()
        convolution = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(
            convolution, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for index in range(depth):
                blocks.append(Bottleneck(channels, width, 2 if stage and index == 0 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


# -- MobileNetV2 (Sandler et al. 2018) and MnasNet-B1 (Tan et al. 2018) --------------------------------------------


class Inverted(nn.Module):
    """Expand, depthwise, project; the first block of MobileNetV2 does not expand."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int,
        stride: int,
        expand: int,
        relu: Callable[..., nn.Module],
    ) -> None:
        super().__init__()
        width = inputs * expand
        layers = [*conv_norm(inputs, width), relu(inplace=True)] if expand != 1 else []
        layers += [*conv_norm(width, width, kernel, stride, groups=width), relu(inplace=True)]
        self.layers = nn.Sequential(*layers, *conv_norm(width, outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


def inverted_stack(
    channels: int, plan: Sequence[tuple[int, int, int, int, int]], relu: Callable[..., nn.Module]
) -> list[nn.Module]:
    """`plan`: expansion, output channels, repeats, stride of the first, kernel."""
    blocks: list[nn.Module] = []
    for expand, width, repeats, stride, kernel in plan:
        for index in range(repeats):
            first = stride if index == 0 else 1
            blocks.append(
                Inverted(channels, width, kernel=kernel, stride=first, expand=expand, relu=relu)
            )
            channels = width
    return blocks


class MobileNetV2(nn.Module):
    PLAN = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
            (6, 320, 1, 1, 3))  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_norm(3, 32, 3, 2), nn.ReLU6(inplace=True), *inverted_stack(32, self.PLAN, nn.ReLU6),
            *conv_norm(320, 1280), nn.ReLU6(inplace=True),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class MnasNet(nn.Module):
    PLAN = (
        (3, 24, 3, 2, 3),
        (3, 40, 3, 2, 5),
        (6, 80, 3, 2, 5),
        (6, 96, 2, 1, 3),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv_norm(3, 32, 3, 2), nn.ReLU(inplace=True), *conv_norm(32, 32, 3, groups=32), nn.ReLU(inplace=True),
            *conv_norm(32, 16), *inverted_stack(16, self.PLAN, nn.ReLU), *conv_norm(320, 1280), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layers(x).mean([2, 3]))


# -- RegNetY-400MF (Radosavovic et al. 2020) -----------------------------------------------------------------------


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce, self.expand = (
            nn.Conv2d(channels, squeezed, 1),
            nn.Conv2d(squeezed, channels, 1),
        )
        self.relu, self.sigmoid = nn.ReLU(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return self.sigmoid(self.expand(self.relu(self.reduce(self.pool(x))))) * x


class RegNetBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, group_width: int) -> None:
        super().__init__()
        changes = stride != 1 or inputs != width
        self.shortcut = nn.Sequential(*conv_norm(inputs, width, 1, stride)) if changes else None
        self.body = nn.Sequential(
            *conv_norm(inputs, width), nn.ReLU(inplace=True),
            *conv_norm(width, width, 3, stride, groups=width // group_width), nn.ReLU(inplace=True),
            SqueezeExcitation(width, round(inputs / 4)), *conv_norm(width, width),
        )  # fmt: skip
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x) + x if self.shortcut is None else self.shortcut(x) + self.body(x)
        return self.relu(x)


class RegNetY400MF(nn.Module):
    STAGES = ((48, 1), (104, 3), (208, 6), (440, 6))

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_norm(3, 32, 3, 2), nn.ReLU(inplace=True)]
        channels = 32
        for width, depth in self.STAGES:
            for index in range(depth):
                layers.append(RegNetBlock(channels, width, 2 if index == 0 else 1, group_width=8))
                channels = width
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.layers(x)).flatten(start_dim=1))


# -- ConvNeXt (Liu et al. 2022) ------------------------------------------------------------------------------------


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of N×C×H×W."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return x.permute(0, 3, 1, 2)


class Turn(nn.Module):
    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.order)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width), Turn(0, 2, 3, 1), nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), Turn(0, 3, 1, 2),
        )  # fmt: skip
        self.scale = nn.Parameter(torch.ones(width, 1, 1) * 1e-6)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        out = self.scale * self.body(x)
        if self.drop > 0 and self.training:  # stochastic depth, per sample
            keep = torch.empty([x.shape[0], 1, 1, 1], dtype=x.dtype, device=x.device)
            out = out * keep.bernoulli_(1 - self.drop).div_(1 - self.drop)
        out += x
        return out


class ConvNeXt(nn.Module):
    def __init__(self, widths: Sequence[int], depths: Sequence[int], drop: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=1e-6)]
        position, last = 0, sum(depths) - 1
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if stage:
                layers += [
                    ChannelNorm(widths[stage - 1], eps=1e-6),
                    nn.Conv2d(widths[stage - 1], width, 2, 2),
                ]
            for _ in range(depth):
                layers.append(ConvNeXtBlock(width, drop * position / last))
                position += 1
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            ChannelNorm(widths[-1], eps=1e-6), nn.Flatten(1), nn.Linear(widths[-1], 1000)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.layers(x)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "VGG16": lambda: Vgg((2, 2, 3, 3, 3)),
    "VGG19": lambda: Vgg((2, 2, 4, 4, 4)),
    "ResNet101": lambda: ResNet((3, 4, 23, 3)),
    "ResNet152": lambda: ResNet((3, 8, 36, 3)),
    "MobileNetV2": MobileNetV2,
    "MnasNet": MnasNet,
    "RegNetY400MF": RegNetY400MF,
    "ConvNeXtTiny": lambda: ConvNeXt((96, 192, 384, 768), (3, 3, 9, 3), 0.1),
    "ConvNeXtBase": lambda: ConvNeXt((128, 256, 512, 1024), (3, 3, 27, 3), 0.5),
}
