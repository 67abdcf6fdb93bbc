"""Experts that transformers before 5.0 holds as modules: every one has adapters and 4-bit weights of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.engine.estimate import estimate
from vramcast.forecast import Forecast
from vramcast.job import job_from
from vramcast.ledger import Category

WIDTH, INNER, EXPERTS, LAYERS, RANK = 64, 96, 8, 2, 4
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": WIDTH,
    "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 128, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
ATTENTION = 2 * (WIDTH + WIDTH) + 2 * (WIDTH + WIDTH // 2)  # widths in and out of q, o, k and v
ROUTER = WIDTH + EXPERTS
EXPERT = 3 * (WIDTH + INNER)


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))

    def ask(**words: Any) -> Forecast:
        said = {"model": str(tmp_path), "precision": "bf16-true", "batch": 2, "seq": 128, **words}
        return estimate(job_from({key.replace("_", "-"): value for key, value in said.items()}))

    return ask


def weights_of(forecast: Forecast) -> int:
    at_peak = forecast.ledger.grouped(lambda entry: entry.category, phase="load", place="cuda:0")
    return at_peak[Category.WEIGHTS]


def test_adapters_are_on_each_experts_layers_and_on_the_router(ask: Any) -> None:
    found = ask(lora_rank=RANK, lora_targets="all-linear", transformers_version="4.57")
    assert found.model.params_trainable == LAYERS * RANK * (ATTENTION + ROUTER + EXPERTS * EXPERT)


def test_only_named_layers_of_experts_have_adapters(ask: Any) -> None:
    found = ask(lora_rank=RANK, lora_targets="w2", transformers_version="4.57")
    assert found.model.params_trainable == LAYERS * RANK * EXPERTS * (WIDTH + INNER)


def test_four_bits_reach_experts_that_are_modules(ask: Any) -> None:
    """Experts in one tensor are no linear layers, which is all that bitsandbytes packs."""
    words = {"lora_rank": RANK, "quantize": "nf4", "lora_targets": "q_proj"}
    apart = ask(**words, transformers_version="4.57")
    joined = ask(**words, transformers_version="5.2")
    unpacked = LAYERS * EXPERTS * 3 * WIDTH * INNER * 2
    assert weights_of(apart) < weights_of(joined) - unpacked // 2


def test_without_adapters_versions_differ_little(ask: Any) -> None:
    """The same sums in other tensors: each expert's output lives until it is added to the mixture."""
    apart = ask(transformers_version="4.57").verdict().highest_bytes
    joined = ask(transformers_version="5.2", expert_gemm="loop").verdict().highest_bytes
    assert apart == pytest.approx(joined, rel=0.05)
