"""Alike layers are folded together: the runs that are found are the list, and never cross a phase."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vramcast.engine.stream.fold import repetitions

KEYS = st.lists(st.tuples(st.sampled_from(("forward", "loss")), st.integers(0, 2)), max_size=40)


@given(KEYS)
def test_runs_put_together_are_the_list(keys: list[tuple[str, int]]) -> None:
    put_together: list[tuple[str, int]] = []
    for start, length, times in repetitions(keys):
        assert start == len(put_together)
        part = keys[start : start + length]
        assert len({phase for phase, _ in part}) == 1
        put_together += part * times
    assert put_together == keys


def test_layers_of_several_chunks_are_one_run() -> None:
    layer = [("backward", number) for number in (1, 2, 3)]
    assert list(repetitions([("backward", 0), *layer * 80, ("backward", 4)])) == [
        (0, 1, 1),
        (1, 3, 80),
        (241, 1, 1),
    ]
