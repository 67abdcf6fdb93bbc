"""A Forecast as one SVG file, for papers, issues and slides: verdict, bar at the peak, legend, phases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape, unescape

from vramcast.forecast import Forecast
from vramcast.report.html import (
    Scale,
    bar_label,
    parts_at,
    pieces_of,
    scale_of,
)
from vramcast.report.html_document import gib, stylesheet
from vramcast.report.phases import phase_name
from vramcast.report.svg import mark_label, stacked_bar
from vramcast.report.timeline_html import still_chart
from vramcast.report.verdict import APART, headline
from vramcast.report.words import say
from vramcast.report.words.page import PAGE, PARTS
from vramcast.report.words.timeline import TIMELINE
from vramcast.timelines.record import Timeline

WIDTH, MARGIN, NAMES, SIZES = 900, 20, 150, 80
ROW, LEGEND_ROW, LEGEND_COLUMNS = 22, 20, 3
TIMELINE_HEIGHT = 240
FONT = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', sans-serif"


def render_picture(
    forecast: Forecast, lang: str = "en", timeline: Timeline | None = None, name: str = ""
) -> str:
    """Light colours on white, no script, no reference to anything outside."""
    shapes, y = _forecast_shapes(forecast, name or _title(forecast), MARGIN, lang)
    if timeline is not None:
        more, y = _timeline_shapes(timeline, y + 10, lang)
        shapes += more
    return _picture(name or _title(forecast), shapes, y)


def render_pictures(names: Sequence[str], forecasts: Sequence[Forecast], lang: str) -> str:
    """Several jobs, one below the other, on one scale."""
    shapes: list[str] = []
    y = MARGIN
    whole = max(scale_of(forecast.verdict()).whole for forecast in forecasts)
    for name, forecast in zip(names, forecasts, strict=True):
        more, y = _forecast_shapes(forecast, name, y, lang, whole=whole, with_phases=False)
        shapes += more
    return _picture(names[0], shapes, y)


def render_timelines(timelines: Sequence[Timeline], lang: str) -> str:
    shapes: list[str] = []
    y = MARGIN
    for timeline in timelines:
        more, y = _timeline_shapes(timeline, y, lang)
        shapes += more
    return _picture(timelines[0].name, shapes, y)


def stand_alone(fragment: str, name: str, height: int = 280) -> str:
    """The picture of a fragment, without what is around it."""
    found = re.search(r'<svg class="chart".*</svg>(?=<ul|</figure)', fragment, re.DOTALL)
    title = re.search(r"<figcaption>(.*?)</figcaption>", fragment)
    drawn = found[0] if found else ""
    text = unescape(title[1]) if title else ""
    shapes = [
        _text(MARGIN, 34, name, "title"),
        _text(MARGIN, 56, text, ""),
        _placed(drawn, MARGIN, 70, _inner(), height),
    ]
    return _picture(name, shapes, 70 + height)


def _picture(title: str, shapes: Iterable[str], y: int) -> str:
    height = y + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f"<title>{escape(title)}</title><style>{_styles()}</style>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(shapes)}</svg>\n'
    )


def _forecast_shapes(
    forecast: Forecast, title: str, y: int, lang: str, *, whole: float = 0.0, with_phases: bool = True,
) -> tuple[list[str], int]:  # fmt: skip
    """And where they end."""
    verdict = forecast.verdict()
    scale = scale_of(verdict)
    scale = Scale(whole=max(scale.whole, whole), capacity=scale.capacity)
    sums = parts_at(forecast.ledger, verdict.peak.phase, verdict.peak.place)
    shapes = [
        _text(MARGIN, y + 14, title, "title"),
        _text(MARGIN, y + 36, headline(verdict, lang).replace(APART, " · "), ""),
    ]
    y += 50
    bar = stacked_bar(
        pieces_of(sums, lang), scale.whole, label=bar_label(sums, say(PAGE, "peak_at", lang), lang),
        limit=scale.capacity, span=verdict.range_bytes, height=44,
    )  # fmt: skip
    if scale.capacity is not None:
        text = say(PAGE, "capacity", lang, size=gib(scale.capacity))
        shapes.append(
            _placed(mark_label(scale.capacity, scale.whole, text), MARGIN, y, _inner(), 16)
        )
    shapes.append(_placed(bar, MARGIN, y + 16, _inner(), 44))
    shapes += _legend(sums, y + 82, lang)
    y += 94 + LEGEND_ROW * -(-len(sums) // LEGEND_COLUMNS)
    for name, drawn, size in _phases(forecast, scale, lang) if with_phases else ():
        shapes.append(_text(MARGIN, y + 14, name, ""))
        shapes.append(_placed(drawn, MARGIN + NAMES, y, _inner() - NAMES - SIZES, 20))
        shapes.append(_text(WIDTH - MARGIN, y + 14, size, "size"))
        y += ROW
    return shapes, y


def _timeline_shapes(timeline: Timeline, y: int, lang: str) -> tuple[list[str], int]:
    _, peak = timeline.peak()
    heading, top = say(TIMELINE, "title", lang), say(TIMELINE, "peak", lang)
    title = f"{heading}: {timeline.name}, {timeline.place}, {top} {gib(peak)}"
    drawn, parts = still_chart(timeline, lang, height=TIMELINE_HEIGHT)
    shapes = [_text(MARGIN, y + 14, title, "")]
    if drawn:
        shapes.append(_placed(drawn, MARGIN, y + 24, _inner(), TIMELINE_HEIGHT))
    y += 24 + TIMELINE_HEIGHT + 20
    width = _inner() // LEGEND_COLUMNS
    for number, part in enumerate(parts):
        x, at = (
            MARGIN + width * (number % LEGEND_COLUMNS),
            y + LEGEND_ROW * (number // LEGEND_COLUMNS),
        )
        shapes.append(f'<rect class="part-{part}" x="{x}" y="{at - 10}" width="10" height="10"/>')
        shapes.append(_text(x + 15, at, say(PARTS, part, lang), ""))
    return shapes, y + LEGEND_ROW * -(-len(parts) // LEGEND_COLUMNS)


def _inner() -> int:
    return WIDTH - 2 * MARGIN


def _title(forecast: Forecast) -> str:
    names = [
        forecast.model.name if forecast.model else "",
        forecast.gpu.name if forecast.gpu else "",
    ]
    return " · ".join(name for name in names if name)


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def _placed(drawn: str, x: int, y: int, width: int, height: int) -> str:
    return f'<svg x="{x}" y="{y}" width="{width}" height="{height}">{drawn}</svg>'


def _legend(sums: dict[str, int], y: int, lang: str) -> Iterator[str]:
    width = _inner() // LEGEND_COLUMNS
    for number, (part, nbytes) in enumerate(sums.items()):
        x = MARGIN + width * (number % LEGEND_COLUMNS)
        at = y + LEGEND_ROW * (number // LEGEND_COLUMNS)
        yield f'<rect class="part-{part}" x="{x}" y="{at - 10}" width="10" height="10"/>'
        yield _text(x + 15, at, f"{say(PARTS, part, lang)} {gib(nbytes)}", "")


def _phases(forecast: Forecast, scale: Scale, lang: str) -> Iterator[tuple[str, str, str]]:
    ledger, place = forecast.ledger, forecast.verdict().peak.place
    for phase in ledger.phases(place):
        sums = parts_at(ledger, phase, place)
        name = phase_name(phase, lang)
        drawn = stacked_bar(
            pieces_of(sums, lang), scale.whole, label=bar_label(sums, name, lang),
            limit=scale.capacity, height=20,
        )  # fmt: skip
        yield name, drawn, gib(ledger.moment(phase, place).process_bytes)


def _styles() -> str:
    """The light colours of the stylesheet, written out: few viewers of SVG know CSS variables."""
    light = stylesheet().split("@media", 1)[0]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", light))
    parts = "".join(f".part-{part}{{fill:{colours[part]}}}" for part in PARTS)
    ink = colours["ink"]
    return (
        f"{parts}text{{font:13px {FONT};fill:{ink}}}.title{{font-size:18px;font-weight:bold}}.size{{text-anchor:end}}"
        f".limit,.span line{{stroke:{ink};stroke-width:1.5}}.limit{{stroke-dasharray:4 3}}"
        f".grid{{stroke:{colours['line']};stroke-width:1}}.now{{stroke:{ink};stroke-width:1}}"
        f".front-line{{stroke:{colours['soft']};stroke-width:1.5}}.part-fits{{fill:{colours['cache']}}}"
        f".part-does-not-fit{{fill:{colours['logits']}}}.dot{{stroke:#ffffff}}.tick{{font-size:11px}}"
        ".span-under line{stroke:#ffffff;stroke-width:4}"
    )
