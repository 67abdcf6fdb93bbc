"""Models by name: in comes a catalog name, a Hugging Face id or an alias, out comes a config with its source.

The index is read once; a config is read only when its model is asked for. Does not know architectures: what a config
means is the business of `vramcast.models`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import log
from typing import Any

from vramcast.catalog.model_names import (
    VARIANTS,
    ModelName,
    is_built_on,
    normalise,
    read_name,
    split_words,
)
from vramcast.catalog.tables import DATA, read_rows
from vramcast.errors import UnsupportedError, unknown

# Who puts others' models on the Hub again, as they are or stored in fewer bits.
MIRRORS = {
    "unsloth",
    "nousresearch",
    "redhatai",
    "neuralmagic",
    "thebloke",
    "casperhansen",
    "huggyllama",
    "bartowski",
    "lmstudio-community",
    "mlx-community",
    "modelscope",
    "llm-research",
    "ai-modelscope",
    "shakechen",
    "hugging-quants",
    "solidrust",
    "techxgenus",
    "maziyarpanahi",
    "second-state",
    "ggml-org",
    "ybelkada",
    "unslothai",
    "alpindale",
    "daryl149",
    "decapoda-research",
    "yahma",
    "nvidia",
    "amd",
    "intel",
    "cpatonn",
    "qwen",
    "quanttrio",
}


SAME_SIZE = 0.1  # names round, to 14B for 14.66


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One line of the catalog. `params` is what transformers builds; `params_untied` what an untied checkpoint has."""

    name: str
    hf_id: str
    architecture: str
    aliases: tuple[str, ...]
    params: int
    params_checked: bool  # a published exact figure agrees
    params_untied: int | None
    source: str
    params_source: str
    notes: str

    @property
    def config(self) -> dict[str, Any]:
        """The config, in the keys of Hugging Face."""
        path = DATA / "models" / f"{self.name}.json"
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return data


@cache
def all_models() -> tuple[CatalogModel, ...]:
    aliases: dict[str, list[str]] = {}
    for row in read_rows("model_aliases.csv"):
        aliases.setdefault(row["name"], []).append(row["alias"])
    models = (_read_model(row, aliases) for row in read_rows("models/INDEX.csv"))
    return tuple(sorted(models, key=_family_and_size))


def find_model(name: str) -> CatalogModel:
    """A catalog name, an alias or a Hugging Face id, in any usual spelling and with any usual ending; else the model
    that a fine-tune's name says it was made of."""
    model = lookup_model(name) or find_base(name)
    if model is None:
        raise _unknown_model(name)
    return model


def find_base(name: str) -> CatalogModel | None:
    """The model whose name is a part of this one; the longest of several."""
    asked = read_name(name)
    found = {key: model for key, model in _by_words().items() if is_built_on(asked.words, key)}
    return found[max(found, key=len)] if found else None


def lookup_model(name: str) -> CatalogModel | None:
    as_written = _by_name().get(name)
    if as_written is not None:
        return as_written
    asked = read_name(name)
    known = _by_words()
    return known.get(asked.words) or known.get(asked.plain_words) or _without_size(asked)


def _without_size(asked: ModelName) -> CatalogModel | None:
    """`phi-4-14b` is phi-4, whose size it is."""
    words, size = asked.plain_words, _billions(asked.plain_words)
    if size is None:
        return None
    at = next(
        at for at in range(len(words) - 1) if words[at + 1] in ("b", "m") and words[at][0].isdigit()
    )
    model = _by_words().get((*words[:at], *words[at + 2 :]))
    return model if model is not None and abs(log(model.params / 1e9 / size)) < SAME_SIZE else None


def is_known_owner(owner: str, model: CatalogModel) -> bool:
    """Is it who published the model, or somebody who copies models unchanged?"""
    return owner.lower() in (model.hf_id.partition("/")[0].lower(), *MIRRORS)


