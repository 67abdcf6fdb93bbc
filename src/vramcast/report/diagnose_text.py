"""A Diagnosis as text for a terminal. What is quoted from the log was cleaned of control characters as it was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.diagnose.diagnosis import Diagnosis
from vramcast.diagnose.next_steps import Advice
from vramcast.diagnose.observation import Observation, ProcessUse
from vramcast.diagnose.planned_steps import PlannedStep
from vramcast.diagnose.readers.frames import Frame
from vramcast.diagnose.readers.stream import clean
from vramcast.diagnose.rules.case import Hypothesis
from vramcast.diagnose.rules.findings import Finding
from vramcast.report.diagnose_answer import answer, likelihood
from vramcast.report.table import align
from vramcast.report.words import diagnose_causes as causes
from vramcast.report.words import diagnose_gap as gap_words
from vramcast.report.words import say
from vramcast.report.words.diagnose import FINDINGS, NOTES
from vramcast.report.words.diagnose_kinds import LIKELIHOODS, OBSERVATIONS
from vramcast.report.words.forecast import CATEGORIES, MOMENTS
from vramcast.report.words.plan import KINDS, MOVES
from vramcast.units import format_bytes

MAX_SHOWN, MAX_CAUSES = 12, 5
ALL_FINDINGS = FINDINGS | gap_words.FINDINGS


def render(diagnosis: Diagnosis, *, lang: str = "en", plans: Sequence[PlannedStep] = ()) -> str:
    if not diagnosis.reading.observations:
        return say(causes.HEADINGS, "nothing", lang)
    sections = (
        _answer(diagnosis, plans, lang),
        _causes(diagnosis, lang),
        _contrasts(diagnosis, lang),
        _steps(diagnosis, plans, lang),
        _where(diagnosis, lang),
        _holders(diagnosis, lang),
        _facts(diagnosis, lang),
        _what(diagnosis, lang),
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def _answer(diagnosis: Diagnosis, plans: Sequence[PlannedStep], lang: str) -> Iterator[str]:
    sentences = answer(diagnosis, lang, plans)
    if sentences:
        yield say(causes.HEADINGS, "answer", lang)
    yield from (f"  {sentence}" for sentence in sentences)


def finding_text(finding: Finding, lang: str) -> str:
    values = {
        name: format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else value
        for name, value in finding.values
    }
    if "phase" in values:
        values["phase"] = say(MOMENTS, str(values["phase"]), lang)
    return say(ALL_FINDINGS, finding.rule, lang, **values)


def _what(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    yield say(causes.HEADINGS, "what", lang)
    observations = diagnosis.reading.observations
    failures = [item for item in observations if item.is_failure()]
    shown = (failures or list(observations))[:MAX_SHOWN]
    for item in shown:
        yield from _observation(item, lang)
    for kind, count in _left_out(diagnosis, shown):
        yield "  " + say(
            causes.HEADINGS, "omitted", lang, count=count, kind=say(OBSERVATIONS, kind, lang)
        )


def _left_out(diagnosis: Diagnosis, shown: list[Observation]) -> Iterator[tuple[str, int]]:
    counts = dict(diagnosis.reading.omitted)
    for item in diagnosis.reading.observations:
        if not any(item is other for other in shown):
            counts[item.kind] = counts.get(item.kind, 0) + item.count
    yield from counts.items()


def _observation(item: Observation, lang: str) -> Iterator[str]:
    yield f"  {' · '.join(_observation_parts(item, lang))}"
    sizes = _sizes(item, lang)
    if sizes:
        yield "    " + " · ".join(sizes)
    uses = [_use_cells(use) for use in (item.other_processes or ())[:MAX_SHOWN]]
    yield from align(uses, "lrl", indent=4)
    if item.notes:
        yield "    (" + "; ".join(say(NOTES, note, lang) for note in item.notes) + ")"


def _observation_parts(item: Observation, lang: str) -> Iterator[str]:
    yield say(OBSERVATIONS, item.kind, lang)
    if item.place:
        yield item.place
    if item.rank is not None:
        yield f"rank {item.rank}"
    yield say(causes.HEADINGS, "line", lang, line=item.line)
    if item.count > 1:
        yield say(causes.HEADINGS, "times", lang, count=item.count)


def _sizes(item: Observation, lang: str) -> list[str]:
    sizes = {name: getattr(item, name) for name in causes.FIELDS}
    return [
        f"{say(causes.FIELDS, name, lang)} {format_bytes(size)}"
        for name, size in sizes.items()
        if size is not None
    ]


def _use_cells(use: ProcessUse) -> tuple[str, str, str]:
    size = "?" if use.nbytes is None else format_bytes(use.nbytes)
    return f"pid {use.pid or '?'}", size, use.name


def _where(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    """The last line of the user's own code, and what failed inside it."""
    frames = diagnosis.reading.frames
    last = max((at for at, frame in enumerate(frames) if frame.is_own()), default=-1)
    own = frames[last] if last >= 0 else None
    shown = frames[last + 1 :][-2:]
    if frames:
        yield say(causes.HEADINGS, "where", lang)
    if own is not None:
        yield f"  {say(causes.HEADINGS, 'own_code', lang)}: {_frame_text(own)}"
    yield from (f"  {_frame_text(frame)}" for frame in shown)


