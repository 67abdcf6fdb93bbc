"""A replay that ends early: what it asked for."""

from __future__ import annotations

import pytest

from vramcast.engine.replay.run import Replayed, Script, replay
from vramcast.units import GiB


def played(*weights: int, most_bytes: int | None = None) -> Replayed:
    script = Script(
        weights=weights, first=[], later=[], states=(), step_temporaries=(), zero_grad_first=True
    )
    return replay(script, capacity_bytes=8 * GiB, conf="", most_bytes=most_bytes)


@pytest.mark.parametrize("most_bytes", [None, 6 * GiB])
def test_the_refused_request_was_asked_for(most_bytes: int | None) -> None:
    found = played(3 * GiB, 7 * GiB, most_bytes=most_bytes)
    assert found.out_of_memory
    assert found.peak_requested_bytes == 10 * GiB
    assert found.peak_allocated_bytes == 3 * GiB


def test_what_suffices_asks_for_what_it_gets() -> None:
    found = played(3 * GiB, 4 * GiB)
    assert not found.out_of_memory
    assert found.peak_requested_bytes == found.peak_allocated_bytes == 7 * GiB
