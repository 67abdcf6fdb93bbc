"""Timelines as data for the page, and in HTML reports: a still picture, and the script that brings it to life."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from vramcast.report.html_document import gib
from vramcast.report.parts import PART_OF
from vramcast.report.phases import is_later_step
from vramcast.report.snapshot_text import shorten
from vramcast.report.svg import Curve, area_chart, round_steps, step_text
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, PHASES
from vramcast.report.words.page import PARTS
from vramcast.report.words.timeline import TIMELINE
from vramcast.timelines.of_snapshot import BEFORE, RECORDED
from vramcast.timelines.record import Timeline
from vramcast.timelines.thin import thin
from vramcast.units import GiB

MOST_EVENTS = 20_000  # of a timeline in a report: about half a megabyte
MOST_EVENTS_ON_PAGE = 250_000
STILL_COLUMNS = 300
SCRIPTS = ("timeline_model.js", "timeline_chart.js")
START = "showAll();"


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """The numbers, with the part that gives each label its colour; paths are shortened."""
    data = timeline.as_json()
    for label in data["labels"]:
        label.append(PART_OF.get(label[0], "temporary"))
        label[2] = shorten(label[2])
    return data


def timeline_words(lang: str) -> dict[str, Any]:
    """What the script says, in one language."""
    phases = {
        name: f"{say(PHASES, name, lang)}{' 2' if is_later_step(name) else ''}" for name in PHASES
    }
    own = {
        BEFORE: say(TIMELINE, "before_recording", lang),
        RECORDED: say(TIMELINE, "recorded", lang),
    }
    return {
        "order": list(PARTS),
        "say": {name: say(TIMELINE, name, lang) for name in TIMELINE},
        "parts": {name: say(PARTS, name, lang) for name in PARTS},
        "categories": {name: say(CATEGORIES, name, lang) for name in CATEGORIES},
        "phases": phases | own,
    }


def timeline_notes(timeline: Timeline, lang: str) -> list[str]:
    """Where it is from, and what to know about it."""
    notes = [say(TIMELINE, f"of_{timeline.origin}", lang)]
    if timeline.origin == "measured":
        notes.append(say(TIMELINE, "guessed", lang))
    if timeline.is_unlimited:
        notes.append(say(TIMELINE, "too_small", lang))
    if timeline.is_thinned:
        counts = {"recorded": timeline.recorded_events, "left": len(timeline.events)}
        texts = {name: f"{count:,}" for name, count in counts.items()}
        notes.append(say(TIMELINE, "thinned", lang, **texts))
    return notes


def timelines_html(timelines: Sequence[Timeline], lang: str) -> str:
    """One below the other, on one scale. A document with them needs `timeline_script`."""
    short = [thin(timeline, MOST_EVENTS // len(timelines)) for timeline in timelines]
    figures = "".join(
        _figure(timeline, f"timeline-{number}", lang) for number, timeline in enumerate(short)
    )
    words = _data("timeline-words", timeline_words(lang))
    return f'{words}{figures}<p class="soft">{escape(say(TIMELINE, "how", lang))}</p>'


def _figure(timeline: Timeline, name: str, lang: str) -> str:
    notes = " · ".join(timeline_notes(timeline, lang))
    title = f"<b>{escape(timeline.name)}</b> {escape(timeline.place)}: {escape(notes)}"
    return (
        f'{_data(name, timeline_data(timeline))}<figure><figcaption class="soft">{title}</figcaption>'
        f'<div class="timeline" data-of="{name}">{still_html(timeline, lang)}</div></figure>'
    )


def _data(name: str, value: Any) -> str:
    """A "<" inside a script could end it; written as an escape it cannot."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script id="{name}" type="application/json">{text}</script>'


def timeline_script() -> str:
    """The modules as one: what one exports the next finds."""
    texts = [
        files("vramcast.report").joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS
    ]
    lines = [
        line.removeprefix("export ")
        for text in texts
        for line in text.splitlines()
        if not line.startswith("import ")
    ]
    return "\n".join([*lines, START])


# ---- the still picture


def still_html(timeline: Timeline, lang: str, height: int = 260) -> str:
    """Stacked areas by category: of equal shares of the events the fullest moments."""
    chart, parts = still_chart(timeline, lang, height)
    legend = "".join(
        f'<li><svg class="swatch" width="10" height="10" aria-hidden="true"><rect class="part-{part}" width="10" '
        f'height="10"/></svg> {escape(say(PARTS, part, lang))}</li>'
        for part in parts
    )
    return f'{chart}<ul class="legend">{legend}</ul>' if chart else ""


def still_chart(timeline: Timeline, lang: str, height: int) -> tuple[str, tuple[str, ...]]:
    """The picture, and the parts in it."""
    at, heights = sampled(timeline, STILL_COLUMNS)
    if len(at) < 2:
        return "", ()
    event, peak = timeline.peak()
    title = f"{say(TIMELINE, 'title', lang)}: {say(TIMELINE, 'peak', lang)} {gib(peak)}"
    highest = peak * 1.06 / GiB
    chart = area_chart(
        Curve(positions=at, heights=list(heights.values()), parts=tuple(heights)),
        label=title,
        ticks=[(at[0], "1"), (at[-1], f"{at[-1] + 1:,}")],
        steps=[(step, step_text(step)) for step in round_steps(highest)],
        highest=highest,
        now=event,
        height=height,
    )
    return chart, tuple(heights)


def sampled(timeline: Timeline, columns: int) -> tuple[list[int], dict[str, list[float]]]:
    """Events, and at each of them GiB by part in the order of colours."""
    count = len(timeline.events)
    shares = min(columns, count)
    totals = list(timeline.totals())
    wanted = {
        max(range(count * i // shares, count * (i + 1) // shares), key=totals.__getitem__)
        for i in range(shares)
    }
    parts = [PART_OF.get(label.category, "temporary") for label in timeline.labels]
    now = dict.fromkeys((part for part in PARTS if part in set(parts)), 0)
    at: list[int] = []
    heights: dict[str, list[float]] = {part: [] for part in now}
    for moment, event in enumerate(timeline.events):
        number = event if event >= 0 else ~event
        sign = 1 if event >= 0 else -1
        now[parts[timeline.label[number]]] += sign * timeline.nbytes[number]
        if moment in wanted:
            at.append(moment)
            for part, nbytes in now.items():
                heights[part].append(nbytes / GiB)
    return at, heights
