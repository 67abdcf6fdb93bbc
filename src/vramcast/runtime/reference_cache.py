"""A reference model's log-probabilities on disk: one row per sample, tied to one model, one tokenizer and those
samples.

In: samples as token ids and labels. Out: their (sum, count), found again by content, so shuffling, padding and
batching do not matter. A run that was cut off continues where it stopped: every batch is one SQLite transaction, and
each rank writes its own file. Opening with another model or tokenizer is refused; so is a sample that was never
computed. Knows nothing about how the values were computed.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import InputError
from vramcast.runtime.preference import IGNORED, SequenceLogprobs

FORMAT = 1
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE logprobs (sample BLOB PRIMARY KEY, total REAL NOT NULL, num_tokens INTEGER NOT NULL);
"""


def model_fingerprint(model: nn.Module | str) -> str:
    """SHA-256 over every parameter and buffer: name, shape, dtype, bytes. A string is a fingerprint taken earlier."""
    if isinstance(model, str):
        return model
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().contiguous().reshape(-1).cpu()
        digest.update(memoryview(flat.view(torch.uint8).numpy()))
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Vocabulary, merges, special tokens and chat template; a string is a fingerprint taken earlier, None is no
    tokenizer.
    """
    if tokenizer is None or isinstance(tokenizer, str):
        return tokenizer or "none"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    special = json.dumps(getattr(tokenizer, "special_tokens_map", {}), sort_keys=True, default=str)
    template = str(getattr(tokenizer, "chat_template", None))
    return hashlib.sha256("\n".join((words, special, template)).encode()).hexdigest()


def sample_keys(input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> list[bytes]:
    """One key per row: its real tokens and which of them are labelled. Padding does not change it."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    ids, wanted, real = input_ids.cpu().long(), labels.cpu().long(), mask.cpu().bool()
    return [_key(row[kept], label[kept]) for row, label, kept in zip(ids, wanted, real, strict=True)]


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
        self._files = [_connect(file) for file in sorted(self.path.glob("*.sqlite"))]
        for file in self._files:
            _check_identity(self.path, file, self.identity)

    def __enter__(self) -> ReferenceCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __len__(self) -> int:
        return len({key for file in self._files for (key,) in file.execute("SELECT sample FROM logprobs")})

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Positions whose sample is not in the cache."""
        found = self._rows(keys)
        return [index for index, key in enumerate(keys) if key not in found]

    def lookup(self, keys: Sequence[bytes], device: torch.device) -> SequenceLogprobs:
        rows = self._rows(keys)
        if absent := [index for index, key in enumerate(keys) if key not in rows]:
            raise InputError(
                f"{len(absent)} of {len(keys)} samples are not in the reference cache {self.path} ({len(self)} "
                "samples): the data, its tokenisation or its labels differ. Run precompute_reference on this data; "
                "it adds what is missing."
            )
        values = [rows[key] for key in keys]
        return SequenceLogprobs(
            total=torch.tensor([total for total, _ in values], dtype=torch.float32, device=device),
            num_tokens=torch.tensor([count for _, count in values], dtype=torch.int64, device=device),
        )

    def require(self, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Refuse data that was not precomputed, before training starts instead of in its middle."""
        for batch in samples:
            self.lookup(
                sample_keys(batch["input_ids"], batch["labels"], batch.get("attention_mask")), torch.device("cpu")
            )

    def writer(self, rank: int = 0) -> CacheWriter:
        self.path.mkdir(parents=True, exist_ok=True)
        target = self.path / f"rank-{rank:05d}.sqlite"
        if not target.exists():
            _create(target, self.identity)
        file = _connect(target)
        _check_identity(self.path, file, self.identity)
        self._files.append(file)
        return CacheWriter(file)

    def _rows(self, keys: Sequence[bytes]) -> dict[bytes, tuple[float, int]]:
        return {key: row for file in self._files for key, row in _select(file, keys)}


class CacheWriter:
    """Appends batches; each is on disk when add() returns."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def add(self, keys: Sequence[bytes], logprobs: SequenceLogprobs) -> None:
        rows = zip(keys, logprobs.total.double().tolist(), logprobs.num_tokens.tolist(), strict=True)
        with self._file:
            self._file.executemany("INSERT OR IGNORE INTO logprobs VALUES (?, ?, ?)", rows)


def _create(target: Path, identity: Mapping[str, str]) -> None:
    """Under another name first: a rank that opens the directory meanwhile sees a whole file or none."""
    unfinished = target.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    file = _connect(unfinished)
    with file:
        file.executescript(_TABLES)
        file.executemany("INSERT INTO meta VALUES (?, ?)", identity.items())
    file.close()
    unfinished.replace(target)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=60)


def _select(file: sqlite3.Connection, keys: Sequence[bytes]) -> Iterator[tuple[bytes, tuple[float, int]]]:
    for start in range(0, len(keys), 500):  # SQLite's classic limit is 999 bound values
        part = keys[start : start + 500]
        marks = ",".join("?" * len(part))
        query = f"SELECT sample, total, num_tokens FROM logprobs WHERE sample IN ({marks})"
        for key, total, count in file.execute(query, part):
            yield key, (total, count)


def _check_identity(path: Path, file: sqlite3.Connection, identity: Mapping[str, str]) -> None:
    try:
        stored = dict(file.execute("SELECT name, value FROM meta"))
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is not a reference cache: {error}. Delete it or choose another path.") from error
    for name, value in identity.items():
        if stored.get(name) != value:
            raise InputError(
                f"the reference cache {path} belongs to another {name} ({str(stored.get(name))[:12]}, not "
                f"{value[:12]}). Its log-probabilities would be wrong here. Choose another path and run "
                "precompute_reference again."
            )
