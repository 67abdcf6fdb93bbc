"""What the page answers about jobs that train nothing, and about models that no formula describes."""

from __future__ import annotations

import asyncio
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import InputError, TraceNeededError, VramcastError
from vramcast.forecasting.tracer import NO_NEW
from vramcast.job import job_from
from vramcast.plan.search import plan
from vramcast.report.words import LANGUAGES
from vramcast.web.answers import answer
from vramcast.web.front import list_front
from vramcast.web.given import Place
from vramcast.web.pool import Pool

SERVING: dict[str, Any] = {"model": "qwen3-8b", "gpu": "rtx4090", "engine": "vllm"}
GENERATING: dict[str, Any] = {
    "model": "qwen3-8b",
    "gpu": "rtx3060-12gb",
    "task": "generate",
    "prompt": 3000,
}
UNDESCRIBED: dict[str, Any] = {"model": "modernbert-base", "gpu": "rtx4090", "seq": 64}
ENGINES = ("vllm", "sglang", "tgi", "llama.cpp")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(folder=tmp_path)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_shown_with_its_cache(place: Place, engine: str, lang: str) -> None:
    job = {**SERVING, "engine": engine, "max-model-len": 8192}
    told = answer("explore", {"job": job, "lang": lang}, place)
    served = told["forecast"]["served"]
    assert served["starts"]
    assert f"{served['kv_tokens']:,}" in told["html"]["served"]
    assert told["html"]["phases"]
    assert told["pending"] == ""
    assert told["missing"] is None


def test_changes_of_an_engine_apply_and_do_what_they_say(place: Place) -> None:
    rows = answer("changes", {"job": SERVING}, place)["changes"]
    assert len(rows) >= 4
    for row in rows[:4]:
        after = answer("estimate", {"job": {**SERVING, **row["set"]}}, place)
        assert f"{after['served']['kv_tokens']:,}" in row["peak"]


def test_changes_of_generating_apply_and_do_what_they_say(place: Place) -> None:
    rows = answer("changes", {"job": GENERATING}, place)["changes"]
    assert rows
    for row in rows:
        after = answer("estimate", {"job": {**GENERATING, **row["set"]}}, place)
        assert after["verdict"]["process_bytes"] == row["peak_bytes"]


@pytest.mark.parametrize(
    "more", [{"task": "generate", "prompt": 200}, {"task": "score"}, {"task": "encode"}]
)
@pytest.mark.parametrize("axis", ["seq", "batch"])
def test_passes_grow_with_length_and_batch(place: Place, more: dict[str, Any], axis: str) -> None:
    job = {"model": "gpt2", "gpu": "rtx4090", "batch": 2, **more}
    points = answer("growth", {"job": job, "axis": axis, "count": 3}, place)["points"]
    sizes = [point["bytes"] for point in points]
    assert len(sizes) == 3
    assert sizes == sorted(sizes)
    key = "batch" if axis == "batch" else {"generate": "prompt"}.get(more["task"], "seq")
    there = answer("estimate", {"job": {**job, key: points[-1]["at"]}}, place)
    assert there["verdict"]["process_bytes"] == sizes[-1]


def test_requests_of_an_engine_are_a_table_and_llama_cpp_grows(place: Place) -> None:
    assert "<table" in answer("growth", {"job": SERVING}, place)["html"]
    points = answer("growth", {"job": {**SERVING, "engine": "llama.cpp"}, "count": 3}, place)
    sizes = [point["bytes"] for point in points["points"]]
    assert sizes == sorted(set(sizes))


def test_cards_are_tried_for_what_trains_nothing(place: Place) -> None:
    for job in (SERVING, GENERATING, {"model": "gpt2", "task": "score", "gpu": "t4"}):
        assert len(answer("cards", {"job": job, "count": 2}, place)["cards"]) == 2


