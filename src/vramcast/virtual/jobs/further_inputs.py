"""Inputs that few models take, by the names of forward's parameters: regions, series of actions, prompts made of
pictures.

In come sizes, out come tensors with random values. What models of text, pictures and sound commonly take is in
`inputs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vramcast.virtual.jobs import input_sizes as sizes

REGIONS = 36  # of a picture, as LXMERT's detector gives them


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a batch is to hold."""

    config: Any
    batch: int
    seq: int
    image: tuple[int, int]

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(self.batch, *shape)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(self.batch, *shape, dtype=torch.long)

    def size(self, *names: str, default: int = 1) -> int:
        return sizes.number(self.config, *names, default=default)


def _actions(wanted: Wanted) -> Tensor:
    """A piece of a robot's path (π0), else one action for each step."""
    widest = getattr(wanted.config, "max_action_dim", None)
    if widest:
        return wanted.numbers(wanted.size("chunk_size"), int(widest))
    return wanted.numbers(wanted.seq, wanted.size("act_dim"))


def _picture(wanted: Wanted) -> Tensor:
    return wanted.numbers(sizes.channels(wanted.config), *wanted.image)


def _queries(wanted: Wanted) -> Tensor:
    count = wanted.size("num_query_tokens", default=32)
    return wanted.numbers(count, wanted.size("hidden_size"))


PICTURE_VECTORS = 257  # ViT-g's of a picture of 224 pixels, which Q-Formers were trained on


def _vectors(wanted: Wanted) -> Tensor | None:
    width = wanted.size("encoder_hidden_size", default=0)
    return wanted.numbers(PICTURE_VECTORS, width) if width else None


def _picture_places(wanted: Wanted) -> Tensor:
    """Where Kosmos-2's latent queries stand in the text."""
    places = wanted.zeros(wanted.seq)
    places[:, : wanted.size("latent_query_num")] = 1
    return places


MAKERS: dict[str, Callable[[Wanted], Tensor | None]] = {
    "states": lambda wanted: wanted.numbers(wanted.seq, wanted.size("state_dim")),
    "actions": _actions,
    "rewards": lambda wanted: wanted.numbers(wanted.seq, 1),
    "returns_to_go": lambda wanted: wanted.numbers(wanted.seq, 1),
    "timesteps": lambda wanted: wanted.zeros(wanted.seq),
    "state": lambda wanted: wanted.numbers(wanted.size("max_state_dim")),
    "visual_feats": lambda wanted: wanted.numbers(REGIONS, wanted.size("visual_feat_dim")),
    "visual_pos": lambda wanted: wanted.numbers(REGIONS, wanted.size("visual_pos_dim", default=4)),
    "prompt_pixel_values": _picture,
    "prompt_masks": _picture,
    "query_embeds": _queries,
    "encoder_hidden_states": _vectors,
    "image_embeds_position_mask": _picture_places,
    "qformer_input_ids": lambda wanted: wanted.zeros(wanted.seq),
    "task_inputs": lambda wanted: wanted.zeros(wanted.size("task_seq_len")).float(),
    "past_values_padding": lambda wanted: wanted.zeros(wanted.size("context_length", default=512)),
    "freq": lambda wanted: wanted.zeros(1),
}
# Given although they need not be: nothing runs without them.
TOGETHER = {
    "states": ("states", "actions", "rewards", "returns_to_go", "timesteps"),
    "visual_feats": ("visual_feats", "visual_pos"),
    "max_action_dim": ("actions",),
    "query_embeds": ("encoder_hidden_states",),
    "latent_query_num": ("input_ids", "image_embeds_position_mask"),
}


def is_needed(name: str, parameters: Any, config: Any) -> bool:
    return any(
        name in names and (key in parameters or hasattr(config, key))
        for key, names in TOGETHER.items()
    )
