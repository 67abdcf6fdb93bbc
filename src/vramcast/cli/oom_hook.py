"""A training script that explains its own out-of-memory: `vramcast.explain_oom(error)`, or once for all, a hook.

In: an exception. Out: the diagnosis as text, or None if the exception is not about memory. The hook adds to what
Python prints and never takes anything away; if it fails itself, it says so in one line.
"""

from __future__ import annotations

import re
import sys
import traceback
from types import TracebackType

from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.planned_steps import planned_steps
from vramcast.diagnose.readers.log import read_text
from vramcast.job import Job
from vramcast.report import diagnose_text

MAX_TEXT_CHARS = 200_000
_ABOUT_MEMORY = re.compile(
    r"out of memory|OutOfMemory|can't allocate memory|not enough memory|ALLOC_FAILED|RESOURCE_EXHAUSTED|OOM when"
    r"|MemoryError|Unable to allocate|bus error|shared memory|exceed allowed memory|SIGKILL|CUDA calloc",
    re.IGNORECASE,
)


def is_about_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(
        _ABOUT_MEMORY.search(f"{type(error).__name__}: {error}")
    )


def explain_oom(error: BaseException, job: Job | None = None, *, lang: str = "en") -> str | None:
    """What happened, whose memory it was and what to do; None if the error is not about memory. With the job, also why
    it took more than it should, and what makes it fit."""
    if not is_about_memory(error):
        return None
    reading = read_text(_printed(error)[-MAX_TEXT_CHARS:])
    if not reading.observations:
        return None
    diagnosis = diagnose(reading, job)
    return diagnose_text.render(diagnosis, lang=lang, plans=planned_steps(diagnosis))


def _printed(error: BaseException) -> str:
    """The traceback as Python prints it, with causes: the readers know that form."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


class ExceptHook:
    """Prints the diagnosis after the traceback. Use as a context, or call install() and uninstall()."""

    def __init__(self, job: Job | None = None, *, lang: str = "en") -> None:
        self._job, self._lang = job, lang
        self._previous = sys.excepthook

    def install(self) -> ExceptHook:
        if sys.excepthook != self:
            self._previous = sys.excepthook
            sys.excepthook = self
        return self

    def uninstall(self) -> None:
        if sys.excepthook == self:
            sys.excepthook = self._previous

    def __enter__(self) -> ExceptHook:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._previous(kind, error, trace)
        try:
            text = explain_oom(error, self._job, lang=self._lang)
        except Exception as failure:  # a hook that raises would hide the user's own error
            text = f"vramcast could not explain this error ({type(failure).__name__}: {failure})"
        if text:
            sys.stderr.write(f"\n{text}\n")


def install_excepthook(job: Job | None = None, *, lang: str = "en") -> ExceptHook:
    """From now on an uncaught out-of-memory error prints its diagnosis under the traceback."""
    return ExceptHook(job, lang=lang).install()
