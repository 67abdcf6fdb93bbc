"""What was understood of configuration files: a job file with the origin of every value, and lines for a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramcast.configs import Patch, Understood
from vramcast.forecast import Verdict
from vramcast.job import Job, flag_of, job_values
from vramcast.report.as_json import verdict_json
from vramcast.report.verdict import headline
from vramcast.report.words import say
from vramcast.report.words.configs import WORDS
from vramcast.report.words.sentences import translate
from vramcast.setup import origins_of

MOST_NAMED = 12  # settings on one line of a report; `vramcast job` names all of them


def reading_notes(understood: Understood, sources: Sequence[Path]) -> Iterator[str]:
    """What was read, and which settings are not known at all."""
    files = ", ".join(map(str, sources))
    yield f"read as {' + '.join(understood.frameworks)}: {files}"
    yield from _version_notes(understood)
    if understood.unknown:
        named = "; ".join(record.text for record in understood.unknown[:MOST_NAMED])
        more = len(understood.unknown) - MOST_NAMED
        rest = f"; and {more} more (`vramcast job --from …`)" if more > 0 else ""
        yield f"not known, so perhaps of no effect: {named}{rest}"


def _version_notes(understood: Understood) -> Iterator[str]:
    version, title = understood.version, understood.frameworks[0]
    if version.said is not None:
        yield f"defaults of {title} {version.said} ({version.origin})"
    elif version.read:
        yield f"defaults of {title} {version.read}, read {version.day}; another with --framework-version"


def render_job(understood: Understood, decided: Job, lang: str) -> str:
    """A job file; comments say where each value is from."""
    said, origins = understood.said, _origins(understood, decided)
    lines = [
        (_yaml_line(key, each.value), each.origin) for key, each in sorted(said.items(), key=_order)
    ]
    open_lines = [
        (f"# {_yaml_line(key, value)}", f"{say(WORDS, 'profile', lang)}: {origins[key]}")
        for key, value in _decided(understood, decided).items()
    ]
    width = max(len(text) for text, _ in (*lines, *open_lines))
    parts = [f"{text:<{width}}   # {origin}" for text, origin in (*lines, *open_lines)]
    heading = f"# {say(WORDS, 'read_as', lang)} {' + '.join(understood.frameworks)}"
    told = (f"# {translate(note, lang)}" for note in _version_notes(understood))
    return "\n".join((heading, *told, *parts, *_rest(understood, lang)))


def _rest(understood: Understood, lang: str) -> Iterator[str]:
    sections = (
        ("not_counted", (translate(str(gap), lang) for gap in understood.gaps)),
        ("assumed", (translate(text, lang) for text in understood.assumptions)),
        ("unknown", (record.text for record in understood.unknown)),
    )
    for heading, texts in sections:
        yield from _section(say(WORDS, heading, lang), texts)


def _section(heading: str, texts: Iterable[str]) -> Iterator[str]:
    found = list(texts)
    if found:
        yield f"# {heading}"
        yield from (f"#   {text}" for text in found)


def _order(item: tuple[str, Any]) -> int:
    keys = list(job_values(Job(params=1)))
    return keys.index(item[0])


def _yaml_line(key: str, value: Any) -> str:
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    plain = plain if isinstance(plain, bool | int | float | list | None) else str(plain)
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000, allow_unicode=True)
    return f"{key}: {text.removesuffix('...' + chr(10)).strip()}"


def _decided(understood: Understood, decided: Job) -> Mapping[str, Any]:
    """What the framework's profile fills in where nobody said anything."""
    blank = job_values(Job(params=1))
    return {
        key: value
        for key, value in job_values(decided).items()
        if key not in understood.said and value != blank[key] and key != "params"
    }


def _origins(understood: Understood, decided: Job) -> dict[str, str]:
    """By key: file and line of what files say, and who decided the rest."""
    places = {key.replace("-", "_"): str(each.origin) for key, each in understood.said.items()}
    found = origins_of(Job(params=1), decided, places)
    return {flag_of(name): str(origin) for name, origin in found.items()}


def job_json(understood: Understood, decided: Job) -> dict[str, Any]:
    return {
        "schema": "vramcast/1",
        "frameworks": list(understood.frameworks),
        "framework_version": {
            "version": understood.version.text or None,
            "origin": understood.version.origin or None,
        },
        "job": job_values(decided),
        "origins": _origins(understood, decided),
        "not_understood": [str(gap) for gap in understood.gaps],
        "unknown": [record.text for record in understood.unknown],
        "assumptions": list(understood.assumptions),
    }


def render_patches(patches: Sequence[Patch], verdicts: Sequence[Verdict | None], lang: str) -> str:
    """A diff of the files for every plan; what no file can say follows as flags, with what the files say alone."""
    shown: list[str] = []
    for number, (patch, verdict) in enumerate(zip(patches, verdicts, strict=True), 1):
        lines = [say(WORDS, "plan", lang, number=number)]
        lines.append(patch.diff().rstrip("\n") or say(WORDS, "no_words", lang))
        if patch.left:
            flags = " ".join(f"--{key} {_flag_value(value)}" for key, value in patch.left.items())
            lines.append(say(WORDS, "left", lang, flags=flags))
        if verdict is not None:
            lines.append(say(WORDS, "alone", lang, verdict=headline(verdict, lang)))
        shown.append("\n".join(lines))
    return "\n\n".join(shown)


def _flag_value(value: Any) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def patches_json(patches: Sequence[Patch], verdicts: Sequence[Verdict | None]) -> dict[str, Any]:
    if not patches:
        return {}
    found = [
        {
            "diff": patch.diff(),
            "flags": {key: _flag_value(value) for key, value in patch.left.items()},
            "verdict_without_flags": None if verdict is None else verdict_json(verdict),
        }
        for patch, verdict in zip(patches, verdicts, strict=True)
    ]
    return {"patches": found}
