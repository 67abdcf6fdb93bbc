"""The cheapest changes of a job, as rows that the page turns into buttons."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job, fields, job_values
from vramcast.plan.advice import Priced, changed, price_advice
from vramcast.plan.cluster import ACROSS
from vramcast.plan.inference import inference_changes
from vramcast.plan.moves import Kind, Move, available
from vramcast.plan.serving import serving_changes
from vramcast.report.html import parts_at
from vramcast.report.html_document import gib
from vramcast.report.words import say
from vramcast.report.words.plan import KINDS, MOVES, REASONS
from vramcast.report.words.serving import COSTS, SERVING
from vramcast.setup.tasks import ONE_PASS

WORTH = 0.005  # of the peak: what frees less is not shown


def list_changes(
    forecast: Forecast, lang: str, *, skip: int = 0, count: int = 99
) -> tuple[list[dict[str, Any]], bool]:
    """Rows of `count` changes that apply after the first `skip`, cheapest first, and whether more are left to price."""
    job = forecast.job
    if job is None or job.model is None or job.gpu is None:
        return [], False
    if job.engine is not None:
        return _serving_rows(forecast, lang), False
    if job.task in ("generate", *ONE_PASS):
        return _inference_rows(forecast, lang), False
    moves = applicable(job)
    kept = list(Kind)
    rows = []
    for move in moves[skip : skip + count]:
        priced = priced_change(forecast, move.name)
        row = None if priced is None else _row(forecast, move, priced, lang)
        if row is not None:
            rows.append((kept.index(move.kind), not row["fits"], -row["frees_bytes"], row))
    rows.sort(key=lambda item: item[:3])
    return [row for *_, row in rows], skip + count < len(moves)


def _serving_rows(forecast: Forecast, lang: str) -> list[dict[str, Any]]:
    """Changes of an engine's flags, by what its cache then holds."""
    assert forecast.job is not None
    assert forecast.served is not None
    before = forecast.served.kv_tokens if forecast.served.starts else 0
    rows = []
    for change in serving_changes(forecast):
        more = f"{change.served.kv_tokens - before:,}"
        held = say(SERVING, "tokens", lang, tokens=f"{change.served.kv_tokens:,}")
        rows.append(
            {
                "name": change.flag,
                "label": change.flag,
                "kind": str(Kind.FREE),
                "kind_label": say(COSTS, change.cost, lang),
                "why": "",
                "frees_bytes": 0,
                "frees": say(SERVING, "more_tokens", lang, tokens=more),
                "peak_bytes": None,
                "peak": held,
                "fits": not forecast.served.starts,
                "slowdown": None,
                "set": difference(forecast.job, change.job),
            }
        )
    return rows


def _inference_rows(forecast: Forecast, lang: str) -> list[dict[str, Any]]:
    """Changes of generate() and of passes without graph."""
    assert forecast.job is not None
    return [
        {
            "name": hint.flag,
            "label": hint.flag,
            "kind": str(Kind.FREE),
            "kind_label": say(COSTS, hint.cost, lang),
            "why": "",
            "frees_bytes": hint.frees_bytes,
            "frees": f"−{gib(hint.frees_bytes)}",
            "peak_bytes": hint.peak_bytes,
            "peak": gib(hint.peak_bytes),
            "fits": hint.fits,
            "slowdown": None,
            "set": difference(forecast.job, hint.job),
        }
        for hint in inference_changes(forecast)
    ]


def applicable(job: Job) -> list[Move]:
    """What applies to the job on the cards that it has."""
    across = [move for move in ACROSS if move.apply(job) is not None] if job.gpus > 1 else []
    return [*available(job, frozenset()), *across]


def priced_change(forecast: Forecast, name: str) -> Priced | None:
    """None where the engine refuses the change, or has no price for it."""
    try:
        return _cached(JobKey(forecast), name)
    except VramcastError:
        return None


class JobKey:
    """A forecast, equal to others of the same job."""

    def __init__(self, forecast: Forecast) -> None:
        self.forecast = forecast

    def __hash__(self) -> int:
        return hash(self.forecast.job)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobKey) and other.forecast.job == self.forecast.job


@lru_cache(maxsize=256)
def _cached(key: JobKey, name: str) -> Priced:
    return price_advice(key.forecast, (name,))[1]


def _row(forecast: Forecast, move: Move, priced: Priced, lang: str) -> dict[str, Any] | None:
    if priced.forecast is None or forecast.job is None:
        return None
    before, after = forecast.verdict(), priced.forecast.verdict()
    frees = before.highest_bytes - after.highest_bytes
    if frees <= WORTH * before.highest_bytes:
        return None
    return {
        "name": move.name,
        "label": move_label(move, lang),
        "kind": str(move.kind),
        "kind_label": say(KINDS, str(move.kind), lang),
        "why": say(REASONS, move.why, lang) if move.why in REASONS else move.why,
        "frees_bytes": frees,
        "frees": f"−{gib(frees)}",
        "parts": _freed_parts(forecast, priced.forecast),
        "peak_bytes": after.highest_bytes,
        "peak": gib(after.highest_bytes),
        "fits": after.fits is True,
        "slowdown": None if priced.slowdown is None else list(priced.slowdown),
        "set": difference(forecast.job, changed(forecast.job, move.name)),
    }


def _freed_parts(before: Forecast, after: Forecast) -> dict[str, int]:
    """Bytes that every part of the bar loses, from peak to peak."""
    peaks = [(each, each.verdict().peak) for each in (before, after)]
    old, new = (parts_at(each.ledger, peak.phase, peak.place) for each, peak in peaks)
    return {part: size - new.get(part, 0) for part, size in old.items() if size > new.get(part, 0)}


def move_label(move: Move, lang: str) -> str:
    return say(MOVES, move.name, lang) if move.name in MOVES else move.name


def difference(before: Job, after: Job) -> dict[str, Any]:
    """The keys that a change sets; null takes one back to its default."""
    old, new = job_values(before), job_values(after)
    return {name: new[name] for name in fields() if old[name] != new[name]}
