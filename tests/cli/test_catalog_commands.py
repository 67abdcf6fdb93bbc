"""`params`, `models` and `gpus` as a user meets them: text, markdown, JSON, Chinese, pipes and wrong input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vramcast.cli import main
from vramcast.models.blocks import layer_ranges
from vramcast.report.table import Column, Row, Table, as_markdown, as_text


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    return err if code else out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    data = json.loads(shown(capsys, *arguments, "--json"))
    assert data["schema"] == "vramcast/1"
    return data


def test_the_bill_of_phi_3_adds_up_to_its_total(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "params", "phi-3-mini")
    assert text.startswith(
        "phi-3-mini-4k: 3,821,079,552 parameters, 14.23 GiB in fp32, 7.12 GiB in 16 bit\n"
    )
    blocks = [line for line in text.splitlines()[3:] if line and not line.startswith(" ")]
    lines = [line for line in text.splitlines()[3:] if line.startswith("  ")]
    figure = re.compile(r"([\d,]+) +[\d.]+%$")

    def total(rows: list[str]) -> int:
        return sum(int(match[1].replace(",", "")) for row in rows if (match := figure.search(row)))

    assert total(blocks[:-1]) == total(blocks[-1:]) == total(lines) == 3_821_079_552
    assert "model.layers: layers 0-31 (×32)" in text


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    data = as_json(capsys, "params", "phi-3-mini", "--all")
    assert data["model"] == {
        "name": "phi-3-mini-4k",
        "params_total": 3_821_079_552,
        "params_trainable": 3_821_079_552,
    }
    assert sum(block["params"] for block in data["blocks"]) == 3_821_079_552
    assert (
        sum(tensor["params"] for tensor in data["tensors"] if tensor["tied_to"] is None)
        == 3_821_079_552
    )
    assert len(data["tensors"]) == 1 + 32 * 6 + 2


def test_a_tied_head_is_shown_and_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "params", "qwen2.5-0.5b")
    assert "494,032,768 parameters" in text
    assert re.search(r"lm_head\.weight +151936×896 +tied$", text, re.MULTILINE)
    assert "lm_head.weight is the same tensor as model.embed_tokens.weight" in text


def test_experts_stored_one_by_one_are_one_line_per_layer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tensors = {
        f"layers.{i}.experts.{j}.w.weight": torch.zeros(2, 3) for i in range(2) for j in range(5)
    }
    save_file(tensors, tmp_path / "w.safetensors")
    text = shown(capsys, "params", str(tmp_path / "w.safetensors"))
    assert re.search(r"layers: layers 0-1 \(×2\) +30 +60 ", text)
    assert re.search(r"experts\.\*\.w\.weight ×5 +2×3 +30 +60 ", text)
    assert "warning: no config.json" in text


def test_all_lists_every_tensor_by_its_full_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "params", "phi-3-mini", "--all")
    assert text.count("mlp.down_proj.weight") == 32
    assert "model.layers.31.mlp.down_proj.weight" in text


def test_gpus_show_what_cuda_reports_and_admit_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "gpus")
    assert re.search(r"A100 80GB SXM4 +79\.32 GiB +80 GB", text)
    assert re.search(r"NVIDIA A16 +unknown +16 GB", text)
    (a16,) = [gpu for gpu in as_json(capsys, "gpus")["gpus"] if gpu["name"] == "NVIDIA A16"]
    assert a16["capacity_bytes"] is None
    assert "memory size not in the catalog" in a16["capacity_gap"]


def test_search_narrows_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "gpus", "l40").startswith("2 GPUs\n")
    assert {model["name"] for model in as_json(capsys, "models", "mixtral")["models"]} == {
        "mixtral-8x7b",
        "mixtral-8x22b",
    }
    # A spelling that is no part of a name still finds its card.
    assert "H100 SXM 80GB" in shown(capsys, "gpus", "h100-80gb-sxm")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("params", "phi-4-mni"), "unknown model 'phi-4-mni'"),
        (("params", "nowhere.json"), "no such file"),
        (("gpus", "rtx9999"), "unknown GPU 'rtx9999'"),
        (("models", "llamma-3-8b"), "Did you mean llama-3-8b"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    text = shown(capsys, *arguments, code=2)
    assert said in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("params",), ("gpus", "--lang", "fr"), ("models", "--jsn"), ("params", "a", "b")]
)
def test_a_mistake_in_the_flags_is_one_line_too(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith(f"vramcast {arguments[0]}: ")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("params", "qwen2.5-0.5b"), ("models", "qwen"), ("gpus",), ("gpus", "a10")]
)
def test_chinese_and_markdown_keep_the_figures(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    figures = re.compile(r"\d[\d,]{3,}")
    english = figures.findall(shown(capsys, *arguments))
    assert english
    assert figures.findall(shown(capsys, *arguments, "--lang", "zh")) == english
    assert figures.findall(shown(capsys, *arguments, "--markdown")) == english


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m vramcast models --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_text_is_folded_to_a_terminal_and_never_cut() -> None:
    table = Table(
        title="t",
        columns=(Column(title="a"), Column(title="b")),
        rows=(Row(cells=("x" * 50, "y" * 50)),),
    )
    narrow = as_text(table, 40)
    assert max(map(len, narrow.splitlines())) <= 40
    assert (narrow.count("x"), narrow.count("y")) == (50, 50)
    assert "x" * 50 in as_text(table)


def test_a_strangers_name_does_not_become_markup() -> None:
    table = Table(title="a|b", columns=(Column(title="c"),), rows=(Row(cells=("<b>|*_[red]",)),))
    text = as_markdown(table)
    assert "<b>" not in text
    assert "\\|" in text
    assert "[red]" in as_text(table)


def test_ranges_of_layers_are_short() -> None:
    assert layer_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
