"""A line of progress: on a terminal alone, each in place of the one before."""

from __future__ import annotations

import sys

import pytest

from vramcast.cli.output import show_progress


def test_a_line_takes_the_place_of_the_one_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for text in ("one of two", "two of two", ""):
        show_progress(text)
    out, err = capsys.readouterr()
    assert not out
    assert err == "\r\x1b[Kone of two\r\x1b[Ktwo of two\r\x1b[K"


def test_nothing_goes_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    show_progress("one of two")
    assert capsys.readouterr() == ("", "")