def _frame_text(frame: Frame) -> str:
    source = f"  {frame.source}" if frame.source else ""
    return f"{frame.function} ({frame.file}:{frame.line}){source}"


def _holders(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    """Of a memory snapshot: the lines of code that held the most at the peak."""
    if diagnosis.snapshot is None:
        return
    yield say(gap_words.HEADINGS, "holders", lang)
    rows = [
        (
            format_bytes(holder.allocated_bytes),
            say(CATEGORIES, str(holder.category), lang),
            clean(holder.frame),
        )
        for holder in diagnosis.snapshot.holders[:MAX_SHOWN]
    ]
    yield from align(rows, "rll")
    yield from (f"  ({clean(note)})" for note in diagnosis.snapshot.notes)


def _facts(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    """Each fact once: eight ranks that fail alike say the same eight times, and --json has them all."""
    texts: dict[str, str] = {}
    for finding in diagnosis.findings:
        texts.setdefault(finding.rule, finding_text(finding, lang))
    if texts:
        yield say(causes.HEADINGS, "facts", lang)
    for text in texts.values():
        yield f"  - {text}"


def _causes(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    if diagnosis.hypotheses:
        yield say(causes.HEADINGS, "causes", lang)
    for number, item in enumerate(diagnosis.hypotheses[:MAX_CAUSES], start=1):
        yield f"  {number}. {_cause(item, lang)}"
        if item.explanation is not None and diagnosis.gap is not None:
            from vramcast.report.diagnose_gap import explanation_lines  # loads the formula engine

            yield from (
                f"     {line}" for line in explanation_lines(item.explanation, diagnosis.gap, lang)
            )


def _cause(item: Hypothesis, lang: str) -> str:
    """The cause, how likely it is, and the words of the log that speak for it. Facts that do are listed above."""
    parts = [say(LIKELIHOODS, likelihood(item.plausibility), lang)]
    words = [text for text in item.evidence if text not in ALL_FINDINGS]
    if words:
        parts.append(say(causes.HEADINGS, "seen_in", lang, evidence=", ".join(words)))
    return f"{say(causes.CAUSES, item.name, lang)} ({'; '.join(parts)})"


def _contrasts(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    if diagnosis.gap is None:
        return
    from vramcast.report.diagnose_gap import contrast_text, decide_text

    if diagnosis.gap.contrasts:
        yield say(gap_words.HEADINGS, "contrasts", lang)
    for item in diagnosis.gap.contrasts:
        yield f"  - {contrast_text(item, lang)}"
    decides = decide_text(diagnosis.gap, lang)
    if decides:
        yield f"  {decides}"


def _steps(diagnosis: Diagnosis, plans: Sequence[PlannedStep], lang: str) -> Iterator[str]:
    if diagnosis.advice or plans:
        yield say(causes.HEADINGS, "steps", lang)
    for plan in plans:
        yield f"  - {step_text(plan, lang)}"
    for item in diagnosis.advice:
        yield f"  - {advice_text(item, lang)}"


def advice_text(item: Advice, lang: str) -> str:
    text = say(causes.STEPS, item.step, lang)
    if item.gain_bytes is None:
        return text
    return text + say(causes.HEADINGS, "gain", lang, gain=format_bytes(item.gain_bytes))


def step_text(step: PlannedStep, lang: str) -> str:
    text = say(
        gap_words.HEADINGS,
        "plan",
        lang,
        moves=" + ".join(say(MOVES, name, lang) for name in step.moves),
        process=format_bytes(step.process_bytes),
        capacity=format_bytes(step.capacity_bytes),
    )
    return f"{text} ({say(KINDS, step.kind, lang)}; {'; '.join(filter(None, step.how))})"
