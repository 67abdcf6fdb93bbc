"""What every command prints with --json is what docs/schema.json says."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from vramcast.cli import COMMANDS, main

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "schema.json").read_text(encoding="utf-8")
)
OOM = (
    "CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 12.75 MiB is "
    "free. Of the allocated memory 76.72 GiB is allocated by PyTorch, and 1.81 GiB is reserved by PyTorch but "
    "unallocated."
)
PRINTED = {
    "estimate": ("forecast", "estimate gpt2 --gpu rtx4090"),
    "check": ("forecast", "check --params 1e9 --gpu rtx4090"),
    "compare": ("comparison", "compare gpt2 distilgpt2"),
    "sweep": ("sweep", "sweep gpt2 --batch 1,2 --seq 64 --gpu rtx4090"),
    "plan": ("plan", "plan gpt2 --gpu 8GiB --batch 32 --seq 512"),
    "fit": ("cards", "fit gpt2 --seq 512"),
    "divide": ("divisions", "divide llama-2-7b --gpus 8 --gpu h100-80gb --seq 4096"),
    "job": ("job", "job --from {folder}/train.yaml"),
    "params": ("params", "params gpt2"),
    "models": ("models", "models gpt2"),
    "gpus": ("gpus", "gpus h100"),
    "host": ("host", "host --batch 2 --seq 64 --workers 2"),
    "diagnose": ("diagnosis", "diagnose {folder}/oom.txt"),
    "snapshot": ("snapshot", "snapshot {folder}/snapshot.pickle --replay"),
}
WITHOUT_JSON = {"completion"}  # it prints a script
ELSEWHERE = {"trace": "tests/virtual", "accuracy": "tests/measured", "serve": "tests/page"}


def segment() -> dict[str, Any]:
    block = {
        "address": 4096,
        "size": 512,
        "requested_size": 500,
        "state": "active_allocated",
        "frames": [],
    }
    free = {
        "address": 4608,
        "size": 2 * 2**20 - 512,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }
    return {
        "device": 0, "address": 4096, "total_size": 2 * 2**20, "allocated_size": 512, "active_size": 512,
        "requested_size": 500, "stream": 0, "segment_type": "small", "is_expandable": False, "frames": [],
        "blocks": [block, free],
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs")
    (path / "oom.txt").write_text(OOM, encoding="utf-8")
    event = {"action": "alloc", "addr": 4096, "size": 500, "stream": 0, "time_us": 1, "frames": []}
    made = {
        "action": "segment_alloc",
        "addr": 4096,
        "size": 2 * 2**20,
        "stream": 0,
        "time_us": 0,
        "frames": [],
    }
    snapshot = {"segments": [segment()], "device_traces": [[made, event]], "allocator_settings": {}}
    training = "model_name_or_path: gpt2\nstage: sft\ntemplate: default\nuse_badam: true\n"
    (path / "train.yaml").write_text(training, encoding="utf-8")
    (path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    return path


def test_every_command_is_held_against_the_schema() -> None:
    assert set(PRINTED) | set(ELSEWHERE) | WITHOUT_JSON == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", PRINTED)
def test_json_is_as_documented(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, line = PRINTED[command]
    assert main([*line.format(folder=folder).split(), "--json"]) in (0, 1)
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == "vramcast/1"
    jsonschema.validate(printed, {**SCHEMA["$defs"][name], "$defs": SCHEMA["$defs"]})
    jsonschema.validate(printed, SCHEMA)


def test_a_forecast_without_its_verdict_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "vramcast/1", "entries": []}, SCHEMA)
