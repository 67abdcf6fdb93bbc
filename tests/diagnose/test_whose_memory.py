# ruff: noqa: E501 (messages keep their lines)
"""Whose memory it was, on generated messages of which the truth is known.

A card is made up first: what this process has allocated, cached and outside PyTorch, and what other processes hold. Then
its message is printed as torch prints it, in a container or not, whole or cut off anywhere after the free memory. What
is said about other processes must agree with the card.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.readers.log import read_text

KIB, MIB, GIB = 2**10, 2**20, 2**30
OWN_PID = 4711
SMALLEST_CONTEXT = 105 * MIB  # published for an RTX 4060: ESRSchao/EdgeRegNet#2
LARGEST_CONTEXT = 871 * MIB  # published for an 8-GPU node: pytorch/pytorch#49481
BLAMES = {"other_processes", "other_processes_decide", "unlisted_processes", "shared_card"}


@dataclass(frozen=True)
class Card:
    """A card at the moment when a request was refused."""

    allocated: int
    cached: int
    outside: int
    others: tuple[tuple[int, int], ...]  # pid and bytes
    free: int
    requested: int

    @property
    def process(self) -> int:
        return self.allocated + self.cached + self.outside

    @property
    def held_by_others(self) -> int:
        return sum(nbytes for _, nbytes in self.others)

    @property
    def capacity(self) -> int:
        return self.process + self.held_by_others + self.free


def printed(nbytes: int) -> str:
    """As c10's format_size prints."""
    if nbytes <= KIB:
        return f"{nbytes} bytes"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if nbytes > unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes / KIB:.2f} KiB"


def message(card: Card, own: str, *, own_first: bool = False) -> str:
    """`own`: how this process is printed."""
    names = {
        "known": f"Including non-PyTorch memory, this process has {printed(card.process)}",
        "zero": "Including non-PyTorch memory, this process has 0 bytes",
        "container": f"Process {OWN_PID} has {printed(card.process)}",
    }
    clauses = [
        f"Process {pid} has {printed(nbytes)} memory in use. " for pid, nbytes in card.others
    ]
    clauses.insert(0 if own_first else len(clauses), f"{names[own]} memory in use. ")
    return (
        f"{head(card)}{''.join(clauses)}Of the allocated memory {printed(card.allocated)} is allocated by PyTorch, and "
        f"{printed(card.cached)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


def head(card: Card) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {printed(card.requested)}. GPU 0 has a total "
        f"capacity of {printed(card.capacity)} of which {printed(card.free)} is free. "
    )


def old_message(card: Card) -> str:
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {printed(card.requested)} (GPU 0; {printed(card.capacity)} "
        f"total capacity; {printed(card.allocated)} already allocated; {printed(card.free)} free; "
        f"{printed(card.allocated + card.cached)} reserved in total by PyTorch)"
    )


