"""LLaMA-Pro's block expansion: a copy of a block behind every few blocks; the copies alone are trained.

As LLaMA-Factory does it (scripts/llama_pro.py, model/adapter.py with use_llama_pro). A model of 32 layers with 8 more
has one behind every fourth: layers 4, 9, 14 … 39 of 40 are new.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vramcast.errors import InputError, UnsupportedError
from vramcast.models.read.config import Config

LAYERS = "num_hidden_layers"


def expanded(config: Config, added: int) -> Config:
    """The config of the model with that many blocks more."""
    before = config.data.get(LAYERS)
    if not isinstance(before, int):
        raise UnsupportedError(f"{config.where}: expand-blocks needs a config with {LAYERS}")
    if added > before or before % added:
        raise InputError(
            f"expand-blocks {added} must divide the {before} layers of the model: blocks are added evenly"
        )
    every = before // added

    def lengthened(value: Any) -> Any:
        """What a config says layer by layer."""
        if not isinstance(value, list) or len(value) != before:
            return value
        return [item for at, item in enumerate(value, 1) for _ in range(1 + (at % every == 0))]

    data = {key: lengthened(value) for key, value in config.data.items()}
    return replace(config, data={**data, LAYERS: before + added})


def added_layers(config: Config, added: int) -> frozenset[int]:
    """Numbers of the new layers. `config`: expanded."""
    every = int(config.data[LAYERS]) // added
    return frozenset(range(every - 1, int(config.data[LAYERS]), every))
