"""Files that want to do harm, or cannot be: one clear line, nothing run, nothing opened elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vramcast.configs import job_of_files, understand
from vramcast.errors import VramcastError

LF = "model_name_or_path: qwen2.5-7b\nstage: sft\ntemplate: qwen\n"


def refused(path: Path, **flags: object) -> str:
    with pytest.raises(VramcastError) as caught:
        job_of_files(understand([path]), flags)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_ring_of_links(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.symlink_to(path)
    assert "train.yaml" in refused(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_devices_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.sh")
    assert "pipe" in refused(tmp_path / "train.sh")
    assert "device" in refused(Path("/dev/zero"))


def test_a_script_takes_nothing_in_from_elsewhere(tmp_path: Path) -> None:
    """Neither by `source`, nor through a link that lies beside it."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret.sh").write_text("LEN=77\n")
    (tmp_path / "inner/link.sh").symlink_to(tmp_path / "secret.sh")
    script = "LEN=512\nsource /dev/zero\nsource ../secret.sh\nsource link.sh\n"
    script += "swift sft --model qwen2.5-0.5b --max_length $LEN\n"
    path = tmp_path / "inner/run.sh"
    path.write_text(script)
    job, understood = job_of_files(understand([path]), {})
    assert job.seq == 512
    assert sum("which is not read" in text for text in understood.assumptions) == 3


def test_files_that_source_themselves(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("source run.sh\nswift sft --model qwen2.5-0.5b --max_length 512\n")
    assert job_of_files(understand([path]), {})[0].seq == 512


def test_parents_in_a_ring_and_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "base.yaml").write_text("policy:\n  train_micro_batch_size: 9\n")
    first, second = tmp_path / "inner/a.yaml", tmp_path / "inner/b.yaml"
    first.write_text("defaults: [b.yaml, ../base.yaml]\npolicy:\n  model_name: qwen2.5-0.5b\n")
    second.write_text(
        "defaults: a.yaml\npolicy:\n  train_micro_batch_size: 3\n  model_name: gpt2\n"
    )
    job, understood = job_of_files(understand([first]), {"seq": 512})
    assert (job.model, job.batch) == ("qwen2.5-0.5b", 3)
    assert any("outside of the given folders" in str(gap) for gap in understood.gaps)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("train.sh", "if [ a = a ]; then\n" * 20_000, "more than 50,000 words"),
        ("train.sh", "case $1 in\n" * 20_000, "no command"),
        ("train.sh", "A=" + "x" * 200_000 + "\n", "more than 100,000 characters"),
        ("train.py", "x = " + "(" * 5000 + "1" + ")" * 5000, "not Python"),
        ("train.ipynb", '{"cells": 3}', "not a notebook"),
        ("train.yaml", "MODE: inference\nMODEL_ARGS:\n  --micro-batch-size: 1\n", "trains nothing"),
        ("chat.yaml", "model_name_or_path: qwen2.5-7b\ntemplate: qwen\ninfer_backend: vllm\n", "trains nothing"),
        ("train.yaml", "tokens:\n  micro_batch_size: 1e400\nparallelism:\n  tp_mode: x\n", "whole number"),
        ("train.yaml", "policy:\n  model_name: gpt2\n  train_micro_batch_size: 1\ncluster:\n  gpus_per_node: x\n",
         "gpus_per_node must be a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert says in refused(path)


def test_zero_3_with_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 3}, "pipeline": {"stages": 2}}'
    )
    path = tmp_path / "train.yaml"
    path.write_text(f"{LF}deepspeed: ds.json\n")
    assert "zero3 with 2 pipeline stages" in refused(path)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert "--pp" in refused(path, pp=4)
