"""A script's memory at sizes that were not traced: a table, the largest that fits, each category's polynomial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vramcast.report.table import align
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES
from vramcast.units import format_bytes, format_gib, format_gib_and_gb

Terms = tuple[tuple[tuple[int, ...], Fraction], ...]  # powers of the knobs, and the coefficient


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    point: tuple[int, ...]
    allocated_bytes: int
    process_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    command: str
    card: str
    capacity_bytes: int
    knobs: tuple[str, ...]
    traces: int
    is_quadratic: bool
    check: tuple[int, ...]  # a point that was traced for checking alone
    check_exact: int  # allocations predicted to the byte there
    check_allocations: int
    check_predicted_bytes: int
    check_traced_bytes: int
    terms: tuple[tuple[str, Terms], ...]
    rows: tuple[Prediction, ...]
    largest: tuple[tuple[str, str, int | None], ...]


def render_sweep(sweep: Sweep) -> str:
    lines = [
        f"{sweep.command} on {sweep.card}, {format_gib_and_gb(sweep.capacity_bytes)}: "
        f"{sweep.traces} traces, {'quadratic' if sweep.is_quadratic else 'linear'}",
        _check_line(sweep),
        "",
        *(_largest_line(*found) for found in sweep.largest),
        "",
        *align(_table(sweep), "r" * len(sweep.knobs) + "rrl"),
        "",
        "at the peak of the sizes given:",
        *align(
            [
                (say(CATEGORIES, category, "en"), formula(terms, sweep.knobs))
                for category, terms in sweep.terms
            ],
            "ll",
        ),
    ]
    return "\n".join(lines)


def _check_line(sweep: Sweep) -> str:
    named = ", ".join(f"{k} {v}" for k, v in zip(sweep.knobs, sweep.check, strict=True))
    off = abs(sweep.check_predicted_bytes - sweep.check_traced_bytes)
    percent = 100 * off / max(1, sweep.check_traced_bytes)
    return (
        f"checked at {named}: predicted {format_gib(sweep.check_predicted_bytes)} allocated, traced "
        f"{format_gib(sweep.check_traced_bytes)} ({percent:.2f} % off); {sweep.check_exact} of "
        f"{sweep.check_allocations} allocations to the byte"
    )


def _largest_line(name: str, others: str, value: int | None) -> str:
    given = f" at {others}" if others else ""
    if value is None:
        return f"no {name} fits{given}"
    return f"the largest {name} that fits{given}: {value}"


def _table(sweep: Sweep) -> list[tuple[str, ...]]:
    rows = [(*sweep.knobs, "allocated", "process", "")]
    for row in sweep.rows:
        sizes = (format_gib(row.allocated_bytes), format_gib(row.process_bytes))
        rows.append((*map(str, row.point), *sizes, "fits" if row.fits else "does not fit"))
    return rows


def formula(terms: Terms, knobs: Sequence[str]) -> str:
    """`1.21 GiB + 24.0 MiB·batch + 18.5 KiB·batch·seq`"""
    parts = []
    for powers, coefficient in terms:
        if round(coefficient) == 0:
            continue
        names = [
            name if power == 1 else f"{name}²"
            for name, power in zip(knobs, powers, strict=True)
            if power
        ]
        sign = "−" if coefficient < 0 else "+"
        parts.append((sign, "·".join([format_bytes(round(abs(coefficient))), *names])))
    if not parts:
        return format_bytes(0)
    text = " ".join(f"{sign} {part}" for sign, part in parts)
    return text.removeprefix("+ ")


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    return {
        "schema": "vramcast/1",
        "command": sweep.command,
        "card": sweep.card,
        "capacity_bytes": sweep.capacity_bytes,
        "knobs": list(sweep.knobs),
        "traces": sweep.traces,
        "is_quadratic": sweep.is_quadratic,
        "check": {
            "point": list(sweep.check),
            "exact": sweep.check_exact,
            "allocations": sweep.check_allocations,
            "predicted_bytes": sweep.check_predicted_bytes,
            "traced_bytes": sweep.check_traced_bytes,
        },
        "terms": {
            category: [[list(powers), str(coefficient)] for powers, coefficient in terms]
            for category, terms in sweep.terms
        },
        "rows": [
            {
                "point": list(row.point),
                "allocated_bytes": row.allocated_bytes,
                "process_bytes": row.process_bytes,
                "fits": row.fits,
            }
            for row in sweep.rows
        ],
        "largest": {name: value for name, _, value in sweep.largest},
    }
