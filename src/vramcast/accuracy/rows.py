"""Measured rows: YAML files, one per source, each row a job, a peak in bytes and where it comes from.

Knows the form of the files and nothing about engines. A row with `pending` is transcribed but cannot be run yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vramcast.errors import InputError
from vramcast.files import read_text
from vramcast.units import MiB

RANKS = ("", "last")
METRICS = ("allocated", "active", "reserved", "nvml")
CONFIDENCES = ("high", "medium", "low")
LENGTHS = ("published", "assumed")
ELSEWHERE = "not_expressed.yaml"
MOST_FILE_BYTES = 16 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published peak. `job` has the keys of a job file; `config` describes a model that the catalog lacks."""

    id: str
    source: str  # the file's name
    job: Mapping[str, Any]
    peak_bytes: int
    metric: str
    confidence: str
    tolerance: float  # largest accepted |predicted / measured - 1|
    gpu: str = ""
    versions: str = ""
    note: str = ""
    explanation: str = ""  # why the prediction is off, where it is
    config: Mapping[str, Any] | None = None
    pending: str = ""
    lengths: str = (
        "published"  # "assumed": of the batches' lengths only a mean or a limit is published
    )
    parallel: Mapping[str, Any] = field(default_factory=dict)
    rank: str = ""  # "last": the last pipeline stage was measured, not the fullest


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file: where its rows were published, under which licence."""

    name: str
    published: str
    license: str
    rows: tuple[Row, ...]


def load_sources(folder: Path) -> tuple[Source, ...]:
    paths = sorted(path for path in folder.glob("*.yaml") if path.name != ELSEWHERE)
    if not paths:
        raise InputError(
            f"{folder}: no measured rows (*.yaml) here. Run from the repository, or give --rows FOLDER."
        )
    return tuple(_source(path) for path in paths)


def load_not_expressed(folder: Path) -> dict[str, str]:
    """Ids of rows that no Job can express, with the reason."""
    path = folder / ELSEWHERE
    try:
        return {item["id"]: item["reason"] for item in read_yaml(path)}
    except (TypeError, KeyError):
        raise InputError(f"{path}: must be a list of rows with id and reason") from None


def _source(path: Path) -> Source:
    document = read_yaml(path)
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise InputError(f"{path}: must have source, license and a list of rows")
    rows = tuple(_row(path, item) for item in document["rows"])
    published, license = str(document.get("source", "")), str(document.get("license", ""))
    return Source(name=path.stem, published=published, license=license, rows=rows)


def read_yaml(path: Path) -> Any:
    text = read_text(path, MOST_FILE_BYTES)
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: not YAML ({error})") from None


def _row(path: Path, item: Mapping[str, Any]) -> Row:
    try:
        row = Row(source=path.stem, **item)
    except TypeError as error:
        shown = item.get("id", "?") if isinstance(item, dict) else "?"
        raise InputError(f"{path}: row {shown}: {error}") from None
    _check_words(path, row)
    if type(row.peak_bytes) is not int or row.peak_bytes <= 0 or not _is_share(row.tolerance):
        raise InputError(
            f"{path}: row {row.id}: peak_bytes must be a positive int and tolerance lie between 0 and 1"
        )
    return row


def _check_words(path: Path, row: Row) -> None:
    """Refuse words that are unknown, or that do not go together."""
    if row.metric not in METRICS or row.confidence not in CONFIDENCES:
        raise InputError(
            f"{path}: row {row.id}: metric must be one of {', '.join(METRICS)} and confidence one of "
            f"{', '.join(CONFIDENCES)}, not {row.metric!r} and {row.confidence!r}"
        )
    if row.rank not in RANKS:
        raise InputError(
            f"{path}: row {row.id}: rank {row.rank!r} is unknown. Known: last; leave it out for the fullest."
        )
    if row.rank and row.metric != "allocated":
        raise InputError(
            f"{path}: row {row.id}: of a rank other than the fullest only allocated bytes are known"
        )
    if row.lengths not in LENGTHS:
        raise InputError(
            f"{path}: row {row.id}: lengths must be one of {', '.join(LENGTHS)}, not {row.lengths!r}"
        )


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < 1
