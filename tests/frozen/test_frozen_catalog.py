"""Answers that no change of structure may move: see frozen_jobs.py."""

from __future__ import annotations

import gc
import json

import pytest
from frozen_jobs import FILE, catalog_jobs, freeze_estimate


@pytest.mark.slow
def test_bytes_are_what_they_were() -> None:
    gc.disable()  # as the command line does: a third of the time
    frozen = json.loads(FILE.read_text())["catalog"]
    moved = {
        key: was
        for key, values in catalog_jobs()
        if (was := frozen.pop(key)) != freeze_estimate(values)
    }
    gc.enable()
    assert moved == {}
    assert frozen == {}, "frozen, but no longer asked"
