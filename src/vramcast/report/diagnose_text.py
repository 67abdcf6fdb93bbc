"""A Diagnosis as text for a terminal. What is quoted from the log was cleaned of control characters as it was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.diagnose.diagnosis import Diagnosis
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers.stream import clean
from vramcast.diagnose.rules.findings import Finding
from vramcast.report.diagnose_plans import PlannedStep, step_text
from vramcast.report.words import diagnose_causes as causes
from vramcast.report.words import diagnose_gap as gap_words
from vramcast.report.words.bill import word as bill_word
from vramcast.report.words.diagnose import FINDINGS, NOTES, word
from vramcast.units import format_bytes

MAX_SHOWN = 12


ALL_FINDINGS = FINDINGS | gap_words.FINDINGS


def render(diagnosis: Diagnosis, *, lang: str = "en", plans: Sequence[PlannedStep] = ()) -> str:
    if not diagnosis.reading.observations:
        return word(causes.HEADINGS, "nothing", lang)
    sections = (
        _what(diagnosis, lang), _where(diagnosis, lang), _holders(diagnosis, lang), _facts(diagnosis, lang),
        _causes(diagnosis, lang), _contrasts(diagnosis, lang), _steps(diagnosis, plans, lang),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def finding_text(finding: Finding, lang: str) -> str:
    values = {
        name: format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else value
        for name, value in finding.values
    }
    if "phase" in values:
        values["phase"] = bill_word(str(values["phase"]), lang)
    return word(ALL_FINDINGS, finding.rule, lang).format(**values)


def _what(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    yield word(causes.HEADINGS, "what", lang)
    observations = diagnosis.reading.observations
    failures = [item for item in observations if item.is_failure()]
    shown = (failures or list(observations))[:MAX_SHOWN]
    for item in shown:
        yield from _observation(item, lang)
    for kind, count in _left_out(diagnosis, shown):
        yield "  " + word(causes.HEADINGS, "omitted", lang).format(count=count, kind=kind)


def _left_out(diagnosis: Diagnosis, shown: list[Observation]) -> Iterator[tuple[str, int]]:
    counts = dict(diagnosis.reading.omitted)
    for item in diagnosis.reading.observations:
        if not any(item is other for other in shown):
            counts[item.kind] = counts.get(item.kind, 0) + item.count
    yield from counts.items()


def _observation(item: Observation, lang: str) -> Iterator[str]:
    place = f" · {item.place}" if item.place else ""
    rank = f" · rank {item.rank}" if item.rank is not None else ""
    times = f" · {word(causes.HEADINGS, 'times', lang).format(count=item.count)}" if item.count > 1 else ""
    yield f"  {item.kind}{place}{rank} · {word(causes.HEADINGS, 'line', lang).format(line=item.line)}{times}"
    sizes = [
        f"{word(causes.FIELDS, name, lang)} {format_bytes(size)}"
        for name in causes.FIELDS
        if (size := getattr(item, name)) is not None
    ]
    if sizes:
        yield "    " + " · ".join(sizes)
    for use in (item.other_processes or ())[:MAX_SHOWN]:
        size = "?" if use.nbytes is None else format_bytes(use.nbytes)
        yield f"    pid {use.pid or '?'} {use.name} {size}".rstrip()
    if item.notes:
        yield "    (" + "; ".join(word(NOTES, note, lang) for note in item.notes) + ")"


def _where(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    frames = diagnosis.reading.frames[-3:]
    if frames:
        yield word(causes.HEADINGS, "where", lang)
    for frame in frames:
        source = f"  {frame.source}" if frame.source else ""
        yield f"  {frame.function} ({frame.file}:{frame.line}){source}"


def _holders(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    """Of a memory snapshot: the lines of code that held the most at the peak."""
    if diagnosis.snapshot is None:
        return
    yield word(gap_words.HEADINGS, "holders", lang)
    for holder in diagnosis.snapshot.holders[:MAX_SHOWN]:
        kind = bill_word(str(holder.category), lang)
        yield f"  {format_bytes(holder.allocated_bytes):>12}  {kind}  {clean(holder.frame)}"
    yield from (f"  ({clean(note)})" for note in diagnosis.snapshot.notes)


def _facts(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    """Each fact once: eight ranks that fail alike say the same eight times, and --json has them all."""
    texts: dict[str, str] = {}
    for finding in diagnosis.findings:
        texts.setdefault(finding.rule, finding_text(finding, lang))
    if texts:
        yield word(causes.HEADINGS, "facts", lang)
    for text in texts.values():
        yield f"  - {text}"


def _causes(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    if diagnosis.hypotheses:
        yield word(causes.HEADINGS, "causes", lang)
    for number, item in enumerate(diagnosis.hypotheses[:5], start=1):
        cause = word(causes.CAUSES, item.name, lang)
        yield f"  {number}. {cause}  [{item.plausibility}] {', '.join(item.evidence)}".rstrip()
        if item.explanation is not None and diagnosis.gap is not None:
            from vramcast.report.diagnose_gap import explanation_lines  # loads the formula engine

            yield from (f"     {line}" for line in explanation_lines(item.explanation, diagnosis.gap, lang))


def _contrasts(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    if diagnosis.gap is None:
        return
    from vramcast.report.diagnose_gap import contrast_text, decide_text

    if diagnosis.gap.contrasts:
        yield word(gap_words.HEADINGS, "contrasts", lang)
    for item in diagnosis.gap.contrasts:
        yield f"  - {contrast_text(item, lang)}"
    decides = decide_text(diagnosis.gap, lang)
    if decides:
        yield f"  {decides}"


def _steps(diagnosis: Diagnosis, plans: Sequence[PlannedStep], lang: str) -> Iterator[str]:
    if diagnosis.advice or plans:
        yield word(causes.HEADINGS, "steps", lang)
    for plan in plans:
        yield f"  - {step_text(plan, lang)}"
    for item in diagnosis.advice:
        yield f"  - {word(causes.STEPS, item.step, lang)}"
