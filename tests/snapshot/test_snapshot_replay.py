"""Recordings of the naive allocator, read, rewound and replayed: every choice and both peaks must come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recordings import MIB, Recording, record

from vramcast.allocator import AllocatorSettings
from vramcast.allocator.block import ALLOCATED
from vramcast.snapshot.history import History
from vramcast.snapshot.reader import read_snapshot
from vramcast.snapshot.replay import replay, replay_with

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "": {},
    "expandable_segments:True": {"expandable": True},
    "max_split_size_mb:32": {"max_split": 32 * MIB},
    "roundup_power2_divisions:4": {"divisions": 4},
    "large_segment_size_mb:12": {"large_segment": 12 * MIB},
}
PROGRAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two streams": {"streams": (0, 7)},
    "private pool": {"private": True},
    "delayed frees": {"delays": True},
    "everything": {"streams": (0, 7), "private": True, "delays": True},
}


def history_of(recording: Recording, tmp_path: Path) -> History:
    return History.of(read_snapshot(recording.write(tmp_path / "snapshot.pickle")), 0)


def check_walk(history: History, recording: Recording) -> None:
    """The figures after every event, and the state at the end."""
    figures = []
    for walk in history.walk():
        figures.append((walk.allocated_bytes, walk.reserved_bytes))
    assert figures == recording.figures
    assert walk.unexplained == 0
    assert {a: b.size for a, b in walk.layout.blocks.items()} == {
        a: b.size for a, b in history.end.blocks.items()
    }


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_a_whole_run_is_reproduced_to_the_address(text: str, program: str, tmp_path: Path) -> None:
    recording = record(text, seed=5, **CONFIGURATIONS[text], **PROGRAMS[program])
    history = history_of(recording, tmp_path)
    check_walk(history, recording)
    result = replay(history)
    assert result.allocations == result.same_address > 100
    assert result.segments == result.same_segments > 0
    assert result.releases == result.same_releases
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes) == (
        recording.peak_allocated,
        recording.peak_reserved,
    )
    assert result.end_state_matches


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_the_end_of_a_run_is_enough_to_find_its_start(
    text: str, program: str, seed: int, tmp_path: Path
) -> None:
    """A ring buffer kept the last 150 events. Everything is exact, unless the reader says what it cannot know."""
    recording = record(text, seed=seed, keep=150, **CONFIGURATIONS[text], **PROGRAMS[program])
    history = history_of(recording, tmp_path)
    result = replay(history)
    assert result.end_state_matches
    assert result.peak_reserved_bytes == recording.peak_reserved
    if history.uncertain_blocks:
        assert result.same_address >= 0.95 * result.allocations
        assert (
            0
            <= recording.peak_allocated - result.peak_allocated_bytes
            <= history.uncertain_blocks * MIB
        )
    else:
        check_walk(history, recording)
        assert result.same_address == result.allocations
        assert result.peak_allocated_bytes == recording.peak_allocated


def test_windows_without_any_uncertainty_are_not_rare(tmp_path: Path) -> None:
    """So that the test above says something."""
    histories = [history_of(record("", seed=seed, keep=150), tmp_path) for seed in range(20)]
    assert sum(history.uncertain_blocks == 0 for history in histories) >= 5


def test_a_run_that_hits_the_capacity_is_followed_through_its_retries(tmp_path: Path) -> None:
    recording = record("", seed=3, steps=500, capacity=150 * MIB)
    assert any(event["action"] == "oom" for event in recording.events)
    history = history_of(recording, tmp_path)
    check_walk(history, recording)
    result = replay(history)
    assert result.same_address == result.allocations
    assert result.releases == result.same_releases > 0
    assert result.peak_reserved_bytes == recording.peak_reserved <= 150 * MIB


def test_older_recordings_name_no_pool_and_no_time(tmp_path: Path) -> None:
    recording = record("", seed=8, private=True)
    for event in recording.events:
        del event["pool_id"], event["time_us"]
    result = replay(history_of(recording, tmp_path))
    assert (
        result.same_address >= 0.9 * result.allocations
    )  # pools of segments that are gone are not known


@pytest.mark.parametrize("missing", ["free_requested", "free_completed"])
def test_recordings_without_one_half_of_each_free(missing: str, tmp_path: Path) -> None:
    recording = record("", seed=2)
    kept = [event for event in recording.events if event["action"] != missing]
    thinned = Recording(recording.allocator, kept, recording.figures, "")
    result = replay(history_of(thinned, tmp_path))
    assert result.same_address == result.allocations
    assert result.peak_allocated_bytes == recording.peak_allocated


def test_the_state_at_any_event_is_what_it_was(tmp_path: Path) -> None:
    recording = record("", seed=4, steps=120)
    history = history_of(recording, tmp_path)
    for index in (-1, 0, 50, len(recording.events) - 1):
        state = history.state_at(index)
        live = [block for block in state.layout.blocks.values() if block.state == ALLOCATED]
        assert sum(block.size or 0 for block in live) == recording.figures[index + 1][0]
    with pytest.raises(IndexError):
        history.state_at(len(recording.events))


def test_a_different_choice_is_found_and_counted_once(tmp_path: Path) -> None:
    """torch with one decision changed: a block of the second-best size is taken once."""
    recording = record("", seed=6)
    allocator = recording.allocator
    sizes = [30 * MIB, 30 * MIB, 60 * MIB]
    for piece in [allocator.malloc(size) for size in sizes]:
        allocator.free(piece)
    best = allocator.best_fit
    cached = sorted(
        (p for p in allocator.pieces if p.state == "free" and p.size >= 25 * MIB),
        key=lambda p: (p.size, p.address),
    )
    allocator.best_fit = lambda size, stream, pool: cached[1]  # type: ignore[method-assign]
    changed_at = len(allocator.events)
    allocator.malloc(25 * MIB)
    allocator.best_fit = best  # type: ignore[method-assign]
    for _ in range(20):
        allocator.malloc(5 * MIB)
    history = history_of(Recording(allocator, allocator.events, allocator.figures, ""), tmp_path)
    result = replay(history)
    assert result.allocations - result.same_address == 1
    assert result.first_difference == changed_at
    assert result.end_state_matches


def test_other_settings_are_tried_on_the_same_requests(tmp_path: Path) -> None:
    """Growing requests: each new one fits no cached segment, but an expandable segment just grows."""
    recording = record("", seed=0, steps=0)
    allocator = recording.allocator
    for size in range(20, 200, 4):
        allocator.free(allocator.malloc(size * MIB))
    history = history_of(Recording(allocator, allocator.events, allocator.figures, ""), tmp_path)
    same = replay_with(history, AllocatorSettings(), "")
    grown = replay_with(
        history, AllocatorSettings.parse("expandable_segments:True"), "expandable_segments:True"
    )
    assert same.peak_reserved_bytes == allocator.peak_reserved == sum(range(20, 200, 4)) * MIB
    assert grown.peak_reserved_bytes == 200 * MIB
    assert grown.peak_allocated_bytes == 196 * MIB
