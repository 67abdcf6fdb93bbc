"""What would decide, where the text alone does not: exactly what to give, and nothing that is known already.

In: a Case, its ranked causes, and what is known about the job. Out: a Question, or None where the first cause is at
least likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.diagnose.about_job import AboutJob
from vramcast.diagnose.rules.case import LIKELY, Case, Hypothesis
from vramcast.diagnose.rules.processes import process_bytes

ANSWERS_MAX = 6
# Causes that a second look at the machine confirms or refutes, and what to look at.
_MACHINE = {
    "host_memory": ("kernel_log", "free_memory"),
    "host_limit": ("limit_of_job",),
    "host_workers": ("no_workers",),
    "host_growth": ("memory_over_time",),
    "shared_memory": ("no_workers", "shm_size"),
    "card_full_elsewhere": ("nvidia_smi",),
    "another_process": ("nvidia_smi",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The two causes between which it lies, and what to give, by name."""

    causes: tuple[str, ...]
    needs: tuple[str, ...]


def ask(case: Case, hypotheses: Sequence[Hypothesis], about_job: AboutJob) -> Question | None:
    names = tuple(item.name for item in hypotheses[:2])
    if names and about_job.gap is not None and case.has("card_unknown"):
        return Question(causes=names, needs=("gpu",))
    if not hypotheses or hypotheses[0].plausibility >= LIKELY or about_job.gap is not None:
        return None
    needs = dict.fromkeys((*_about_job(case, about_job), *_about_machine(case, names)))
    return Question(causes=names, needs=tuple(needs)[:ANSWERS_MAX])


def _about_job(case: Case, about_job: AboutJob) -> list[str]:
    if not case.failed_on_device() or about_job.is_given:
        return []
    if case.is_inference():
        return ["launch_command"]
    said = about_job.logged.said if about_job.logged is not None else {}
    flags = [key for key in ("model", "batch", "seq") if key not in said]
    flags += ["from_file"] if flags else []
    frames = [] if case.reading.frames else ["traceback"]
    return [*flags, *frames]


def _about_machine(case: Case, names: Sequence[str]) -> list[str]:
    asked = [need for name in names for need in _MACHINE.get(name, ())]
    if case.failed_on_device() and all(process_bytes(item) is None for item in case.failures()):
        asked.append("nvidia_smi")
    return asked
