"""The reports of commands as one HTML file each, made of the fragments that the page and notebooks use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from vramcast.forecast import Forecast
from vramcast.plan.moves import Kind
from vramcast.plan.plans import Plan, Plans
from vramcast.report.html import bar_html, fragments, name_of, scale_of, verdict_html
from vramcast.report.html_compare import compare_html
from vramcast.report.html_document import bullets, document, preformatted, section, table_html
from vramcast.report.html_front import FrontPoint, front_html
from vramcast.report.plan_report import last_lines, move_names, plan_tables, ratio
from vramcast.report.timeline_html import timeline_script, timelines_html
from vramcast.report.words import say
from vramcast.report.words.page import PAGE
from vramcast.report.words.plan import HEADINGS, KINDS, MOVES
from vramcast.timelines.record import Timeline

if TYPE_CHECKING:
    from vramcast.plan.ranking import Moves

MOST_TEXT = 400_000  # characters of a text report in a file


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """What `trace` found, for its report. `is_decided`: the run came far enough to say whether it fits."""

    name: str
    ending: str
    is_decided: bool
    text: str


def trace_document(
    run: TracedRun, forecast: Forecast, timelines: Sequence[Timeline], lang: str
) -> str:
    pieces = fragments(forecast, lang)
    verdict = pieces["verdict"]
    if not run.is_decided:
        verdict = f"<p><b>{escape(say(PAGE, 'undecided', lang))}</b></p>"
    body = (
        f"<p>{escape(run.ending)}</p>{verdict}{pieces['bar']}"
        + section(say(PAGE, "phases", lang), pieces["phases"])
        + section(say(PAGE, "timeline", lang), timelines_html(timelines, lang) if timelines else "")
        + section(say(PAGE, "lines", lang), pieces["lines"])
        + section(say(PAGE, "notes", lang), pieces["notes"])
        + section(say(PAGE, "report", lang), preformatted(run.text[:MOST_TEXT]))
    )
    script = timeline_script() if timelines else ""
    return document(say(PAGE, "trace_title", lang, name=run.name), body, lang, script)


def compare_document(
    names: Sequence[str], forecasts: Sequence[Forecast], timelines: Sequence[Timeline], lang: str
) -> str:
    body = compare_html(names, forecasts, lang)
    body += section(
        say(PAGE, "timeline", lang), timelines_html(timelines, lang) if timelines else ""
    )
    script = timeline_script() if timelines else ""
    return document(say(PAGE, "compare_title", lang), body, lang, script)


def traces_document(timelines: Sequence[Timeline], text: str, lang: str) -> str:
    """Two saved traces."""
    body = timelines_html(timelines, lang) + section(
        say(PAGE, "report", lang), preformatted(text[:MOST_TEXT])
    )
    return document(say(PAGE, "compare_title", lang), body, lang, timeline_script())


def text_document(title: str, text: str, lang: str, timelines: Sequence[Timeline] = ()) -> str:
    """Parts of a text, each with its first line as a heading, below the timelines that belong to it."""
    body = timelines_html(timelines, lang) if timelines else ""
    for part in text[:MOST_TEXT].split("\n\n"):
        first, _, rest = part.strip("\n").partition("\n")
        body += section(first.strip(), preformatted(rest)) if rest else preformatted(first)
    return document(title, body, lang, timeline_script() if timelines else "")


# ---- plans


def plan_document(plans: Plans, lang: str) -> str:
    base = plans.base.verdict()
    scale = scale_of(base)
    blocks = [
        f"<p>{escape(say(HEADINGS, 'as_given', lang))}</p>{verdict_html(base, lang)}"
        f"{bar_html(plans.base, scale, lang)}"
    ]
    shown = plans.fitting or ((plans.closest,) if plans.closest else ())
    heading = "fitting" if plans.fitting else "nothing"
    inner = "".join(_plan_html(plan, plans, lang) for plan in shown)
    blocks.append(section(say(HEADINGS, heading, lang), inner))
    blocks.append(plan_front(plans, lang))
    tables = plan_tables(plans, lang, verbose=True)
    blocks += [table_html(table) for table in (tables[1:] if shown else tables)]
    blocks.append(bullets(last_lines(plans, lang)))
    return document(say(PAGE, "plan_title", lang, name=name_of(plans.base)), "".join(blocks), lang)


def _plan_html(plan: Plan, plans: Plans, lang: str) -> str:
    cost = f"{say(KINDS, str(plan.kind), lang)}, {ratio(plan.slowdown)}"
    return (
        f"<h3>{escape(move_names(plan.moves, lang))} <small>{escape(cost)}</small></h3>"
        f"{verdict_html(plan.forecast.verdict(), lang)}"
        f"{bar_html(plan.forecast, scale_of(plans.base.verdict()), lang)}"
    )


def plan_front(plans: Plans, lang: str) -> str:
    """What was priced and what was estimated, as allocated bytes: the one figure that both have."""
    points = [point for point, _ in combinations_of(plans, lang)]
    return front_html(points, room_of(plans), lang, what="allocated") if len(points) > 1 else ""


def room_of(plans: Plans) -> int | None:
    """What the card has for torch: its capacity without what is outside of torch's allocator."""
    base = plans.base.verdict()
    if base.capacity_bytes is None or not base.process_bytes or not base.reserved_bytes:
        return None
    return base.capacity_bytes - (base.process_bytes - base.reserved_bytes)


def combinations_of(plans: Plans, lang: str) -> list[tuple[FrontPoint, Moves]]:
    """The job as given, the plans that fit, and what nothing beats of what was priced."""
    base, room = plans.base.verdict(), room_of(plans)
    given = FrontPoint(
        changes=(),
        kind=str(Kind.FREE),
        time=1.0,
        nbytes=base.allocated_bytes or 0,
        fits=bool(base.fits),
    )
    found: list[tuple[FrontPoint, Moves]] = [(given, ())]
    for plan in plans.fitting:
        nbytes = plan.forecast.verdict().allocated_bytes or 0
        point = _point(plan.moves, plan.slowdown, nbytes, str(plan.kind), lang)
        found.append((replace(point, fits=True), plan.moves))
    for one in plans.front:
        point = _point(one.moves, one.slowdown, one.allocated_bytes, str(one.kind), lang)
        fits = room is None or one.allocated_bytes <= room
        found.append((replace(point, fits=fits), one.moves))
    return found


def _point(
    moves: Moves, slowdown: tuple[float, float] | None, nbytes: int, kind: str, lang: str
) -> FrontPoint:
    return FrontPoint(
        changes=tuple(say(MOVES, move.name, lang) for move in moves),
        kind=kind,
        time=1.0 if slowdown is None else sum(slowdown) / 2,
        nbytes=nbytes,
        fits=True,
    )
