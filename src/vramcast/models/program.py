"""A model as recorded ops: run a family under a Regime and Sizes, get a Program to fold over."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vramcast.models.dims import Dim, Number
from vramcast.models.tape import F32, Param, Placed, Regime, Tape, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the data brings: number-like, so a Program can be recorded for one job or for a grid of jobs."""

    batch: Number = 1
    seq: Number = 16
    target_seq: Number = 16  # decoder length of an encoder-decoder
    images: Number = 1  # images per sample
    image_tokens: Number | None = None  # tokens the language model sees per image; None: as the family computes

    @staticmethod
    def named(batch: int, seq: int, target_seq: int, images: int, image_tokens: int | None = None) -> Sizes:
        """Sizes that show as b, s, t and n in formulas."""
        tokens = None if image_tokens is None else Dim(image_tokens, "s_img")
        return Sizes(
            batch=Dim(batch, "b"), seq=Dim(seq, "s"), target_seq=Dim(target_seq, "t"), images=Dim(images, "n_img"),
            image_tokens=tokens,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything a fold needs: placed sections in forward order, inputs, and the output the loss starts from."""

    tape: Tape
    output: Value  # logits, or the last hidden state of a headless model
    labels: Value | None
    loss: str  # causal, seq2seq, masked, classify, contrastive, none
    own_mask: Value | None = None  # a mask that the family makes whatever the regime says
    stored_apart: tuple[str, ...] = ()  # tied names that checkpoints store, and older transformers builds, on their own
    folded: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)  # what folds found before

    @property
    def placed(self) -> list[Placed]:
        return self.tape.placed

    @property
    def regime(self) -> Regime:
        return self.tape.regime

    @property
    def mask(self) -> Value | None:
        """The attention mask that the model makes once per forward: eager attention adds one, padding needs one."""
        if self.own_mask is not None:
            return self.own_mask
        ids = self.tape.inputs[0]
        if len(ids.shape) != 2 or not (self.regime.attention == "eager" or self.regime.mask):
            return None
        dtype = F32 if self.regime.autocast else self.regime.weights
        return Value((ids.shape[0], 1, ids.shape[1], ids.shape[1]), dtype, label="attention mask")

    def params(self, *, tied: bool = False) -> Iterator[Param]:
        """Every parameter tensor in order; tied names only when asked for."""
        key = ("params", len(self.placed))  # each layer's are made from those of the recorded one
        if key not in self.folded:
            self.folded[key] = [param for placed in self.placed for param in placed.params()]
        for param in self.folded[key]:
            if tied or param.tied_to is None:
                yield param

    @property
    def checkpoint_elements(self) -> int:
        """Elements with the names in `stored_apart` counted as tensors of their own."""
        return sum(
            param.numel for param in self.params(tied=True) if not param.tied_to or param.name in self.stored_apart
        )
