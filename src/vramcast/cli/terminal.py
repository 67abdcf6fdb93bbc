"""What leaves the program passes here: no character that steers a terminal, none that its encoding lacks.

Names, paths and messages come from files that strangers wrote. In text that is printed, control characters and those
that turn the direction of writing are shown as `\\u001b`, which JSON reads as the same character.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from typing import TextIO

from vramcast.errors import OutputError

NARROWEST = 60  # cells that a terminal is taken to have at least
LONGEST_LINE = 4000  # characters of an error; a file can put a megabyte into a name

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# What reports draw and write, for terminals in ASCII or a code page.
_PLAIN = {
    "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "#", "▎": "#", "▏": "#", "▓": "#", "▒": "+", "░": ".",
    "─": "-", "│": "|", "×": "x", "·": "*", "–": "-", "—": "-", "−": "-", "…": "...", "≥": ">=", "≤": "<=", "≈": "~",
    "²": "^2", "→": "->", "←": "<-", "’": "'", "‘": "'", "“": '"', "”": '"', "•": "*", "±": "+-", "✓": "ok", "✗": "x",
    "▇": "*", "▆": "+", "▅": "=", "▄": "-", "▃": ":", "▂": ".", "▁": "_", "┤": "|", "÷": "/", "Σ": "sum ",
    "⌈": "ceil(", "⌉": ")", "，": ", ", "：": ": ", "；": "; ", "（": " (", "）": ") ", "？": "? ", "\ufffd": "?",
    "\N{NO-BREAK SPACE}": " ",
}  # fmt: skip


def clean(text: str) -> str:
    """Text without characters that steer a terminal; line ends and tabs stay."""
    return _STEERING.sub(lambda match: _escaped(match[0]), text)


def as_line(text: str) -> str:
    """One line of bounded length, for an error."""
    shown = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…"
    return clean(" ".join(shown.splitlines()))


def _escaped(text: str) -> str:
    """As in JSON: `\\u001b`, and a pair of them beyond the first 65,536 characters."""
    codes = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{codes[at : at + 4]}" for at in range(0, len(codes), 4))


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter) or _escaped(letter) for letter in letters), error.end


codecs.register_error("vramcast.plain", _replaced)


class Screen(io.TextIOBase):
    """Standard output while a command runs. What cannot be written is a user's to mend: a full disk, say."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with _told():
            self._stream.write(self._encoded(clean(text)))
        return len(text)

    def show(self, text: str) -> None:
        """A report: folded to the terminal's width, and in colour where the terminal has colours."""
        from vramcast.report.folding import fold_text

        shown = fold_text(clean(text), self.width())
        painted = _painted(shown) if self.has_colours() else shown
        with _told():
            self._stream.write(f"{self._encoded(painted)}\n")

    def width(self) -> int | None:
        return width_of(self)

    def has_colours(self) -> bool:
        """https://no-color.org: any value switches them off."""
        is_off = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return self.isatty() and not is_off

    def flush(self) -> None:
        with _told():
            self._stream.flush()

    def _encoded(self, text: str) -> str:
        return text.encode(self.encoding, "vramcast.plain").decode(self.encoding)


def width_of(stream: TextIO | io.TextIOBase) -> int | None:
    """Cells of a line. None for a file or a pipe, where nothing may be folded: other programs read lines."""
    if not stream.isatty():
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)


def _painted(text: str) -> str:
    from vramcast.report.colours import paint

    return paint(text)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        raise
    except OSError as error:
        raise OutputError(
            f"the answer cannot be written to standard output: {error.strerror or error}"
        ) from None


@contextlib.contextmanager
def screen() -> Iterator[None]:
    """Standard output goes through a Screen, and all of it has been written when this ends."""
    if sys.stdout is None:
        raise OutputError("the answer cannot be written: standard output is closed")
    with screen_of(sys.stdout):
        yield


@contextlib.contextmanager
def screen_of(stream: TextIO) -> Iterator[None]:
    shown = Screen(stream)
    try:
        with contextlib.redirect_stdout(shown):
            yield
    finally:
        shown.flush()


def discard_output() -> None:
    """What is still to be written goes nowhere, so that Python does not try again when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(text: str, lines: int = 1) -> None:
    """A line on standard error, if there is one; of a longer message at most so many lines."""
    shown = as_line(text) if lines == 1 else "\n".join(map(as_line, text.splitlines()[:lines]))
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(_folded(shown) if sys.stderr.isatty() else shown, file=sys.stderr)


def _folded(text: str) -> str:
    from vramcast.report.folding import fold_text

    return fold_text(text, max(NARROWEST, shutil.get_terminal_size().columns))
