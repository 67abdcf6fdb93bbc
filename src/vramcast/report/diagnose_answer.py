"""The answer of a diagnosis in two or three sentences: what is certain, the cause, and what to do or to give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.diagnose.diagnosis import Diagnosis
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.planned_steps import PlannedStep
from vramcast.diagnose.rules.case import Hypothesis
from vramcast.diagnose.rules.host_causes import NOT_MEMORY, NOT_MEMORY_KINDS
from vramcast.report.words import diagnose_causes as words
from vramcast.report.words import diagnose_gap as gap_words
from vramcast.report.words import say
from vramcast.report.words.diagnose_kinds import LIKELIHOODS, OBSERVATIONS
from vramcast.report.words.plan import MOVES
from vramcast.units import format_bytes

LEAST_PLAUSIBILITY = {"proven": 90, "likely": 60, "possible": 30}


def likelihood(plausibility: int) -> str:
    """A word for a plausibility of 0 to 100."""
    for word, least in LEAST_PLAUSIBILITY.items():
        if plausibility >= least:
            return word
    return "unlikely"


def answer(diagnosis: Diagnosis, lang: str, plans: Sequence[PlannedStep] = ()) -> tuple[str, ...]:
    """Sentences, the certain ones first; none where nothing failed."""
    return tuple(_sentences(diagnosis, lang, plans))


def _sentences(diagnosis: Diagnosis, lang: str, plans: Sequence[PlannedStep]) -> Iterator[str]:
    failures = [item for item in diagnosis.reading.observations if item.is_failure()]
    if failures:
        yield _certain(_most_telling(_not_about_memory(diagnosis, failures) or failures), lang)
    if diagnosis.question is not None:
        yield from _undecided(diagnosis, lang)
        yield from _asked_for(diagnosis, lang)
        return
    if diagnosis.hypotheses:
        best = diagnosis.hypotheses[0]
        yield say(
            words.HEADINGS,
            "cause",
            lang,
            likelihood=_capitalised(say(LIKELIHOODS, likelihood(best.plausibility), lang)),
            cause=say(words.CAUSES, best.name, lang),
        )
        yield from _as_the_job_explains(best, diagnosis, lang)
    if diagnosis.advice or plans:
        step = _moves(plans[0], lang) if plans else say(words.STEPS, diagnosis.advice[0].step, lang)
        yield say(words.HEADINGS, "first_step", lang, step=step)


def _as_the_job_explains(best: Hypothesis, diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    """What is different from the job as described."""
    if best.explanation is None or not best.explanation.changes or diagnosis.gap is None:
        return
    from vramcast.report.diagnose_gap import explanation_lines  # loads the formula engine

    first = next(iter(explanation_lines(best.explanation, diagnosis.gap, lang)))
    yield _capitalised(first) + ("。" if lang == "zh" else ".")


def _moves(step: PlannedStep, lang: str) -> str:
    moves = " + ".join(say(MOVES, name, lang) for name in step.moves)
    process, capacity = format_bytes(step.process_bytes), format_bytes(step.capacity_bytes)
    return say(gap_words.HEADINGS, "plan", lang, moves=moves, process=process, capacity=capacity)


def _not_about_memory(diagnosis: Diagnosis, failures: list[Observation]) -> list[Observation]:
    """The failures that prove that memory is not the matter, where that is the answer."""
    if not diagnosis.hypotheses or diagnosis.hypotheses[0].name not in NOT_MEMORY.values():
        return []
    return [item for item in failures if item.kind in NOT_MEMORY_KINDS]


def _most_telling(failures: list[Observation]) -> Observation:
    """The first failure with the most numbers: a library's error may stand before the allocator's own."""
    return max(
        failures,
        key=lambda item: (item.requested_bytes is not None) + (item.capacity_bytes is not None),
    )


def _certain(item: Observation, lang: str) -> str:
    what = _capitalised(say(OBSERVATIONS, item.kind, lang))
    place = f" ({item.place})" if item.place and ":" in item.place else ""
    sentences = [f"{what}{place}{'。' if lang == 'zh' else '.'}"]
    sizes = {
        "requested": item.requested_bytes,
        "free": item.free_bytes,
        "capacity": item.capacity_bytes,
    }
    printed = {name: format_bytes(size) for name, size in sizes.items() if size is not None}
    if "requested" in printed:
        key = "asked_and_free" if "free" in printed else "asked"
        sentences.append(say(words.HEADINGS, key, lang, **printed))
    held = item.reserved_bytes if item.reserved_bytes is not None else item.allocated_bytes
    if held is not None and "capacity" in printed and not item.is_host():
        sentences.append(
            say(words.HEADINGS, "held", lang, held=format_bytes(held), capacity=printed["capacity"])
        )
    return ("" if lang == "zh" else " ").join(sentences)


def _undecided(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    yield say(words.HEADINGS, "undecided", lang)
    names = diagnosis.question.causes if diagnosis.question else ()
    yield from (f"({at}) {say(words.CAUSES, name, lang)}" for at, name in enumerate(names, start=1))


def _asked_for(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    needs = diagnosis.question.needs if diagnosis.question else ()
    if needs:
        between = "、" if lang == "zh" else ", "
        named = between.join(say(words.NEEDS, need, lang) for need in needs)
        yield say(words.HEADINGS, "give", lang, needs=named)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
