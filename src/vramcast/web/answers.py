"""What the page asks, as functions from JSON to JSON. Both engines, the worker and the server, ask only `answer`.

    answer("estimate", {"job": {"model": "gpt2"}}, place)   the same JSON as `vramcast estimate gpt2 --json`

Where work is long, a request says how much of it to do (`count`), and the next one goes on from what is cached: the
worker is free for a newer question in between.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from vramcast.catalog.gpus import all_gpus, find_gpu
from vramcast.catalog.models import all_models
from vramcast.engine import record_timeline
from vramcast.errors import InputError, TraceNeededError, VramcastError
from vramcast.forecast import Forecast
from vramcast.forecasting import estimate, find_undescribed, traced_timeline
from vramcast.job import Job, fields, job_values
from vramcast.models.read.model import read_model
from vramcast.plan.cards import Card, cards_for
from vramcast.report.as_json import forecast_json
from vramcast.report.breakdown import render_markdown
from vramcast.report.html import fragments
from vramcast.report.html_charts import cards_html
from vramcast.report.html_compare import compare_html
from vramcast.report.timeline_html import (
    MOST_EVENTS_ON_PAGE,
    timeline_data,
    timeline_notes,
    timeline_words,
)
from vramcast.report.words import LANGUAGES, say
from vramcast.report.words.option_sentences import GROUPS
from vramcast.report.words.page import PAGE
from vramcast.report.words.sentences import translate
from vramcast.setup.tasks import ONE_PASS
from vramcast.timelines.record import Timeline
from vramcast.timelines.thin import thin
from vramcast.units import MiB
from vramcast.web.changes import list_changes
from vramcast.web.effects import decided_values, list_effects
from vramcast.web.front import list_front
from vramcast.web.given import Given, Place, read_given, read_job_texts
from vramcast.web.growth import list_growth
from vramcast.web.recordings import recording_analysis, recording_timeline

if TYPE_CHECKING:
    from vramcast.diagnose.diagnosis import Diagnosis

Answer = dict[str, Any]
MOST_LOG_BYTES = 8 * MiB
CONFIGURATIONS = (".yaml", ".yml", ".json", ".sh", ".bash", ".py", ".ipynb")


def answer(name: str, request: Mapping[str, Any], place: Place) -> Answer:
    """One answer. Raises VramcastError with one line for whatever a user can mend."""
    if name not in ANSWERS:
        raise InputError(f"unknown question {name[:80]!r}. Known: {', '.join(ANSWERS)}.")
    try:
        return ANSWERS[name](request, place)
    except TraceNeededError:
        raise
    except VramcastError as error:
        raise type(error)(translate(str(error), _lang_or_english(request))) from None


def _lang_or_english(request: Mapping[str, Any]) -> str:
    lang = request.get("lang", "en")
    return str(lang) if lang in LANGUAGES else "en"


def _lang(request: Mapping[str, Any]) -> str:
    lang = request.get("lang", "en")
    if lang not in LANGUAGES:
        raise InputError(f"lang must be one of {', '.join(LANGUAGES)}, not {str(lang)[:20]!r}")
    return str(lang)


def _count(request: Mapping[str, Any]) -> int:
    count = request.get("count", 99)
    return count if isinstance(count, int) and count > 0 else 99


def _skip(request: Mapping[str, Any]) -> int:
    skip = request.get("skip", 0)
    return skip if isinstance(skip, int) and skip > 0 else 0


@lru_cache(maxsize=128)
def _forecast(job: Job) -> Forecast:
    return estimate(job)


def _catalog(request: Mapping[str, Any], place: Place) -> Answer:
    return _whole_catalog(_lang(request))


@cache
def _whole_catalog(lang: str) -> Answer:
    known = [gpu for gpu in all_gpus() if gpu.total_bytes is not None]
    return {
        "models": [
            {"name": model.name, "hf_id": model.hf_id, "params": model.params}
            for model in all_models()
        ],
        "gpus": [
            {"name": gpu.name, "vendor": gpu.vendor, "capacity_bytes": gpu.total_bytes}
            for gpu in known
        ],
        "fields": [
            {
                "name": name,
                "help": translate(field.metadata["help"], lang),
                "kind": field.metadata["kind"].replace("targets", "list"),
                "choices": list(field.metadata["choices"]),
                "group": field.metadata["group"],
                "group_label": say(GROUPS, field.metadata["group"], lang),
                "default": list(field.default)
                if isinstance(field.default, tuple)
                else field.default,
            }
            for name, field in fields().items()
        ],
    }


def _estimate(request: Mapping[str, Any], place: Place) -> Answer:
    given = read_given(request, place)
    return _shown(given, forecast_json(_forecast(given.job)))


def _explore(request: Mapping[str, Any], place: Place) -> Answer:
    """A job's forecast, its pictures, and the same question for other places. Where only a run on the virtual GPU can
    answer and nobody wants to wait for it (`wait`), `pending` says so."""
    given, lang = read_given(request, place), _lang(request)
    try:
        forecast = _forecast(given.job)
    except TraceNeededError as needed:
        if request.get("wait", True):
            raise
        return _shown(given, {"forecast": None, "pending": translate(str(needed), lang)})
    data = {
        "forecast": forecast_json(forecast),
        "decided": {} if forecast.job is None else decided_values(forecast),
        "html": fragments(forecast, lang, _pinned(request, place)),
        "copies": {
            "command": command_of(given.said),
            "yaml": yaml_of(given.job),
            "python": python_of(given.job),
            "markdown": render_markdown(forecast, lang),
        },
        "pending": "",
        "missing": _missing_run(given, forecast, lang),
    }
    return _shown(given, data)


def _pinned(request: Mapping[str, Any], place: Place) -> Forecast | None:
    """The job that pictures show beside the present one. Why it has none is told where both are compared."""
    if request.get("pinned") is None:
        return None
    try:
        return _forecast(read_given({**request, "job": request["pinned"]}, place).job)
    except VramcastError:
        return None


def _missing_run(given: Given, forecast: Forecast, lang: str) -> Answer | None:
    """The line that a user runs where this engine has no virtual GPU: in a browser, or without torch."""
    if forecast.is_traced or not _lacks_run(given.job):
        return None
    install = "pip install 'vramcast[trace]'"
    return {
        "text": say(PAGE, "no_virtual_gpu" if given.job.engine is None else "no_tensors", lang),
        "command": f"{install} && {command_of(given.said)}",
    }


def _lacks_run(job: Job) -> bool:
    """Could this job's bill be told whole only where torch is?"""
    if job.engine is not None and job.model is not None:
        try:
            return read_model(job.model).has_count_alone
        except VramcastError:  # a GGUF file, whose tensors are known
            return False
    return find_undescribed(job) is not None


