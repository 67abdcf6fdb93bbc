"""A reference model's log-probabilities on disk: one row per sample, for one model and one tokenizer.

In: samples as token ids and labels. Out: their (sum, count), found by content: shuffling, padding and batching do not
matter. A run that was interrupted continues where it stopped: every batch is one SQLite transaction, and each rank
writes its own file. Opening with another model (other weights, or the same with other settings, such as rope_theta) or
tokenizer is refused; so is a sample that was never computed. Does not know how the values were computed.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import InputError
from vramcast.runtime.training.fingerprints import (
    model_fingerprint,
    model_settings,
    tokenizer_fingerprint,
)
from vramcast.runtime.training.preference import IGNORED, SequenceLogprobs
from vramcast.runtime.writing import one_line, whole_file

FORMAT = 2  # 1 knew the weights of a model, not its settings
_ADVICE = (
    "Free some space, or choose another path, and run precompute_reference again: finished batches are kept and not "
    "computed twice."
)
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE logprobs (sample BLOB PRIMARY KEY, total REAL NOT NULL, num_tokens INTEGER NOT NULL);
"""


def sample_keys(
    input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
) -> list[bytes]:
    """One key per row: its real tokens and which of them are labelled. Padding does not change it."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    ids, wanted, real = input_ids.cpu().long(), labels.cpu().long(), mask.cpu().bool()
    return [
        _key(row[kept], label[kept]) for row, label, kept in zip(ids, wanted, real, strict=True)
    ]


def batch_keys(batch: Mapping[str, Any]) -> list[bytes]:
    """The keys of a batch's samples, in order."""
    labels = batch_labels(batch)
    return sample_keys(batch["input_ids"], labels, batch.get("attention_mask"))


def batch_labels(batch: Mapping[str, Any]) -> Tensor:
    """Given labels, or every real token."""
    if batch.get("input_ids") is None:
        raise InputError(
            f"a batch without 'input_ids' names no samples; it has {', '.join(map(str, batch)) or 'nothing'}. Give the "
            "reference batches as the model is given them."
        )
    if batch.get("labels") is not None:
        return batch["labels"]
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    return ids if mask is None else ids.masked_fill(mask == 0, IGNORED)


def _key(ids: Tensor, labels: Tensor) -> bytes:
    labelled = torch.where(labels == IGNORED, -1, labels)
    return hashlib.sha256(torch.stack((ids, labelled)).numpy().tobytes()).digest()[:16]


