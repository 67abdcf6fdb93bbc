"""The version of the framework whose files are read: who says it, what it decides, and that it is printed.

Defaults as the frameworks have them at their tags: TRL's bf16 (0.19), gradient_checkpointing (0.22), GRPO's beta (0.04
before 0.19) and vllm_mode (server before 1.0), LLaMA-Factory's cutoff_len (1024 before 0.9.1), verl's
enable_gradient_checkpointing (off before 0.2), ms-swift's max_length and freeze_vit (2048 and off before 3.0).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.configs import Understood, job_of_files, understand
from vramcast.errors import InputError
from vramcast.job import Job

TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\nuse_peft: false\nper_device_train_batch_size: 2\n"
GRPO = f"{TRL}reward_funcs: [accuracy]\nmax_completion_length: 256\nuse_vllm: true\n"
FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ndo_train: true\nfinetuning_type: lora\ntemplate: qwen\n"
VERL = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8\n"
)
SWIFT = "swift sft --model Qwen/Qwen2.5-VL-3B-Instruct --train_type lora --torch_dtype bfloat16\n"


def _read(
    folder: Path, name: str, text: str, version: str | None = None, **others: str
) -> tuple[Job, Understood]:
    for other, content in others.items():
        (folder / other.replace("_", ".", 1)).write_text(content)
    path = folder / name
    path.write_text(text)
    return job_of_files(understand([path], version=version), {})


@pytest.mark.parametrize(
    ("name", "text", "key", "version", "old", "new"),
    [
        ("sft.yaml", TRL, "precision", "0.18.2", "fp32", "bf16-mixed"),
        ("sft.yaml", TRL, "checkpointing", "0.21", None, "full"),
        ("grpo.yaml", GRPO, "reference", "0.18", "same", None),
        ("grpo.yaml", GRPO, "rollout-engine", "0.29", None, "vllm"),
        ("lf.yaml", FACTORY, "seq", "0.9.0", 1024, 2048),
        ("lf.yaml", FACTORY, "seq", "0.9.1", 2048, 2048),
        ("run.sh", VERL, "checkpointing", "0.1", "none", "full"),
        ("sft.sh", SWIFT, "seq", "2.6.1", 2048, None),
        ("sft.sh", SWIFT, "freeze", "2.6.1", None, ("*visual.patch_embed*", "*visual.blocks*", "*visual.merger*")),
    ],
)  # fmt: skip
def test_a_version_decides_defaults(
    tmp_path: Path, name: str, text: str, key: str, version: str, old: Any, new: Any
) -> None:
    _, before = _read(tmp_path, name, text, version)
    _, today = _read(tmp_path, name, text)
    assert before.values.get(key) == old
    assert today.values.get(key) == new


def test_the_transformers_of_trl_s_day_goes_with_it(tmp_path: Path) -> None:
    job, _ = _read(tmp_path, "sft.yaml", TRL, "0.15.2")
    assert (job.trl_version, job.transformers_version) == ("0.15.2", "4.49")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "torch==2.6.0\ntrl==0.18.0\n"),
        ("uv.lock", '[[package]]\nname = "trl"\nversion = "0.18.0"\n'),
    ],
)
def test_a_pin_beside_the_files_says_it(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    job, understood = _read(tmp_path, "sft.yaml", TRL)
    assert understood.values.get("checkpointing") is None
    assert job.trl_version == "0.18.0"
    assert str(tmp_path / name) in understood.version.origin


def test_the_flag_wins_over_a_pin(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("trl==0.18.0\n")
    job, understood = _read(tmp_path, "sft.yaml", TRL, "1.2")
    assert job.trl_version == "1.2"
    assert understood.version.origin == "--framework-version"


def test_a_notebook_installs_its_versions(tmp_path: Path) -> None:
    cells = [
        "!pip install -q trl==0.9.6 'transformers[torch]==4.44.2'",
        "from trl import SFTConfig, SFTTrainer\n"
        "args = SFTConfig(per_device_train_batch_size=2, max_seq_length=512)\n"
        "SFTTrainer(model='Qwen/Qwen2.5-0.5B', args=args)",
    ]
    made = {"cells": [{"cell_type": "code", "source": [each]} for each in cells]}
    job, understood = _read(tmp_path, "train.ipynb", json.dumps(made))
    assert (job.trl_version, job.transformers_version) == ("0.9.6", "4.44.2")
    assert "checkpointing" not in understood.values


def test_what_is_no_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="written like"):
        _read(tmp_path, "sft.yaml", TRL, "main")


def test_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lf.yaml"
    path.write_text(FACTORY)
    assert main(["job", "--from", str(path), "--framework-version", "0.9.0"]) == 0
    assert "# defaults of LLaMA-Factory 0.9.0 (--framework-version)" in capsys.readouterr().out
    assert main(["estimate", "--from", str(path), "--gpu", "h100-80gb"]) == 0
    assert "defaults of LLaMA-Factory 0.9.6, read 2026-08-18" in capsys.readouterr().out
    assert main(["job", "--from", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["framework_version"] == {
        "version": "0.9.6",
        "origin": None,
    }


def test_without_files_it_says_which_flags_are_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2", "--framework-version", "1.0"]) == 2
    assert "--trl-version" in capsys.readouterr().err
