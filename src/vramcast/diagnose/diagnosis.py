"""One call from what was printed to what it means.

In: a Reading (and, once a job is known, its forecast). Out: a Diagnosis: observations, findings, hypotheses, advice.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.diagnose.advice import Advice, advise
from vramcast.diagnose.findings import Finding
from vramcast.diagnose.findings_host import find
from vramcast.diagnose.hypotheses import Case, Hypothesis, rank
from vramcast.diagnose.reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    reading: Reading
    findings: tuple[Finding, ...]
    hypotheses: tuple[Hypothesis, ...]
    advice: tuple[Advice, ...]


def diagnose(reading: Reading) -> Diagnosis:
    case = Case(reading=reading, findings=find(reading))
    hypotheses = rank(case)
    return Diagnosis(reading=reading, findings=case.findings, hypotheses=hypotheses, advice=advise(case, hypotheses))
