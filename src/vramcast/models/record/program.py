"""A Program: a model as recorded ops, the result of running a family under a Regime with Sizes.

    record(config, Regime(weights=BF16), Sizes(batch=2, seq=256))

gives, for a Llama of 32 layers, a Program of 34 PlacedSections: "embedding", `model.layers.0` … `model.layers.31`
(which share one Section) and "head"; `loss.add_loss` appends "loss". Parameter counts, saved bytes, peaks and FLOPs are
all computed by going through these sections. The sizes may be grids (see `dims`): one Program then is many jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vramcast.models.read.config import Config
from vramcast.models.record.dims import Dim, Number
from vramcast.models.record.sliding_windows import (
    NO_MASKS,
    Masks,
    choose_masks,
    is_beyond,
    window_of,
)
from vramcast.models.record.tape import BOOL, F32, Dtype, Param, PlacedSection, Regime, Tape, Value

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the data brings: number-like, so a Program can be recorded for one job or for a grid of jobs."""

    batch: Number = 1
    seq: Number = 16
    target_seq: Number = 16  # decoder length of an encoder-decoder
    images: Number = 1  # images per sample
    # For a grid of lengths, which are all on one side: are they as long as the model's window?
    beyond_window: bool | None = None
    # For a grid of batches, which are all on one side: is it a single sample?
    one_sample: bool | None = None
    # Tokens that the language model sees per image; None: as the family computes.
    image_tokens: Number | None = None

    @staticmethod
    def named(
        batch: int, seq: int, target_seq: int, images: int, image_tokens: int | None = None
    ) -> Sizes:
        """Sizes that show as b, s, t and n_img in formulas."""
        tokens = None if image_tokens is None else Dim(image_tokens, "s_img")
        return Sizes(
            batch=Dim(batch, "b"),
            seq=Dim(seq, "s"),
            target_seq=Dim(target_seq, "t"),
            images=Dim(images, "n_img"),
            image_tokens=tokens,
        )


def masks_for(t: Tape, c: Config, sizes: Sizes, layers: int, *, always: bool = False) -> Masks:
    """The masks of a decoder whose sequence is `sizes.seq`."""
    beyond = sizes.beyond_window
    if beyond is None:
        beyond = is_beyond(sizes.seq, window_of(c))
    return choose_masks(t.regime, c, int(layers), beyond=beyond, always=always)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Placed sections in forward order, the model's inputs, and the output that the loss starts from."""

    tape: Tape
    output: Value  # logits, or the last hidden state of a headless model
    labels: Value | None
    loss: str  # causal, seq2seq, masked, classify, contrastive, none
    own_mask: Value | None = None  # a mask that the family makes whatever the regime says
    masks: Masks = NO_MASKS  # what sliding windows ask for
    # Tied names that checkpoints store, and older transformers builds, on their own.
    stored_apart: tuple[str, ...] = ()
    # What `outputs` has beside the logits: an encoder's last hidden state.
    returned: tuple[Value, ...] = ()
    # What was computed from these sections before; shared by the stages of a pipeline.
    cache: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def sections(self) -> list[PlacedSection]:
        return self.tape.sections

    @property
    def regime(self) -> Regime:
        return self.tape.regime

    @property
    def mask(self) -> Value | None:
        """The mask tensor that the model makes once per forward for its layers to read, if it makes one.

        Eager attention adds a mask; padding and sequences beyond a window need one; layers that slide have another
        than those that do not.
        """
        if self.own_mask is not None:
            return self.own_mask
        ids = self.tape.inputs[0]
        all_layers = self.regime.attention == "eager" or self.regime.mask
        if len(ids.shape) != 2 or not (all_layers or self.masks.needed):
            return None
        every_form = all_layers or "none" not in self.masks.layers
        num_forms = self.masks.forms if every_form else 1
        b, s = ids.shape
        return Value((b, num_forms, s, s), self._mask_dtype(), label="attention mask")

    def _mask_dtype(self) -> Dtype:
        regime = self.regime
        if regime.boolean_masks and regime.attention != "eager":
            return BOOL
        return F32 if regime.autocast else regime.weights

    @property
    def mask_is_saved(self) -> bool:
        """Does a kernel save this very mask for backward?"""
        regime = self.regime
        if regime.attention == "eager":
            return False
        saves_padding = regime.mask and not regime.boolean_masks and not regime.autocast
        return saves_padding or "shared" in self.masks.layers

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Compute something about these sections once. Stages share one cache, so that the tape is part of the key; it
        is stored too, so that no other object can have its id."""
        full_key = (id(self.tape), key)
        if full_key not in self.cache:
            self.cache[full_key] = (self.tape, make())
        made: Made = self.cache[full_key][1]
        return made

    def params(self, *, tied: bool = False) -> Iterator[Param]:
        """Every parameter tensor in order; tied names only when asked for."""
        # Stages share one cache, so that the key is made of the sections themselves. They are stored too, so that no
        # other object can have their ids.
        key = ("params", *map(id, self.sections))
        if key not in self.cache:
            params = [param for placed in self.sections for param in placed.params()]
            self.cache[key] = (list(self.sections), params)
        for param in self.cache[key][1]:
            if tied or param.tied_to is None:
                yield param

    def cached(self) -> list[Value]:
        """One value for each tensor of past_key_values."""
        return [value for placed in self.sections for value in placed.section.cached]

    @property
    def checkpoint_elements(self) -> int:
        """Elements, where the names in `stored_apart` count as tensors of their own."""
        return sum(
            param.numel
            for param in self.params(tied=True)
            if not param.tied_to or param.name in self.stored_apart
        )
