"""What files say that matters and is not counted: in the verdict of every command, as JSON, in both languages."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramcast import configs
from vramcast.cli import main
from vramcast.report.words.sentences import is_known, translate

AXOLOTL = (
    "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nsequence_len: 512\n"
    "micro_batch_size: 1\nbf16: true\ntiled_mlp: true\n"
)
COMMANDS = (
    ("estimate", "--gpu", "rtx4090"),
    ("check", "--gpu", "rtx4090"),
    ("plan", "--gpu", "rtx4090"),
    ("fit",),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "train.yaml"
    made.write_text(AXOLOTL)
    return made


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_first_line_says_it(
    path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command, "--from", str(path), "--lang", "en"])
    out = capsys.readouterr().out
    assert "settings that matter and are not counted: 1" in out.splitlines()[0]
    assert command[0] == "check" or "the tiled MLP is counted whole: too much" in out
    main([*command, "--from", str(path), "--lang", "zh"])
    out = capsys.readouterr().out
    assert "影响显存但未计入的设置: 1 个" in out.splitlines()[0]
    assert command[0] == "check" or "分块 MLP 按整体计算: 偏多" in out
    main([*command, "--from", str(path), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert ["tiled_mlp" in text for text in data["not_understood"]] == [True]
    if "verdict" in data:
        assert data["verdict"]["num_not_understood"] == 1


def test_a_diagnosis_says_it(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 "
        "GiB of which 1.00 GiB is free. Process 1 has 22.00 GiB memory in use. Of the allocated memory 20.00 GiB is "
        "allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated.\n"
    )
    main(["diagnose", str(log), "--from", str(path), "--lang", "en"])
    assert "not counted:" in capsys.readouterr().out
    main(["diagnose", str(log), "--from", str(path), "--json"])
    assert len(json.loads(capsys.readouterr().out)["not_understood"]) == 1


def _texts(node: ast.expr, names: dict[str, ast.expr]) -> Iterator[str]:
    """Sentences as templates: what is filled in is a slot."""
    if isinstance(node, ast.Name) and node.id in names:
        yield from _texts(names[node.id], names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "SLOT" for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body, names), *_texts(node.orelse, names))


def _said(path: Path) -> Iterator[str]:
    """Every reason of a gap and every assumption that a module of configs has words for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for name, value in names.items():
        if "GAPS" in name and isinstance(value, ast.Dict):
            yield from (text for each in value.values for text in _texts(each, names))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("gap", "Gap", "assume"):
            last = [*node.args, *(each.value for each in node.keywords if each.arg == "text")][-1]
            yield from _texts(last, names)
        for each in node.keywords:
            if each.arg == "gaps" and isinstance(each.value, ast.Dict):
                yield from (
                    text for value in each.value.values if value for text in _texts(value, names)
                )


def test_everything_that_readers_say_is_known_in_chinese() -> None:
    folder = Path(configs.__file__).parent
    said = [text for path in sorted(folder.glob("*.py")) for text in _said(path) if text]
    assert len(said) > 200
    unknown = [
        text for text in said if not (is_known(text) or is_known(f"a.yaml:1 key: 1: {text}"))
    ]
    assert unknown == []


def test_a_gap_keeps_its_place_in_chinese() -> None:
    text = "a.yaml:3 tiled_mlp: True: the tiled MLP is counted whole: too much"
    assert translate(text, "zh") == "a.yaml:3 tiled_mlp: True: 分块 MLP 按整体计算: 偏多"
