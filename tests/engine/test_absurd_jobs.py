"""Numbers that are typing mistakes are told apart from jobs, and told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.cli import main

ABSURD = {
    "batch": (["--batch", "1000000000000000"], "batch must be at most"),
    "rank": (["--lora-rank", "1000000000000000"], "lora-rank must be at most"),
    "gpus": (["--gpus", "1000000007", "--tp", "2"], "gpus must be at most 1048576"),
    "hidden layers": (["--edit", "h.0", "--edit-hidden", "1000000"], "edit-hidden must be at most"),
    "together": (["--batch", "10000000", "--seq", "10000000"], "beyond any GPU"),
    "workspace": (["--cublas-workspace", ":999999999:999999999"], "cublas-workspace must be pairs"),
    "float": (["--lora-dropout", "1e999"], "lora-dropout must be between 0 and 1"),
}


@pytest.mark.parametrize(("words", "says"), ABSURD.values(), ids=ABSURD.keys())
@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_an_absurd_number_is_one_line(
    command: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "pythia-14m", "--gpu", "8GiB", *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_what_64_bits_cannot_count_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(
        ["plan", "pythia-14m", "--gpu", "8GiB", "--lora-rank", "100000000", "--batch", "90000000"]
    ) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


JOB_FILES = {
    "an alias of itself": ("lora-targets: &a [*a]", "nested keys or lists"),
    "a date that is none": (
        "lora-targets: !!timestamp 99999-99-99",
        "'99999-99-99' is no timestamp",
    ),
    "a tag that lies": ("dora: !!bool maybe", "'maybe' is no bool"),
    "a number without end": (f"lora-dropout: 0x{'f' * 400}", "lora-dropout must be a number"),
    "a key that is a list": ("[a, b]: 1", "a key is one word"),
    "a long value": (f"freeze: [{'a' * 5000}]", "a value of 5,000 characters"),
    "minutes of sixty": (f"batch: 1{':1' * 5000}", "a value of 10,001 characters"),
    "a nest": (f"freeze: {'[' * 5000}", "not YAML"),
}


@pytest.mark.parametrize(("line", "says"), JOB_FILES.values(), ids=JOB_FILES.keys())
def test_an_odd_job_file_is_one_line(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"model: gpt2\n{line}\n", encoding="utf-8")
    assert main(["estimate", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vramcast: {path}:2: ") or "not YAML" in said
    assert says in said
    assert said.count("\n") == 1


GEMMA = {
    "model_type": "gemma2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 4, "intermediate_size": 64, "vocab_size": 100,
}  # fmt: skip
CONFIGS = {
    "too few kinds of layers": ({**GEMMA, "layer_types": ["sliding_attention"]}, (), "1 entries for 4 layers"),
    "too many layers": ({**GEMMA, "num_hidden_layers": 4000}, (), "must be at most 1024"),
    "a head without a size": (
        {**GEMMA, "model_type": "llama", "head_dim": "wide"},
        ("--framework", "megatron", "--precision", "megatron-bf16"),
        "head_dim must be an integer",
    ),
    "heads without end": (
        {**GEMMA, "model_type": "llama", "num_key_value_heads": 10**30 + 1}, ("--gpus", "2", "--tp", "2"),
        "num_key_value_heads must be an integer",
    ),
    "no key or value heads": (
        {**GEMMA, "model_type": "llama", "num_key_value_heads": 0}, ("--gpus", "2", "--tp", "2"),
        "num_key_value_heads must be an integer",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "words", "says"), CONFIGS.values(), ids=CONFIGS.keys())
def test_an_odd_config_is_one_line(
    config: dict[str, object],
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert main(["estimate", str(path), *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