def search_models(text: str) -> tuple[CatalogModel, ...]:
    """Models whose name, id, alias or class contains the text."""
    wanted = text.lower()

    def matches(model: CatalogModel) -> bool:
        names = (model.name, model.hf_id, model.architecture, *model.aliases)
        return any(wanted in name.lower() for name in names)

    return tuple(filter(matches, all_models()))


@cache
def _by_name() -> dict[str, CatalogModel]:
    """Names as the catalog writes them, which need not be taken apart: most questions."""
    return {model.name: model for model in all_models()}


@cache
def _by_words() -> dict[tuple[str, ...], CatalogModel]:
    """Every spelling; a catalog name wins over an alias, an alias over a Hub id."""
    keys: dict[tuple[str, ...], CatalogModel] = {}
    models = all_models()
    for model in models:
        keys[split_words(model.name)] = model
    for model in models:
        for alias in model.aliases:
            keys.setdefault(split_words(alias), model)
    for model in models:
        hub = ModelName("", normalise(model.hf_id.rpartition("/")[2]))
        keys.setdefault(hub.words, model)
        # Where "base" is a size, as in t5-base, the name without it is no name.
        if VARIANTS.isdisjoint(model.name.split("-")):
            keys.setdefault(hub.plain_words, model)
    keys.pop((), None)
    return keys


def _unknown_model(name: str) -> UnsupportedError:
    """Suggests models of the same family and version, the nearest in size first."""
    advice = "See `vramcast models`, give a config.json or its folder, or ask the Hub: --hub."
    asked = read_name(name)
    words = asked.plain_words
    near = sorted(
        (rank, model.name)
        for model in all_models()
        if (rank := _distance(words, model)) is not None
    )
    if not near:
        spellings = [word for model in all_models() for word in (model.name, *model.aliases)]
        return unknown("model", asked.tail, spellings, advice)
    names = [name for _, name in near[:3]]
    return UnsupportedError(
        f"unknown model {asked.tail!r}. Did you mean {' or '.join(names)}? {advice}"
    )


def _distance(words: tuple[str, ...], model: CatalogModel) -> tuple[float, ...] | None:
    """How far a model is from these words; None for another family."""
    own = split_words(model.name)
    family = own[0]
    if family not in words or len(family) < 3:
        return None
    rest = words[words.index(family) + 1 :]
    common = next(
        (at for at, pair in enumerate(zip(own[1:], rest, strict=False)) if pair[0] != pair[1]), 0
    )
    asked_size, size = _billions(rest), model.params / 1e9
    apart = abs(log(asked_size / size)) if asked_size else 0.0
    other_version = own[1:2] != rest[:1]
    other_words = len(set(own) ^ set(words))
    return (float(other_version), round(apart, 1), float(other_words), -float(common), size)


def _billions(words: tuple[str, ...]) -> float | None:
    """The size that a name says: 8 b, 500 m."""
    for number, unit in pairwise(words):
        if unit in ("b", "m") and number[0].isdigit() and number.count(".") < 2 and float(number):
            return float(number) / (1 if unit == "b" else 1000)
    return None


def _read_model(row: dict[str, str], aliases: dict[str, list[str]]) -> CatalogModel:
    name = row["file"].removesuffix(".json")
    return CatalogModel(
        name=name,
        hf_id=row["hf_id"],
        architecture=row["architecture_class"],
        aliases=tuple(aliases.get(name, ())),
        params=int(row["params_built"]),
        params_checked=row["match"] == "yes",
        params_untied=_read_untied_count(row),
        source=row["config_source"],
        params_source=row["published_source"],
        notes=row["notes"],
    )


def _read_untied_count(row: dict[str, str]) -> int | None:
    """The count of a checkpoint whose head is stored although transformers ties it."""
    count = row["params_built_alt"]
    return int(count) if count and "untied" in row["notes"] else None


def _family_and_size(model: CatalogModel) -> tuple[str, int]:
    """The order of the catalog."""
    family = re.split(r"[-\d]", model.name)[0]
    return family, model.params
