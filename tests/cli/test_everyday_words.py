"""Words that people type mean what the Job's own words mean, and two that contradict each other are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.errors import VramcastError
from vramcast.everyday_words import KEYS, SWITCHES, VALUES
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
        ({"strategy": "deepspeed"}, "strategy"),
        ({"optimizer": "adamw_9bit"}, "optimizer"),
    ],
)
def test_contradictions_and_unknown_words_are_named(typed: dict[str, Any], named: str) -> None:
    with pytest.raises(VramcastError, match=named):
        job_from({**MODEL, **typed})


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
