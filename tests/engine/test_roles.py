"""Dtypes by role, each sayable, and where every value is from. Expected bytes are counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.engine import estimate
from vramcast.errors import VramcastError
from vramcast.job import job_from
from vramcast.setup import complete, origins_of, resolve

QWEN = "qwen2.5-0.5b"  # 494,032,768 parameters, 357,826,560 of them in linear layers
LINEAR, REST = 357_826_560, 494_032_768 - 357_826_560


def nbytes(category: str, **said: Any) -> dict[str, int]:
    forecast = estimate(job_from({"model": QWEN, "seq": 128, **said}), with_scaling=False)
    return {
        entry.component: entry.nbytes
        for entry in forecast.ledger.entries
        if str(entry.category) == category and entry.place == "cuda:0"
    }


def test_gradients_of_megatron_in_bf16() -> None:
    said = {"framework": "megatron", "model": "gpt2"}
    four = sum(nbytes("gradients", **said).values())
    two = sum(nbytes("gradients", **said, **{"grad-dtype": "bf16"}).values())
    assert four == 2 * two > 0
    typed = sum(nbytes("gradients", **said, **{"grad-reduce-in-bf16": True}).values())
    assert typed == two


def test_fp8_weights_take_a_byte_and_their_transposes_another() -> None:
    said = {"framework": "megatron", "precision": "fp8", "fp8-gather": True}
    weights, copies = nbytes("weights", **said), nbytes("weight copies", **said)
    assert weights["trained, fp8"] == LINEAR
    assert copies["transposes of fp8 weights"] == LINEAR
    with pytest.raises(VramcastError, match="precision fp8"):
        resolve(job_from({"model": QWEN, "fp8-gather": True}))


def test_frozen_layers_in_16_bit_beside_trained_ones_in_fp32() -> None:
    """LLaMA-Factory's freeze tuning: what is trained is raised, what is frozen stays."""
    said = {"freeze": "model.layers.0,model.embed_tokens", "tuning": "full"}
    weights = nbytes("weights", framework="llama-factory", **said)
    assert set(weights) == {"frozen, bf16", "trained, fp32"}
    frozen, trained = weights["frozen, bf16"] // 2, weights["trained, fp32"] // 4
    assert frozen + trained == 494_032_768
    by_words = nbytes("weights", **said, precision="bf16-mixed", **{"frozen-dtype": "bf16"})
    assert by_words == weights


def test_fp32_adapters_over_a_4_bit_base_that_nobody_raised() -> None:
    said = {"tuning": "qlora", "lora-targets": "all-linear"}
    assert set(nbytes("weights", **said)) == {"frozen, nf4", "frozen, fp32", "adapter, fp32"}
    weights = nbytes("weights", **said, **{"frozen-dtype": "bf16", "adapter-dtype": "fp32"})
    assert set(weights) == {"frozen, nf4", "frozen, bf16", "adapter, fp32"}
    assert weights["frozen, bf16"] == 2 * REST


def test_states_and_master_weights_apart_from_the_weights() -> None:
    assert sum(nbytes("optimizer states", **{"state-dtype": "fp32"}).values()) == 8 * 494_032_768
    assert sum(nbytes("optimizer states", **{"state-dtype": "bf16"}).values()) == 4 * 494_032_768
    assert sum(nbytes("master weights", **{"master-dtype": "fp32"}).values()) == 4 * 494_032_768


def test_torch_keeps_gradients_in_the_dtype_of_their_weights() -> None:
    with pytest.raises(VramcastError, match="weights-dtype"):
        resolve(job_from({"model": QWEN, "grad-dtype": "fp32"}))


def test_a_checkpoint_in_fp16_stays_in_fp16_under_bf16_autocast() -> None:
    setup = resolve(job_from({"model": "opt-125m"}))
    assert (setup.precision.weights.name, setup.precision.autocast.name) == ("fp16", "bf16")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("said", "targets"),
    [
        ({"tuning": "lora"}, ("q_proj", "v_proj")),  # peft/utils/constants.py, of qwen2
        ({"tuning": "lora", "model": "gpt2"}, ("c_attn",)),
        ({"tuning": "qlora"}, ("all-linear",)),
        ({"framework": "llama-factory"}, ("all-linear",)),
        ({"framework": "trl", "lora-rank": 8, "lora-targets": "k_proj"}, ("k_proj",)),
    ],
)
def test_adapters_are_where_the_library_puts_them(
    said: dict[str, Any], targets: tuple[str, ...]
) -> None:
    assert complete(job_from({"model": QWEN, **said})).lora_targets == targets


def test_every_decided_value_knows_who_decided_it() -> None:
    said = job_from(
        {"model": QWEN, "framework": "llama-factory", "task": "dpo", "batch": 2, "gpu": "t4"}
    )
    origins = origins_of(
        said, complete(said), {"batch": "train.yaml:5 per_device_train_batch_size"}
    )
    assert {name: origins[name].kind for name in ("model", "lora_rank", "reference", "precision")} == {
        "model": "user", "lora_rank": "profile", "reference": "task", "precision": "card",
    }  # fmt: skip
    assert str(origins["batch"]) == "train.yaml:5 per_device_train_batch_size"
    assert "0.9.6" in str(origins["checkpointing"])
    assert "seq" not in origins
