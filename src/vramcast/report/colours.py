"""Colours of a report on a terminal: the answer, bars, warnings. Finished text is painted, so no width changes."""

from __future__ import annotations

import re

from vramcast.forecast import Answer
from vramcast.report.words.forecast import LABELS, VERDICTS

RESET = "\x1b[0m"
BOLD_GREEN, BOLD_YELLOW, BOLD_RED = "\x1b[1;32m", "\x1b[1;33m", "\x1b[1;31m"
CYAN, YELLOW, DIM = "\x1b[36m", "\x1b[33m", "\x1b[2m"

_OF_ANSWER = {
    Answer.FITS: BOLD_GREEN,
    Answer.TIGHT: BOLD_YELLOW,
    Answer.DOES_NOT_FIT: BOLD_RED,
}


def _words_of_answers() -> dict[str, str]:
    return {word: colour for answer, colour in _OF_ANSWER.items() for word in VERDICTS[str(answer)]}


COLOURS = _words_of_answers()
_ANSWERS = "|".join(sorted(map(re.escape, COLOURS), key=len, reverse=True))
_WARNINGS = "|".join(map(re.escape, LABELS["warning"]))
# At the start of a line, or alone in the last column of a table.
_ANSWER = re.compile(
    rf"^(?:{_ANSWERS})(?=\s|$)|(?<= {{2}})(?:{_ANSWERS})(?= {{2}}|$)", re.MULTILINE
)
_WARNING = re.compile(rf"^(?:{_WARNINGS})(?=:)", re.MULTILINE)
_BAR = re.compile("[█▉▊▋▌▍▎▏▁▂▃▄▅▆▇]+")
_RULE = re.compile("─{2,}")


def paint(text: str) -> str:
    text = _ANSWER.sub(lambda found: f"{COLOURS[found[0]]}{found[0]}{RESET}", text)
    text = _WARNING.sub(lambda found: f"{YELLOW}{found[0]}{RESET}", text)
    text = _BAR.sub(lambda found: f"{CYAN}{found[0]}{RESET}", text)
    return _RULE.sub(lambda found: f"{DIM}{found[0]}{RESET}", text)
