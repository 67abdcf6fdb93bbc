"""A model as recorded ops: run a family under a Regime and Sizes, get a Program to fold over."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vramcast.models.read.config import Config
from vramcast.models.record.dims import Dim, Number
from vramcast.models.record.sliding_windows import NO_MASKS, Masks, is_beyond, masks_of, window_of
from vramcast.models.record.tape import BOOL, F32, Param, Placed, Regime, Tape, Value

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the data brings: number-like, so a Program can be recorded for one job or for a grid of jobs."""

    batch: Number = 1
    seq: Number = 16
    target_seq: Number = 16  # decoder length of an encoder-decoder
    images: Number = 1  # images per sample
    beyond: bool | None = None  # said of many lengths at once: are they as long as the model's window?
    image_tokens: Number | None = None  # tokens the language model sees per image; None: as the family computes

    @staticmethod
    def named(batch: int, seq: int, target_seq: int, images: int, image_tokens: int | None = None) -> Sizes:
        """Sizes that show as b, s, t and n in formulas."""
        tokens = None if image_tokens is None else Dim(image_tokens, "s_img")
        return Sizes(
            batch=Dim(batch, "b"), seq=Dim(seq, "s"), target_seq=Dim(target_seq, "t"), images=Dim(images, "n_img"),
            image_tokens=tokens,
        )  # fmt: skip


def masks_for(t: Tape, c: Config, sizes: Sizes, layers: int, *, always: bool = False) -> Masks:
    """The masks of a decoder whose sequence is `sizes.seq`."""
    beyond = is_beyond(sizes.seq, window_of(c)) if sizes.beyond is None else sizes.beyond
    return masks_of(t.regime, c, int(layers), beyond=beyond, always=always)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything a fold needs: placed sections in forward order, inputs, and the output the loss starts from."""

    tape: Tape
    output: Value  # logits, or the last hidden state of a headless model
    labels: Value | None
    loss: str  # causal, seq2seq, masked, classify, contrastive, none
    own_mask: Value | None = None  # a mask that the family makes whatever the regime says
    masks: Masks = NO_MASKS  # what sliding windows ask for
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
        """What the model makes once per forward for its layers to read: eager attention adds a mask, padding and
        sequences beyond a window need one; layers that slide have another than those that do not."""
        if self.own_mask is not None:
            return self.own_mask
        ids, eager = self.tape.inputs[0], self.regime.attention == "eager"
        if len(ids.shape) != 2 or not (eager or self.regime.mask or self.masks.needed):
            return None
        every = eager or self.regime.mask or "none" not in self.masks.layers
        forms = self.masks.forms if every else 1
        stream = F32 if self.regime.autocast else self.regime.weights
        dtype = BOOL if self.regime.boolean_masks and not eager else stream
        return Value((ids.shape[0], forms, ids.shape[1], ids.shape[1]), dtype, label="attention mask")

    @property
    def mask_is_saved(self) -> bool:
        """Does a kernel keep the very mask for backward?"""
        padding = self.regime.mask and not self.regime.boolean_masks and not self.regime.autocast
        return self.regime.attention != "eager" and (padding or "shared" in self.masks.layers)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Made once for these sections, however often it is asked for. Stages share what folds found, so that the tape
        tells them apart; it is kept, so that no other can have its id."""
        own = (id(self.tape), key)
        if own not in self.folded:
            self.folded[own] = (self.tape, make())
        found: Made = self.folded[own][1]
        return found

    def params(self, *, tied: bool = False) -> Iterator[Param]:
        """Every parameter tensor in order; tied names only when asked for."""
        # Each layer's are made from those of the recorded one. Stages share what folds found, so that a key must tell
        # them apart: by the sections themselves, which are held so that their ids stay theirs.
        key = ("params", *map(id, self.placed))
        if key not in self.folded:
            self.folded[key] = (list(self.placed), [param for placed in self.placed for param in placed.params()])
        for param in self.folded[key][1]:
            if tied or param.tied_to is None:
                yield param

    @property
    def checkpoint_elements(self) -> int:
        """Elements with the names in `stored_apart` counted as tensors of their own."""
        return sum(
            param.numel for param in self.params(tied=True) if not param.tied_to or param.name in self.stored_apart
        )
