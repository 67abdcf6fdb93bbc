"""The first line of every report: does the job fit, how high is the peak, and when."""

from __future__ import annotations

from vramcast.forecast import Verdict
from vramcast.report.words import say
from vramcast.report.words.forecast import HEADLINE, MOMENTS, VERDICTS
from vramcast.units import GiB, format_gib, format_gib_and_gb

APART = "   "  # between the parts of the line


def headline(verdict: Verdict, lang: str) -> str:
    """`DOES NOT FIT   peak 85.4 GiB of 79.1   short 6.3 GiB   (range …)   in the optimizer step, cuda:0`"""
    moment = say(MOMENTS, verdict.peak.phase, lang)
    parts = [
        fits_text(verdict.fits, lang),
        _peak(verdict, lang),
        _headroom(verdict, lang),
        _range(verdict, lang),
        say(HEADLINE, "lower_bound", lang) if verdict.reserved_bytes is None else "",
        say(HEADLINE, "when", lang, moment=moment, place=verdict.peak.place),
    ]
    return APART.join(part for part in parts if part)


def fits_text(fits: bool | None, lang: str) -> str:
    key = {True: "fits", False: "does_not_fit", None: "needs"}[fits]
    return say(VERDICTS, key, lang)


def _peak(verdict: Verdict, lang: str) -> str:
    text = say(HEADLINE, "peak", lang, peak=format_gib_and_gb(verdict.highest_bytes))
    if verdict.capacity_bytes is None:
        return text
    return f"{text} {say(HEADLINE, 'of', lang, capacity=format_gib(verdict.capacity_bytes))}"


def _headroom(verdict: Verdict, lang: str) -> str:
    if verdict.headroom_bytes is None:
        return ""
    key = "free" if verdict.headroom_bytes >= 0 else "short"
    return say(HEADLINE, key, lang, size=format_gib(abs(verdict.headroom_bytes)))


def _range(verdict: Verdict, lang: str) -> str:
    if verdict.range_bytes is None:
        return ""
    low, high = (f"{nbytes / GiB:,.2f}" for nbytes in verdict.range_bytes)
    return say(HEADLINE, "range", lang, low=low, high=high)
