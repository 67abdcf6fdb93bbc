"""Machines that clouds rent, by name: in comes what people type, out come a card and a count.

    find_instance("g5.12xlarge")   → 4 × NVIDIA A10G

Does not know the cards themselves: `gpus.py` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from vramcast.catalog.tables import read_rows

SAGEMAKER = re.compile(r"^\s*ml\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One kind of machine. `count` is None for a family, whose sizes have different numbers of cards."""

    provider: str
    name: str
    card: str
    count: int | None
    source: str


@cache
def all_instances() -> tuple[Instance, ...]:
    return tuple(
        Instance(
            provider=row["provider"],
            name=row["instance"],
            card=row["card"],
            count=int(row["count"]) if row["count"] else None,
            source=row["source"],
        )
        for row in read_rows("instances.csv")
    )


def find_instance(text: str) -> Instance | None:
    """A machine by its name, with or without its provider: `g5.12xlarge`, `aws g5.12xlarge`, `colab-t4`. SageMaker
    writes `ml.` before Amazon's names."""
    return _by_key().get(_key(SAGEMAKER.sub("", text)))


def machines_of(provider: str) -> list[str]:
    """What Colab or Kaggle have, which are named by their cards."""
    key = _key(provider).removesuffix("pro")
    return [
        instance.name
        for instance in all_instances()
        if instance.provider == key and _is_card_name(instance)
    ]


@cache
def _by_key() -> dict[str, Instance]:
    """A name that two providers use, or that is a card's own, is known with its provider only."""
    keys: dict[str, Instance] = {}
    for instance in all_instances():
        name = _key(instance.name)
        keys[_key(instance.provider) + name] = instance
        if not _is_card_name(instance):
            keys.setdefault(name, instance)
            keys.setdefault(name.removeprefix("standard"), instance)
    return keys


def _is_card_name(instance: Instance) -> bool:
    """Colab, Kaggle and Paperspace call a machine by its card."""
    return instance.provider in ("colab", "kaggle", "paperspace")


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9.+]", "", text.lower())
