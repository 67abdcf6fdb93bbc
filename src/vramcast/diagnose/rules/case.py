"""What the rules know and what they answer: a Case, Hypotheses, and the ways in which evidence speaks for a cause.

In: a Reading with its findings. Out: small functions Case → Hypothesis. Which evidence speaks for which cause is said
in `causes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.clues import INFERENCE, SERVERS
from vramcast.diagnose.rules.evidence import frame_text
from vramcast.diagnose.rules.findings import Finding

if TYPE_CHECKING:  # the engine is loaded only if a job is given
    from vramcast.diagnose.job_gap.explanation import Explanation

# Plausibility, 0 to 100.
PROVEN = 95  # by the numbers
SEEN = 80  # the failing line says so
LIKELY = 60
POSSIBLE = 30

# How many of the innermost frames are searched, and how much less each frame further out proves.
CODE_DEPTH, LOSS_PER_FRAME = 12, 2
SERVER_STARTS = ("vllm_startup", "sglang_startup")
TOO_LARGE = ("request_larger_than_card", "request_larger_than_any_card", "absurd_request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A cause by name, how plausible it is (0 to 100), and the evidence for it."""

    name: str
    plausibility: int
    evidence: tuple[str, ...] = ()  # names of findings, or code as printed
    # Where a job is known: the variant of it that agrees with the numbers.
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that the rules may use."""

    reading: Reading
    findings: tuple[Finding, ...]
    clues: Mapping[str, str]  # words around the failure, by the name of what they say

    def has(self, *rules: str) -> bool:
        return bool(self.found_among(rules))

    def found_among(self, rules: Sequence[str]) -> tuple[str, ...]:
        """Those of the rules that found something, each once, in the order of the log."""
        found = [finding.rule for finding in self.findings if finding.rule in rules]
        return tuple(dict.fromkeys(found))

    def failures(self) -> tuple[Observation, ...]:
        return tuple(item for item in self.reading.observations if item.is_failure())

    def failed_on_device(self) -> bool:
        return any(not item.is_host() for item in self.failures())

    def failed_on_host(self) -> bool:
        return any(item.is_host() for item in self.failures())

    def traces(self) -> tuple[str, ...]:
        """The failing code, innermost first, then the lines that were printed before the message."""
        frames = [frame_text(frame) for frame in reversed(self.reading.frames)]
        return (*frames, *reversed(self.reading.context))

    def has_large_request(self) -> bool:
        return self.has("one_large_tensor", *TOO_LARGE)

    def seen(self, *names: str) -> tuple[str, ...]:
        """The words of those clues that were seen, as evidence."""
        return tuple(self.clues[name] for name in names if name in self.clues)

    def is_inference(self) -> bool:
        """A program that only runs models, and nothing that speaks of training."""
        is_server = any(item.kind in SERVER_STARTS for item in self.failures())
        if is_server or self.seen(*SERVERS):
            return not self.seen("beside_a_trainer")
        return bool(self.seen(*INFERENCE, "runs_a_model")) and not self.seen("trains")


Rule = Callable[[Case], Hypothesis | None]


def from_findings(name: str, plausibility: int, *rules: str) -> Rule:
    """A rule: this cause has this plausibility if any of these findings is there."""

    def rule(case: Case) -> Hypothesis | None:
        found = case.found_among(rules)
        if not found:
            return None
        return Hypothesis(name=name, plausibility=plausibility, evidence=found)

    return rule


def from_code(name: str, pattern: str, plausibility: int, without: tuple[str, ...] = ()) -> Rule:
    """A rule: the failing code matches this pattern, and none of these clues is there. Frames further out prove
    less."""
    compiled = re.compile(pattern)

    def rule(case: Case) -> Hypothesis | None:
        if not case.failed_on_device() or case.seen(*without):
            return None
        for depth, text in enumerate(case.traces()[:CODE_DEPTH]):
            match = compiled.search(text)
            if match:
                at_depth = max(POSSIBLE, plausibility - LOSS_PER_FRAME * depth)
                return Hypothesis(name=name, plausibility=at_depth, evidence=(match.group(0),))
        return None

    return rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ClueRule:
    """This cause has this plausibility if a device (or the host) ran out, all of these clues or findings are there,
    and none of the others."""

    name: str
    plausibility: int
    clues: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()  # any of them
    without: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()  # findings that say it better
    on_host: bool = False

    def __call__(self, case: Case) -> Hypothesis | None:
        failed = case.failed_on_host() if self.on_host else case.failed_on_device()
        found = case.found_among(self.findings)
        if not failed or (self.findings and not found) or case.has(*self.unless):
            return None
        if len(case.seen(*self.clues)) < len(self.clues) or case.seen(*self.without):
            return None
        evidence = (*found, *case.seen(*self.clues))
        return Hypothesis(name=self.name, plausibility=self.plausibility, evidence=evidence)
