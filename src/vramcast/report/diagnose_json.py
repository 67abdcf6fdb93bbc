"""A Diagnosis as plain data for `--json`: the same facts as the text, byte counts as integers, null for unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramcast.diagnose.diagnosis import Diagnosis
from vramcast.diagnose.observation import Observation, ledger_of
from vramcast.diagnose.planned_steps import PlannedStep
from vramcast.diagnose.rules.case import Hypothesis
from vramcast.diagnose.rules.findings import Finding
from vramcast.ledger import Entry
from vramcast.report.as_json import SCHEMA
from vramcast.report.diagnose_answer import answer
from vramcast.report.diagnose_text import finding_text, step_text
from vramcast.report.words import diagnose_causes as causes
from vramcast.report.words import say
from vramcast.report.words.diagnose import NOTES
from vramcast.snapshot.analysis import Analysis


def render(
    diagnosis: Diagnosis, *, lang: str = "en", plans: Sequence[PlannedStep] = ()
) -> dict[str, Any]:
    reading = diagnosis.reading
    return {
        "schema": SCHEMA,
        "observations": [_observation(item, lang) for item in reading.observations],
        "answer": list(answer(diagnosis, lang, plans)),
        "question": None
        if diagnosis.question is None
        else {"causes": list(diagnosis.question.causes), "needs": list(diagnosis.question.needs)},
        "findings": [_finding(item, lang) for item in diagnosis.findings],
        "hypotheses": [_hypothesis(item, diagnosis, lang) for item in diagnosis.hypotheses],
        "advice": [
            *(_step(plan, lang) for plan in plans),
            *(
                {
                    "step": item.step,
                    "because": item.because,
                    "text": say(causes.STEPS, item.step, lang),
                    "gain_bytes": item.gain_bytes,
                }
                for item in diagnosis.advice
            ),
        ],
        "gap": _gap(diagnosis, lang),
        "snapshot": None if diagnosis.snapshot is None else _snapshot(diagnosis.snapshot),
        "frames": [
            {
                "function": frame.function,
                "file": frame.file,
                "line": frame.line,
                "source": frame.source,
            }
            for frame in reading.frames
        ],
        "omitted": dict(reading.omitted),
    }


def _hypothesis(item: Hypothesis, diagnosis: Diagnosis, lang: str) -> dict[str, Any]:
    form: dict[str, Any] = {
        "name": item.name,
        "plausibility": item.plausibility,
        "text": say(causes.CAUSES, item.name, lang),
        "evidence": list(item.evidence),
    }
    if diagnosis.gap is None:
        return {**form, "changes": [], "need_bytes": None, "phase": None}
    from vramcast.report.diagnose_gap import NO_EXPLANATION, explanation_json, explanation_lines

    if item.explanation is None:
        return {**form, **NO_EXPLANATION}
    lines = explanation_lines(item.explanation, diagnosis.gap, lang)
    form["text"] = " ".join((form["text"], *(f"{line}." for line in lines)))
    return {**form, **explanation_json(item.explanation, diagnosis.gap, lang)}


def _gap(diagnosis: Diagnosis, lang: str) -> dict[str, Any] | None:
    if diagnosis.gap is None:
        return None
    from vramcast.report.diagnose_gap import gap_json

    return gap_json(diagnosis.gap, lang)


def _snapshot(analysis: Analysis) -> dict[str, Any]:
    return {
        "device": analysis.device,
        "ledger": [_entry(entry) for entry in analysis.ledger().entries],
        "stuck_bytes": analysis.fragmentation.stuck_bytes,
        "releasable_bytes": analysis.fragmentation.releasable_bytes,
        "largest_free_bytes": analysis.fragmentation.largest_free_bytes,
        "notes": list(analysis.notes),
    }


def _observation(item: Observation, lang: str) -> dict[str, Any]:
    others = item.other_processes
    return {
        "kind": item.kind,
        "requested_bytes": item.requested_bytes,
        "capacity_bytes": item.capacity_bytes,
        "free_bytes": item.free_bytes,
        "allocated_bytes": item.allocated_bytes,
        "reserved_bytes": item.reserved_bytes,
        "unallocated_bytes": item.unallocated_bytes,
        "process_bytes": item.process_bytes,
        "other_processes": None
        if others is None
        else [{"pid": use.pid, "bytes": use.nbytes} for use in others],
        "allowed_bytes": item.allowed_bytes,
        "used_bytes": item.used_bytes,
        "peak_allocated_bytes": item.peak_allocated_bytes,
        "peak_reserved_bytes": item.peak_reserved_bytes,
        "place": item.place,
        "moment": str(item.moment),
        "line": item.line,
        "rank": item.rank,
        "count": item.count,
        "derived": list(item.derived),
        "notes": [say(NOTES, note, lang) for note in item.notes],
        "marks": list(item.marks),
        "figures": [
            {"label": figure.label, "value": figure.value, "unit": figure.unit}
            for figure in item.figures
        ],
        "ledger": [_entry(entry) for entry in ledger_of(item).entries],
        "text": item.excerpt,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "component": entry.component,
        "category": str(entry.category),
        "place": entry.place,
        "level": str(entry.level),
        "bytes": entry.nbytes,
        "origin": str(entry.origin),
    }


def _finding(item: Finding, lang: str) -> dict[str, Any]:
    return {
        "rule": item.rule,
        "observation": item.observation,
        "text": finding_text(item, lang),
        "values": dict(item.values),
    }


def _step(step: PlannedStep, lang: str) -> dict[str, Any]:
    return {
        "step": "plan",
        "because": "planner",
        "text": step_text(step, lang),
        "moves": list(step.moves),
        "kind": step.kind,
        "how": list(step.how),
        "process_bytes": step.process_bytes,
        "allocated_bytes": step.allocated_bytes,
        "capacity_bytes": step.capacity_bytes,
    }
