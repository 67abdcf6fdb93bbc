"""Plans and traces that no change of structure may move: see frozen_jobs.py."""

from __future__ import annotations

import json

import pytest
from frozen_jobs import FILE, PLANS, TRACES, freeze_plan, freeze_trace

FROZEN = json.loads(FILE.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("words", PLANS)
def test_plans_are_what_they_were(words: str) -> None:
    assert freeze_plan(words) == FROZEN["plans"][words]


@pytest.mark.slow
@pytest.mark.parametrize("words", TRACES)
def test_traces_are_what_they_were(words: str) -> None:
    assert freeze_trace(words) == FROZEN["traces"][words]