def rules(diagnosis: Diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


def blames_others(diagnosis: Diagnosis) -> bool:
    names = {item.name for item in diagnosis.hypotheses}
    steps = {item.step for item in diagnosis.advice}
    return bool(rules(diagnosis) & BLAMES) or "another_process" in names or "free_the_card" in steps


sizes = st.integers(min_value=64 * MIB, max_value=40 * GIB)
contexts = st.integers(min_value=SMALLEST_CONTEXT, max_value=LARGEST_CONTEXT)


@st.composite
def cards(draw: st.DrawFn, max_others: int = 0) -> Card:
    count = draw(st.integers(min(1, max_others), max_others))
    others = tuple(
        (100 + index, draw(st.integers(min_value=300 * MIB, max_value=30 * GIB)))
        for index in range(count)
    )
    free = draw(st.integers(min_value=0, max_value=2 * GIB))
    return Card(
        allocated=draw(sizes),
        cached=draw(st.integers(min_value=0, max_value=4 * GIB)),
        outside=draw(contexts),
        others=others,
        free=free,
        requested=free + draw(st.integers(min_value=1, max_value=12 * GIB)),
    )


@given(cards(), st.sampled_from(("known", "zero", "container")), st.floats(0, 1))
def test_nobody_else_is_blamed_for_a_card_that_this_process_has_to_itself(
    card: Card, own: str, cut: float
) -> None:
    """However the process is printed, and wherever the message is cut off."""
    whole, start = message(card, own), len(head(card))
    text = whole[: start + round(cut * (len(whole) - start))]
    assert not blames_others(diagnose(read_text(text))), text


WORDS_ABOUT_OTHERS = (
    "There is a zombie process, I think.",
    "ps shows python <defunct> somewhere",
    "[0] Tesla T4 | 39'C, 0 % | 15000 / 16280 MB | (null)",
    "kill: (4321) - No such process",
    "RuntimeError: CUDA error: out of memory\n[0] Tesla V100 | 44'C, 0 % | 15836 / 16130 MB |\n[1] Tesla V100 | 37'C, 0 % | 0 / 16130 MB |",
)


@given(
    cards(), st.sampled_from(("known", "zero", "container")), st.sampled_from(WORDS_ABOUT_OTHERS)
)
def test_words_about_others_count_for_nothing_where_the_numbers_refute_them(
    card: Card, own: str, words: str
) -> None:
    text = f"{words}\n{message(card, own)}"
    diagnosis = diagnose(read_text(text))
    assert "free_the_card" not in {item.step for item in diagnosis.advice}, text


@given(sizes, sizes, contexts)
def test_two_processes_of_one_launch_are_not_told_to_stop_each_other(
    first: int, second: int, context: int
) -> None:
    assume(abs(first - second) > 64 * MIB)
    held = {11: first + context, 22: second + context}
    texts = []
    for own, other in ((11, 22), (22, 11)):
        card = Card(
            allocated=held[own] - context,
            cached=0,
            outside=context,
            others=((other, held[other]),),
            free=8 * MIB,
            requested=200 * MIB,
        )
        texts.append(message(card, "known"))
    diagnosis = diagnose(read_text("\n".join(texts)))
    steps = [item.step for item in diagnosis.advice]
    assert steps[0] == "pin_ranks"
    assert "free_the_card" not in steps


@given(cards())
def test_old_messages_blame_nobody_for_a_card_that_this_process_has_to_itself(card: Card) -> None:
    text = old_message(card)
    assert not blames_others(diagnose(read_text(text))), text


@given(cards(max_others=3), st.booleans())
def test_processes_that_held_what_was_missing_are_named(card: Card, own_first: bool) -> None:
    missing = card.requested - card.free
    assume(missing <= card.held_by_others - 64 * MIB)
    diagnosis = diagnose(read_text(message(card, "known", own_first=own_first)))
    (found,) = [item for item in diagnosis.findings if item.rule == "other_processes_decide"]
    assert dict(found.values)["pids"] == ", ".join(str(pid) for pid, _ in card.others)
    assert diagnosis.hypotheses[0].name == "another_process"


@given(cards(max_others=3), st.sampled_from(("known", "container")), st.floats(0, 1))
def test_this_process_is_never_among_those_to_stop(card: Card, own: str, cut: float) -> None:
    """In a container it is listed like any other; one that holds as much cannot be told from it."""
    own_range = range(card.process - 3 * GIB, card.process + GIB)
    assume(not any(nbytes in own_range for _, nbytes in card.others))
    whole, start = message(card, own), len(head(card))
    text = whole[: start + round(cut * (len(whole) - start))]
    for finding in diagnose(read_text(text)).findings:
        if finding.rule in BLAMES:
            pids = str(dict(finding.values).get("pids", ""))
            assert str(OWN_PID) not in pids.split(", "), text


@pytest.mark.parametrize("listed", ["10.95 GiB", "10.97 GiB"])
def test_one_process_that_holds_all_that_is_in_use_is_this_one(listed: str) -> None:
    """unsloth on a T4, cut off in the middle of the message: 14.75 − 3.78 GiB are in use."""
    text = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 9.47 GiB. GPU 0 has a total capacity of 14.75 GiB of which "
        f"3.78 GiB is free. Process 2116 has {listed} memory in use. Of th"
    )
    diagnosis = diagnose(read_text(text))
    assert not blames_others(diagnosis)
    assert "listed_is_this_process" in rules(diagnosis)


def test_two_processes_that_hold_all_that_is_in_use_include_this_one() -> None:
    """Which of them it is cannot be told where the message ends before what PyTorch allocated."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. "
        "Process 7 has 3.00 GiB memory in use. Process 8 has 20.00 GiB memory in use."
    )
    diagnosis = diagnose(read_text(text))
    assert "this_process_is_listed" in rules(diagnosis)
    assert "other_processes_decide" not in rules(diagnosis)


def test_a_large_process_beside_room_for_this_one_is_somebody_else() -> None:
    """6 GiB of 40 in use are left for this process, which reserved 5: the one with 34 GiB is another one."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.50 GiB of which 0.50 GiB is free. "
        "Process 99 has 34.00 GiB memory in use. Of the allocated memory 4.50 GiB is allocated by PyTorch, and 0.50 GiB is "
        "reserved by PyTorch but unallocated."
    )
    (found,) = [
        item for item in diagnose(read_text(text)).findings if item.rule == "other_processes_decide"
    ]
    assert dict(found.values)["others_bytes"] == 34 * GIB
