"""However a script ends, what was seen is reported, with what it is worth; a card too small is told what it lacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.units import GiB, MiB
from vramcast.virtual import virtual_gpu
from vramcast.virtual.accounting.cards import Lifting
from vramcast.virtual.endings import Ending, Run
from vramcast.virtual.script import run_script

LOOP = """
import os, sys, torch
weight = torch.nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
def step(rows):
    x = torch.zeros(rows, 1024, device="cuda")
    (x @ weight).sum().backward()
    optimizer.step()
for _ in range({steps}):
    step(64)
"""


def ended(
    tmp_path: Path,
    ending: str,
    steps: int = 2,
    *,
    card: str = "1GiB",
    lifts: Lifting = Lifting.NEVER,
) -> tuple[Run, int]:
    """How the loop ended, and the peak that was seen."""
    script = tmp_path / "train.py"
    script.write_text(LOOP.format(steps=steps) + ending + "\n")
    gpu = virtual_gpu(card, protect=False, lifts_limit=lifts)
    run = run_script(str(script), [], gpu)
    return run, gpu.ledger().peak("cuda:0").allocated_bytes


@pytest.mark.parametrize(
    ("line", "ending", "says"),
    [
        ("raise ValueError('odd loss')", Ending.FAILED, "raised this itself"),
        ("open('/nowhere/tokens.bin')", Ending.FAILED, "/nowhere/tokens.bin is not here"),
        (
            "torch.ones(2, device='cuda') @ torch.ones(3, device='cuda')",
            Ending.FAILED,
            "cannot follow",
        ),
        ("from typing import no_such_name", Ending.FAILED, "newer Python"),
        ("from transformers import NoSuchTrainer", Ending.FAILED, "another version"),
        ("sys.exit(3)", Ending.EXITED, "exit code 3"),
        ("os._exit(4)", Ending.EXITED, "exit code 4"),
        ("raise KeyboardInterrupt", Ending.INTERRUPTED, "was interrupted"),
        (
            "import signal; os.kill(os.getpid(), signal.SIGTERM)",
            Ending.TERMINATED,
            "was terminated",
        ),
        ("sys.exit()", Ending.DONE, ""),
    ],
)
def test_every_ending_is_a_run(tmp_path: Path, line: str, ending: Ending, says: str) -> None:
    run, peak = ended(tmp_path, line)
    assert (run.ending, run.steps) == (ending, 2)
    assert run.is_whole == (ending == Ending.DONE)
    assert run.is_decided, "two whole steps were seen"
    assert says in run.error_text()
    assert peak > 8 * MiB, "a weight and its gradient were seen"
    if ending == Ending.FAILED:
        assert run.line.startswith("train.py:")


def test_before_the_first_step_nothing_is_decided(tmp_path: Path) -> None:
    run, _ = ended(tmp_path, "raise ValueError", steps=0)
    assert not run.is_decided


LARGE = "for _ in range(10): step(1 << 19)"  # two tensors of 2 GiB


def test_where_nobody_catches_the_error_the_run_goes_on(tmp_path: Path) -> None:
    run, peak = ended(tmp_path, LARGE, steps=1, lifts=Lifting.UNCAUGHT)
    assert run.shortfall is not None
    assert run.shortfall.went_on
    assert run.shortfall.steps == 1
    assert run.shortfall.line == "train.py:6", "where the batch is made"
    assert run.steps == 3, "two more steps tell what is needed"
    assert 4 * GiB < peak < 4.1 * GiB


@pytest.mark.parametrize("handler", ["except Exception", "except RuntimeError", "except"])
def test_a_script_that_may_catch_the_error_gets_it(tmp_path: Path, handler: str) -> None:
    retrying = f"try: step(1 << 19)\n{handler}:\n    step(32)"
    run, peak = ended(tmp_path, retrying, lifts=Lifting.UNCAUGHT)
    assert (run.ending, run.steps, run.shortfall) == (Ending.DONE, 3, None)
    assert peak < GiB


def test_handlers_that_pass_the_error_on_do_not_catch_it(tmp_path: Path) -> None:
    passing = "try: step(1 << 19)\nexcept (KeyError, ValueError): pass\nexcept Exception:\n    print('so')\n    raise"
    run, _ = ended(tmp_path, passing, lifts=Lifting.UNCAUGHT)
    assert run.shortfall is not None
    assert run.shortfall.went_on


def test_one_that_gives_up_over_the_error_is_told_where(tmp_path: Path) -> None:
    giving_up = "try: step(1 << 19)\nexcept RuntimeError as error: sys.exit(1)"
    run, _ = ended(tmp_path, giving_up, lifts=Lifting.UNCAUGHT)
    assert run.ending == Ending.OUT_OF_MEMORY
    assert run.out_of_memory_line == "train.py:6"
    run, peak = ended(tmp_path, giving_up, lifts=Lifting.ALWAYS)
    assert run.shortfall is not None
    assert run.shortfall.went_on
    assert 4 * GiB < peak < 4.1 * GiB


@pytest.mark.slow
def test_the_command_line_says_both_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        LOOP.format(steps=1) + "try: step(1 << 19)\nexcept RuntimeError as error: sys.exit(1)\n"
    )
    assert main(["trace", str(script), "--gpu", "1GiB"]) == 1
    said = capsys.readouterr()
    assert "DOES NOT FIT   peak 4." in said.out
    assert "ran out of memory at train.py:6 after 1 optimizer step" in said.out
    assert "run again without the limit" in said.err
    script.write_text(LOOP.format(steps=0) + "raise ValueError('odd loss')\n")
    assert main(["trace", str(script), "--gpu", "1GiB"]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("NEEDS")
    assert "nothing is decided" in said.out
    assert "ValueError: odd loss" in said.err


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", -signal.SIGTERM)])
def test_a_signal_is_answered_with_a_report(tmp_path: Path, name: str, code: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        LOOP.format(steps=2) + "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    words = [sys.executable, "-m", "vramcast", "trace", str(script), "--gpu", "1GiB", "--json"]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        assert any(line == "ready\n" for line in process.stderr)
        process.send_signal(getattr(signal, name))
        told, _ = process.communicate(timeout=60)
    assert process.returncode == code
    trace = json.loads(told)["trace"]
    assert (trace["steps"], trace["is_decided"]) == (2, True)