def test_the_front_is_that_of_plan(place: Place) -> None:
    job = job_from({"model": "gpt2", "gpu": "4GiB", "batch": 8, "seq": 1024})
    plans = plan(job)
    found, more = list_front(_forecast(job), "en", count=2)
    assert not more
    assert found["by"] == "plan"
    assert f"{plans.num_candidates:,}" in found["said"]
    expected = [
        (len(each.moves), each.forecast.verdict().allocated_bytes) for each in plans.fitting
    ] + [(len(each.moves), each.allocated_bytes) for each in plans.front]
    rows = [(len(row["changes"]), row["peak_bytes"]) for row in found["points"]]
    assert rows[1:] == expected
    for row, each in zip(found["points"][1:], plans.fitting, strict=False):
        there = answer("estimate", {"job": {**_said(job), **row["set"]}}, place)
        assert there["verdict"]["allocated_bytes"] == row["peak_bytes"]
        assert row["set"] == {
            name: value for name, value in row["set"].items() if _said(each.job)[name] == value
        }


def test_without_numpy_the_front_is_tried_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.web.front.find_spec", lambda name: None)
    job = job_from({"model": "gpt2", "gpu": "4GiB", "batch": 8, "seq": 256})
    found, more = list_front(_forecast(job), "en", count=3)
    assert more
    assert found["by"] == "tries"
    assert "vramcast plan" in found["said"]


def _forecast(job: Any) -> Any:
    from vramcast.forecasting import estimate

    return estimate(job)


def _said(job: Any) -> dict[str, Any]:
    from vramcast.job import job_values

    return {name: value for name, value in job_values(job).items() if value is not None}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_mistakes_are_told_in_both_languages(place: Place, lang: str) -> None:
    with pytest.raises(VramcastError) as caught:
        answer("explore", {"job": {"model": "no-such-model"}, "lang": lang}, place)
    assert ("未知" in str(caught.value)) == (lang == "zh")
    with pytest.raises(InputError):
        answer("explore", {"job": {}, "lang": lang}, place)


# ---- models that no formula describes


@pytest.fixture
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_without_torch_the_command_is_given(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.forecasting.tracer.missing_libraries", lambda: ["torch"])
    told = answer("explore", {"job": {**UNDESCRIBED, "seq": 65}}, place)
    assert told["pending"] == ""
    assert told["missing"]["command"] == (
        "pip install 'vramcast[trace]' && vramcast estimate modernbert-base --gpu rtx4090 --seq 65"
    )


@pytest.mark.skipif(find_spec("torch") is None, reason="left out: no torch")
def test_a_process_that_answers_at_once_says_who_must_run_first(
    place: Place, nothing_kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NO_NEW, "1")
    request = {"job": {**UNDESCRIBED, "seq": 66}}
    told = answer("explore", {**request, "wait": False}, place)
    assert told["forecast"] is None
    assert "virtual GPU" in told["pending"]
    for name in ("explore", "estimate"):
        with pytest.raises(TraceNeededError):
            answer(name, request, place)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="left out: no torch")
def test_a_run_is_elsewhere_ends_when_nobody_waits_and_is_kept(
    place: Place, nothing_kept: None
) -> None:
    async def asked() -> None:
        pool = Pool(place, count=1)
        request = {"job": UNDESCRIBED}
        given_up = asyncio.create_task(pool.ask("estimate", request))
        other = await pool.ask("estimate", {"job": {"model": "gpt2"}})
        assert json.loads(other)["model"]["name"] == "gpt2"
        assert not given_up.done()  # the run blocks nobody
        while pool._tracer._process is None:
            await asyncio.sleep(0.05)
        process = pool._tracer._process
        given_up.cancel()
        while process.is_alive():
            await asyncio.sleep(0.05)
        told = json.loads(await pool.ask("estimate", request))
        assert any(entry["origin"] == "traced" for entry in told["entries"])
        again = json.loads(await pool.ask("explore", {**request, "wait": False}))
        assert again["forecast"]["verdict"] == told["verdict"]
        timeline = json.loads(await pool.ask("timeline", request))
        assert timeline["timeline"]["peak"]["bytes"] > 0
        pool.close()

    asyncio.run(asked())
    assert any(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.traced-job.gz"))
