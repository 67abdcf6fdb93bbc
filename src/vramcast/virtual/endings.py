"""How a traced script ended, and what its peak is worth then.

ran to its end, stopped as asked     the peak is that of the run
ran out of memory                    the card is too small; `Shortfall` says where
failed, left early, was interrupted  the peak is what was seen: a lower bound before the first whole step
lost work                            threads or processes did something that was not followed: no verdict
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.errors import TraceError
from vramcast.ledger import Word


class Ending(Word):
    DONE = "ran to its end"
    STOPPED = "stopped as asked"
    OUT_OF_MEMORY = "ran out of memory"
    FAILED = "failed"
    EXITED = "left with an exit code"
    INTERRUPTED = "was interrupted"
    TERMINATED = "was terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """The request that the card could not serve."""

    message: str  # torch's
    line: str  # the innermost line of the user's own files
    went_on: bool  # without the limit, to say what is needed
    steps: int  # that were done by then


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How the script ended."""

    steps: int  # optimizer steps that were completed
    ending: Ending
    line: str = ""  # where it failed
    message: str = ""  # what the error says
    details: str = ""  # its traceback, and what can be done
    exit_code: int | str | None = None  # the script's own, where it left with one
    shortfall: Shortfall | None = None
    lost: tuple[str, ...] = ()  # work that was not followed, one sentence each

    @property
    def stopped(self) -> bool:
        return self.ending == Ending.STOPPED

    @property
    def out_of_memory(self) -> str:
        """torch's message, where the card was too small for the script."""
        return "" if self.shortfall is None else self.shortfall.message

    @property
    def out_of_memory_line(self) -> str:
        return "" if self.shortfall is None else self.shortfall.line

    @property
    def is_whole(self) -> bool:
        """Whether the script came as far as it was meant to."""
        return self.ending in (Ending.DONE, Ending.STOPPED) or self.shortfall is not None

    @property
    def is_decided(self) -> bool:
        """Whether the peak that was seen says if the job fits; before the first whole step it is a lower bound."""
        return not self.lost and (self.is_whole or self.steps > 0)

    @property
    def is_ended_from_outside(self) -> bool:
        return self.ending in (Ending.INTERRUPTED, Ending.TERMINATED)

    def check(self) -> None:
        """Raise what stopped the script, for callers that have no use for half a run."""
        if self.lost:
            raise TraceError(f"not all of the script was followed: {self.lost[0]}")
        if not self.is_whole:
            raise TraceError(self.error_text())

    def error_text(self) -> str:
        """What stopped the script, in full."""
        return self.details or f"the script {self.ending}."
