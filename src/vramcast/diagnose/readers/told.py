"""A failure that somebody tells in words, where no program's message was pasted.

In: the lines of a short text. Out: a Passage around the sentence and its Observation, without numbers. Asked only where
no other reader found a failure. Advice and conditions ("if it runs out of memory", "to avoid OOM") are no failures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from vramcast.diagnose.observation import Moment, Observation
from vramcast.diagnose.readers.reader import observe
from vramcast.diagnose.readers.stream import LINES_AFTER, LINES_BEFORE, Line, Passage, clean

MAX_LINES, MAX_CHARS = 400, 1000

_KILLED = re.compile(
    r"(?:progress|process|program|script|job|training|kernel|it|worker|session|container"
    r"|pod)\s(?:\w+\s){0,5}?(?:be|is|was|got|gets|been"
    r"|being|just)\s(?:\w+\s){0,2}?killed\b|\b(?:getting|gets|got|being)\s(?:\w+\s){0,2}?killed\b"
    r"|(?:message|says?|output|gets?|get|error|displays?|prints?|shows?|printed)\W{1,4}killed\b|被 ?kill|直接 ?kill"
    r"|\b(?:then|and)\s(?:just\s|it\s|it's\s)?killed\b"
    r"|kill ?掉|被系统杀|被杀|got (?:oom[- ])?killed|exit(?:s|ed)? with code -9",
    re.IGNORECASE,
)
_KERNEL = re.compile(
    r"\b(?:notebook|jupyter|the|my|ipython) kernel (?:\w+ )?(?:dies|died|dying|crash\w*)\b",
    re.IGNORECASE,
)
_HOST = re.compile(
    r"(?:\b(?:cpu|host|system|main)[ -](?:ram|memory)|\bRAM\b|(?<!显)内存)[^.\n]{0,60}?(?:out of|runs? out|ran out"
    r"|exhaust|full|exceed|insufficient|not enough|crash|爆|溢出|不足|不够|占满|耗尽)"
    r"|(?:out of|runs? out of|ran out of|not enough|exceed\w*|insufficient) (?:the |all )?"
    r"(?:(?:cpu|host|system|main)[ -](?:ram|memory)|RAM\b)",
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r"out[ -]of[ -](?:the )?(?:cuda |gpu |video |graphics )?(?:mem+\w*|vram)\b"
    r"|(?:runs?|ran|running) out of (?:g?pu )?vram|(?:memory|vram) (?:has |have )?(?:ran|run) out"
    r"|(?:gpu|cuda|video|graphics)(?: card)?(?:'s)? (?:v?ram|memory) (?:is |was |gets? |got |becomes? )?"
    r"(?:full|exhausted|used up)"
    r"|\b(?:CUDA|GPU) ?OutOfMemory|(?<![\w.])(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b"
    r"|Device memory allocation of size \d+ failed"
    r"|(?:not enough|insufficient) (?:gpu |cuda |video )?(?:memory|vram)\b|(?:gpu|cuda"
    r"|vram) memory (?:error|overflow)"
    r"|爆显存|显存(?:不足|不够|溢出|爆|耗尽|占满)|炸显存|显存.{0,12}(?:溢出|不够|不足)"
    r"|(?:GPU|VRAM|ビデオ)?メモリ(?:不足|が足り)|(?:GPU )?메모리.{0,6}(?:부족|초과)|не хватает (?:видео)?памяти"
    r"|memoria insuficiente|mémoire insuffisante|speicher reicht nicht",
    re.IGNORECASE,
)
# Chinese has no blanks between words: only Latin letters, digits and dashes make OOM a part of a name.
_OOM = re.compile(
    r"(?<![A-Za-z0-9_./\\-])(?:(?i:cuda|gpu) [Oo][Oo][Mm]|OOM|oom)(?:s|ed|ing)?"
    r"(?![A-Za-z0-9_(-]|\s*[=:]\s*\d|\.\w)(?! ?[Kk]ill)"
)
# Before the words: what makes them a condition, an aim or a denial.
_NOT_SO = re.compile(
    r"\b(?:if|except|avoid\w*|prevent\w*|reduc\w+|against|in case of|may|might|risk|without|no|never"
    r"|handl\w+|catch\w*"
    r"|recover\w*|skip\w*|unless|help)\b[^.;!?\n]{0,40}$|\bin and $|避免|防止|如果",
    re.IGNORECASE,
)


def told_failure(lines: Sequence[str]) -> Iterator[tuple[Passage, Observation]]:
    """The first sentence that tells one, if any; what it says of the host counts before what it says of the card."""
    cleaned = [clean(line[:MAX_CHARS]) for line in lines[:MAX_LINES]]
    for number, kind, place in islice(_told(cleaned), 1):
        passage = _passage(lines, number)
        yield (
            passage,
            observe(passage, kind=kind, moment=Moment.FAILURE, place=place, marks=("truncated",)),
        )


def _told(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    for pattern, kind, place in (
        (_KILLED, "host_oom_kill", "host"),
        (_HOST, "host_told", "host"),
        (_KERNEL, "kernel_gone", "host"),
        (_DEVICE, "gpu_told", "cuda"),
        (_OOM, "gpu_told", "cuda"),
    ):
        for number, text in enumerate(lines):
            match = pattern.search(text)
            if match and not _NOT_SO.search(text[: match.start()]):
                yield number, kind, place


def _passage(lines: Sequence[str], number: int) -> Passage:
    numbered = tuple(Line(number=at, raw=raw) for at, raw in enumerate(lines, start=1))
    return Passage(
        line=numbered[number],
        before=numbered[max(0, number - LINES_BEFORE) : number],
        after=numbered[number + 1 : number + 1 + LINES_AFTER],
    )
