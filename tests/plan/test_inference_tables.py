"""plan, sweep and divide of jobs that generate: tables of changes, sizes and layouts."""

from __future__ import annotations

import json

import pytest

from vramcast.cli import main
from vramcast.engine import estimate
from vramcast.job import job_from

GENERATE = ["qwen3-8b", "--task", "generate", "--gpu", "rtx4090"]
HYBRID = [
    "qwen2.5-7b",
    "--gpus",
    "8",
    "--gpu",
    "h100",
    "--framework",
    "verl",
    "--strategy",
    "fsdp2",
]
HYBRID += ["--rollout-engine", "vllm"]


def test_a_plan_of_generate_is_inference_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *GENERATE, "--prompt", "30000", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    flags = [change["flag"] for change in answer["changes"]]
    assert "--kv-cache quantized" in flags
    assert not [flag for flag in flags if "optimizer" in flag or "checkpointing" in flag]
    for change in answer["changes"]:
        said = dict(zip(("key", "value"), change["flag"].removeprefix("--").split(), strict=True))
        job = job_from(
            {"model": "qwen3-8b", "task": "generate", "gpu": "rtx4090", "prompt": 30000}
            | {said["key"]: said["value"]}
        )
        assert estimate(job).verdict().highest_bytes == change["peak_bytes"]


def test_one_pass_that_does_not_fit_may_drop_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "qwen3-8b", "--task", "score", "--gpu", "rtx4090", "--seq", "12000", "--json"]
    main(words)
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert [
        change["frees_bytes"] > 0 for change in changes if change["flag"] == "--no-use-cache"
    ] == [True]


def test_a_sweep_of_generate_is_its_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *GENERATE, "--batch", "1,8", "--seq", "1024,8192", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    for line in lines:
        batch, prompt, nbytes = map(int, line.split(","))
        job = job_from(
            {"model": "qwen3-8b", "task": "generate", "gpu": "rtx4090"}
            | {"batch": batch, "prompt": prompt}
        )
        assert estimate(job).ledger.peak("cuda:0").allocated_bytes == nbytes
    assert len(lines) == 4


def test_a_sweep_of_rollouts_counts_their_phases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *HYBRID, "--batch", "1", "--seq", "2048", "--json"]) == 0
    point = json.loads(capsys.readouterr().out)["points"][0]
    said = {
        "model": "qwen2.5-7b",
        "gpus": 8,
        "gpu": "h100",
        "framework": "verl",
        "strategy": "fsdp2",
    }
    forecast = estimate(job_from(said | {"rollout-engine": "vllm", "batch": 1, "seq": 2048}))
    assert point["allocated_bytes"] == forecast.ledger.peak("cuda:0").allocated_bytes


def test_layouts_of_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "divide",
        "llama-3.1-70b",
        "--engine",
        "vllm",
        "--gpus",
        "8",
        "--gpu",
        "h100",
        "--json",
    ]
    assert main(words) == 0
    layouts = json.loads(capsys.readouterr().out)["layouts"]
    assert sorted((each["tp"], each["pp"]) for each in layouts) == [(1, 8), (2, 4), (4, 2), (8, 1)]
    tokens = [each["served"]["kv_tokens"] for each in layouts]
    assert tokens == sorted(tokens, reverse=True)
    one = next(each for each in layouts if each["tp"] == 8)
    said = {"model": "llama-3.1-70b", "engine": "vllm", "gpu": "h100", "gpus": 8, "tp": 8}
    found = estimate(job_from(said)).served
    assert found is not None
    assert one["served"]["kv_tokens"] == found.kv_tokens


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_engine_that_starts_in_no_layout(lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["divide", "llama-3.1-405b", "--engine", "vllm", "--gpus", "2", "--gpu", "h100"]
    assert main([*words, "--lang", lang]) == 1
    assert {"en": "would not start", "zh": "无法启动"}[lang] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("divide qwen3-8b --engine llama.cpp --gpus 2 --gpu h100 --gguf q4_k_m", "in one way"),
        (
            "divide qwen3-8b --engine vllm --gpus 8 --gpu h100 --tp 3",
            "no layout of 8 GPUs has tp 3",
        ),
        ("sweep qwen3-8b --task generate --gpu rtx4090 --batch 1..64 --seq 1..4096:8", "too many"),
    ],
)
def test_what_a_table_cannot_tell(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_layouts_of_rollouts_are_whole_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["divide", *HYBRID, "--seq", "2048", "--tp", "1", "--batch", "1", "--json"]
    assert main([*words, "--checkpointing", "full"]) == 0
    first = json.loads(capsys.readouterr().out)["divisions"][0]
    said = {
        "model": "qwen2.5-7b",
        "gpus": 8,
        "gpu": "h100",
        "framework": "verl",
        "strategy": "fsdp2",
    }
    said |= {"rollout-engine": "vllm", "batch": 1, "seq": 2048, "checkpointing": "full"}
    said |= {name: first[name] for name in ("tp", "pp", "cp")}
    peak = estimate(job_from(said)).ledger.peak("cuda:0").allocated_bytes
    assert first["allocated_bytes"] == peak
