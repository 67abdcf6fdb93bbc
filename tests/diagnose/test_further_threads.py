"""Threads collected last: each has its cause among the first two, and none is advised against what its text says."""

from __future__ import annotations

import pytest
from further_threads import ADDED, FURTHER, KEPT
from held_back_threads import Thread

from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.readers.log import read_text

ALL = (*FURTHER, *ADDED, *KEPT)
# Steps that only make sense for one kind of cause.
ONLY_FOR = {
    "free_the_card": "another_process",
    "more_shm": "shared_memory",
    "share_through_files": "open_files",
    "larger_page_file": "page_file",
    "keep_the_session": "not_memory",
}


@pytest.mark.parametrize("thread", ALL, ids=[thread.source for thread in ALL])
def test_the_cause_is_among_the_first_two(thread: Thread) -> None:
    diagnosis = diagnose(read_text(thread.text))
    names = [item.name for item in diagnosis.hypotheses[:2]]
    assert set(names) & set(thread.causes), names


@pytest.mark.parametrize("thread", ALL, ids=[thread.source for thread in ALL])
def test_no_step_is_for_a_cause_that_is_not_there(thread: Thread) -> None:
    steps = [item.step for item in diagnose(read_text(thread.text)).advice]
    misplaced = [step for step in steps if step in ONLY_FOR and ONLY_FOR[step] not in thread.causes]
    assert not misplaced


def test_there_are_sixty_and_none_twice() -> None:
    assert len({thread.source for thread in ALL}) == len(ALL) >= 60
