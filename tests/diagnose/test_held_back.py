"""Threads and wordings that were collected and answered before the tool saw them (first scores: docs/diagnose.md).

The bars are the project's own: the true cause among the first two hypotheses for four of five threads, nine of ten
numbers. What misses is listed here by name, so that a change for the better or the worse is seen.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from held_back_last import GPU_THREADS, LAST_MIXED, LAST_MIXED_THREADS
from held_back_mixed import LATER_MIXED, MIXED
from held_back_more_threads import LATER_MIXED_THREADS, MIXED_THREADS
from held_back_same_kinds import LATER_SAME_KINDS, SAME_KINDS
from held_back_threads import LAST_THREADS, LATER_THREADS, THREADS, Thread
from held_back_wordings import LATER_WORDINGS, WORDINGS, Statement, Wording

from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers.log import read_text
from vramcast.job import job_from

SCALE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 10**9}


def size(text: str) -> int:
    number, unit = text.split()
    return round(Decimal(number) * SCALE[unit])


def names_of(thread: Thread) -> set[str]:
    """The first two hypotheses, and what they say is different about the job."""
    diagnosis = diagnose(read_text(thread.text), job_from(thread.job) if thread.job else None)
    names: set[str] = set()
    for item in diagnosis.hypotheses[:2]:
        changes = item.explanation.changes if item.explanation else None
        names.update((item.name, *(changes or ())), () if changes != () else ("as described",))
    return names


def right_numbers(wording: Wording) -> tuple[int, int, list[str]]:
    """How many numbers and statements are read right, of how many, and what is wrong."""
    left, wrong = list(read_text(wording.text).observations), list[str]()
    right = total = 0
    for statement in wording.says:
        same = [item for item in left if item.is_failure() == statement.fails]
        best = max(same, key=lambda item: len(agreeing(item, statement)), default=None)
        if best is not None:
            left.remove(best)
        wanted = wanted_of(statement)
        found = agreeing(best, statement) if best is not None else set()
        total += max(1, len(wanted))
        right += len(found) if wanted else int(best is not None)
        wrong += (
            sorted(wanted - found) if wanted else [] if best is not None else ["not recognised"]
        )
        wrong += (
            [f"place {best.place}"]
            if best is not None and statement.place not in ("", best.place)
            else []
        )
        wrong += (
            [f"kind {best.kind}"]
            if best is not None and statement.kind not in ("", best.kind)
            else []
        )
    return right, total, wrong + [f"more: {item.kind}" for item in left]


def wanted_of(statement: Statement) -> set[str]:
    processes = (f"process {pid}" for pid, _ in statement.others)
    return {*statement.figures, *processes, *(f"figure {text}" for text in statement.also)}


def agreeing(item: Observation, statement: Statement) -> set[str]:
    """The names of the figures that this observation has just as the text says them."""
    found = {name for name, text in statement.figures.items() if getattr(item, name) == size(text)}
    uses = {use.pid: use.nbytes for use in item.other_processes or ()}
    found |= {f"process {pid}" for pid, text in statement.others if uses.get(pid) == size(text)}
    printed = {figure.value for figure in item.figures}
    return found | {f"figure {text}" for text in statement.also if size(text) in printed}


ALL_THREADS = (
    *THREADS,
    *LATER_THREADS,
    *LAST_THREADS,
    *MIXED_THREADS,
    *LATER_MIXED_THREADS,
    *LAST_MIXED_THREADS,
    *GPU_THREADS,
)
OF_THE_KINDS = (*SAME_KINDS, *LATER_SAME_KINDS, *MIXED, *LATER_MIXED, *LAST_MIXED)
ALL_WORDINGS = (*WORDINGS, *LATER_WORDINGS, *OF_THE_KINDS)
STILL_MISREAD: set[str] = set()
# What was printed does not say it: a message without code, one error line, a limit of WSL.
STILL_MISSED = {
    "MAGICS-LAB/DNABERT_2#78", "pytorch/pytorch#18313", "merveenoyan/smol-vision#22", "OpenMOSS/MOSS#328",
    "InternLM/InternLM#79", "NVIDIA-NeMo/RL#2859", "meta-pytorch/torchtune#1603",
    "yikang-li/FactorizableNet#22", "Rudrabha/Wav2Lip#221", "MichalBusta/E2E-MLT#37",
}  # fmt: skip


def test_no_thread_and_no_wording_is_counted_twice() -> None:
    assert len({thread.source for thread in ALL_THREADS}) == len(ALL_THREADS) >= 25
    assert len({wording.source for wording in ALL_WORDINGS}) == len(ALL_WORDINGS) >= 40


@pytest.mark.slow
def test_four_of_five_threads_have_their_cause_among_the_first_two() -> None:
    missed = {
        thread.source: names
        for thread in ALL_THREADS
        if not (names := names_of(thread)) & set(thread.causes)
    }
    assert len(missed) <= len(ALL_THREADS) // 5, missed
    assert set(missed) == STILL_MISSED


def test_nine_of_ten_numbers_are_read_right() -> None:
    scores = {wording.source: right_numbers(wording) for wording in ALL_WORDINGS}
    right, total = (
        sum(score[0] for score in scores.values()),
        sum(score[1] for score in scores.values()),
    )
    assert right >= total * 0.9, {source: score[2] for source, score in scores.items() if score[2]}


def test_texts_of_the_samples_kinds_are_read_but_for_those_named() -> None:
    scores = {wording.source: right_numbers(wording) for wording in OF_THE_KINDS}
    assert len(scores) >= 170
    assert {
        source for source, (right, total, _) in scores.items() if right < total
    } == STILL_MISREAD, scores
