"""Explanations of a gap as text and as data: what the job really was, what it needs, where it failed, what decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramcast.diagnose.job_gap.contrasts import Contrast
from vramcast.diagnose.job_gap.deviations import kind_of
from vramcast.diagnose.job_gap.explanation import Explanation
from vramcast.diagnose.job_gap.gap import Gap
from vramcast.diagnose.job_gap.likely_job import allocated_by_category, describe_likely_job
from vramcast.job import job_values
from vramcast.ledger import STEP
from vramcast.report.words import say
from vramcast.report.words.diagnose_gap import CONTRASTS, DEVIATIONS, HEADINGS, MEASURES
from vramcast.report.words.forecast import CATEGORIES, MOMENTS
from vramcast.units import MiB, format_bytes

MAX_PARTS, MAX_MATCHES = 7, 3


def explanation_lines(item: Explanation, gap: Gap, lang: str) -> Iterator[str]:
    yield _said(item, gap, lang)
    yield ", ".join(_setup(item, lang))
    need = item.need_in_phase
    yield say(
        HEADINGS,
        "needs" if gap.seen is None else "peaks",
        lang,
        need=format_bytes(item.need_bytes),
        phase=phase_text(item.agreement.phase, lang),
        start=format_bytes(need.start_bytes),
        peak=format_bytes(need.peak_bytes),
    )
    if item.agreement.or_in:
        yield say(
            HEADINGS,
            "or_in",
            lang,
            phases=", ".join(phase_text(phase, lang) for phase in item.agreement.or_in),
        )
    if item.agreement.because:
        yield say(HEADINGS, f"because_{item.agreement.because}", lang)
    parts = (
        f"{say(CATEGORIES, name, lang)} {format_bytes(size)}"
        for name, size in list(allocated_by_category(item).items())[:MAX_PARTS]
    )
    yield f"{say(HEADINGS, 'made_of', lang)}: {' · '.join(parts)}"
    yield from _request(item, gap, lang)


def contrast_text(item: Contrast, lang: str) -> str:
    name = say(CONTRASTS, item.name, lang)
    return say(HEADINGS, _outcome(item), lang, name=name, need=format_bytes(item.need_bytes))


def _outcome(item: Contrast) -> str:
    if item.fits is None:
        return "would_need"
    return "would_fit" if item.fits and not item.agrees else "would_not_fit"


def decide_text(gap: Gap, lang: str) -> str | None:
    if gap.decide is None:
        return None
    return say(HEADINGS, "decide", lang, measure=say(MEASURES, gap.decide, lang))


def phase_text(phase: str, lang: str) -> str:
    """The first optimizer step is said in full: it creates the states, and many jobs die there."""
    return say(HEADINGS, "first_step", lang) if phase == STEP else say(MOMENTS, phase, lang)


def _said(item: Explanation, gap: Gap, lang: str) -> str:
    if not item.changes:
        return say(HEADINGS, "as_described", lang)
    return f"{say(HEADINGS, 'different', lang)}: {'; '.join(change_texts(item, lang))}"


def change_texts(item: Explanation, lang: str) -> list[str]:
    seq = item.job.longest_seq or item.job.seq
    return [say(DEVIATIONS, kind_of(name), lang, seq=seq) for name in item.changes]


def _setup(item: Explanation, lang: str) -> Iterator[str]:
    """The job that explains the numbers, in a few words."""
    setup = describe_likely_job(item)
    weights = "weights" if setup.autocast is None else "autocast"
    yield say(HEADINGS, weights, lang, dtype=setup.weights, compute=setup.autocast)
    if setup.has_adapters:
        yield say(HEADINGS, "adapters", lang)
    if setup.reference is not None:
        yield say(HEADINGS, "reference", lang, dtype=setup.reference)
    yield say(HEADINGS, "optimizer", lang, impl=setup.optimizer_impl, optimizer=setup.optimizer)
    if setup.attention is not None:
        yield say(HEADINGS, "attention", lang, kernel=setup.attention)
    if setup.batch is not None:
        yield f"batch {setup.batch} × {setup.seq or '?'}"


def _request(item: Explanation, gap: Gap, lang: str) -> Iterator[str]:
    requested = gap.evidence.observation.requested_bytes
    if requested is None or requested <= 20 * MiB:
        return
    if not item.matches:
        yield say(HEADINGS, "no_tensor", lang)
        return
    either = f" {say(HEADINGS, 'or', lang)} "
    texts = [
        f"{match.candidate.name} {list(match.candidate.shape)} ({format_bytes(match.candidate.nbytes)})"
        for match in item.matches[:MAX_MATCHES]
    ]
    yield f"{say(HEADINGS, 'request', lang)} {either.join(texts)}"


def explanation_json(item: Explanation, gap: Gap, lang: str) -> dict[str, Any]:
    """The fields of a hypothesis that come from a job."""
    need = item.need_in_phase
    described, real = job_values(gap.described.job), job_values(item.job)
    return {
        "changes": [
            {"name": kind_of(name), "text": text}
            for name, text in zip(item.changes, change_texts(item, lang), strict=True)
        ],
        "job": {name: value for name, value in real.items() if value != described[name]},
        "setup": list(_setup(item, lang)),
        "need_bytes": item.need_bytes,
        "phase": item.agreement.phase,
        "or_in": list(item.agreement.or_in),
        "phase_start_bytes": need.start_bytes,
        "phase_peak_bytes": need.peak_bytes,
        "because": item.agreement.because or None,
        "bill": allocated_by_category(item),
        "request": [
            {
                "tensor": match.candidate.name,
                "shape": list(match.candidate.shape),
                "bytes": match.candidate.nbytes,
            }
            for match in item.matches
        ],
    }


NO_EXPLANATION: dict[str, Any] = {
    "changes": [],
    "job": {},
    "setup": [],
    "need_bytes": None,
    "phase": None,
    "phase_start_bytes": None,
    "phase_peak_bytes": None,
    "because": None,
    "bill": {},
    "request": [],
}


def gap_json(gap: Gap, lang: str) -> dict[str, Any]:
    return {
        "described_need_bytes": gap.described.need_bytes,
        "described_phase": gap.described.fullest.phase,
        "contrasts": [
            {
                "name": item.name,
                "need_bytes": item.need_bytes,
                "fits": item.fits,
                "agrees": item.agrees,
                "text": contrast_text(item, lang),
            }
            for item in gap.contrasts
        ],
        "seen": None
        if gap.seen is None
        else {"level": str(gap.seen.level), "bytes": gap.seen.nbytes},
        "decide": decide_text(gap, lang),
        "variants": gap.num_variants,
    }
