"""A change of the Job written into the files it came from: by position, so that comments, order and style stay.

A value that is in a file is replaced where it stands. A new key gets a line beside its neighbours. The changed
texts are read again before anything is written: what does not come back as the changed Job is left over, to be said
with flags.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.configs.folders import Folders
from vramcast.configs.job_of_files import job_of_files
from vramcast.configs.records import Record
from vramcast.configs.spellings import BY_FRAMEWORK
from vramcast.configs.understand import Part, Understood, understand
from vramcast.errors import VramcastError
from vramcast.job import Job, fields
from vramcast.setup import complete, resolve

YAML = (".yaml", ".yml")
STAND_ALONE = ("megatron", "openrlhf")  # whose switches take no value


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    path: Path
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """New texts of files, and what of the change no file can say."""

    before: Mapping[Path, str]
    after: Mapping[Path, str]
    left: Mapping[str, Any]  # job keys that flags must say
    job: Job | None = None  # the job in the changed files, where it is not the whole change

    def diff(self) -> str:
        """A unified diff that `patch -p0` takes."""
        return "".join(part for path in self.after for part in self._diff_of(path))

    def _diff_of(self, path: Path) -> Iterator[str]:
        old, new = (texts[path].splitlines(keepends=True) for texts in (self.before, self.after))
        for line in difflib.unified_diff(old, new, str(path), str(path), n=2):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def write_change(
    understood: Understood,
    sources: Sequence[Path],
    before: Job,
    after: Job,
    flags: Mapping[str, Any],
    framework: str | None = None,
) -> Patch:
    """The change from one job to another in the words of the files."""
    folders, version = Folders(sources), understood.asked_version
    edits: list[Edit] = []
    texts: dict[Path, str] = {}
    for key in _changed(before, after):
        new = [
            edit
            for edit in _spelled(key, understood.parts, before, after, folders, texts)
            if edit not in edits
        ]
        together = _changed_texts([*edits, *new], texts)
        if new and _read_again(sources, framework, together, flags, version) is not None:
            edits += new  # what cannot be read any more is left to flags
    changed = _changed_texts(edits, texts)
    job = _read_again(sources, framework, changed, flags, version)
    left = _left(job or before, after)
    return Patch(before=texts, after=changed, left=left, job=job if left else None)


def _changed_texts(edits: Sequence[Edit], texts: Mapping[Path, str]) -> dict[Path, str]:
    changed = {
        path: _applied(text, [edit for edit in edits if edit.path == path])
        for path, text in texts.items()
    }
    return {path: text for path, text in changed.items() if text != texts[path]}


def _changed(before: Job, after: Job) -> list[str]:
    return [
        name
        for name, field in fields().items()
        if getattr(before, field.name) != getattr(after, field.name)
    ]


def _read_again(
    sources: Sequence[Path],
    framework: str | None,
    texts: Mapping[Path, str],
    flags: Mapping[str, Any],
    version: str | None,
) -> Job | None:
    """The job in the changed files, read as any others."""
    model = flags.get("model")
    named = None if model is None else str(model)
    try:
        understood = understand(sources, framework, texts, version=version, model=named)
        return job_of_files(understood, flags)[0]
    except VramcastError:
        return None


def _left(job: Job, after: Job) -> dict[str, Any]:
    """What the changed files do not say. What a framework does by default counts as said."""
    if resolve(job) == resolve(after):
        return {}
    job, after = complete(job), complete(after)
    found = {name: getattr(after, fields()[name].name) for name in _changed(job, after)}
    if job.lora_rank == after.lora_rank:
        found.pop("tuning", None)  # said by the rank
    return {name: value for name, value in found.items() if value is not None}


def _spelled(
    key: str,
    parts: Sequence[Part],
    before: Job,
    after: Job,
    folders: Folders,
    texts: dict[Path, str],
) -> Iterator[Edit]:
    """In the first part that has a word for it."""
    for part in parts:
        spelling = BY_FRAMEWORK.get(part.framework.name, {}).get(key)
        values = None if spelling is None else spelling(before, after, part.settings)
        if not values:
            continue
        found = [_edit(name, value, part, folders, texts) for name, value in values.items()]
        if None not in found:
            yield from (edit for edit in found if edit is not None)
            return


def _edit(
    key: str, value: Any, part: Part, folders: Folders, texts: dict[Path, str]
) -> Edit | None:
    record = part.settings.records.get(key)
    place = record or _neighbour(key, part, folders)
    if place is None or place.span is None or " cell " in place.file:
        return None
    path = Path(place.file)
    texts.setdefault(path, folders.read(path))
    if "\r" in texts[path] and path.suffix not in (*YAML, ".json"):
        return None  # positions were counted without them
    start, end = place.span
    is_switch = value is True and record is None and part.framework.name in STAND_ALONE
    if is_switch and path.suffix not in (*YAML, ".json", ".py"):
        flag = f"--{_as_flag(key, texts[path])}"
        return Edit(path=path, start=end, end=end, text=f" \\\n    {flag}")
    if record is not None:
        return Edit(
            path=path, start=start, end=end, text=_in_style(value, texts[path][start:end], path)
        )
    return _insertion(key, value, place, path, texts[path])


def _neighbour(key: str, part: Part, folders: Folders) -> Record | None:
    """The record behind which a new key stands: the last one of the same mapping."""
    prefix = key.rpartition(".")[0]
    if part.framework.name in ("openrlhf", "verl") or not prefix:
        is_dotted = bool(prefix)
        placed = [each for each in part.settings if each.span is not None]
        same = [each for each in placed if ("." in each.key) == is_dotted] or placed
    else:
        same = [
            each
            for each in part.settings
            if each.span is not None and each.key.rpartition(".")[0] == prefix
        ]
    own = [each for each in same if Path(each.file) == part.path or Path(each.file).suffix == ".py"]
    free = [each for each in own if _stands_free(each, folders)]
    return max(free or own or same, key=lambda each: each.span or (0, 0), default=None)


def _stands_free(record: Record, folders: Folders) -> bool:
    """A word of a command that another can follow: not the 2 of `"${STEPS:-2}"`, nor that of `STEPS=2` above it."""
    path = Path(record.file)
    if path.suffix in (*YAML, ".json", ".py") or record.span is None or " cell " in record.file:
        return True
    text, (start, end) = folders.read(path), record.span
    return text[end : end + 1].strip() == "" and text.count("\n", 0, start) + 1 == record.line


def _insertion(key: str, value: Any, place: Record, path: Path, text: str) -> Edit | None:
    start, end = place.span or (0, 0)
    last = key.rpartition(".")[2]
    if path.suffix == ".json":
        return Edit(
            path=path,
            start=end,
            end=end,
            text=f",{_indent(text, start)}{json.dumps(last)}: {json.dumps(value)}",
        )
    if path.suffix in YAML:
        return _new_line(last, value, place, path, text)
    if path.suffix == ".py":
        return Edit(path=path, start=end, end=end, text=f", {last}={value!r}")
    word = (
        f"{key}={_word(value)}" if "." in place.key else f"--{_as_flag(key, text)} {_word(value)}"
    )
    return Edit(path=path, start=end, end=end, text=f" \\\n    {word}")


def _as_flag(key: str, text: str) -> str:
    """Megatron-LM's flags have dashes."""
    return key.replace("_", "-") if "--micro-batch-size" in text else key


