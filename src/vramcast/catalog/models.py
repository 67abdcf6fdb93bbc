"""Models by name: in comes a catalog name, a Hugging Face id or an alias, out comes a config with its source.

The index is read once; a config is read only when its model is asked for. Does not know architectures: what a config
means is the business of `vramcast.models`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from vramcast.catalog.tables import DATA, read_rows
from vramcast.errors import unknown

# Words that name a way of training or a file format, not another architecture.
VARIANTS = {"instruct", "it", "chat", "base", "hf", "meta", "pt"}


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
    """A catalog name, an alias or a Hugging Face id, with or without its organisation and its -Instruct."""
    model = lookup_model(name)
    if model is None:
        spellings = [word for model in all_models() for word in (model.name, *model.aliases)]
        advice = "See `vramcast models`, or give a config.json or its folder."
        raise unknown("model", _tail(name), spellings, advice)
    return model


def lookup_model(name: str) -> CatalogModel | None:
    known = _by_key()
    return known.get(_tail(name)) or known.get(_without_variants(_tail(name)))


def search_models(text: str) -> tuple[CatalogModel, ...]:
    """Models whose name, id, alias or class contains the text."""
    wanted = text.lower()

    def matches(model: CatalogModel) -> bool:
        names = (model.name, model.hf_id, model.architecture, *model.aliases)
        return any(wanted in name.lower() for name in names)

    return tuple(filter(matches, all_models()))


def _tail(name: str) -> str:
    """The id without its organisation, in the catalog's spelling."""
    return re.sub(r"[\s_]+", "-", name.strip().rpartition("/")[2].lower())


def _without_variants(key: str) -> str:
    return "-".join(word for word in key.split("-") if word not in VARIANTS)


@cache
def _by_key() -> dict[str, CatalogModel]:
    keys: dict[str, CatalogModel] = {}
    for model in all_models():
        for name in (_tail(model.hf_id), *model.aliases, model.name):
            keys[name] = model
    return keys


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