def _shown(given: Given, data: Answer) -> Answer:
    shown: Answer = given.shown(data) if given.names else data
    return shown


# ---- the same job in other words


def command_of(said: Mapping[str, Any]) -> str:
    words = ["vramcast", "estimate", *([str(said["model"])] if said.get("model") else [])]
    for name, value in said.items():
        if name == "model" or value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name}", text]
    return shlex.join(words)


def yaml_of(job: Job) -> str:
    from vramcast.jobfile import write_job

    return write_job(job)


def python_of(job: Job) -> str:
    defaults = job_values(Job(params=1))
    said = {
        name.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for name, value in job_values(job).items()
        if value != defaults[name] and value is not None
    }
    if job.params is not None:
        said["params"] = job.params
    given = ", ".join(f"{name}={value!r}" for name, value in said.items())
    return (
        "import vramcast\n\n"
        f"forecast = vramcast.estimate(vramcast.Job({given}))\n"
        "print(forecast.verdict())\n"
    )


# ---- changes, growth, cards


def _changes(request: Mapping[str, Any], place: Place) -> Answer:
    given, lang = read_given(request, place), _lang(request)
    if _needs_runs(given.job):
        return {"changes": [], "more": False, "said": say(PAGE, "many_runs", lang)}
    found, more = list_changes(
        _forecast(given.job), lang, skip=_skip(request), count=_count(request)
    )
    return _shown(given, {"changes": found, "more": more})


def _effects(request: Mapping[str, Any], place: Place) -> Answer:
    """Of the keys that were said those that change nothing here."""
    given = read_given(request, place)
    if _needs_runs(given.job):
        return {"same": {}, "more": False}
    said = tuple(name for name, value in given.said.items() if value is not None)
    found, more = list_effects(given.job, said, skip=_skip(request), count=_count(request))
    return {"same": found, "more": more}


def _front(request: Mapping[str, Any], place: Place) -> Answer:
    """Combinations of changes: memory against time."""
    given, lang = read_given(request, place), _lang(request)
    found, more = list_front(_forecast(given.job), lang, count=_count(request))
    return _shown(given, {**found, "more": more})


def _growth(request: Mapping[str, Any], place: Place) -> Answer:
    given, lang = read_given(request, place), _lang(request)
    if _needs_runs(given.job):
        said = escape(say(PAGE, "many_runs", lang))
        return {"html": f'<p class="soft">{said}</p>', "points": [], "more": False}
    axis = str(request.get("axis", "seq"))
    return dict(list_growth(_forecast(given.job), axis, lang, count=_count(request)))


def _needs_runs(job: Job) -> bool:
    """Would each of many jobs like this one need a run on the virtual GPU? Then the command line is the place."""
    return find_undescribed(job) is not None


CARDS = (
    "rtx3060-12gb", "rtx4060ti-16gb", "rtx3090", "rtx4090", "rtx5090", "t4", "l4", "a10", "l40s", "a100-40gb",
    "a100-80gb", "h100-80gb", "h200", "b200",
)  # fmt: skip


