"""One setting under two names: both are read, both together must agree, and no limit is invented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from vramcast.errors import InputError
from vramcast.models.read.config import SPELLINGS
from vramcast.models.read.model import read_model

# Of Qwen3-MoE with sizes that no default has: worked by hand below.
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "vocab_size": 200,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
EXPERT = 3 * 64 * 32
OTHERS = 2 * (64 * 64 * 2 + 2 * 64 * 32 + 2 * 16 + 2 * 64) + 2 * 200 * 64 + 64


def count(folder: Path, config: dict[str, Any]) -> int:
    (folder / "config.json").write_text(json.dumps(config))
    params = read_model(str(folder)).table()
    return sum(param.numel for param in params if param.tied_to is None)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_both_names_of_a_number_of_experts_are_read(tmp_path: Path, name: str) -> None:
    """transformers 4 saves the first, transformers 5 the second; neither falls back to 128."""
    counted = count(tmp_path, {**QWEN3_MOE, name: 6})
    assert counted == OTHERS + 2 * 6 * (EXPERT + 64)


def test_what_transformers_saves_is_what_is_read(tmp_path: Path) -> None:
    keys = {key: value for key, value in QWEN3_MOE.items() if key != "model_type"}
    transformers.AutoConfig.for_model("qwen3_moe", **keys, num_experts=6).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert count(tmp_path, saved) == OTHERS + 2 * 6 * (EXPERT + 64)


SMALL = {
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_attention_heads": 16,
    "num_hidden_layers": 2,
    "vocab_size": 200,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SIZES_LEFT_OUT: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {}),
    ("ministral", {"head_dim": 16}),
    ("mixtral", {"num_local_experts": 4}),
    ("cwm", {"mlp_bias": True}),
    ("internlm3", {"head_dim": None}),
    ("internlm3", {}),
    ("qwen3", {"num_key_value_heads": 4}),
    ("qwen2", {"num_key_value_heads": None}),
    ("qwen2_moe", {"num_experts": 4}),
    ("deepseek_v2", {"mlp_bias": True, "num_experts_per_tok": 2, "n_routed_experts": 4}),
]


@pytest.mark.parametrize(("model_type", "changes"), SIZES_LEFT_OUT)
def test_a_size_that_is_left_out_is_what_its_class_makes_of_it(
    tmp_path: Path, model_type: str, changes: dict[str, Any]
) -> None:
    config = transformers.AutoConfig.for_model(model_type, **SMALL, **changes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = sum(param.numel() for param in model.parameters())
    written = {
        "model_type": model_type,
        "architectures": [type(model).__name__],
        **SMALL,
        **changes,
    }
    assert count(tmp_path, written) == theirs


def test_sizes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    base = {**SMALL, "num_attention_heads": 4}
    for model_type, said in (
        ("qwen2", "does not divide by 32"),
        ("helium", "does not divide by 20"),
    ):
        with pytest.raises(InputError, match=said):
            count(tmp_path, {"model_type": model_type, **base})
    with pytest.raises(InputError, match="must be its hidden_size"):
        count(tmp_path, {"model_type": "helium", **base, "num_key_value_heads": 4, "head_dim": 32})


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_experts", 8), ("kv_lora_rank", 64), ("mamba_d_state", 16), ("multi_query_group_num", 2)],
)
def test_a_size_of_another_architecture_is_an_error(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(InputError, match=rf"{key} {value} is no size of a llama.*remove the key"):
        count(tmp_path, {"model_type": "llama", **SMALL, key: value})
    assert count(tmp_path, {"model_type": "llama", **SMALL, key: None}) > 0


def test_two_names_that_disagree_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"num_experts 6 and num_local_experts 8 are two names of one"
    ):
        count(tmp_path, {**QWEN3_MOE, "num_experts": 6, "num_local_experts": 8})


def test_the_names_are_those_of_transformers() -> None:
    """Every `attribute_map` of a class that is described here, as far as it names sizes."""
    classes = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    for model_type, pairs in SPELLINGS.items():
        known = dict(getattr(classes[model_type], "attribute_map", None) or {})
        both = {frozenset(pair) for pair in known.items()}
        ours = {frozenset(pair) for pair in pairs}
        assert model_type in ("qwen2_moe", "phimoe", "falcon", "bloom") or ours & both, model_type


@pytest.mark.parametrize(
    "key",
    ["vocab_size_per_layer_input", "first_layer_vocabulary", "expert_hash_buckets", "layer_seed"],
)
def test_a_key_that_counts_no_layers_has_no_limit(tmp_path: Path, key: str) -> None:
    assert count(tmp_path, {**QWEN3_MOE, "num_experts": 6, key: 262_144}) > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 5000), ("num_experts", 10**6), ("n_routed_experts", 10**6)],
)
def test_layers_and_experts_have_one(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{key} must be at most"):
        count(tmp_path, {**QWEN3_MOE, key: value})
