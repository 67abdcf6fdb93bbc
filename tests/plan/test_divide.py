"""`vramcast divide`: every legal division of a cluster, with errors that name a way forward."""

from __future__ import annotations

import json

import pytest

from vramcast.cli import main
from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.divisions import search_divisions
from vramcast.job import job_from


def printed(capsys: pytest.CaptureFixture[str], line: str) -> str:
    main(["divide", *line.split()])
    shown = capsys.readouterr()
    return shown.out + shown.err


def test_the_first_line_is_the_peak_that_estimate_gives(capsys: pytest.CaptureFixture[str]) -> None:
    line = "llama-2-7b --gpus 16 --strategy fsdp2 --seq 4096 --json --top 3"
    found = json.loads(printed(capsys, line))
    first = found["divisions"][0]
    chosen = {name: first[name] for name in ("tp", "pp", "cp", "batch")} | {
        "checkpointing": first["recompute"]
    }
    job = job_from({"model": "llama-2-7b", "gpus": 16, "strategy": "fsdp2", "seq": 4096, **chosen})
    assert first["allocated_bytes"] == max(rank.allocated_bytes for rank in estimate(job).ranks)
    assert len(found["divisions"]) == 3 < found["legal"]
    assert found["fitting"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"model": "llama-3.1-8b", "strategy": "fsdp2", "gpus": 16, "seq": 8192},
        {"model": "gpt2", "gpus": 8},
        {
            "model": "qwen3-30b-a3b",
            "gpus": 64,
            "ep": 8,
            "strategy": "fsdp2",
            "framework": "torchtitan",
        },
    ],
    ids=lambda values: values["model"],
)
def test_small_activations_and_experts_are_searched_as_they_are_estimated(
    values: dict[str, object],
) -> None:
    job = job_from(values)
    found = search_divisions(job)
    for each in found[:: len(found) // 5]:
        assert each.allocated_bytes == max(
            rank.allocated_bytes for rank in estimate(each.job(job)).ranks
        ), each


def test_a_given_size_is_kept_and_lists_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    line = "llama-2-7b --gpus 8 --tp 2 --batch 1,3 --checkpointing full --seq 2048 --json --top 999"
    found = json.loads(printed(capsys, line))["divisions"]
    assert {each["tp"] for each in found} == {2}
    assert {each["batch"] for each in found} == {1, 3}
    assert {each["recompute"] for each in found} == {"full"}


def test_the_exit_code_says_whether_anything_fits() -> None:
    line = "divide llama-2-7b --gpus 8 --strategy fsdp2 --seq 2048"
    assert main([*line.split(), "--gpu", "h100-80gb"]) == 0
    assert main([*line.split(), "--gpu", "2GiB"]) == 1


def test_it_speaks_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    assert "种有效布局" in printed(capsys, "llama-2-7b --gpus 8 --lang zh")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("gpt2", "--gpus N"),
        ("llama-2-7b --gpus 7 --tp 3", "no valid layout of 7 GPUs with tp 3"),
        ("llama-2-7b --gpus 8 --checkpointing some", "Known: full, none, selective"),
        ("llama-2-7b --gpus 8 --top 0", "--top must be at least 1"),
        ("llama-2-7b --gpus 8 --batch 0", "batch must be numbers or ranges"),
        ("llama-2-7b --gpus 8 --strategy zero3", "search with strategy fsdp2"),
        ("deepseek-v3 --gpus 256", "layers of 2 kinds"),
        ("--params 7e9 --gpus 8", "needs a model"),
    ],
)
def test_errors_name_a_way_forward(
    capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    assert says in printed(capsys, line)
