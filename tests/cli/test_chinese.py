"""A Chinese report has no English sentence: beyond names, code and citations everything is translated."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from screens import COMMANDS, shown
from test_odd_inputs import REFUSED

from vramcast.catalog.gpus import all_gpus
from vramcast.cli import main
from vramcast.engine import estimate
from vramcast.engine.lines.overheads import LIBRARIES_SOURCE
from vramcast.job import job_from
from vramcast.report.words import language_of
from vramcast.report.words.sentences import SENTENCES, is_known, translate

ALL_CHINESE = ("estimate", "check", "compare", "sweep", "fit", "plan", "divide", "params")
SLOT = re.compile(r"\{[a-g]\}")
CHINESE = re.compile("[一-鿿]")
ROOT = Path(__file__).parents[2]
# Five English words in a row, outside of code, are a sentence.
SENTENCE = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){4,}[a-z]{2,}\b")
JOBS = (
    {"model": "gpt2"},
    {"model": "llama-2-7b", "qlora": True, "seq": 512},
    {"model": "qwen2.5-0.5b", "gpus": 8, "gpu": "a100-80gb"},
    {"model": "gpt2", "gpus": 4, "strategy": "zero3", "images": 2},
    {"model": "llama-2-7b", "checkpointing": "full", "precision": "bf16-true", "torch-version": "99.1"},
    {"model": "gpt2", "longest-seq": 512, "seq": 200, "lora-dropout": 0.1},
    {"params": "7B", "seq": 512},
)  # fmt: skip


def test_every_template_has_the_same_slots_in_both_languages() -> None:
    for english, chinese in SENTENCES.items():
        assert set(SLOT.findall(english)) == set(SLOT.findall(chinese)), english


def test_values_are_kept_and_inner_sentences_translated() -> None:
    assert translate("seq 2048 (not given)", "zh") == "序列长度 2048（未给定）"
    assert translate("precision bf16-true: everything in bf16, no master copy", "zh") == (
        "精度 bf16-true：全部为 bf16，没有主副本"
    )
    assert (
        translate("batch must be a whole number, not 'many'", "zh")
        == "batch 必须是整数，而不是 'many'"
    )
    assert translate("nothing like this is known", "zh") == "nothing like this is known"
    assert translate("seq 2048 (not given)", "en") == "seq 2048 (not given)"


@pytest.mark.parametrize("values", JOBS, ids=str)
def test_what_the_engine_says_is_known(values: dict[str, object]) -> None:
    forecast = estimate(job_from(values))
    said = (*forecast.assumptions, *forecast.warnings)
    layouts = re.compile(r"dp \d+")  # `dp 8; fsdp2`: code
    assert [text for text in said if not is_known(text) and not layouts.match(text)] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith(ALL_CHINESE)])
def test_a_chinese_screen_has_no_english_sentence(name: str) -> None:
    text = " ".join(shown(COMMANDS[name], width=400, lang="zh", colour=False).split("\n"))
    assert SENTENCE.findall(text) == []


@pytest.mark.parametrize("command", [each for each in REFUSED if "--lang" not in each])
def test_errors_are_chinese_where_the_terminal_is(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    monkeypatch.setattr("sys.argv", ["vramcast"])
    try:
        code = main(shlex.split(command))
    except SystemExit as ended:  # argparse ends by itself
        code = int(str(ended.code))
    error = capsys.readouterr().err
    assert code == 2
    assert CHINESE.search(error)
    without_lists = re.sub(r"(可用: )[^。]*", r"\1", error)
    assert SENTENCE.findall(without_lists) == []


def test_the_terminals_language_is_respected() -> None:
    assert language_of({"LANG": "zh_CN.UTF-8"}) == "zh"
    assert language_of({"LANG": "zh_TW"}) == "zh"
    assert language_of({"LANG": "de_DE.UTF-8"}) == "en"
    assert language_of({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}) == "en"
    assert language_of({}) == "en"


ERRORS = {"InputError", "UnsupportedError", "TraceError", "OutputError"}
ONLY_VALUES = re.compile(r"[\W\dX]*(at|is|cannot read|lengths)?[\W\dX]*")


@pytest.mark.parametrize("folder", ["cli", "plan", "setup", "sandbox"])
def test_errors_of_commands_are_known_in_chinese(folder: str) -> None:
    """Every error text in the source, with X0, X1 where values stand."""
    for path in sorted((ROOT / "src" / "vramcast" / folder).glob("*.py")):
        if path.name == "accuracy.py":  # for those who work on the project
            continue
        for text in _error_texts(ast.parse(path.read_text(encoding="utf-8"))):
            if not ONLY_VALUES.fullmatch(text):
                assert CHINESE.search(translate(text, "zh")), (path.name, text)


def _error_texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        is_error = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS
        if is_error and isinstance(node.args[0], ast.JoinedStr | ast.Constant):
            yield _with_values(node.args[0])


def _with_values(text: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(text, ast.Constant):
        return str(text.value)
    parts = (
        str(part.value) if isinstance(part, ast.Constant) else f"X{at}"
        for at, part in enumerate(text.values)
    )
    return "".join(parts)


def test_where_each_card_s_context_is_known_from_is_said_in_chinese() -> None:
    four = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){3,}[a-z]{2,}\b")
    for card in all_gpus():
        if card.context_source:
            said = translate(f"{card.context_source}; {LIBRARIES_SOURCE}", "zh")
            assert not four.search(said), card.name
