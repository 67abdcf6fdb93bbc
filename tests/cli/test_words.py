"""Every word that reports print exists in both languages, and columns line up in both."""

from __future__ import annotations

import ast
import importlib
import string
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import vramcast.report
from vramcast.diagnose import readers
from vramcast.errors import InvariantError
from vramcast.ledger import PHASES, Category, Level, Origin
from vramcast.plan.moves import Kind
from vramcast.report.table import Column, Row, Table, align, as_markdown, as_text, cell_width
from vramcast.report.words import LANGUAGES, say
from vramcast.report.words import forecast as forecast_words
from vramcast.report.words.diagnose_kinds import OBSERVATIONS
from vramcast.report.words.plan import KINDS

REPORT = Path(vramcast.report.__path__[0])
MODULES = [
    importlib.import_module(f"vramcast.report.words.{path.stem}")
    for path in sorted((REPORT / "words").glob("*.py"))
    if path.stem != "__init__"
]


def tables(module: ModuleType) -> dict[str, dict[str, tuple[str, str]]]:
    return {
        name: {
            key: texts if isinstance(texts, tuple) else (key, texts) for key, texts in table.items()
        }
        for name, table in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(table, dict)
    }  # sentences of the engine are keys themselves: {English: Chinese}


def braces(text: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(text)} - {None}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_key_has_both_languages_with_the_same_values(module: ModuleType) -> None:
    assert tables(module)
    for name, table in tables(module).items():
        for key, texts in table.items():
            assert len(texts) == len(LANGUAGES), f"{name}[{key!r}]"
            assert all(texts), f"{name}[{key!r}]"
            is_code = any("{p." in text for text in texts)  # Python that is shown, not filled in
            assert is_code or len({frozenset(braces(text)) for text in texts}) == 1, (
                f"{name}[{key!r}]"
            )


def literal_keys() -> Iterator[tuple[str, str, str]]:
    """Every say(TABLE, "key", …) of the reports: file, table, key."""
    for path in sorted(REPORT.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func) == "say"
            if is_call and isinstance(node.args[1], ast.Constant):
                yield path.stem, ast.unparse(node.args[0]), node.args[1].value


def test_every_key_that_reports_use_exists() -> None:
    used = list(literal_keys())
    assert len(used) > 100
    for file, table, key in used:
        module = importlib.import_module(f"vramcast.report.{file}")
        words = eval(table, vars(module))
        assert key in words, f"report/{file}.py: {table}[{key!r}]"


def test_closed_sets_of_words_are_complete() -> None:
    assert set(map(str, Category)) == set(forecast_words.CATEGORIES)
    assert set(map(str, Origin)) == set(forecast_words.ORIGINS)
    assert set(map(str, Level)) == set(forecast_words.LEVELS) == set(forecast_words.COUNTERS)
    assert set(PHASES) == set(forecast_words.PHASES) == set(forecast_words.MOMENTS)
    assert set(map(str, Kind)) == set(KINDS)


def test_everything_that_a_log_can_show_has_words() -> None:
    """The `kind=` of every reader; those of PyTorch's backends are made from the backend's name."""
    found = set()
    for path in Path(readers.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_kind = isinstance(node, ast.keyword) and node.arg == "kind"
            if is_kind and isinstance(node.value, ast.Constant):
                found.add(node.value.value)
    assert len(found) > 40
    assert found - set(OBSERVATIONS) == set()
    backends = ["hip", "xpu", "npu", "mps", "mlu", "hpu", "musa", "gcu", "dcu", "privateuseone"]
    assert {f"torch_{name}_oom" for name in backends} <= set(OBSERVATIONS)


def test_an_unknown_key_is_our_mistake() -> None:
    with pytest.raises(InvariantError, match="no words for 'nonsense'"):
        say({"a": ("a", "甲")}, "nonsense", "zh")


# ---- tables


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("abc", 3),
        ("显存", 4),
        ("KV 缓存", 7),
        ("─█×", 3),
        ("（）", 4),
        ("e\N{COMBINING ACUTE ACCENT}", 1),
    ],
)
def test_width_is_counted_in_cells_of_a_terminal(text: str, cells: int) -> None:
    assert cell_width(text) == cells


def test_chinese_columns_line_up() -> None:
    lines = align([("优化器状态", "1.50", "甲"), ("weights", "14.23", "b")], "lrl")
    assert lines == ["  优化器状态   1.50  甲", "  weights     14.23  b"]


SHOWN = Table(
    title="",
    columns=(Column(title="名称"), Column(title="数量", right=True), Column(title="why")),
    rows=(
        Row(cells=("权重", "7", "only the inputs of blocks are kept")),
        Row(cells=("a", "1,234", "x")),
    ),
)


def test_a_table_in_chinese() -> None:
    assert as_text(SHOWN).splitlines() == [
        "名称   数量  why",
        "权重      7  only the inputs of blocks are kept",
        "a     1,234  x",
    ]
    assert as_markdown(SHOWN).splitlines()[:2] == ["| 名称 | 数量 | why |", "|---|---:|---|"]


def test_folding_breaks_between_words_and_leaves_numbers_whole() -> None:
    lines = as_text(SHOWN, 32).splitlines()
    assert max(map(cell_width, lines)) <= 32
    assert lines[1:4] == [
        "权重      7  only the inputs of",
        "             blocks are kept",
        "a     1,234  x",
    ]


def test_folding_breaks_chinese_anywhere() -> None:
    table = Table(title="", columns=(Column(title="a"),), rows=(Row(cells=("显存不足时" * 4,)),))
    lines = as_text(table, 12).splitlines()
    assert "".join(lines[1:]) == "显存不足时" * 4
    assert max(map(cell_width, lines)) <= 12
