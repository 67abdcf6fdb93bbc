"""TRL's own command-line scripts, as installed, on the virtual GPU: a config, a tokenizer and a few lines of data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from vramcast.cli import main

SCRIPTS = Path(trl.__file__).parent / "scripts"
WORDS = ("<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(96)))
ROWS = {"sft.py": ("text",), "dpo.py": ("prompt", "chosen", "rejected")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(tmp_path / "model")
    LlamaConfig(
        vocab_size=len(WORDS), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(tmp_path / "model")  # fmt: skip
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("script", ROWS)
def test_a_script_of_trl(script: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = folder / "data"
    data.mkdir()
    row = {
        name: " ".join(f"w{number + place}" for number in range(20))
        for place, name in enumerate(ROWS[script])
    }
    (data / "train.jsonl").write_text("\n".join([json.dumps(row)] * 16))
    options = {
        "--model_name_or_path": folder / "model", "--dataset_name": data, "--output_dir": folder / "out",
        "--per_device_train_batch_size": 2, "--max_length": 32, "--report_to": "none",
    }  # fmt: skip
    arguments = [str(part) for option in options.items() for part in option]
    command = [
        "trace",
        "--json",
        str(SCRIPTS / script),
        "--gpu",
        "rtx4090",
        "--empty-weights",
        "--steps",
        "2",
    ]
    assert main([*command, "--", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["trace"]["steps"] == 2
    assert {phase["phase"] for phase in answer["phases"]} >= {"load", "forward", "backward", "step"}
