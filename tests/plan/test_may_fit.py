"""A job refused without a bill does not fit when it is billed; one that is billed says what an estimate says."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.bill import TooLarge
from vramcast.engine.estimate import estimate, estimate_if_it_may_fit
from vramcast.engine.replay.drafts import Drafts
from vramcast.forecast import Forecast
from vramcast.job import job_from
from vramcast.models.read.model import read_model
from vramcast.plan.ranking import fits_surely
from vramcast.units import MiB

JOBS: dict[str, dict[str, Any]] = {
    "one card": {"model": "gpt2", "batch": 4, "seq": 512},
    "accumulating": {"model": "gpt2", "batch": 2, "seq": 512, "accumulate": 4},
    "a reference": {"model": "smollm2-135m", "seq": 512, "reference": "same"},
    "sharded": {"model": "gpt2-medium", "batch": 2, "seq": 512, "gpus": 4, "strategy": "fsdp2"},
    "stages": {
        "model": "gpt2-medium",
        "batch": 2,
        "seq": 512,
        "gpus": 4,
        "strategy": "ddp",
        "pp": 2,
    },
    "edited": {
        "model": "qwen2-vl-2b",
        "seq": 128,
        "precision": "bf16-true",
        "edit": "layers.27.mlp.up_proj",
    },
}


@pytest.mark.parametrize("name", [*list(JOBS)[:-1], pytest.param("edited", marks=pytest.mark.slow)])
def test_what_is_refused_does_not_fit(name: str) -> None:
    needed = estimate(job_from({**JOBS[name], "gpu": "80GiB"})).verdict().process_bytes or 0
    kinds = set()
    for share in (0.7, 0.98, 1.0, 1.03, 1.5):
        job = job_from({**JOBS[name], "gpu": f"{round(needed * share / MiB)}MiB"})
        found, whole = estimate_if_it_may_fit(job), estimate(job)
        kinds.add(type(found))
        if isinstance(found, Forecast):
            assert found.verdict() == whole.verdict()
        else:
            assert not fits_surely(whole)
            assert 0 < found.asked_bytes <= (whole.verdict().allocated_bytes or 0)
    assert kinds == {Forecast, TooLarge}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one card", "accumulating", "a reference"])
def test_what_a_search_shares_between_its_jobs_changes_no_answer(name: str) -> None:
    needed = estimate(job_from({**JOBS[name], "gpu": "80GiB"})).verdict().process_bytes or 0
    kinds = set()
    for share in (0.6, 0.8, 1.0):
        card = {"gpu": f"{round(needed * share / MiB)}MiB"}
        config = read_model(JOBS[name]["model"]).config
        assert config is not None
        drafts = Drafts(config, find_gpu(card["gpu"]))
        for conf in ("", "expandable_segments:True"):
            for optimizer in ("adamw", "sgd", "adamw-8bit", "adagrad"):
                for checkpointing in ("none", "full"):
                    changed = {
                        "optimizer": optimizer,
                        "alloc-conf": conf,
                        "checkpointing": checkpointing,
                    }
                    job = job_from({**JOBS[name], **card, **changed})
                    alone, together = (
                        estimate_if_it_may_fit(job),
                        estimate_if_it_may_fit(job, drafts=drafts),
                    )
                    kinds.add(type(together))
                    assert alone == together
    assert kinds == {Forecast, TooLarge}


def test_a_job_that_runs_out_while_states_are_made_says_nothing_of_another_optimizer() -> None:
    small = {"model": "gpt2-large", "seq": 64}
    needed = estimate(job_from({**small, "gpu": "80GiB"})).verdict().process_bytes or 0
    card = {"gpu": f"{round(0.8 * needed / MiB)}MiB"}
    config = read_model("gpt2-large").config
    assert config is not None
    drafts = Drafts(config, find_gpu(card["gpu"]))
    found = [
        type(
            estimate_if_it_may_fit(
                job_from({**small, **card, "optimizer": optimizer}), drafts=drafts
            )
        )
        for optimizer in ("adamw", "sgd")
    ]
    assert found == [TooLarge, Forecast]