def _cards(request: Mapping[str, Any], place: Place) -> Answer:
    """The job on one card of each size that people have."""
    from vramcast.report.cards import cards_json

    given, lang = read_given(request, place), _lang(request)
    count = _count(request)
    found = [card for name in CARDS[:count] for card in _on_card(given.job, name)]
    found.sort(key=lambda card: card.total_bytes)
    return {"html": cards_html(found, lang), "cards": cards_json(found), "more": count < len(CARDS)}


@lru_cache(maxsize=256)
def _on_card(job: Job, name: str) -> tuple[Card, ...]:
    """Nothing where the catalog does not know what CUDA reports for the card."""
    gpu = find_gpu(name)
    if gpu.total_bytes is None:
        return ()
    return tuple(cards_for(job.changed(gpu=None), 1, {gpu.name: 1.0}))


def _compare(request: Mapping[str, Any], place: Place) -> Answer:
    """The pinned job and the one that is asked about."""
    lang = _lang(request)
    both = [
        read_given({**request, "job": request.get("pinned")}, place),
        read_given(request, place),
    ]
    forecasts = [_forecast(given.job) for given in both]
    names = [say(PAGE, "pinned", lang), say(PAGE, "now", lang)]
    data = {
        "html": compare_html(names, forecasts, lang),
        "forecasts": [forecast_json(forecast) for forecast in forecasts],
    }
    return _shown(both[0], _shown(both[1], data))


# ---- memory over time


def _timeline(request: Mapping[str, Any], place: Place) -> Answer:
    """Of a job, or of a trace or snapshot that was sent before or lies in a named folder."""
    lang = _lang(request)
    if request.get("file") is not None:
        return _timeline_answer(recording_timeline(place, str(request["file"])), lang)
    given = read_given(request, place)
    forecast = _forecast(given.job)
    if forecast.job is None:
        raise InputError("a timeline needs a job")
    if forecast.job.engine is not None or forecast.job.task in ONE_PASS:
        raise InputError(say(PAGE, "no_timeline", lang))
    timeline = traced_timeline(forecast.job) if forecast.is_traced else None
    return _shown(given, _timeline_answer(timeline or record_timeline(forecast.job), lang))


def _timeline_answer(timeline: Timeline, lang: str) -> Answer:
    short = thin(timeline, MOST_EVENTS_ON_PAGE)
    return {
        "timeline": timeline_data(short),
        "words": timeline_words(lang),
        "notes": timeline_notes(short, lang),
    }


def _read(request: Mapping[str, Any], place: Place) -> Answer:
    """What a dropped file is: a model's config, a job file, a framework's configuration, or a log."""
    name, text = str(request.get("name", "file")), str(request.get("text", ""))
    more = request.get("more") or {}
    if not more and text.lstrip().startswith("{") and _has_model_type(text):
        return {"kind": "model", "job": {}}
    if name.lower().endswith(CONFIGURATIONS):
        read = read_job_texts({name: text, **more}, place, _lang(request))
        return {
            "kind": "job",
            "job": read.values,
            "origins": read.origins,
            "notes": list(read.notes),
        }
    return {"kind": "log", "job": {}}


def _has_model_type(text: str) -> bool:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("begins like JSON, but is none") from None
    return isinstance(data, dict) and isinstance(data.get("model_type"), str)


# ---- what went wrong


def _diagnose(request: Mapping[str, Any], place: Place) -> Answer:
    from vramcast.diagnose.diagnosis import diagnose
    from vramcast.diagnose.readers.log import read_stream

    lang = _lang(request)
    job = read_given(request, place).job if request.get("job") else None
    if request.get("file") is not None:
        from vramcast.diagnose.readers.snapshot import reading_of

        analysis = recording_analysis(place, str(request["file"]))
        found = diagnose(reading_of(analysis), job)
        return _diagnosis(replace(found, snapshot=analysis), lang)
    data = str(request.get("text", "")).encode("utf-8", errors="replace")
    if not data.strip():
        raise InputError("paste an error message, a log or nvidia-smi's output")
    if len(data) > MOST_LOG_BYTES:
        raise InputError(
            f"{len(data):,} B where at most {MOST_LOG_BYTES:,} B are read; paste the end of the log"
        )
    return _diagnosis(diagnose(read_stream(BytesIO(data)), job), lang)


def _diagnosis(diagnosis: Diagnosis, lang: str) -> Answer:
    from vramcast.diagnose.planned_steps import planned_steps
    from vramcast.report import diagnose_json, diagnose_text

    plans = planned_steps(diagnosis)
    return {
        "text": diagnose_text.render(diagnosis, lang=lang, plans=plans),
        "diagnosis": diagnose_json.render(diagnosis, lang=lang, plans=plans),
    }


ANSWERS: dict[str, Callable[[Mapping[str, Any], Place], Answer]] = {
    "catalog": _catalog,
    "estimate": _estimate,
    "explore": _explore,
    "changes": _changes,
    "front": _front,
    "growth": _growth,
    "effects": _effects,
    "cards": _cards,
    "compare": _compare,
    "timeline": _timeline,
    "read": _read,
    "diagnose": _diagnose,
}
