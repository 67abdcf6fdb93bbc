"""A training script that explains its own out-of-memory: `vramcast.explain_oom(error)`, or once for all, a hook.

In: an exception, with what caused it or what it groups, or the text of one. Out: the diagnosis as text, or None if it
is not about memory. The hook adds to what Python prints, in the main thread and in others, and never takes anything
away; if it fails itself, it says so in one line.
"""

from __future__ import annotations

import errno
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType

from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.planned_steps import planned_steps
from vramcast.diagnose.readers.log import read_text
from vramcast.job import Job
from vramcast.report import diagnose_text

MAX_TEXT_CHARS = 200_000
MAX_EXCEPTIONS = 100  # of a chain or a group; one that contains itself ends here
_ABOUT_MEMORY = re.compile(
    r"out of memory|OutOfMemory|can't allocate memory|cannot allocate memory|not enough memory|ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED|OOM when|MemoryError|Unable to allocate|bus error|shared memory|exceed allowed memory|SIGKILL"
    r"|CUDA calloc|Allocation on device|cuDNN algorithm|dispatched on the CPU|killed by signal|exited unexpectedly"
    r"|error 1455|paging file|ancdata|too many open files",
    re.IGNORECASE,
)
_OF_MEMORY = (errno.ENOMEM,)


def is_about_memory(error: BaseException) -> bool:
    """This exception, what caused it, what it was raised while handling, or one of its group."""
    return any(_says_memory(item) for item in _chain(error))


def _says_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno in _OF_MEMORY:
        return True
    return bool(_ABOUT_MEMORY.search(f"{type(error).__name__}: {error}"))


def _chain(error: BaseException) -> Iterator[BaseException]:
    pending, seen = [error], set[int]()
    while pending and len(seen) < MAX_EXCEPTIONS:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, BaseExceptionGroup):
            pending += item.exceptions
        before = item.__cause__ or (None if item.__suppress_context__ else item.__context__)
        pending += [before] if before is not None else []


def explain_oom(
    error: BaseException | str, job: Job | None = None, *, lang: str = "en"
) -> str | None:
    """What happened, whose memory it was and what to do; None if the error is not about memory. With the job, also why
    it took more than it should, and what makes it fit."""
    if isinstance(error, str):
        text = error
    elif is_about_memory(error):
        text = _printed(error)
    else:
        return None
    reading = read_text(text[-MAX_TEXT_CHARS:])
    if not reading.observations:
        return None
    diagnosis = diagnose(reading, job)
    return diagnose_text.render(diagnosis, lang=lang, plans=planned_steps(diagnosis))


def _printed(error: BaseException) -> str:
    """The traceback as Python prints it, with causes and groups: the readers know that form."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


class ExceptHook:
    """Prints the diagnosis after the traceback. Use as a context, or call install() and uninstall()."""

    def __init__(self, job: Job | None = None, *, lang: str = "en") -> None:
        self._job, self._lang = job, lang
        self._previous = sys.excepthook
        self._previous_of_threads = threading.excepthook
        self._of_threads = (
            self._explain_in_thread
        )  # one object: a bound method is a new one every time

    def install(self) -> ExceptHook:
        if sys.excepthook != self:
            self._previous, sys.excepthook = sys.excepthook, self
        if threading.excepthook != self._of_threads:
            self._previous_of_threads = threading.excepthook
            threading.excepthook = self._of_threads
        return self

    def uninstall(self) -> None:
        if sys.excepthook == self:
            sys.excepthook = self._previous
        if threading.excepthook == self._of_threads:
            threading.excepthook = self._previous_of_threads

    def __enter__(self) -> ExceptHook:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._previous(kind, error, trace)
        self._explain(error)

    def _explain_in_thread(self, args: threading.ExceptHookArgs) -> None:
        self._previous_of_threads(args)
        if args.exc_value is not None:
            self._explain(args.exc_value)

    def _explain(self, error: BaseException) -> None:
        try:
            text = explain_oom(error, self._job, lang=self._lang)
        except Exception as failure:  # a hook that raises would hide the user's own error
            text = f"vramcast could not explain this error ({type(failure).__name__}: {failure})"
        if text and sys.stderr is not None:
            sys.stderr.write(f"\n{text}\n")


def install_excepthook(job: Job | None = None, *, lang: str = "en") -> ExceptHook:
    """From now on an uncaught out-of-memory error prints its diagnosis under the traceback."""
    return ExceptHook(job, lang=lang).install()
