"""Names find models, near names are offered, and one model is read without reading the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalog.models import (
    CatalogModel,
    all_models,
    find_model,
    lookup_model,
    search_models,
)
from vramcast.catalog.tables import DATA, read_rows
from vramcast.errors import UnsupportedError
from vramcast.models.read.model import read_model


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


def test_a_size_word_is_not_dropped_into_another_model() -> None:
    assert lookup_model("whisper") is None
    assert lookup_model("t5") is None


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
def test_every_model_has_a_config_a_count_and_a_source(model: CatalogModel) -> None:
    assert find_model(model.name) is model
    assert find_model(model.hf_id) is model
    assert all(find_model(alias) is model for alias in model.aliases)
    assert isinstance(model.config["model_type"], str)
    assert model.params > 0
    assert model.source


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
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
    assert {model.name for model in search_models("mixtral")} == {"mixtral-8x7b"}
    assert "gpt2" in {model.name for model in search_models("GPT2LMHeadModel")}


NAMES = {model.name for model in all_models()}


@given(st.text(max_size=60))
def test_any_text_is_a_model_or_a_clear_error(text: str) -> None:
    try:
        said = find_model(text).name
    except UnsupportedError as error:
        said = str(error)
    assert said in NAMES or "vramcast models" in said
