"""Reading as a whole: gates, repetition, frames, several kinds in one log."""

from __future__ import annotations

from vramcast.diagnose.reading import GATES, KEPT_PER_KIND, READERS, WORDS, read_text
from vramcast.diagnose.stream import without_prefix


def test_every_word_that_wakes_a_reader_contains_a_gate() -> None:
    assert [word for word in WORDS if not any(gate in word for gate in GATES)] == []


def test_every_word_is_lower_case_as_the_lines_are_when_searched() -> None:
    assert [word for reader in READERS for word in reader.words if word != word.lower()] == []
