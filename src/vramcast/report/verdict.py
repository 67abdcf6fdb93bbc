"""The first line of every report: does the job fit, how high is the peak, and when."""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.catalog.residuals import FEW_SOURCES
from vramcast.forecast import Answer, Verdict
from vramcast.report.words import say
from vramcast.report.words.forecast import HEADLINE, LABELS, MOMENTS, VERDICTS
from vramcast.report.words.sentences import translate
from vramcast.units import GiB, format_gib

APART = "   "  # between the parts of the line


def headline(verdict: Verdict, lang: str) -> str:
    """`DOES NOT FIT   peak 85.4 GiB of 79.1   6.3 GiB short`"""
    parts = [
        answer_text(verdict.answer, lang),
        _peak(verdict, lang),
        _headroom(verdict, lang),
        say(HEADLINE, "lower_bound", lang) if verdict.reserved_bytes is None else "",
        _not_understood(verdict, lang),
    ]
    return APART.join(part for part in parts if part)


def detail_lines(verdict: Verdict, lang: str) -> list[str]:
    """How sure the peak is, and when it is reached."""
    moment = say(MOMENTS, verdict.peak.phase, lang)
    when = say(HEADLINE, "when", lang, moment=moment, place=verdict.peak.place)
    return [f"  {text}" for text in (range_text(verdict, lang), when) if text]


def answer_text(answer: Answer | None, lang: str) -> str:
    return say(VERDICTS, "needs" if answer is None else str(answer), lang)


def fits_text(fits: bool | None, lang: str) -> str:
    """Where no range is known: yes, no, or only a need."""
    return answer_text({True: Answer.FITS, False: Answer.DOES_NOT_FIT, None: None}[fits], lang)


def _peak(verdict: Verdict, lang: str) -> str:
    text = say(HEADLINE, "peak", lang, peak=format_gib(verdict.highest_bytes))
    if verdict.capacity_bytes is None:
        return text
    return f"{text} {say(HEADLINE, 'of', lang, capacity=format_gib(verdict.capacity_bytes))}"


def _headroom(verdict: Verdict, lang: str) -> str:
    if verdict.headroom_bytes is None:
        return ""
    key = "free" if verdict.headroom_bytes >= 0 else "short"
    return say(HEADLINE, key, lang, size=format_gib(abs(verdict.headroom_bytes)))


def _not_understood(verdict: Verdict, lang: str) -> str:
    return not_understood_text(verdict.num_not_understood, lang)


def not_understood_text(count: int, lang: str) -> str:
    return say(HEADLINE, "not_understood", lang, count=count) if count else ""


def not_counted_lines(gaps: Sequence[str], lang: str) -> list[str]:
    """Settings of files that matter and are in no number, one on each line."""
    heading = say(LABELS, "not_counted", lang)
    return [f"{heading}: {translate(text, lang)}" for text in gaps]


def range_text(verdict: Verdict, lang: str) -> str:
    if verdict.range_bytes is None:
        return ""
    low, high = (f"{nbytes / GiB:,.2f}" for nbytes in verdict.range_bytes)
    if verdict.spread is None:
        return say(HEADLINE, "between", lang, low=low, high=high)
    parts = [say(HEADLINE, "range", lang, low=low, high=high)]
    if verdict.safe_bytes is not None:
        parts.append(say(HEADLINE, "safe", lang, size=format_gib(verdict.safe_bytes)))
    if verdict.spread.sources < FEW_SOURCES:
        parts.append(say(HEADLINE, "few_sources", lang, count=verdict.spread.sources))
    return APART.join(parts)
