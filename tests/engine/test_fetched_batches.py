"""transformers' Trainer fetches all micro-batches of a step before the first one runs, since 4.46."""

from __future__ import annotations

import pytest

from vramcast.engine.estimate import estimate
from vramcast.job import Job
from vramcast.ledger import Category

PIXELS = 8 * 3 * 224 * 224 * 4
LABELS = 8 * 8


@pytest.mark.parametrize(
    ("framework", "version", "fetched"),
    [("hf", "4.57", 4), ("hf", "4.45", 1), ("plain", "4.57", 1)],
)
def test_micro_batches_on_the_device(framework: str, version: str, fetched: int) -> None:
    job = Job(
        model="vit-base-patch16-224",
        batch=8,
        accumulate=4,
        framework=framework,
        transformers_version=version,
    )
    ledger = estimate(job).ledger
    held = ledger.grouped(lambda entry: entry.category, phase="forward", place="cuda:0")
    assert held[Category.INPUT] == fetched * (PIXELS + LABELS)
