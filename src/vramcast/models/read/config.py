"""A Hugging Face config.json, read with care: named dimensions out, clear errors for what is missing or absurd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.errors import InputError
from vramcast.files import read_text
from vramcast.models.record.dims import Dim

MAX_CONFIG_BYTES = 16 * 1024 * 1024
# No width, depth or vocabulary is near this; beyond it a config is hostile or broken.
LARGEST_DIM = 2**40
LARGEST_NUMBER = 1e12


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one config, with typed access. `where` names the file in errors."""

    data: Mapping[str, Any]
    where: str = "config"

    def dim(
        self, name: str, text: str, *others: str, default: int | None = None, least: int = 1
    ) -> Dim:
        """A size under its name or one of the other names it goes by; `text` is its symbol in formulas."""
        for key in (name, *others):
            value = self.data.get(key)
            if value is not None:
                return Dim(_check_size(value, f"{self.where}: {key}", least), text)
        if default is None:
            raise InputError(
                f"{self.where}: {name} is missing. A {self.model_type} config must have it."
            )
        return Dim(default, text)

    def number(self, name: str, default: float) -> float:
        value = self.data.get(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < LARGEST_NUMBER:
            raise InputError(f"{self.where}: {name} must be a non-negative number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {name} must be true or false, not {value!r}")
        return value

    def word(self, name: str, default: str, *others: str) -> str:
        for key in (name, *others):
            value = self.data.get(key)
            if value is not None:
                if not isinstance(value, str):
                    raise InputError(f"{self.where}: {key} must be a string, not {value!r}")
                return value
        return default

    def list(self, name: str) -> list[Any]:
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError(f"{self.where}: {name} must be a list, not {value!r}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, such as those of layers."""
        values = self.list(name)
        if not all(type(value) is int for value in values):
            raise InputError(f"{self.where}: {name} must be a list of whole numbers")
        return tuple(values)

    def per_layer(self, name: str, layers: int) -> tuple[Any, ...]:
        """A word or number for every layer; empty when absent. A model cut short has fewer layers than the list."""
        values = self.list(name)
        if values and len(values) < layers:
            raise InputError(f"{self.where}: {name} has {len(values)} entries for {layers} layers")
        if not all(isinstance(value, str | int | float) for value in values):
            raise InputError(f"{self.where}: {name} must be a list of words or numbers")
        return tuple(values[:layers])

    def sub(self, name: str) -> Config:
        """A nested config such as `text_config`; empty when absent."""
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise InputError(f"{self.where}: {name} must be an object, not {value!r}")
        return Config(value, f"{self.where}: {name}")

    def with_defaults(self, **defaults: Any) -> Config:
        """The config, with values for keys that are absent or null."""
        given = {key: value for key, value in self.data.items() if value is not None}
        return Config({**defaults, **given}, self.where)

    @property
    def model_type(self) -> str:
        return self.word("model_type", "")

    @property
    def architecture(self) -> str:
        names = self.list("architectures")
        return names[0] if names and isinstance(names[0], str) else ""


def _check_size(value: Any, what: str, least: int) -> int:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not least <= value <= LARGEST_DIM:
        raise InputError(f"{what} must be an integer of at least {least}, not {value!r}")
    return int(value)


def exact_division(whole: int, parts: int, what: str) -> int:
    """whole // parts, refused when it does not come out even."""
    if int(whole) % int(parts):
        raise InputError(f"{what}: {int(whole)} does not divide by {int(parts)}")
    return whole // parts


def read_config(path: Path) -> Config:
    """A config.json, or the one in a folder."""
    path = path / "config.json" if path.is_dir() else path
    text = read_text(path, MAX_CONFIG_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable JSON config ({error})") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: a config must be a JSON object, not {type(data).__name__}")
    return Config(data, str(path))
