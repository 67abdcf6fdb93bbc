"""Training scripts and notebooks in Python, read by their syntax tree; expressed by hand first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.configs import Understood, job_of_files, understand
from vramcast.errors import VramcastError
from vramcast.job import Job


def job_in(path: Path, text: str, **flags: Any) -> tuple[Job, Understood]:
    path.write_text(text, encoding="utf-8")
    return job_of_files(understand([path]), flags)


def check(job: Job, **expected: Any) -> None:
    assert {key: getattr(job, key) for key in expected} == expected


UNSLOTH = """
from unsloth import FastLanguageModel
max_seq_length = 4096
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "qwen2.5-7b", max_seq_length = max_seq_length, dtype = None, load_in_4bit = True,
)
model = FastLanguageModel.get_peft_model(
    model, r = 32, target_modules = ["q_proj", "v_proj"], lora_alpha = 16, lora_dropout = 0,
    use_gradient_checkpointing = "unsloth", random_state = 3407,
)
from trl import SFTConfig, SFTTrainer
trainer = SFTTrainer(model = model, args = SFTConfig(
    per_device_train_batch_size = 2, gradient_accumulation_steps = 4, optim = "adamw_8bit",
    fp16 = not is_bfloat16_supported(), bf16 = is_bfloat16_supported(), warmup_steps = 5,
))
"""
EXPECTED_UNSLOTH = {
    "framework": "unsloth", "model": "qwen2.5-7b", "seq": 4096, "batch": 2, "accumulate": 4, "optimizer": "adamw-8bit",
    "lora_rank": 32, "lora_targets": ("q_proj", "v_proj"), "quantize": "nf4-double", "checkpointing": "offload",
}  # fmt: skip


def test_an_unsloth_script(tmp_path: Path) -> None:
    job, understood = job_in(tmp_path / "train.py", UNSLOTH)
    check(job, **EXPECTED_UNSLOTH)
    assert (understood.gaps, understood.unknown) == ((), ())


def test_an_unsloth_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["per_device_train_batch_size = 64"]},
        {"cell_type": "code", "source": ["%%capture\n", "!pip install unsloth\n"]},
        {"cell_type": "code", "source": UNSLOTH.splitlines(keepends=True)},
    ]
    job, understood = job_in(tmp_path / "train.ipynb", json.dumps({"cells": cells}))
    check(job, **EXPECTED_UNSLOTH)
    assert "train.ipynb cell 2:" in understood.said["batch"].origin


def test_a_model_object_keeps_its_dtype(tmp_path: Path) -> None:
    text = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
NAME = "qwen2.5-7b"
tokenizer = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.bfloat16, attn_implementation="flash_attention_2")
args = SFTConfig(per_device_train_batch_size=2, max_length=512, use_liger_kernel=True)
trainer = SFTTrainer(model=model, args=args)
"""
    job, _ = job_in(tmp_path / "train.py", text)
    check(
        job,
        framework="trl",
        precision="bf16-autocast",
        attention="flash",
        loss="fused",
        seq=512,
        tuning="full",
    )


def test_a_trainer_with_adapters_over_quantised_weights(tmp_path: Path) -> None:
    text = """
from transformers import *
from peft import LoraConfig, get_peft_model
config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained("llama-3.1-8b", quantization_config=config)
model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.1))
Trainer(model, TrainingArguments("out", per_device_train_batch_size=1, gradient_checkpointing=True, bf16=True))
"""
    job, _ = job_in(tmp_path / "train.py", text)
    check(
        job,
        framework="hf",
        quantize="nf4-double",
        lora_rank=8,
        lora_dropout=0.1,
        checkpointing="full",
        batch=1,
    )


def test_nothing_of_it_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    job_in(
        tmp_path / "train.py",
        f"open({str(trap)!r}, 'w').close()\nimport nothing_like_this\n{UNSLOTH}",
    )
    assert not trap.exists()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.py", "x = (", "not Python"),
        ("a.py", "print('hello')", "vramcast trace"),
        (
            "a.py",
            "parser = TrlParser((A, SFTConfig))\nSFTTrainer(args=args)",
            "from the command line",
        ),
        ("a.py", "x = " + "(" * 5000, "not Python"),
        ("a.ipynb", "[]", "not a notebook"),
        ("a.ipynb", "{", "not a notebook"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(VramcastError, match=says):
        job_in(tmp_path / name, text)


def test_a_method_of_peft_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for name, kind, named in (("IA3Config", "ia3", []), ("HRAConfig", None, ["HRAConfig"])):
        path.write_text(
            'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
            f"model = get_peft_model(model, {name}(target_modules=['c_attn']))\n"
            "args = TrainingArguments(per_device_train_batch_size=2 * 4)\n"
        )
        job, understood = job_of_files(understand([path]), {})
        assert (job.batch, job.adapter) == (8, kind)
        assert [gap.record.value for gap in understood.gaps if gap.record] == named


def test_the_model_that_is_loaded_is_trained(tmp_path: Path) -> None:
    """Another one, by whose name data are made, is not."""
    path = tmp_path / "train.py"
    path.write_text(
        'model = "llama-3.1-8b"\n'
        'model, _ = FastLanguageModel.from_pretrained("qwen2.5-0.5b", max_seq_length=512)\n'
        "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=1))\n"
    )
    assert job_of_files(understand([path]), {})[0].model == "qwen2.5-0.5b"
