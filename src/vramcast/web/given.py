"""A request's job, with its paths judged: what a page sends may name models, never files of the machine that answers.

Files that a user dropped arrive as texts. They are written into a folder of our own under the hash of their content,
and what is answered shows their names, never that folder.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.catalog.models import find_model, lookup_model
from vramcast.errors import InputError, VramcastError
from vramcast.everyday_words import KEYS
from vramcast.job import Job, job_from
from vramcast.jobfile import read_values
from vramcast.report.configs import reading_notes
from vramcast.report.verdict import not_counted_lines
from vramcast.report.words.sentences import translate
from vramcast.units import MiB

MODEL_KEYS = ("model", "reward-model", "critic-model", "teacher-model")
FILE_KEYS = ("lengths", "dataset")
MOST_FILES, MOST_FILE_BYTES, MOST_KEYS = 8, 1 * MiB, 200
MOST_KEPT = 400  # dropped texts on the disk
MOST_CHARACTERS = 4096  # of one value


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request is answered: a folder for dropped files, and what else of the disk may be read."""

    folder: Path
    roots: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A job, the keys as the user said them, and how dropped files are called."""

    job: Job
    said: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)  # path → name

    def shown(self, value: Any) -> Any:
        """The same answer, with names where paths of ours would stand."""
        if isinstance(value, str):
            for path, name in self.names.items():
                value = value.replace(path, name)
            return value
        if isinstance(value, dict):
            return {key: self.shown(item) for key, item in value.items()}
        return [self.shown(item) for item in value] if isinstance(value, list) else value


def read_given(request: Mapping[str, Any], place: Place) -> Given:
    """The job of a request. A mistake is one line."""
    said = _values(request.get("job"))
    paths = _written(request.get("files") or {}, place.folder)
    values = dict(said)
    for key in MODEL_KEYS:
        if values.get(key) is not None:
            values[key] = _model(str(values[key]), paths, place.roots)
    for key in FILE_KEYS:
        if values.get(key) is not None:
            values[key] = _file(key, str(values[key]), paths, place.roots)
    names = {str(path): name for name, path in paths.items()}
    try:
        return Given(job=job_from(values), said=said, names=names)
    except InputError as error:
        raise InputError(hide(str(error), names)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJob:
    """What dropped configuration files say: the job's keys, where each is from, and what else a reader should know."""

    values: dict[str, Any]
    origins: dict[str, str]
    notes: tuple[str, ...]


def read_job_texts(texts: Mapping[str, str], place: Place, lang: str) -> ReadJob:
    """Of a job file, or of a framework's configuration in one file or several. Paths inside lead no further than to
    the files that came together: these are alone in their folder."""
    paths = list(_written(texts, place.folder, together=True).values())
    folder = f"{paths[0].parent}/"
    try:
        found = _read_paths(paths, lang)
    except VramcastError as error:
        raise InputError(str(error).replace(folder, "")) from None
    values = {key: _plain(value) for key, value in found.values.items() if value is not None}
    return ReadJob(
        values={key: _without(value, folder) for key, value in values.items()},
        origins={key: _without(text, folder) for key, text in found.origins.items()},
        notes=tuple(_without(text, folder) for text in found.notes),
    )


def _without(value: Any, folder: str) -> Any:
    return value.replace(folder, "") if isinstance(value, str) else value


