"""Parameters by block: the embedding, each kind of layer once with how often it occurs, the head.

In comes a ModelSource, out comes a ParamBreakdown. Tied tensors are lines of zero. Does not know dtypes of a job:
figures are elements, and bytes only where a checkpoint says how it stores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vramcast.models.read.source import ModelSource
from vramcast.models.record.tape import Param, PlacedSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One tensor of a block, or `count` identical ones (experts stored one by one)."""

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: str
    count: int
    tied_to: str | None
    trainable: bool
    numel: int  # of all `count`, zero where tied


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A section and the layers that are identical; `layers` is empty for a part that occurs once."""

    name: str
    layers: tuple[int, ...]
    lines: tuple[Line, ...]

    @property
    def numel_each(self) -> int:
        return sum(line.numel for line in self.lines)

    @property
    def numel(self) -> int:
        return self.numel_each * max(1, len(self.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamBreakdown:
    source: ModelSource
    blocks: tuple[Block, ...]

    @property
    def total(self) -> int:
        return sum(block.numel for block in self.blocks)

    @property
    def trainable(self) -> int:
        own = (param for param in self.source.table() if param.tied_to is None)
        return sum(param.numel for param in own if param.trainable)


def break_down_params(source: ModelSource) -> ParamBreakdown:
    """Layers with the same tensors form one block, wherever they are in the model."""
    layers_of: dict[tuple[str, tuple[Line, ...]], list[int]] = {}
    for placed in source.sections():
        lines = _lines(placed)
        if not lines:
            continue
        layers = layers_of.setdefault((placed.section.name, lines), [])
        if placed.index is not None:
            layers.append(placed.index)
    blocks = (
        Block(name=name, layers=tuple(layers), lines=lines)
        for (name, lines), layers in layers_of.items()
    )
    return ParamBreakdown(source=source, blocks=tuple(blocks))


def _lines(placed: PlacedSection) -> tuple[Line, ...]:
    """The tensors of one section, names relative to its layer, numbered siblings of one shape together."""
    count_of: dict[tuple[str, Param], int] = {}
    for param in placed.section.params:
        name = _relative_name(param.name, placed)
        unnamed = Param(
            name="",
            shape=tuple(int(n) for n in param.shape),
            kind=param.kind,
            dtype=param.dtype,
            trainable=param.trainable,
            tied_to=param.tied_to,
        )
        count_of[name, unnamed] = count_of.get((name, unnamed), 0) + 1
    return tuple(
        Line(
            name=name,
            shape=param.shape,
            kind=param.kind,
            dtype=param.dtype.name,
            count=count,
            tied_to=param.tied_to,
            trainable=param.trainable,
            numel=0 if param.tied_to else param.numel * count,
        )
        for (name, param), count in count_of.items()
    )


def _relative_name(name: str, placed: PlacedSection) -> str:
    """`model.layers.{i}.mlp.experts.7.w1.weight` → `mlp.experts.*.w1.weight`."""
    if placed.index is not None:
        name = name.removeprefix(f"{placed.section.name}.")
    return ".".join("*" if word.isdecimal() else word for word in name.split("."))


def layer_ranges(layers: Iterable[int]) -> str:
    """`0-2, 5, 7-9`"""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and spans[-1][1] == layer - 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
