"""Memory against time as a picture: every combination of changes is a point, the front is a line below them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vramcast.report.html_document import gib
from vramcast.report.svg import Dot, dot_chart, round_steps, step_text
from vramcast.report.words import say
from vramcast.report.words.page import PAGE
from vramcast.report.words.plan import KINDS
from vramcast.units import GiB

SHAPES = {"free": "circle", "slower": "square", "changes the training": "triangle"}
MOST_POINTS = 400
LEAST_TIME = 0.01
# Of the axis, which is logarithmic; the finer ones where times are close to each other.
TIMES = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
FINER_TIMES = (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4)
FINE_OVER = 1.2  # doublings: less than that is a narrow picture


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A combination of changes; `time` is that of a token against the job as given."""

    changes: tuple[str, ...]
    kind: str
    time: float
    nbytes: int
    fits: bool


def front_of(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Those that no other one beats in both, fastest first."""
    found: list[FrontPoint] = []
    for point in sorted(points, key=lambda each: (each.time, each.nbytes)):
        if not found or point.nbytes < found[-1].nbytes:
            found.append(point)
    return found


def front_html(points: Sequence[FrontPoint], room: int | None, lang: str, *, what: str) -> str:
    """`what` is measured: `process` or `allocated`, of which `room` is the card's."""
    points = list(points)[:MOST_POINTS]
    title = say(PAGE, f"front_{what}", lang)
    if len(points) < 2:
        return f"<figure><figcaption>{escape(title)}</figcaption></figure>"
    front = front_of(points)
    times = [math.log2(max(point.time, LEAST_TIME)) for point in points]
    first, last = min(times), max(times)
    margin = max((last - first) * 0.06, 0.2)
    highest = max(max(point.nbytes for point in points), room or 0) * 1.06
    dots = [
        Dot(
            x=time,
            y=point.nbytes / GiB,
            shape=SHAPES.get(point.kind, "circle"),
            part="fits" if point.fits else "does-not-fit",
            text=point_text(point, lang),
            name=str(number),
        )
        for number, (time, point) in enumerate(zip(times, points, strict=True))
    ]
    chart = dot_chart(
        dots,
        line=[(math.log2(max(point.time, LEAST_TIME)), point.nbytes / GiB) for point in front],
        label=f"{title}: " + "; ".join(point_text(point, lang) for point in front),
        span=(first - 2 * margin, last + margin),  # room for the labels at the left
        ticks=_ticks(first - margin, last + margin),
        steps=[(step, step_text(step)) for step in round_steps(highest / GiB)],
        highest=highest / GiB,
        limit=None
        if room is None
        else (
            room / GiB,
            say(PAGE, "capacity" if what == "process" else "room", lang, size=gib(room)),
        ),
    )
    return f'<figure class="front"><figcaption>{escape(title)}</figcaption>{chart}{_legend(lang)}</figure>'


def _ticks(first: float, last: float) -> list[tuple[float, str]]:
    times = FINER_TIMES if last - first < FINE_OVER else TIMES
    return [(math.log2(time), f"×{time:g}") for time in times if first <= math.log2(time) <= last]


def point_text(point: FrontPoint, lang: str) -> str:
    names = " + ".join(point.changes) or say(PAGE, "as_given", lang)
    return f"{names}: {gib(point.nbytes)}, ×{point.time:.2f}"


def _legend(lang: str) -> str:
    shapes = {
        "circle": '<circle cx="6" cy="6" r="4.5"/>',
        "square": '<rect x="2" y="2" width="8" height="8"/>',
        "triangle": '<polygon points="6,1 11,11 1,11"/>',
    }
    items = [
        f'<li><svg class="swatch mark" width="12" height="12" aria-hidden="true">{shapes[shape]}</svg> '
        f"{escape(say(KINDS, kind, lang))}</li>"
        for kind, shape in SHAPES.items()
    ]
    items += [
        f'<li><svg class="swatch" width="10" height="10" aria-hidden="true"><rect class="part-{part}" width="10" '
        f'height="10"/></svg> {escape(say(PAGE, part, lang))}</li>'
        for part in ("fits", "does-not-fit")
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'
