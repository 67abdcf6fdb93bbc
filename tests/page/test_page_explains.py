"""What the page tells beside the figures: what was decided, what has no effect, what a change does to each part,
both jobs in one picture; and all of it in Chinese."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from vramcast.engine import estimate
from vramcast.errors import InputError
from vramcast.job import fields, job_from
from vramcast.report.words.sentences import translate
from vramcast.web.answers import answer
from vramcast.web.given import Place
from vramcast.web.recordings import Keeper

JOB: dict[str, Any] = {"model": "gpt2", "gpu": "rtx4090", "seq": 512}
GRPO: dict[str, Any] = {"model": "gpt2", "gpu": "rtx4090", "task": "grpo", "framework": "trl", "seq": 512}  # fmt: skip
SERVING: dict[str, Any] = {"model": "qwen3-8b", "gpu": "rtx4090", "engine": "vllm"}
# Five English words in a row, outside of code, are a sentence.
SENTENCE = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){4,}[a-z]{2,}\b")
# Jobs whose bills have lines of their own.
ODD_JOBS: tuple[dict[str, Any], ...] = (
    {"model": "llama-3.1-8b", "gpus": 16, "tp": 2, "pp": 4, "strategy": "zero1", "gpu": "h100-80gb"},
    {"model": "llama-3.1-8b", "gpus": 8, "strategy": "zero3", "offload": "all", "gpu": "a100-80gb"},
    {"model": "llama-3.1-8b", "qlora": True, "evaluate": True, "resume": "cpu", "seq": 512},
    {"model": "gpt2", "task": "ppo", "seq": 256, "gpu": "rtx4090"},
    {"model": "t5-base", "batch": 4},
    {"model": "qwen3-8b", "task": "generate", "kv-cache": "quantized", "gpu": "rtx4090"},
    {"model": "gemma-3-4b", "engine": "llama.cpp", "gpu": "rtx4090"},
    {"model": "gpt2", "optimizer": "adafactor"},
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(folder=tmp_path)


def effects(job: dict[str, Any], place: Place) -> dict[str, str]:
    return dict(answer("effects", {"job": job}, place)["same"])


def test_what_changes_nothing_is_told_with_its_reason(place: Place) -> None:
    said = {**JOB, "optimizer": "adamw", "gpus-per-node": 4, "batch": 4, "checkpointing": "full"}
    assert effects(said, place) == {"optimizer": "default", "gpus-per-node": "nothing"}
    assert effects({**SERVING, "max-model-len": 40960}, place) == {"max-model-len": "default"}


def test_effects_come_a_few_at_a_time(place: Place) -> None:
    job = {**JOB, "optimizer": "adamw", "gpus-per-node": 4}
    found: dict[str, str] = {}
    for skip in range(9):
        told = answer("effects", {"job": job, "skip": skip, "count": 1}, place)
        found |= told["same"]
        if not told["more"]:
            break
    assert found == effects(job, place)


def test_what_was_decided_is_told_for_rollouts_and_engines_too(place: Place) -> None:
    decided = answer("explore", {"job": GRPO}, place)["decided"]
    assert decided["precision"] is not None
    assert decided["optimizer"] == "adamw"
    decided = answer("explore", {"job": SERVING}, place)["decided"]
    assert decided["max-model-len"] == 40960
    assert decided["gpu-memory-utilization"] == "0.92"


def test_a_change_tells_what_it_takes_from_each_part(place: Place) -> None:
    job = {**JOB, "batch": 8}
    rows = answer("changes", {"job": job}, place)["changes"]
    fused = next(row for row in rows if row["name"] == "fused linear cross entropy")
    assert max(fused["parts"], key=fused["parts"].get) == "logits"
    assert all(size > 0 for row in rows for size in row["parts"].values())


def test_a_pinned_job_stands_in_the_same_pictures(place: Place) -> None:
    pinned = {**JOB, "batch": 16}
    html = answer("explore", {"job": JOB, "pinned": pinned}, place)["html"]
    assert html["bar"].count('class="bar"') == 2
    assert 'class="beside"' in html["phases"]
    alone = answer("explore", {"job": JOB}, place)["html"]
    assert alone["bar"].count('class="bar"') == 1
    broken = {**JOB, "pinned": {"model": "no-such-model"}}
    assert answer("explore", {"job": JOB, "pinned": broken["pinned"]}, place)["html"] == alone


def test_growth_says_where_nothing_is_quadratic(place: Place) -> None:
    for attention, wanted in (("eager", "grows with length²"), ("sdpa", "nothing here grows")):
        job = {**JOB, "attention": attention}
        assert wanted in answer("growth", {"job": job, "count": 3}, place)["html"]


def test_serving_has_no_timeline_and_says_what_has(place: Place) -> None:
    with pytest.raises(InputError, match="have no timeline"):
        answer("timeline", {"job": SERVING}, place)


def test_a_recording_that_cannot_be_read_does_not_tell_where_it_is_kept(place: Place) -> None:
    keeper = Keeper(place, "bad.trace")
    keeper.add(gzip.compress(b"["))
    token = keeper.close()
    with pytest.raises(InputError, match=r"^bad\.trace is not a trace"):
        answer("timeline", {"file": token}, place)


def test_every_option_and_group_has_a_chinese_word(place: Place) -> None:
    told = answer("catalog", {"lang": "zh"}, place)["fields"]
    assert {each["name"] for each in told} == set(fields())
    for each in told:
        assert re.search("[一-鿿]", each["help"]), each["name"]
        assert re.search("[一-鿿]", each["group_label"]), each["group"]
        assert not SENTENCE.search(each["help"]), each["help"]


@pytest.mark.parametrize("job", ODD_JOBS, ids=str)
def test_lines_and_formulas_have_no_english_sentence(job: dict[str, Any]) -> None:
    forecast = estimate(job_from(job))
    texts = [text for entry in forecast.ledger.entries for text in (entry.component, entry.formula)]
    texts += [*forecast.assumptions, *(rank.name for rank in forecast.ranks)]
    three = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){2,}[a-z]{2,}\b")
    shown = [translate(text, "zh") for text in texts]
    assert [text for text in shown if three.search(text)] == []
