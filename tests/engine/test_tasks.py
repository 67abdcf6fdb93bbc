"""What a task means for rows, head, loss and the models beside. Expected values are transformers' and TRL's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.catalog.models import find_model
from vramcast.engine import estimate
from vramcast.errors import VramcastError
from vramcast.job import job_from
from vramcast.setup import complete, model_of, resolve

QWEN = "qwen2.5-0.5b"


def completed(**said: Any) -> Any:
    return complete(job_from({"model": QWEN, **said}))


def test_an_encoder_is_a_classifier_unless_pretraining_is_said() -> None:
    """`sum(p.numel() for p in BertForSequenceClassification(BertConfig()).parameters())`, and of the other classes."""
    counts = {
        task: estimate(
            job_from({"model": "bert-base-uncased", "seq": 128, **({"task": task} if task else {})})
        ).model.params_total
        for task in (None, "classify", "classify-tokens", "pretrain", "embed")
    }
    assert counts == {
        None: 109_483_778,
        "classify": 109_483_778,
        "classify-tokens": 108_893_186,
        "pretrain": 109_514_298,
        "embed": 109_482_240,
    }


def test_the_head_is_printed() -> None:
    forecast = estimate(job_from({"model": "bert-base-uncased", "seq": 128, "labels": 5}))
    named = "(not given): BertForSequenceClassification (labels: 5)"
    assert any(named in text for text in forecast.assumptions)


@pytest.mark.parametrize(
    ("task", "rows"), [("sft", 1), ("dpo", 2), ("orpo", 2), ("kto", 1), ("reward", 2), ("grpo", 1)]
)
def test_rows_per_sample(task: str, rows: int) -> None:
    """Of preferences, chosen and rejected are in one batch."""
    assert resolve(job_from({"model": QWEN, "task": task, "batch": 3})).data.rows == rows


def test_a_sample_of_preferences_takes_what_two_rows_take() -> None:
    said = {"model": QWEN, "seq": 256, "framework": "trl", "reference": "none", "prompt-tokens": 0}
    pairs = estimate(job_from({**said, "task": "dpo", "batch": 2}))
    rows = estimate(job_from({**said, "task": "sft", "batch": 4}))
    assert pairs.verdict().allocated_bytes == rows.verdict().allocated_bytes


@pytest.mark.parametrize(
    ("said", "reference"),
    [
        ({"task": "dpo"}, "same"),
        ({"task": "dpo", "tuning": "lora"}, "adapter"),
        ({"task": "dpo", "reference": "precomputed"}, "precomputed"),
        ({"task": "dpo", "reference": "none"}, "none"),
        ({"task": "kto", "lora-rank": 8}, "adapter"),
        ({"task": "orpo"}, "none"),
        ({"task": "grpo"}, "none"),
        ({}, "none"),
    ],
)
def test_the_reference_is_a_copy_or_the_model_without_adapters(
    said: dict[str, Any], reference: str
) -> None:
    assert completed(**said).reference == reference


def test_tasks_of_trl_run_in_its_loop() -> None:
    assert completed(task="dpo").framework == "trl"
    assert completed(task="dpo", framework="llama-factory").framework == "llama-factory"
    assert completed(task="sft").framework == "hf"
    assert completed(task="reward").loss == "full"  # scores, no tokens
    assert completed(task="dpo").loss == "tiled"


def test_models_beside_the_trained_one() -> None:
    job = completed(task="ppo", seq=512)
    assert (job.critic, job.reward, job.reference, job.rollout_tokens) == ("same", "same", "same", 256)  # fmt: skip
    assert completed(task="distill").teacher == "same"


def test_a_head_that_a_family_does_not_have_is_named() -> None:
    with pytest.raises(VramcastError, match="ForSequenceClassification"):
        estimate(job_from({"model": "whisper-tiny", "task": "classify"}))


MODELS = ("gpt2", QWEN, "llama-3.2-1b", "opt-125m", "pythia-160m", "roberta-base", "t5-small")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_classifiers_have_the_parameters_of_transformers(name: str, tmp_path: Path) -> None:
    import torch
    import transformers

    config = find_model(name).config
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.device("meta"):
        own = transformers.AutoConfig.from_pretrained(tmp_path, num_labels=3)
        real = transformers.AutoModelForSequenceClassification.from_config(own)
    job = complete(job_from({"model": name, "task": "classify", "labels": 3}))
    found = model_of(job).config
    assert found is not None
    assert found.architecture == type(real).__name__
    counted = estimate(
        job_from({"model": name, "task": "classify", "labels": 3})
    ).model.params_total
    assert counted == sum(parameter.numel() for parameter in real.parameters())
