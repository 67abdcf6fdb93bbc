"""Configs for the tests: the catalog's, and the public ones (as on huggingface.co) of models it does not ship."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vramcast

CATALOG = Path(vramcast.__file__).parent / "catalog" / "data" / "models"
CATALOG_NAMES = sorted(path.stem for path in CATALOG.glob("*.json"))

OTHERS: dict[str, dict[str, Any]] = {}


def config(name: str, **changes: Any) -> dict[str, Any]:
    data: Mapping[str, Any] = OTHERS.get(name) or json.loads((CATALOG / f"{name}.json").read_text(encoding="utf-8"))
    return {**data, **changes}


def shallow(data: Mapping[str, Any], layers: int = 1) -> dict[str, Any]:
    """The same model at full width with few layers and a small vocabulary."""
    depths = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
              "decoder_layers")  # fmt: skip
    small = {key: layers for key in depths if data.get(key) is not None}
    tokens = {key: 1 for key in data if key.endswith("_token_id") and isinstance(data[key], int)}
    nested = {key: shallow(value, layers) for key, value in data.items() if key in ("text_config", "vision_config")}
    vocab = {"vocab_size": 1000} if "vocab_size" in data else {}
    return {**data, **small, **tokens, **vocab, **nested}
