"""What once ended in a traceback, took too long or too much memory is answered, or refused in one line."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
MOST_CORPUS_BYTES = 200_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_stays_mended(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", None
    )  # to build a model that no family describes takes too long
    TARGETS[path.parent.name].run(tmp_path, path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_is_answered(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    written = [
        target.write(target.seeds()[0], random.Random(number)) for number in range(4)
    ]  # in several forms
    assert any(target.run(tmp_path, data) in (0, 1) for data in written)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < MOST_CORPUS_BYTES
