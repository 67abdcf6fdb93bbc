"""Words that people type mean what the Job's own words mean, and two that contradict each other are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.errors import VramcastError
from vramcast.everyday_words import FLAGS_INSTEAD, INSTEAD, KEYS, NO_MEMORY, SWITCHES, VALUES
from vramcast.job import Job, fields, job_from
from vramcast.jobfile import read_job

MODEL = {"model": "llama-3.1-8b"}
SAME = [
    ({"batch-size": 4}, {"batch": 4}),
    ({"per-device-train-batch-size": 4}, {"batch": 4}),
    ({"seq-len": "8k"}, {"seq": 8192}),
    ({"max-seq-length": "128K"}, {"seq": 131072}),
    ({"lora-r": 8}, {"lora-rank": 8}),
    ({"qlora": True}, {"tuning": "qlora"}),
    ({"qlora": True, "lora-rank": 64}, {"tuning": "qlora", "lora-rank": 64}),
    ({"load-in-8bit": True}, {"tuning": "lora", "quantize": "int8"}),
    ({"gradient-checkpointing": "true"}, {"checkpointing": "full"}),
    ({"checkpointing": "on"}, {"checkpointing": "full"}),
    ({"gpu": "8xh100"}, {"gpu": "h100", "gpus": 8}),
    ({"gpu": "2 × rtx3090"}, {"gpu": "rtx3090", "gpus": 2}),
    ({"gpu": "g5.12xlarge"}, {"gpu": "NVIDIA A10G", "gpus": 4}),
    ({"gpu": "g5.12xlarge", "gpus": 2}, {"gpu": "NVIDIA A10G", "gpus": 2}),
    ({"gpu": "2x p5.48xlarge"}, {"gpu": "H100 SXM 80GB", "gpus": 16}),
    (
        {"gpu": "p4d.24xlarge", "gpus": 16},
        {"gpu": "A100 40GB SXM4", "gpus": 16, "gpus-per-node": 8},
    ),
    ({"gpu": "colab-t4"}, {"gpu": "Tesla T4", "gpus": 1}),
    ({"gpu": "16G"}, {"gpu": "16GiB"}),
    ({"attention": "flash_attention_2"}, {"attention": "flash"}),
    ({"optim": "adamw_bnb_8bit"}, {"optimizer": "adamw-8bit"}),
    ({"optim": "adamw_torch_fused"}, {"optimizer": "adamw", "optimizer-impl": "fused"}),
    ({"optimizer": "paged_adamw_32bit"}, {"optimizer": "paged-adamw"}),
    ({"strategy": "fsdp", "gpus": 2}, {"strategy": "fsdp2", "gpus": 2}),
    ({"strategy": "zero-3", "gpus": 2}, {"strategy": "zero3", "gpus": 2}),
    ({"precision": "16-mixed"}, {"precision": "fp16-mixed"}),
    ({"bf16": True}, {}),
    ({"liger": True}, {"loss": "fused", "kernels": "norm,rope,mlp"}),
    ({"quantize": "4bit", "lora-rank": 8}, {"quantize": "nf4", "lora-rank": 8}),
    ({"gpu": "2x4090"}, {"gpu": "4090", "gpus": 2}),
    ({"bits": "4"}, {"quantize": "nf4"}),
    ({"quantize": "nf4", "double-quant": True}, {"quantize": "nf4-double"}),
    ({"double-quant": True, "load-in-4bit": True}, {"tuning": "qlora", "quantize": "nf4-double"}),
    ({"finetuning-type": "lora", "cutoff-len": 4096}, {"tuning": "lora", "seq": 4096}),
    ({"lora-target": "all", "lora": True}, {"lora-targets": "all-linear", "tuning": "lora"}),
    ({"zero-stage": 3, "num-processes": 4}, {"strategy": "zero3", "gpus": 4}),
    (
        {"deepspeed": "zero3_offload", "gpus": 2},
        {"strategy": "zero3", "offload": "all", "gpus": 2},
    ),
    ({"framework": "transformers"}, {"framework": "hf"}),
    ({"framework": "PyTorch-Lightning"}, {"framework": "lightning"}),
    ({"task": "rm", "framework": "trl"}, {"task": "reward", "framework": "trl"}),
    ({"task": "sequence_classification"}, {"task": "classify"}),
    ({"task": "NER"}, {"task": "classify-tokens"}),
    ({"optim": "adam8bit"}, {"optimizer": "adamw-8bit"}),
    (
        {"gradient-checkpointing": "false", "framework": "trl"},
        {"checkpointing": "none", "framework": "trl"},
    ),
]


@pytest.mark.parametrize(("typed", "meant"), SAME)
def test_it_means_the_same(typed: dict[str, Any], meant: dict[str, Any]) -> None:
    assert job_from({**MODEL, **typed}) == job_from({**MODEL, **meant})


@pytest.mark.parametrize(("typed", "meant"), SAME)
def test_it_means_the_same_in_a_file(
    typed: dict[str, Any], meant: dict[str, Any], tmp_path: Path
) -> None:
    def read(name: str, values: dict[str, Any]) -> Job:
        path = tmp_path / name
        lines = [f"{key.replace('-', '_')}: {value}" for key, value in {**MODEL, **values}.items()]
        path.write_text("\n".join(lines), encoding="utf-8")
        return read_job(path)

    assert read("typed.yaml", typed) == read("meant.yaml", meant)


def test_flags_with_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for words in (
        ["--batch_size", "2", "--seq_len=1k", "--gradient_checkpointing"],
        ["--batch", "2", "--seq", "1024", "--checkpointing", "full"],
    ):
        assert main(["estimate", "gpt2", "--json", *words]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({"batch-size": 4, "batch": 2}, "batch-size"),
        ({"gpu": "8xh100", "gpus": 4}, "gpus 4"),
        ({"gpu": "g5.12xlarge", "gpus": 5}, "gpus 5"),
        ({"seq": "8kk"}, "seq"),
        ({"strategy": "deepspeed"}, "zero1, zero2 or zero3"),
        ({"precision": "int4"}, "--qlora"),
        ({"task": "rlhf"}, "dpo, grpo or ppo"),
        ({"deepspeed": "ds_z3.json"}, "--from"),
        ({"zero-stage": 4}, "zero-stage"),
        ({"optimizer": "adamw_9bit"}, "optimizer"),
    ],
)
def test_contradictions_and_unknown_words_are_named(typed: dict[str, Any], named: str) -> None:
    with pytest.raises(VramcastError, match=named):
        job_from({**MODEL, **typed})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gpt2 --bf16 True --gradient_checkpointing true", "gpt2 --bf16 --checkpointing full"),
        ("gpt2 --gradient-checkpointing=False", "gpt2 --checkpointing none"),
        ("gpt2 --no-gradient-checkpointing", "gpt2 --checkpointing none"),
        ("gpt2 --fsdp full_shard --gpus 2", "gpt2 --strategy fsdp2 --gpus 2"),
        ("--model gpt2 --seq 64", "gpt2 --seq 64"),
        ("--model_name_or_path gpt2 --lora", "--lora gpt2"),
    ],
)
def test_lines_copied_from_launch_scripts(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for line in (typed, meant):
        assert main(["estimate", "--json", *line.split()]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_words_of_launch_scripts_inside_a_compared_job(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ("gpt2 --batch_size 4 --bf16 True", "gpt2 --batch 4 --bf16")
    assert main(["compare", *jobs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second = (each["verdict"] for each in found["forecasts"])
    assert first == second


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--learning_rate 1e-4", "--learning-rate changes no memory: leave it out"),
        ("--global-batch-size 64", "--batch, which is per card, and --accumulate"),
        ("--lora-ranks 8", "did you mean --lora-rank?"),
        ("--vram 24", "--gpu 24GiB"),
    ],
)
def test_flags_of_other_tools_are_refused_with_what_to_say_instead(
    flag: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", "gpt2", *flag.split()])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_words_with_advice_are_not_accepted_elsewhere() -> None:
    known = fields()
    flags = {*known, *KEYS, *SWITCHES}
    assert not flags & ({*FLAGS_INSTEAD} | NO_MEMORY)
    for key, word in INSTEAD:
        assert word not in VALUES.get(key, {})
        assert word not in known[key].metadata["choices"]


def test_every_word_leads_to_one_that_exists() -> None:
    known = fields()
    assert set(KEYS.values()) <= set(known)
    assert not set(KEYS) & set(known)
    assert {key for said in SWITCHES.values() for key in said} <= set(known)
    for key, words in VALUES.items():
        choices = known[key].metadata["choices"]
        assert not choices or {word for word in words.values() if word} <= set(choices)
        assert not set(words) & set(choices)


def test_help_shows_what_matters_and_help_all_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main(["estimate", flag])
        assert ended.value.code == 0
        texts.append(capsys.readouterr().out)
    short, long = texts
    assert "--batch N" in short
    assert "--expert-capacity" not in short
    assert "--expert-capacity" in long
    assert len(short.splitlines()) < 130 < len(long.splitlines())