def _new_line(key: str, value: Any, place: Record, path: Path, text: str) -> Edit:
    """A line of YAML below the neighbour's, as far in as it."""
    start, end = place.span or (0, 0)
    line_start = _start_of_line(text, place.line)
    line = text[line_start : text.find("\n", line_start)]
    indent = line[: len(line) - len(line.lstrip(" "))]
    if line.lstrip().startswith("--"):  # of Megatron's model_config.yaml
        key = f"--{key.replace('_', '-')}"
    line_end = text.find("\n", max(end - 1, start))
    at = len(text) if line_end < 0 else line_end
    return Edit(path=path, start=at, end=at, text=f"\n{indent}{key}: {_yaml(value)}")


def _start_of_line(text: str, number: int) -> int:
    at = 0
    for _ in range(number - 1):
        at = text.find("\n", at) + 1
    return at


def _indent(text: str, at: int) -> str:
    """The break and the spaces in front of the line that a value of JSON stands in."""
    line = text.rfind("\n", 0, at) + 1
    if line == 0:
        return " "
    rest = text[line:]
    return "\n" + rest[: len(rest) - len(rest.lstrip(" \t"))]


def _in_style(value: Any, old: str, path: Path) -> str:
    if path.suffix == ".json":
        return json.dumps(value)
    if path.suffix == ".py":
        return repr(value)
    if path.suffix in YAML:
        if old.startswith("- "):
            return _block(value, old)
        text = _yaml(value)
        quote = old[:1] if old[:1] in "'\"" and isinstance(value, str) else ""
        return f"{quote}{text}{quote}"
    return _word(value, capital=old in ("True", "False"))


def _block(value: Any, old: str) -> str:
    """A list with one line per item, as it was."""
    lines = old.rstrip().split("\n")
    indent = lines[1][: len(lines[1]) - len(lines[1].lstrip())] if len(lines) > 1 else ""
    items = value if isinstance(value, list | tuple) else [value]
    made = f"\n{indent}".join(f"- {_yaml(item)}" for item in items)
    return made + old[len(old.rstrip()) :]


def _word(value: Any, *, capital: bool = True) -> str:
    if isinstance(value, dict):
        return f"'{json.dumps(value)}'"
    return str(value) if capital else str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    return str(value)


def _applied(text: str, edits: Sequence[Edit]) -> str:
    """From the end, so that positions stay; several at one place keep their order."""
    numbered = sorted(enumerate(edits), key=lambda pair: (pair[1].start, pair[0]), reverse=True)
    for _, edit in numbered:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text
