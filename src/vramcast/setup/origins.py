"""Where every value of a job is from: the user, a file and its line, the framework's profile, the task, model or card.

Kept beside the job, by field; a value that nobody said and nothing decided has the job's own default and no origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.job import FIELDS, Job
from vramcast.setup.defaults import explain_precision, has_bf16
from vramcast.setup.profile import Profile
from vramcast.setup.profiles import profile_of
from vramcast.setup.tasks import task_of_job

OF_TASK = ("reference", "rollout_tokens", "critic", "reward", "teacher")
OF_MODEL = ("task", "weights_dtype", "frozen_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOrigin:
    """Who decided a value (user, profile, task, model, card), and where that stands."""

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


def origins_of(
    said: Job, decided: Job, places: Mapping[str, str] | None = None
) -> dict[str, ValueOrigin]:
    """By field. `decided`: the completed job; `places`: file and line of what files said."""
    places = places or {}
    found: dict[str, ValueOrigin] = {}
    for name, field in FIELDS.items():
        if name in places:
            found[name] = ValueOrigin(kind="user", text=places[name])
        elif getattr(said, name) != field.default:
            found[name] = ValueOrigin(kind="user", text="said")
        elif getattr(decided, name) != field.default:
            found[name] = _decider(name, decided)
    return found


def _decider(name: str, job: Job) -> ValueOrigin:
    """Of a field that the job left open."""
    if name in OF_TASK:
        return ValueOrigin(kind="task", text=f"task {job.task}: {task_of_job(job).source}")
    if name in OF_MODEL:
        return ValueOrigin(kind="model", text=f"the config of {job.model}")
    if name == "precision" and not has_bf16(job.gpu):
        text = f"{job.gpu} computes no bf16; {explain_precision(job)}"
        return ValueOrigin(kind="card", text=text)
    if name == "precision":
        return ValueOrigin(kind="profile", text=explain_precision(job))
    profile = profile_of(job)
    return ValueOrigin(kind="profile", text=_text(name, job.framework, profile))


def _text(name: str, framework: str, profile: Profile) -> str:
    """The profile's name and version, and the place in its source where one is noted."""
    source = profile.sources.get(name, "")
    return f"{framework} {profile.version}{': ' if source else ''}{source}"
