"""Explanations of a gap as text and as data: what the job really was, what it needs, where it failed, what decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramcast.diagnose.job_gap.deviations import kind_of
from vramcast.diagnose.job_gap.gap import Contrast, Explanation, Gap
from vramcast.diagnose.rules.evidence import STEPS
from vramcast.engine.lines.optimizers import implementation
from vramcast.engine.recording.precision import RECIPES
from vramcast.engine.recording.record import DEVICE
from vramcast.job import job_values
from vramcast.ledger import STEP, Level
from vramcast.report.words.bill import word as bill_word
from vramcast.report.words.diagnose import word
from vramcast.report.words.diagnose_gap import CONTRASTS, DEVIATIONS, HEADINGS, MEASURES
from vramcast.units import MiB, format_bytes

MAX_PARTS, MAX_MATCHES = 7, 3


def explanation_lines(item: Explanation, gap: Gap, lang: str) -> Iterator[str]:
    yield _said(item, gap, lang)
    yield ", ".join(_setup(item, lang))
    span = next(span for span in item.course.spans if span.phase == item.agreement.phase)
    yield word(HEADINGS, "needs" if gap.seen is None else "peaks", lang).format(
        need=format_bytes(item.need_bytes), phase=phase_text(item.agreement.phase, lang),
        start=format_bytes(span.start_bytes), peak=format_bytes(span.peak_bytes),
    )  # fmt: skip
    if item.agreement.or_in:
        yield word(HEADINGS, "or_in", lang).format(
            phases=", ".join(phase_text(phase, lang) for phase in item.agreement.or_in)
        )
    if item.agreement.because:
        yield word(HEADINGS, f"because_{item.agreement.because}", lang)
    parts = (f"{bill_word(name, lang)} {format_bytes(size)}" for name, size in list(bill_of(item).items())[:MAX_PARTS])
    yield f"{word(HEADINGS, 'made_of', lang)}: {' · '.join(parts)}"
    yield from _request(item, gap, lang)


def contrast_text(item: Contrast, lang: str) -> str:
    how = "would_need" if item.fits is None else "would_fit" if item.fits and not item.agrees else "would_not_fit"
    name = word(CONTRASTS, item.name, lang)
    return word(HEADINGS, how, lang).format(name=name, need=format_bytes(item.need_bytes))


def decide_text(gap: Gap, lang: str) -> str | None:
    if gap.decide is None:
        return None
    return word(HEADINGS, "decide", lang).format(measure=word(MEASURES, gap.decide, lang))


def phase_text(phase: str, lang: str) -> str:
    """The first optimizer step is said in full: it creates the states, and many jobs die there."""
    plain = bill_word(phase, lang)
    return f"{plain} ({word(HEADINGS, 'first_step', lang)})" if phase == STEP else plain


def bill_of(item: Explanation) -> dict[str, int]:
    """What is allocated at the largest moment of the failing phase, by category, largest first."""
    alive = item.course.forecast.ledger.alive(item.agreement.phase, DEVICE)
    sums: dict[str, int] = {}
    for entry in alive:
        if entry.level == Level.ALLOCATED:
            sums[str(entry.category)] = sums.get(str(entry.category), 0) + entry.nbytes
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def _said(item: Explanation, gap: Gap, lang: str) -> str:
    if not item.changes:
        return word(HEADINGS, "as_described", lang)
    return f"{word(HEADINGS, 'different', lang)}: {'; '.join(change_texts(item, lang))}"


def change_texts(item: Explanation, lang: str) -> list[str]:
    seq = item.job.longest_seq or item.job.seq
    return [word(DEVIATIONS, kind_of(name), lang).format(seq=seq) for name in item.changes]


def _setup(item: Explanation, lang: str) -> Iterator[str]:
    """The job that explains the numbers, in a few words. In the step autocast leaves no trace and goes unsaid."""
    job, recipe = item.job, RECIPES[item.job.precision]
    weights = "autocast" if recipe.autocast and item.agreement.phase not in STEPS else "weights"
    compute = recipe.autocast.name if recipe.autocast else ""
    yield word(HEADINGS, weights, lang).format(dtype=recipe.weights.name, compute=compute)
    if job.lora_rank is not None:
        yield word(HEADINGS, "adapters", lang)
    if job.reference == "same":
        yield word(HEADINGS, "reference", lang).format(dtype=job.reference_dtype or recipe.weights.name)
    yield word(HEADINGS, "optimizer", lang).format(impl=implementation(job), optimizer=job.optimizer)
    if item.agreement.phase not in STEPS:
        yield word(HEADINGS, "attention", lang).format(kernel=job.attention)
        yield f"batch {job.batch} × {job.longest_seq or job.seq or '?'}"


def _request(item: Explanation, gap: Gap, lang: str) -> Iterator[str]:
    requested = gap.evidence.observation.requested_bytes
    if requested is None or requested <= 20 * MiB:
        return
    if not item.matches:
        yield word(HEADINGS, "no_tensor", lang)
        return
    either = f" {word(HEADINGS, 'or', lang)} "
    texts = [
        f"{match.candidate.name} {list(match.candidate.shape)} ({format_bytes(match.candidate.nbytes)})"
        for match in item.matches[:MAX_MATCHES]
    ]
    yield f"{word(HEADINGS, 'request', lang)} {either.join(texts)}"


def explanation_json(item: Explanation, gap: Gap, lang: str) -> dict[str, Any]:
    """The fields of a hypothesis that come from a job."""
    span = next(span for span in item.course.spans if span.phase == item.agreement.phase)
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
        "phase_start_bytes": span.start_bytes,
        "phase_peak_bytes": span.peak_bytes,
        "because": item.agreement.because or None,
        "bill": bill_of(item),
        "request": [
            {"tensor": match.candidate.name, "shape": list(match.candidate.shape), "bytes": match.candidate.nbytes}
            for match in item.matches
        ],
    }


NO_EXPLANATION: dict[str, Any] = {
    "changes": [], "job": {}, "setup": [], "need_bytes": None, "phase": None, "phase_start_bytes": None,
    "phase_peak_bytes": None, "because": None, "bill": {}, "request": [],
}  # fmt: skip


def gap_json(gap: Gap, lang: str) -> dict[str, Any]:
    return {
        "described_need_bytes": gap.described.need_bytes,
        "described_phase": gap.described.fullest.phase,
        "contrasts": [
            {
                "name": item.name, "need_bytes": item.need_bytes, "fits": item.fits, "agrees": item.agrees,
                "text": contrast_text(item, lang),
            }
            for item in gap.contrasts
        ],
        "seen": None if gap.seen is None else {"level": str(gap.seen.level), "bytes": gap.seen.nbytes},
        "decide": decide_text(gap, lang),
        "variants": gap.num_variants,
    }  # fmt: skip