def _read_paths(paths: list[Path], lang: str) -> ReadJob:
    """A job file has the job's own words; anything else is read as `--from` reads it."""
    own: InputError | None = None
    if len(paths) == 1:
        try:
            values = read_values(paths[0])
            return ReadJob(values=values, origins=dict.fromkeys(values, paths[0].name), notes=())
        except InputError as error:
            own = error
    from vramcast.configs import understand

    try:
        understood = understand(paths, None)
    except InputError as foreign:
        text = (
            f"{foreign}" if own is None else f"{own}; nor a framework's configuration ({foreign})"
        )
        raise InputError(text) from None
    return ReadJob(
        values=understood.values,
        origins={key: str(said.origin) for key, said in understood.said.items()},
        notes=(
            *(translate(note, lang) for note in reading_notes(understood, paths)),
            *not_counted_lines([str(gap) for gap in understood.gaps], lang),
            *(translate(text, lang) for text in understood.assumptions),
        ),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def hide(text: str, names: Mapping[str, str]) -> str:
    for path, name in names.items():
        text = text.replace(path, name)
    return text


def _values(job: Any) -> dict[str, Any]:
    if not isinstance(job, Mapping) or not job:
        raise InputError("a request needs a job: at least a model")
    if len(job) > MOST_KEYS:
        raise InputError(f"a job of {len(job):,} keys; there are fewer")
    values: dict[str, Any] = {}
    for name, value in job.items():
        if len(str(value)) > MOST_CHARACTERS:
            raise InputError(f"{str(name)[:80]}: a value of {len(str(value)):,} characters")
        key = str(name).replace("_", "-")
        values[KEYS.get(key, key) if KEYS.get(key, key) in FILE_KEYS else key] = value
    return values


def _written(files: Any, folder: Path, *, together: bool = False) -> dict[str, Path]:
    """Dropped files, by name, each in a folder named after its content; `together`: all in one."""
    if not isinstance(files, Mapping) or len(files) > MOST_FILES:
        raise InputError(f"files are at most {MOST_FILES} texts by name")
    contents: dict[str, bytes] = {}
    for name, text in files.items():
        data = contents[str(name)] = str(text).encode("utf-8", errors="replace")
        if len(data) > MOST_FILE_BYTES:
            raise InputError(
                f"{str(name)[:80]}: {len(data):,} B where at most {MOST_FILE_BYTES:,} B are read"
            )
    everything = b"\0".join(name.encode() + data for name, data in contents.items())
    paths: dict[str, Path] = {}
    for name, data in contents.items():
        own = folder / hashlib.sha256(everything if together else data).hexdigest()[:24]
        path = own / plain_name(name)
        if not path.exists():
            _make_room(folder)
            own.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        paths[name] = path
    return paths


def _make_room(folder: Path) -> None:
    """The oldest of many dropped files go, so that a server's disk does not fill up."""
    if not folder.is_dir():
        return
    own = [path for path in folder.iterdir() if re.fullmatch(r"[0-9a-f]{24}", path.name)]
    if len(own) < MOST_KEPT:
        return
    for path in sorted(own, key=lambda each: each.stat().st_mtime)[: MOST_KEPT // 2]:
        shutil.rmtree(path, ignore_errors=True)


def plain_name(name: str) -> str:
    """The last part of a name, in letters that mean nothing to a file system."""
    last = re.split(r"[/\\]", name)[-1]
    plain = re.sub(r"[^\w.-]", "_", last)[-80:].lstrip(".")
    return plain or "file"


def _model(text: str, paths: Mapping[str, Path], roots: tuple[Path, ...]) -> str:
    if text in paths:
        return str(paths[text])
    if is_inside(text, roots):
        return text
    if lookup_model(text) is None:
        if re.search(r"[/\\].*[/\\]|^[.~/\\]|\.(json|safetensors|bin|pt|pth|ckpt|gguf)$", text):
            raise InputError(
                f"{text[:200]}: files of the machine that answers are not read. Drop the config.json here, or start "
                "`vramcast serve FOLDER` with the folder that holds it."
            )
        find_model(text)  # raises, with near names
    if Path(text).exists():
        raise InputError(f"{text}: a file of this name is in the way; start in another folder")
    return text


def _file(key: str, text: str, paths: Mapping[str, Path], roots: tuple[Path, ...]) -> str:
    if text in paths:
        return str(paths[text])
    if is_inside(text, roots):
        return text
    raise InputError(
        f"{key} {text[:200]}: drop the file here; files of the machine that answers are not read"
    )


def is_inside(text: str, roots: tuple[Path, ...]) -> bool:
    """Is it below a folder that was named on the command line, links followed?"""
    if not roots or "\0" in text:
        return False
    try:
        path = Path(text).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return False
    return any(path == root or root in path.parents for root in roots)
