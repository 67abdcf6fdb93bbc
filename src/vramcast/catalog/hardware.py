"""What `--gpu` says, taken apart: a card, how many of them, and how many one machine has.

count_cards("8 x h100")         → Cards("h100", 8)
count_cards("a100-80gb:4")      → Cards("a100-80gb", 4)
count_cards("g5.12xlarge")      → Cards("NVIDIA A10G", 4, per_node=4)
count_cards("2x p5.48xlarge")   → Cards("H100 SXM 80GB", 16, per_node=8)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import is_known, is_spelling
from vramcast.catalog.instances import find_instance

COUNT_FIRST = re.compile(r"([0-9]{1,6})\s*[x×*][\s_-]*([a-z0-9].*)", re.IGNORECASE)
COUNT_LAST = re.compile(r"(.*\S)\s*[x×*:]\s*([0-9]{1,6})", re.IGNORECASE)
# RunPod's two clouds, as SkyPilot writes them after the card, and the cards that RunPod calls by less than their name.
CLOUDS = re.compile(r"_(SECURE|COMMUNITY)$", re.IGNORECASE)
# Who rents cards by their names.
RENTERS = re.compile(
    r"^(runpod|lambda(labs)?|vast(\.?ai)?|modal|vultr|together|fal|paperspace|coreweave|nebius|colab( pro)?|kaggle|hf|"
    r"gcp|aws|azure)[\s:/_-]+",
    re.IGNORECASE,
)
RUNPOD = {"h100": "H100 PCIe 80GB", "a100-80gb": "A100 80GB PCIe"}


@dataclass(frozen=True, slots=True)
class Cards:
    """A card by the name it was given. `count` is None where nothing was said."""

    card: str
    count: int | None = None
    per_node: int | None = None


def count_cards(text: str) -> Cards:
    """Anything that is neither a machine nor a number of cards is one name, right or wrong."""
    text = text.strip()
    if CLOUDS.search(text):
        cards = count_cards(CLOUDS.sub("", text))
        return replace(cards, card=RUNPOD.get(cards.card.lower(), cards.card))
    if is_spelling(text):
        return Cards(text)
    instance = find_instance(text)
    if instance is not None:
        return Cards(instance.card, instance.count, instance.count)
    first = COUNT_FIRST.fullmatch(text)
    if first is not None and (first[2][0].isalpha() or is_known(first[2])):
        return _times(int(first[1]), first[2])
    rented = RENTERS.sub("", text)
    if rented != text and (is_known(rented) or COUNT_FIRST.fullmatch(rented)):
        return count_cards(rented)
    last = COUNT_LAST.fullmatch(text)
    if last is not None and (":" in text or not is_known(text)) and is_known(last[1]):
        return _times(int(last[2]), last[1])
    return Cards(text)


def _times(number: int, name: str) -> Cards:
    instance = find_instance(name)
    if instance is None or instance.count is None:
        return Cards(name if instance is None else instance.card, number)
    return Cards(instance.card, number * instance.count, instance.count)
