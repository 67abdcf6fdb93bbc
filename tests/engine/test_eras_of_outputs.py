"""What transformers, PEFT and TRL of a date hold: caches, masks, adapters, copies. Bytes are counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.engine.estimate import estimate
from vramcast.forecast import Forecast
from vramcast.job import job_from
from vramcast.ledger import BACKWARD, NEXT_FORWARD, STEP, Category

LAYERS, HEADS, KV_HEADS, WIDTH, VOCABULARY = 2, 8, 2, 64, 4000
HIDDEN = HEADS * WIDTH
BATCH, SEQ = 2, 256
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": 1024,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY, "tie_word_embeddings": False, "max_position_embeddings": 1024,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 256, "d_kv": 32, "d_ff": 512,
    "num_heads": 8, "num_layers": 2, "vocab_size": VOCABULARY, "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}  # fmt: skip
CACHE_ELEMENTS = LAYERS * 2 * BATCH * SEQ * KV_HEADS * WIDTH


def forecast(folder: Path, config: dict[str, Any], **words: Any) -> Forecast:
    (folder / "config.json").write_text(json.dumps(config))
    said = {
        "model": str(folder), "gpu": "a100-80gb", "framework": "accelerate", "precision": "bf16-autocast",
        "checkpointing": "none", "batch": BATCH, "seq": SEQ, **words,
    }  # fmt: skip
    return estimate(job_from({name.replace("_", "-"): value for name, value in said.items()}))


def alive(found: Forecast, phase: str, part: str) -> int:
    return sum(
        entry.nbytes for entry in found.ledger.alive(phase, "cuda:0") if part in entry.component
    )


@pytest.mark.parametrize(
    ("version", "item"),
    [("4.46", 4), ("4.44", 0), ("4.51", 2), ("4.57", 2)],
    ids=["a tuple, raised to fp32", "none in training", "an object of aliases", "an object"],
)
def test_the_cache_that_outputs_hold(tmp_path: Path, version: str, item: int) -> None:
    found = forecast(tmp_path, LLAMA, transformers_version=version)
    assert alive(found, STEP, "past_key_values that `outputs` still holds") == item * CACHE_ELEMENTS


def test_a_cache_can_be_switched_off(tmp_path: Path) -> None:
    found = forecast(tmp_path, LLAMA, transformers_version="4.57", use_cache=False)
    assert alive(found, STEP, "past_key_values") == 0


def test_no_mask_and_no_cache_was_taken_for_packing(tmp_path: Path) -> None:
    """A mask for every call, keys and values repeated to all heads, and no flash kernel."""
    words = {"use_cache": False, "attention_mask": False, "framework": "hf"}
    packed = forecast(tmp_path, LLAMA, transformers_version="4.57", **words)
    seen = forecast(tmp_path, LLAMA, transformers_version="5.0", **words)
    masks = LAYERS * BATCH * SEQ * SEQ * 2
    repeated = LAYERS * 2 * BATCH * SEQ * (HEADS - KV_HEADS) * WIDTH * 2
    more = alive(packed, BACKWARD, "model.layers") - alive(seen, BACKWARD, "model.layers")
    assert masks + repeated <= more <= (masks + repeated) * 1.05


def test_batches_without_a_mask_have_none_to_move(tmp_path: Path) -> None:
    found = forecast(tmp_path, LLAMA, attention_mask=False)
    assert alive(found, NEXT_FORWARD, "attention mask") == 0


@pytest.mark.parametrize(("version", "item"), [("0.11", 2), ("0.12", 4)])
def test_peft_raises_adapters_since_0_12(tmp_path: Path, version: str, item: int) -> None:
    found = forecast(tmp_path, LLAMA, lora_rank=8, lora_targets="o_proj", peft_version=version)
    adapters = LAYERS * 8 * (HIDDEN + HIDDEN)
    gradients = found.ledger.grouped(lambda entry: entry.category, phase=STEP, place="cuda:0")[
        Category.GRADIENTS
    ]
    assert gradients == item * adapters


def test_t5_obeyed_an_untied_head_before_5(tmp_path: Path) -> None:
    """T5 1.1, Flan-T5 and mT5 say so in their configs."""
    old, new = (
        forecast(tmp_path, T5, framework="hf", target_seq=64, transformers_version=version)
        for version in ("4.57", "5.0")
    )
    weights = [
        found.ledger.grouped(lambda entry: entry.category, phase="load", place="cuda:0")[
            Category.WEIGHTS
        ]
        for found in (old, new)
    ]
    assert weights[0] - weights[1] == VOCABULARY * 256 * 2


def test_zeros_in_place_keep_gradients(tmp_path: Path) -> None:
    words = {"framework": "plain", "precision": "fp32"}
    kept, gone = (
        forecast(tmp_path, LLAMA, zero_grad=how, **words).ledger.grouped(
            lambda entry: entry.category, phase=NEXT_FORWARD, place="cuda:0"
        )
        for how in ("in-place", "before-forward")
    )
    assert kept[Category.GRADIENTS] == kept[Category.WEIGHTS]
    assert Category.GRADIENTS not in gone
