"""The command line. One thin file per command; only the asked-for one is imported.

A command module has `configure(parser)` and `run(args) -> int`. Exit codes: 0 fits (or done), 1 does not fit,
2 cannot answer.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from vramcast.cli.terminal import discard_output, print_error, screen
from vramcast.errors import OutputError, TraceError, VramcastError

COMMANDS = {
    "diagnose": "read an OOM message, a log or nvidia-smi output: what happened, whose memory, why, what to do",
    "trace": "run a training script on virtual GPUs: every byte, the peak, where it runs out",
    "estimate": "the bill of a training job: every line, the peak, whether it fits",
    "plan": "the cheapest changes that make a job fit, with what they free and cost",
    "fit": "the cards on which a job fits",
    "divide": "every legal way to divide a model over a cluster: tp, pp, cp, recomputation, micro-batch, with its peak",
    "check": "one line and an exit code, for continuous integration",
    "compare": "several jobs side by side",
    "sweep": "a grid of batch sizes and lengths, and the largest that fits",
    "params": "the parameters of a model, block by block, like a bill",
    "models": "list and search the models of the catalog",
    "gpus": "list and search the GPUs of the catalog",
    "host": "host memory of a job: libraries, model, dataset, workers, batches in flight, against RAM and /dev/shm",
    "accuracy": "what others measured against what is predicted, with the errors in the open",
    "snapshot": "read a torch memory snapshot: peak, fragmentation, who holds it, other allocator settings",
}


MOST_LINES = 60  # of an error that shows where a script failed
UNCOLLECTED = ("estimate", "plan", "check", "compare")


class Parser(argparse.ArgumentParser):
    """A mistake in the flags is one line, like every other mistake."""

    def error(self, message: str) -> NoReturn:
        print_error(f"{self.prog}: {message}. See {self.prog} --help.")
        self.exit(2)


def console() -> int:
    """A process of its own: what a command makes stays until it ends, and to look for garbage among millions of objects
    would take a quarter of its time."""
    if sys.argv[1:2] and sys.argv[1] in UNCOLLECTED:
        gc.disable()
        atexit.register(gc.freeze)
    return main()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with screen():
            return _run(arguments)
    except VramcastError as error:
        if isinstance(error, OutputError):
            discard_output()
        print_error(f"vramcast: {error}", lines=MOST_LINES if isinstance(error, TraceError) else 1)
        return 2
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        discard_output()
        return 0
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name not in COMMANDS:
        return _no_command(name)
    command = import_module(f"vramcast.cli.{name}")
    parser = Parser(prog=f"vramcast {name}", description=COMMANDS[name], allow_abbrev=False)
    command.configure(parser)
    result: int = command.run(parser.parse_args(arguments[1:]))
    return result


def _no_command(name: str) -> int:
    if name in ("--version", "-V"):
        from importlib.metadata import version

        print(f"vramcast {version('vramcast')}")
        return 0
    if name in ("--help", "-h", "help"):
        print(_overview())
        return 0
    from vramcast.errors import unknown

    raise unknown("command", name, COMMANDS)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return "\n".join(
        (
            "usage: vramcast COMMAND [options]        vramcast COMMAND --help for its options",
            "",
            "How much GPU and host memory a training job takes, where every byte goes, and what makes it fit.",
            "",
            *lines,
            "",
            "exit codes: 0 fits or done, 1 does not fit, 2 cannot answer",
        )
    )
