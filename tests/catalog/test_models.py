"""Names find models, near names are offered, and one model is read without reading the others."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalog.model_names import read_name
from vramcast.catalog.models import (
    CatalogModel,
    all_models,
    find_model,
    lookup_model,
    search_models,
)
from vramcast.catalog.tables import DATA, read_rows
from vramcast.engine.estimate import estimate
from vramcast.errors import UnsupportedError
from vramcast.job import job_from
from vramcast.models.families import MODULE_OF
from vramcast.models.read.model import read_model

# Without torch a model is counted where a family describes it.
REFUSED = {"pixtral-12b"}  # its vision tower is not described
DESCRIBED = [
    model
    for model in all_models()
    if model.config["model_type"] in MODULE_OF and model.name not in REFUSED
]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("phi-3-mini", "phi-3-mini-4k"),
        ("phi-3-mini-4k-instruct", "phi-3-mini-4k"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("qwen2.5-7b", "qwen2.5-7b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("google/gemma-2-2b-it", "gemma-2-2b"),
        ("Llama_2 7b", "llama-2-7b"),
        ("internlm/internlm2_5-7b-chat", "internlm2.5-7b"),
        ("unsloth/Qwen3-14B-unsloth-bnb-4bit", "qwen3-14b"),
        ("qwen3_14B", "qwen3-14b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-instruct-2507"),
        ("Qwen/Qwen3-4B-Base", "qwen3-4b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b"),
        ("TheBloke/Mistral-7B-Instruct-v0.1-GPTQ", "mistral-7b-v0.1"),
        ("bartowski/Qwen2.5-7B-Instruct-GGUF", "qwen2.5-7b"),
        ("mlx-community/Qwen2.5-0.5B-Instruct-4bit", "qwen2.5-0.5b"),
        ("models--Qwen--Qwen3-8B", "qwen3-8b"),
        ("microsoft/phi-4-14b", "phi-4"),
        ("DeepSeek-V3 671B q4_K_M", "deepseek-v3"),
        ("unsloth_DeepSeek R1 BF16", "deepseek-v3"),
        # Distilled into other architectures.
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1-distill-qwen-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1-0528-qwen3-8b"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small-24b"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        # "base" is a size here, not a variant.
        ("t5-base", "t5-base"),
        ("openai/whisper-base", "whisper-base"),
        ("roberta-base", "roberta-base"),
    ],
)
def test_a_model_is_found_by_what_people_type(typed: str, name: str) -> None:
    assert find_model(typed).name == name


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"lama-3.1-8b.*Did you mean llama-3.1-8b"):
        find_model("lama-3.1-8b")


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("qwen3-15b", "qwen3-14b"),
        ("somebody/my-qwen3-8b-audio", "qwen3-8b"),
        ("llama-3.1-9b", "llama-3.1-8b"),
        ("Gemma-3-5b", "gemma-3-4b"),
    ],
)
def test_a_miss_suggests_the_same_family_nearest_in_size_first(typed: str, near: str) -> None:
    with pytest.raises(UnsupportedError, match=f"Did you mean {near} or {near.partition('-')[0]}"):
        find_model(typed)


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("unsloth/Qwen3-8B-bnb-4bit", "bnb-4bit"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "unsloth-bnb-4bit"),
        ("Qwen/Qwen3-8B-FP8", "fp8"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "fp8"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq"),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "nvfp4"),
        ("mlx-community/Qwen3-8B-4bit", "mlx"),
        ("TheBloke/Llama-2-7B-Chat-GGUF", "gguf"),
        ("Qwen/Qwen3-8B", ""),
    ],
)
def test_a_name_says_how_the_checkpoint_is_stored(typed: str, stored: str) -> None:
    assert read_name(typed).stored == stored
    assert lookup_model(typed) is not None


def test_a_checkpoint_of_bitsandbytes_is_billed_as_it_is_stored() -> None:
    def bill(model: str, **more: str) -> list[tuple[str, int]]:
        job = job_from({"model": model, "lora-rank": 8, "seq": 128, "framework": "hf", **more})
        entries = estimate(job, with_scaling=False).ledger.entries
        return [(entry.component, entry.nbytes) for entry in entries if str(entry.place) != "host"]

    stored = bill("unsloth/Qwen3-0.6B-bnb-4bit")
    assert stored == bill("Qwen/Qwen3-0.6B", quantize="nf4-double")
    assert stored != bill("Qwen/Qwen3-0.6B")
    # Linear layers: 0.5 B, 1/64 B for the blocks' scales, 4/(64 · 256) B for the scales' own; counted by hand.
    linear = 28 * (1024 * 2048 * 2 + 1024 * 1024 * 2 + 3 * 1024 * 3072)
    held = linear // 2 + linear // 64 + linear * 4 // (64 * 256)
    assert any(nbytes == held for _, nbytes in stored), stored


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("evil/Qwen3-8B", "evil/Qwen3-8B was taken for Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B-FP8", r"stored in fewer bits \(fp8\)"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "leave some linear layers in 16 bit"),
        ("bartowski/Qwen_Qwen3-8B-GGUF", "GGUF is an inference format"),
    ],
)
def test_what_a_name_leaves_open_is_said(typed: str, said: str) -> None:
    try:
        source = read_model(typed)
        text = " ".join((*source.notes, *source.warnings))
    except UnsupportedError as error:
        text = str(error)
    assert re.search(said, text)


@pytest.mark.parametrize(
    ("typed", "base"),
    [
        ("somebody/my-qwen3-8b-sft-v2", "qwen3-8b"),
        ("allenai/Llama-3.1-Tulu-3-8B", "llama-3.1-8b"),
        ("nvidia/Llama-3.1-Nemotron-Nano-8B-v1", "llama-3.1-8b"),
        ("gradientai/Llama-3-8B-Instruct-Gradient-1048k", "llama-3-8b"),
    ],
)
def test_a_fine_tune_is_its_base_and_that_is_said(typed: str, base: str) -> None:
    source = read_model(typed)
    assert source.name == base
    assert any(f"{typed} was taken for" in note for note in source.notes)


@pytest.mark.parametrize(
    "typed",
    [
        "state-spaces/mamba2-130m",  # another version
        "nvidia/Llama-3.1-Minitron-4B-Width-Base",  # another size
        "chargoddard/llama3-42b-v0",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",  # a drafter
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",  # with a tower
        "trl-internal-testing/tiny-random-llama-3.1-8b",
    ],
)
def test_another_model_that_names_a_base_is_not_taken_for_it(typed: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown model"):
        read_model(typed)


@pytest.mark.parametrize("typed", ["Qwen/Qwen3-8B", "qwen3-8b", "unsloth/Qwen3-8B"])
def test_a_known_owner_is_no_news(typed: str) -> None:
    assert read_model(typed).notes == ()


def test_a_size_word_is_not_dropped_into_another_model() -> None:
    assert lookup_model("whisper") is None
    assert lookup_model("t5") is None
    assert lookup_model("phi-4-7b") is None


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
def test_every_model_has_a_config_a_count_and_a_source(model: CatalogModel) -> None:
    assert find_model(model.name) is model
    assert find_model(model.hf_id) is model
    assert all(find_model(alias) is model for alias in model.aliases)
    assert isinstance(model.config["model_type"], str)
    assert model.params > 0
    assert model.source


@pytest.mark.parametrize("model", DESCRIBED, ids=lambda model: model.name)
def test_every_model_has_exactly_the_parameters_the_index_says(model: CatalogModel) -> None:
    assert (
        sum(param.numel for param in read_model(model.name).table() if param.tied_to is None)
        == model.params
    )


def test_the_index_and_the_configs_are_the_same_set() -> None:
    assert {model.name for model in all_models()} == {
        path.stem for path in (DATA / "models").glob("*.json")
    }


def test_every_alias_points_to_a_model() -> None:
    names = {model.name for model in all_models()}
    aliases = read_rows("model_aliases.csv")
    assert {row["name"] for row in aliases} <= names
    assert len({row["alias"] for row in aliases}) == len(aliases)
    assert all(row["because"] for row in aliases)


def test_one_model_is_read_without_parsing_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    loads = json.loads

    def counting(text: str) -> Any:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", counting)
    assert find_model("phi-3-mini").config["hidden_size"] == 3072
    assert len(parsed) == 1


def test_t5_checkpoints_that_are_untied_carry_both_counts() -> None:
    model = find_model("google/flan-t5-base")
    assert (model.params, model.params_untied) == (222_903_552, 247_577_856)


def test_search_finds_by_name_id_and_class() -> None:
    assert {model.name for model in search_models("mixtral")} == {"mixtral-8x7b", "mixtral-8x22b"}
    assert "gpt2" in {model.name for model in search_models("GPT2LMHeadModel")}


NAMES = {model.name for model in all_models()}


@given(st.text(max_size=60))
def test_any_text_is_a_model_or_a_clear_error(text: str) -> None:
    try:
        said = find_model(text).name
    except UnsupportedError as error:
        said = str(error)
    assert said in NAMES or "vramcast models" in said


def test_a_name_as_written_is_the_one_that_its_words_say() -> None:
    for model in all_models():
        assert lookup_model(model.name) is model
        assert lookup_model(model.name.upper()) is model  # taken apart: no name is in capitals
