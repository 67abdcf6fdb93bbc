"""A traced ledger and the formulas' ledger of the same job, line by line, in the same phase.

Lines are matched by category and by the part of the model they belong to (attention, mlp, norm, embedding, head). Where
one side does not divide a category, the other's lines are summed. A line without a match is listed as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.ledger import Entry, Ledger
from vramcast.report.table import align
from vramcast.report.trace import folded
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, MOMENTS
from vramcast.report.words.sentences import translate
from vramcast.report.words.snapshot import TRACED
from vramcast.units import format_gib

_PARTS = (
    ("head and loss", r"lm_head|embed_out|logits|loss|softmax|cross.entropy|labels"),
    ("attention", r"attn|attention|[qkvo]_proj|rotary|rope|sdpa|query|key|value"),
    (
        "mlp",
        r"mlp|ffn|feed|c_fc|gate_proj|up_proj|down_proj|expert|\bfc\d|\bwi\b|\bwo\b|DenseReluDense",
    ),
    ("norm", r"norm|\bln_|layernorm"),
    ("embedding", r"emb|wte|wpe"),
    ("cuBLAS", r"cublas"),
    ("cuDNN", r"cudnn"),
)
_SHOWN_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What both sides say about the same thing; None where a side has no such line."""

    category: str
    part: str  # of the model; empty where a side does not divide the category
    traced_bytes: int | None
    formula_bytes: int | None
    traced_lines: tuple[str, ...]  # largest first
    formula_lines: tuple[str, ...]


def common_phase(traced: Ledger, formula: Ledger, place: str) -> tuple[str, str]:
    """The traced peak's phase on both sides; the formulas' own peak where they do not know it."""
    phase = traced.peak(place).phase
    other = formula.devices()[0]
    return phase, phase if phase in formula.phases(other) else formula.peak(other).phase


def pairs(traced: Ledger, formula: Ledger, place: str) -> list[Pair]:
    phase, formula_phase = common_phase(traced, formula, place)
    left, right = traced.alive(phase, place), formula.alive(formula_phase, formula.devices()[0])
    categories = dict.fromkeys(str(entry.category) for entry in (*left, *right))
    return [pair for category in categories for pair in _of_category(category, left, right)]


def _of_category(category: str, left: Sequence[Entry], right: Sequence[Entry]) -> list[Pair]:
    traced = _by_part(entry for entry in left if str(entry.category) == category)
    formula = _by_part(entry for entry in right if str(entry.category) == category)
    shared = set(traced).intersection(formula).difference([""])
    if not shared:
        return [_pair(category, "", _all_of(traced), _all_of(formula))]
    parts = dict.fromkeys((*traced, *formula))
    return [_pair(category, part, traced.get(part, []), formula.get(part, [])) for part in parts]


def _by_part(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    parts: dict[str, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(_part(entry), []).append(entry)
    return parts


def _all_of(parts: dict[str, list[Entry]]) -> list[Entry]:
    return [entry for entries in parts.values() for entry in entries]


def _pair(category: str, part: str, mine: Sequence[Entry], theirs: Sequence[Entry]) -> Pair:
    return Pair(
        category=category,
        part=part,
        traced_bytes=sum(e.nbytes for e in mine) if mine else None,
        formula_bytes=sum(e.nbytes for e in theirs) if theirs else None,
        traced_lines=_names(mine),
        formula_lines=_names(theirs),
    )


def _part(entry: Entry) -> str:
    text = entry.component
    return next((part for part, words in _PARTS if re.search(words, text, re.IGNORECASE)), "")


def _names(entries: Sequence[Entry]) -> tuple[str, ...]:
    sums: dict[str, int] = {}
    for entry in entries:
        name = folded(entry.component)
        sums[name] = sums.get(name, 0) + entry.nbytes
    return tuple(sorted(sums, key=lambda name: -sums[name]))


def against_formula_text(traced: Ledger, formula: Ledger, place: str, lang: str = "en") -> str:
    phase, formula_phase = common_phase(traced, formula, place)
    title = say(TRACED, "beside", lang, moment=say(MOMENTS, phase, lang), place=place)
    if phase != formula_phase:
        title += say(TRACED, "formulas_peak", lang, moment=say(MOMENTS, formula_phase, lang))
    mine, theirs = say(TRACED, "traced", lang), say(TRACED, "formula", lang)
    rows = [(mine, theirs, say(TRACED, "difference", lang), "")]
    for pair in pairs(traced, formula, place):
        left, right = _list(pair.traced_lines, lang), _list(pair.formula_lines, lang)
        cells = _shown(pair.traced_bytes), _shown(pair.formula_bytes), _difference(pair, lang)
        rows.append((*cells, _name(pair, lang)))
        rows.append(("", "", "", f"  {mine}: {left} | {theirs}: {right}"))
    return "\n".join([title, *align(rows, "rrrl")])


def _name(pair: Pair, lang: str) -> str:
    category = say(CATEGORIES, pair.category, lang)
    return f"{category}, {translate(pair.part, lang)}" if pair.part else category


def _shown(nbytes: int | None) -> str:
    return "–" if nbytes is None else format_gib(nbytes)


def _difference(pair: Pair, lang: str) -> str:
    if pair.traced_bytes is None or pair.formula_bytes is None:
        return say(TRACED, "unmatched", lang)
    change = pair.formula_bytes - pair.traced_bytes
    return f"{'-' if change < 0 else '+'}{format_gib(abs(change))}"


def _list(names: Sequence[str], lang: str) -> str:
    if not names:
        return say(TRACED, "nothing", lang)
    more = len(names) - _SHOWN_LINES
    shown = ", ".join(translate(name, lang) for name in names[:_SHOWN_LINES])
    return shown + (say(TRACED, "and_more", lang, count=more) if more > 0 else "")


def against_formula_json(traced: Ledger, formula: Ledger, place: str) -> dict[str, Any]:
    phase, formula_phase = common_phase(traced, formula, place)
    return {
        "phase": phase,
        "formula_phase": formula_phase,
        "lines": [
            {
                "category": pair.category,
                "part": pair.part or None,
                "traced_bytes": pair.traced_bytes,
                "formula_bytes": pair.formula_bytes,
                "traced": list(pair.traced_lines),
                "formula": list(pair.formula_lines),
            }
            for pair in pairs(traced, formula, place)
        ],
    }
