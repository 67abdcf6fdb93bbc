"""Every command on terminals of 80 and 120 columns, plain and in colour, in both languages, as golden text.

After a change that is meant to be seen: `python tests/cli/screens.py`, and look at the difference.
"""

from __future__ import annotations

import re

import pytest
from screens import COMMANDS, LANGUAGES, WIDTHS, golden, shown, without_figures

from vramcast.report.folding import fold_text
from vramcast.report.table import cell_width

PAINT = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_as_it_was_looked_at(name: str, lang: str, width: int) -> None:
    plain = shown(COMMANDS[name], width=width, lang=lang, colour=False)
    painted = shown(COMMANDS[name], width=width, lang=lang, colour=True)
    assert max(map(cell_width, plain.splitlines())) <= width
    assert PAINT.search(plain) is None
    assert PAINT.sub("", painted) == plain
    assert without_figures(plain) == golden(name, width, lang, colour=False).read_text("utf-8")
    assert without_figures(painted) == golden(name, width, lang, colour=True).read_text("utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_word_is_broken(name: str) -> None:
    """Every word on the narrow screen is one of the wide screen's."""
    narrow = shown(COMMANDS[name], width=80, lang="en", colour=False)
    wide = shown(COMMANDS[name], width=400, lang="en", colour=False)
    assert parts(narrow) <= parts(wide)


def parts(text: str) -> set[str]:
    """Words; those of a name (`openai-community/gpt2`) may end a line after each mark."""
    return set(re.split(r"\s+|(?<=[/_-])", text))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_answer_is_in_the_first_ten_lines(lang: str) -> None:
    lines = shown(COMMANDS["estimate"], width=80, lang=lang, colour=False).splitlines()
    first = "\n".join(lines[:10])
    words = {
        "en": ("DOES NOT FIT", "peak", "short", "optimizer states", "llama-2-7b"),
        "zh": ("装不下", "峰值", "还差", "优化器状态", "llama-2-7b"),
    }
    assert [word for word in words[lang] if word not in first] == []


def test_the_rest_of_a_line_stands_below_its_last_column() -> None:
    text = "  1.00 GiB  ████  a long explanation of what holds the memory at that moment"
    folded = fold_text(text, 40).splitlines()
    assert [cell_width(line) <= 40 for line in folded] == [True] * len(folded)
    assert all(line.startswith(" " * 18) for line in folded[1:])
    assert " ".join(" ".join(folded).split()) == " ".join(text.split())


def test_wide_characters_count_twice() -> None:
    assert [cell_width(line) for line in fold_text("显" * 30, 20).splitlines()] == [20, 20, 20]
