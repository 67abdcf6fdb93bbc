"""Processes that answer: an answer that takes too long ends with its process, and the server goes on.

pool = Pool(place, count=2)
text = await pool.ask("estimate", {"job": {"model": "gpt2"}})

What only a run on the virtual GPU can answer takes seconds: it goes to one more process, so that the others stay free.
Nobody waits any longer for an answer: what still stands in line is dropped, and that run is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
from collections import Counter, OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from vramcast.errors import TraceNeededError, VramcastError
from vramcast.forecasting.tracer import NO_NEW
from vramcast.units import GiB, MiB
from vramcast.web.given import Place

MOST_ANSWERS = 400  # of one process, which is then replaced: what it cached goes with it
MOST_CACHED_BYTES = 32 * MiB
MOST_PROCESS_BYTES = 6 * GiB
CACHES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_CACHE",
    "MODELSCOPE_CACHE",
)
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TRACE_SECONDS = 300.0  # the longest that a question with runs on the virtual GPU may take
MOST_TRACING_BYTES = 24 * GiB  # torch maps far more than it uses
Told = tuple[str, str]  # ok, error, trace or failure; and the text


class Busy(Exception):
    """No answer in time, or too many questions at once."""


class Failure(Exception):
    """A mistake of ours."""


class Pool:
    """Answers with `count` processes, and one for runs on the virtual GPU. Equal questions are asked once."""

    def __init__(
        self, place: Place, *, count: int, seconds: float = 60.0, waiting: int = 200
    ) -> None:
        self.place, self._seconds, self._most_waiting = place, seconds, waiting
        self._workers = [_Worker(place) for _ in range(count)]
        self._tracer = _Worker(place, traces=True)
        self._threads = ThreadPoolExecutor(count + 1)  # each waits for one process
        self._free: asyncio.LifoQueue[_Worker] | None = None
        self._free_tracer: asyncio.LifoQueue[_Worker] | None = None
        self._asked: dict[str, asyncio.Task[str]] = {}
        self._waiting_for: Counter[str] = Counter()  # how many want each answer
        self._cached: OrderedDict[str, str] = OrderedDict()
        self._cached_bytes = 0

    def known(self, name: str, request: Mapping[str, Any]) -> str | None:
        """The answer, where it was given before."""
        key = _key(name, request)
        if key not in self._cached:
            return None
        self._cached.move_to_end(key)
        return self._cached[key]

    async def ask(self, name: str, request: Mapping[str, Any]) -> str:
        """The answer as JSON text. Raises VramcastError, Busy or Failure."""
        known = self.known(name, request)
        if known is not None:
            return known
        key = _key(name, request)
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= self._most_waiting:
                raise Busy("too many questions at once; try again in a moment")
            task = self._asked[key] = asyncio.create_task(self._answered(key, name, request))
            task.add_done_callback(lambda done: self._forget(key, done))
        self._waiting_for[key] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting_for[key] -= 1
            if not self._waiting_for[key]:
                del self._waiting_for[key]
                task.cancel()  # nobody waits any longer; nothing happens where it is done
                self._forget(key, task)

    def _forget(self, key: str, task: asyncio.Task[str]) -> None:
        if self._asked.get(key) is task:
            del self._asked[key]
        if task.done() and not task.cancelled():
            task.exception()  # it was told to whoever asked

    async def _answered(self, key: str, name: str, request: Mapping[str, Any]) -> str:
        kind, text = await self._told(self._queue(), name, request, self._seconds)
        if kind == "trace":
            seconds = max(self._seconds, TRACE_SECONDS)
            kind, text = await self._told(self._tracing_queue(), name, request, seconds)
        if kind == "error":
            raise VramcastError(text)
        if kind == "busy":
            raise Busy(text)
        if kind != "ok":
            raise Failure(text)
        self._keep(key, text)
        return text

    async def _told(
        self,
        free: asyncio.LifoQueue[_Worker],
        name: str,
        request: Mapping[str, Any],
        seconds: float,
    ) -> Told:
        """By the next free process of a queue. It is free again when it has answered, whether or not somebody waits."""
        worker = await free.get()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, worker.ask, name, request, seconds)
        work.add_done_callback(lambda _: free.put_nowait(worker))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if worker.traces:
                worker.end()
            raise

    def _queue(self) -> asyncio.LifoQueue[_Worker]:
        """The one that answered last comes first: it still knows what the next question builds on."""
        if self._free is None:
            self._free = asyncio.LifoQueue()
            for worker in self._workers:
                self._free.put_nowait(worker)
        return self._free

    def _tracing_queue(self) -> asyncio.LifoQueue[_Worker]:
        if self._free_tracer is None:
            self._free_tracer = asyncio.LifoQueue()
            self._free_tracer.put_nowait(self._tracer)
        return self._free_tracer

    def _keep(self, key: str, text: str) -> None:
        self._cached[key] = text
        self._cached_bytes += len(key) + len(text)
        while self._cached_bytes > MOST_CACHED_BYTES:
            old, answer = self._cached.popitem(last=False)
            self._cached_bytes -= len(old) + len(answer)

    def close(self) -> None:
        for worker in (*self._workers, self._tracer):
            worker.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _key(name: str, request: Mapping[str, Any]) -> str:
    return json.dumps([name, request], sort_keys=True)


class _Worker:
    """One process, started when it is first asked, and again after it had to be ended. `traces`: it may run jobs on the
    virtual GPU, in processes of its own group."""

    def __init__(self, place: Place, *, traces: bool = False) -> None:
        self._place, self.traces = place, traces
        self._process: BaseProcess | None = None
        self._ours: Connection | None = None
        self._answers = 0

    def ask(self, name: str, request: Mapping[str, Any], seconds: float) -> Told:
        if self._process is None or self._answers >= MOST_ANSWERS or not self._process.is_alive():
            self.stop()
            self._start()
        assert self._ours is not None
        self._answers += 1
        try:
            self._ours.send((name, dict(request)))
            if self._ours.poll(seconds):
                told: Told = self._ours.recv()
                return told
        except (EOFError, OSError):
            self.stop()
            return "failure", "the process that answers has ended"
        self.stop()
        return "busy", f"no answer within {seconds:g} s; ask for less"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=answer_forever, args=(theirs, self._place, self.traces), daemon=True
        )
        self._process.start()
        theirs.close()
        self._answers = 0

    def stop(self) -> None:
        if self._ours is not None:
            self._ours.close()
        self.end()
        if self._process is not None:
            self._process.join()
        self._process = self._ours = None

    def end(self) -> None:
        """Ends the process and what it started. From another thread too: whoever waits for the answer sees the pipe
        close."""
        process = self._process
        if process is None or process.pid is None:
            return
        if self.traces and hasattr(os, "killpg"):
            with contextlib.suppress(OSError):  # it has no group of its own yet, or is gone
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def answer_forever(pipe: Connection, place: Place, traces: bool = False) -> None:
    """The life of an answering process: until the pipe closes."""
    from vramcast.report.as_json import json_text
    from vramcast.web.answers import answer

    _settle_down(place, traces=traces)
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, request = pipe.recv()
            try:
                pipe.send(("ok", json_text(answer(name, request, place))))
            except TraceNeededError as error:
                pipe.send(("trace", str(error)))
            except VramcastError as error:
                pipe.send(("error", str(error)))
            except MemoryError:
                pipe.send(
                    ("error", "this job takes more memory to describe than the server allows")
                )
            except Exception as error:
                pipe.send(("failure", f"{type(error).__name__}: {error}"))


def _settle_down(place: Place, *, traces: bool) -> None:
    """What holds for the whole life of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in CACHES:  # models that the owner once downloaded are not for everybody who asks
        os.environ[name] = str(place.folder / "none")
    for name in OFFLINE:
        os.environ[name] = "1"
    if traces and hasattr(os, "setsid"):
        os.setsid()  # so that what it starts can be ended with it
    if not traces:
        os.environ[NO_NEW] = "1"
    _limit_memory(MOST_TRACING_BYTES if traces else MOST_PROCESS_BYTES)


def _limit_memory(most_bytes: int) -> None:
    """Where the system can: a hostile config shall end its own process, not the machine."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
