"""Every command has help and a place in the docs, and what the pages show is what the commands print."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from vramcast.cli import COMMANDS, main
from vramcast.job import fields
from vramcast.ledger import PHASES, Category, Level, Origin

ROOT = Path(__file__).parents[2]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(ROOT / "docs"))  # pages of its own stand beside it
    spec.loader.exec_module(module)
    return module


GENERATE = load_generator()
SESSIONS = [shown for page in GENERATE.pages() for shown in GENERATE.sessions(page)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_for_every_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert COMMANDS[name].split()[0] in capsys.readouterr().out
    undocumented = [action.dest for action in GENERATE.parser_of(name)._actions if not action.help]
    assert undocumented == []


def test_the_page_of_commands_is_what_the_commands_are() -> None:
    assert GENERATE.COMMANDS_PAGE.read_text(encoding="utf-8") == GENERATE.commands_page(), (
        "run make docs"
    )


@pytest.mark.slow
def test_the_page_of_configuration_files_is_what_is_read() -> None:
    assert GENERATE.CONFIGS_PAGE.read_text(encoding="utf-8") == GENERATE.configs_page(), (
        "run make docs"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown", SESSIONS, ids=lambda shown: f"{shown.page.name}: {shown.command[:60]}"
)
def test_pages_show_what_commands_print(shown: object) -> None:
    printed = GENERATE.run(shown.command)  # type: ignore[attr-defined]
    assert GENERATE.agrees(shown.output, printed), f"run make docs. Printed:\n{printed}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb", "a  \nb\n\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nd\n", "a\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("a\nb\n", "a\nb\nc\n", False),
        ("a.b\n", "axb\n", False),
    ],
)
def test_three_dots_stand_for_lines_and_nothing_else_does(
    shown: str, printed: str, same: bool
) -> None:
    assert GENERATE.agrees(shown, printed) is same


def test_a_stale_page_is_refreshed_and_a_dotted_one_left_alone() -> None:
    stale = "text\n\n```\n$ vramcast --version\nvramcast 0.0.0\n```\n\n```\n$ vramcast --version\n...\n```\n"
    fresh = GENERATE.refreshed(stale)
    assert "0.0.0" not in fresh
    assert fresh.endswith("```\n$ vramcast --version\n...\n```\n")
    assert GENERATE.refreshed(fresh) == fresh


WORDS = {
    *(str(word) for kind in (Category, Level, Origin) for word in kind),
    *(choice for field in fields().values() for choice in field.metadata["choices"]),
    *PHASES,
}  # fmt: skip


def test_every_word_of_the_reports_is_explained() -> None:
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8").lower()
    missing = sorted(
        word for word in WORDS if f"**{word}**" not in text and f"`{word}`" not in text
    )
    assert missing == []


def test_the_map_names_what_exists() -> None:
    """docs/architecture.md is read by newcomers: every path in it leads somewhere."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tests/|[a-z_]+/)[\w/]+\.?\w*)`", text)) | set(
        re.findall(r"`(\w+\.py)`", text)
    )
    missing = [
        path
        for path in sorted(named)
        if not (ROOT / "src" / "vramcast" / path).exists() and not (ROOT / path).exists()
    ]
    assert len(named) > 60
    assert missing == []