class ReferenceCache:
    """A directory of SQLite files, one per rank that computed."""

    def __init__(self, path: str | Path, *, model: nn.Module | str, tokenizer: Any = None) -> None:
        self.path = Path(path)
        self.identity = {
            "format": str(FORMAT),
            "model": model_fingerprint(model),
            "tokenizer": tokenizer_fingerprint(tokenizer),
        }
        self._settings = None if isinstance(model, str) else model_settings(model)
        self._files = [_connect(file) for file in sorted(self.path.glob("*.sqlite"))]
        for file in self._files:
            _check_identity(self.path, file, self.identity, self._settings)

    def __enter__(self) -> ReferenceCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __len__(self) -> int:
        return len(
            {key for file in self._files for (key,) in file.execute("SELECT sample FROM logprobs")}
        )

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Positions whose sample is not in the cache."""
        found = self._rows(keys)
        return [index for index, key in enumerate(keys) if key not in found]

    def lookup(self, batch: Mapping[str, Any]) -> SequenceLogprobs:
        """The values of a batch's samples, on its device."""
        keys, device = batch_keys(batch), batch["input_ids"].device
        rows = self._rows(keys)
        absent = [key for key in keys if key not in rows]
        if absent:
            unlabelled = ""
            if batch.get("labels") is None:
                unlabelled = " (this batch has none: every real token counts)"
            raise InputError(
                f"{len(absent)} of {len(keys)} samples are not in the reference cache {self.path} ({len(self)} "
                f"samples): the data, its tokenisation or its labels{unlabelled} differ. Run precompute_reference on "
                "this data; it adds what is missing."
            )
        totals = [rows[key][0] for key in keys]
        counts = [rows[key][1] for key in keys]
        return SequenceLogprobs(
            total=torch.tensor(totals, dtype=torch.float32, device=device),
            num_tokens=torch.tensor(counts, dtype=torch.int64, device=device),
        )

    def require(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Refuse data that was not precomputed, before training starts instead of in its middle."""
        for batch in samples:
            self.lookup(batch)

    def writer(self, rank: int = 0) -> CacheWriter:
        target = self.path / f"rank-{rank:05d}.sqlite"
        if not target.exists():
            _create(
                target, {**self.identity, "settings": json.dumps(self._settings, sort_keys=True)}
            )
        file = _connect(target)
        _check_identity(self.path, file, self.identity, self._settings)
        self._files.append(file)
        return CacheWriter(target, file)

    def _rows(self, keys: Sequence[bytes]) -> dict[bytes, tuple[float, int]]:
        return {key: row for file in self._files for key, row in _select(file, keys)}


class CacheWriter:
    """Appends batches; each is on disk when add() returns, or not at all."""

    def __init__(self, path: Path, file: sqlite3.Connection) -> None:
        self._path = path
        self._file = file

    def add(self, keys: Sequence[bytes], logprobs: SequenceLogprobs) -> None:
        rows = zip(
            keys, logprobs.total.double().tolist(), logprobs.num_tokens.tolist(), strict=True
        )
        with one_line(self._path, advice=_ADVICE), self._file:
            self._file.executemany("INSERT OR IGNORE INTO logprobs VALUES (?, ?, ?)", rows)


def _create(target: Path, identity: Mapping[str, str]) -> None:
    """Under another name first: a rank that opens the directory meanwhile sees a whole file or none."""
    with one_line(target, advice=_ADVICE):
        target.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(target, advice=_ADVICE) as unfinished,
        closing(_connect(unfinished)) as file,
        file,
    ):
        file.executescript(_TABLES)
        file.executemany("INSERT INTO meta VALUES (?, ?)", identity.items())


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=60)


def _select(
    file: sqlite3.Connection, keys: Sequence[bytes]
) -> Iterator[tuple[bytes, tuple[float, int]]]:
    for start in range(0, len(keys), 500):  # SQLite's classic limit is 999 bound values
        part = keys[start : start + 500]
        marks = ",".join("?" * len(part))
        query = f"SELECT sample, total, num_tokens FROM logprobs WHERE sample IN ({marks})"
        for key, total, count in file.execute(query, part):
            yield key, (total, count)


def _check_identity(
    path: Path,
    file: sqlite3.Connection,
    identity: Mapping[str, str],
    settings: dict[str, Any] | None,
) -> None:
    try:
        stored = dict(file.execute("SELECT name, value FROM meta"))
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{path} is not a reference cache: {error}. Delete it or choose another path."
        ) from error
    if stored.get("format") != identity["format"]:
        raise InputError(
            f"the reference cache {path} has format {stored.get('format')}, this vramcast reads {identity['format']} "
            "(format 1 did not tell models with other settings apart). Delete it or choose another path, and run "
            "precompute_reference again."
        )
    for name, value in identity.items():
        if stored.get(name) != value:
            difference = f"{str(stored.get(name))[:12]}, not {value[:12]}"
            if name == "model":
                difference = _describe_difference(stored.get("settings"), settings) or difference
            raise InputError(
                f"the reference cache {path} belongs to another {name} ({difference}). Its log-probabilities would be "
                "wrong here. Choose another path and run precompute_reference again."
            )


def _describe_difference(stored: str | None, settings: dict[str, Any] | None) -> str:
    """The first settings that differ; empty if only weights do or if the settings are not known."""
    there = json.loads(stored) if stored else None
    if there is None or settings is None:
        return ""
    here = json.loads(json.dumps(settings))  # as it is read from a file: no tuples
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    words = [
        f"{name} is {str(there.get(name))[:60]}, not {str(here.get(name))[:60]}"
        for name in names[:3]
    ]
    return "; ".join(words)
