"""Searches on several cores: what is made ahead is what would have been made here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from vramcast.plan.ahead import Here, processes, started

FORKS = pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="one core")


def output(command: list[str], cores: set[int] | None = None) -> str:
    limited = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    run = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=limited)
    assert not run.stderr
    return run.stdout


def python(code: str) -> str:
    """In a process of its own: this one has threads and torch."""
    return output([sys.executable, "-c", code])


def test_a_process_with_threads_does_not_fork() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert processes() == 1
        assert type(started(int)) is Here
    finally:
        done.set()
        other.join()


@FORKS
def test_what_is_started_is_made_in_another_process_meanwhile() -> None:
    code = """
import os
from vramcast.plan.ahead import started
made = started(os.getpid)
print(made.result() != os.getpid())
"""
    assert python(code) == "True\n"


@FORKS
def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    code = """
from vramcast.errors import InputError
from vramcast.plan.ahead import started
def fail():
    raise InputError("of no use")
made = started(fail)
try:
    made.result()
except InputError as error:
    print(error)
"""
    assert python(code) == "of no use\n"


FORESEEN = """
import multiprocessing, os, time
from vramcast.plan.ahead import Foreseen
"""


@FORKS
def test_what_another_process_has_begun_with_is_waited_for_and_the_rest_made_here() -> None:
    code = """
def work(asked):
    asked(7, lambda: time.sleep(0.3) or os.getpid())
    asked(8, lambda: time.sleep(60))
with Foreseen() as foreseen:
    foreseen.begin(work)
    time.sleep(0.1)
    print(foreseen.result(5, os.getpid) == os.getpid())
    print(foreseen.result(7, os.getpid) == os.getpid())
    print(len(multiprocessing.active_children()))
print(multiprocessing.active_children())
"""
    assert python(FORESEEN + code) == "True\nFalse\n1\n[]\n"


@FORKS
def test_what_fails_in_another_process_is_made_here() -> None:
    code = """
def work(asked):
    asked(7, lambda: [][0])
with Foreseen() as foreseen:
    foreseen.begin(work)
    time.sleep(0.1)
    print(foreseen.result(7, lambda: "here"))
"""
    assert python(FORESEEN + code) == "here\n"


@FORKS
@pytest.mark.slow
@pytest.mark.parametrize("job", ["gpt2-xl --gpu rtx3060 --batch 8", "opt-1.3b --gpu t4 --seq 1024 --mean-seq 200"])
def test_plans_are_the_same_on_one_core(job: str) -> None:
    command = [sys.executable, "-m", "vramcast", "plan", *job.split(), "--json", "--seconds", "inf"]
    assert output(command) == output(command, {min(os.sched_getaffinity(0))})
