"""Job files: YAML with the same names as the flags. Errors name the file, the line, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.errors import InputError, VramcastError
from vramcast.everyday_words import translate
from vramcast.files import read_text
from vramcast.job import Job, check_value, fields, job_from, job_values, parse_value

MAX_JOB_FILE_BYTES = 128 * 1024  # a job with every key has three thousand bytes
LONGEST_VALUE = 4096  # characters; a path is no longer


def read_job(path: Path, overrides: dict[str, Any] | None = None) -> Job:
    """The job in a file; flags given beside it win."""
    values = read_values(path)
    try:
        return job_from({**values, **translate(overrides or {})})
    except VramcastError as error:
        raise type(error)(f"{path}: {error}") from None


def read_values(path: Path) -> dict[str, Any]:
    """Keys and plain values, each checked where it stands."""
    import yaml

    text = read_text(path, MAX_JOB_FILE_BYTES)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise InputError(
            f"{path}{where}: not YAML ({getattr(error, 'problem', None) or error})"
        ) from None
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}: a job file is a list of `key: value` lines")
    pairs = (_pairs(path, key, value) for key, value in root.value)
    return {name: value for several in pairs for name, value in several.items()}


def _pairs(path: Path, key: Any, value: Any) -> dict[str, Any]:
    """What one line says; an everyday word may say several things."""
    import yaml

    line = key.start_mark.line + 1
    try:
        if not isinstance(key, yaml.ScalarNode):
            raise InputError("a key is one word, not a list or a mapping")
        name = key.value.replace("_", "-")
        plain = _plain(value)
        said = translate({name: plain}) if plain is not None else {name: None}
        return {name: _given(name, value) for name, value in said.items()}
    except (VramcastError, ValueError) as error:
        raise InputError(f"{path}:{line}: {error}") from None


def _given(name: str, value: Any) -> Any:
    if value is None:
        return None
    parsed = parse_value(name, value)
    check_value(fields()[name], parsed)
    return parsed


def _plain(node: Any) -> Any:
    """A scalar or a list of scalars; anything else has no place in a job."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [_scalar(item) for item in node.value]
    return _scalar(node)


def _scalar(node: Any) -> Any:
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        raise InputError("nested keys or lists are not part of a job")
    if len(node.value) > LONGEST_VALUE:
        raise InputError(
            f"a value of {len(node.value):,} characters; the longest allowed has {LONGEST_VALUE:,}"
        )
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        # PyYAML takes a tag's word for it: !!timestamp of another text ends in an AttributeError, !!bool in a KeyError.
        raise InputError(f"{node.value[:80]!r} is no {node.tag.rpartition(':')[2]}") from None


def write_job(job: Job) -> str:
    """The keys that differ from the defaults, as YAML."""
    import yaml

    defaults = job_values(Job(params=1))
    values = {
        name: value
        for name, value in job_values(job).items()
        if value != defaults[name] or name == "params"
    }
    values = {name: value for name, value in values.items() if value is not None}
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
