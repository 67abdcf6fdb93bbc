"""PEFT's adapter_config.json as PEFT itself saves it, for every kind of adapter that a job knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest

from vramcast.configs import Understood, job_of_files, understand
from vramcast.errors import UnsupportedError
from vramcast.job import Job

SAVED: list[tuple[Any, dict[str, Any]]] = [
    (peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]), {"adapter": "ia3"}),
    (peft.VeraConfig(r=128, target_modules=["q_proj"]), {"adapter": "vera", "lora_rank": 128}),
    (peft.LoHaConfig(r=4, target_modules=["q_proj"]), {"adapter": "loha", "lora_rank": 4}),
    (peft.LoKrConfig(r=4, target_modules=["q_proj"]), {"adapter": "lokr", "lora_rank": 4}),
    (peft.OFTConfig(oft_block_size=16, target_modules=["q_proj"]), {"adapter": "oft", "adapter_block": 16}),
    (peft.BOFTConfig(boft_block_size=8, target_modules=["q_proj"]), {"adapter": "boft", "adapter_block": 8}),
    (peft.AdaLoraConfig(init_r=6, total_step=10, target_modules=["q_proj"]), {"adapter": "adalora", "lora_rank": 6}),
    (peft.LNTuningConfig(target_modules=["norm"]), {"adapter": "ln-tuning", "lora_targets": ("norm",)}),
    (peft.PromptTuningConfig(num_virtual_tokens=9), {"adapter": "prompt", "virtual_tokens": 9}),
    (peft.PrefixTuningConfig(num_virtual_tokens=9), {"adapter": "prefix", "virtual_tokens": 9, "prompt_hidden": None}),
    (
        peft.PrefixTuningConfig(num_virtual_tokens=9, encoder_hidden_size=32, prefix_projection=True),
        {"adapter": "prefix", "prompt_hidden": 32},
    ),
    (
        peft.PromptEncoderConfig(num_virtual_tokens=9, encoder_hidden_size=32),
        {"adapter": "p-tuning", "virtual_tokens": 9, "prompt_hidden": 32},
    ),
    (
        peft.LoraConfig(r=8, target_modules=["q_proj"], modules_to_save=["lm_head"], layers_to_transform=[0, 3]),
        {"lora_rank": 8, "modules_to_save": ("lm_head",), "layers_to_transform": ("0", "3")},
    ),
    (
        peft.LoraConfig(r=8, target_modules=r".*\.(q|v)_proj", use_rslora=True),
        {"lora_rank": 8, "lora_targets": (r".*\.(q|v)_proj",)},
    ),
]  # fmt: skip


def read(folder: Path, config: Any) -> tuple[Job, Understood]:
    config.base_model_name_or_path = "llama-3.2-3b"
    config.save_pretrained(folder)
    return job_of_files(understand([folder]), {})


@pytest.mark.parametrize(("config", "expected"), SAVED, ids=lambda value: str(value)[:24])
def test_every_kind_is_read_and_nothing_is_left_open(
    tmp_path: Path, config: Any, expected: dict[str, Any]
) -> None:
    job, found = read(tmp_path, config)
    assert {name: getattr(job, name) for name in expected} == expected
    assert [gap.text for gap in found.gaps] == []


def test_a_kind_that_no_word_says_is_refused_by_name(tmp_path: Path) -> None:
    values = {"peft_type": "HRA", "base_model_name_or_path": "llama-3.2-3b", "r": 8}
    (tmp_path / "adapter_config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="unknown peft_type 'HRA'"):
        understand([tmp_path])
