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
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from vramcast.cli.arguments import Once, check_empty, in_language
from vramcast.cli.terminal import discard_output, print_error, screen
from vramcast.errors import OutputError, TraceError, VramcastError

COMMANDS = {
    "diagnose": "explain an out-of-memory error from its message, a log or nvidia-smi, and say what to do",
    "trace": "run your training script on virtual GPUs: peak, breakdown, where it runs out",
    "estimate": "memory breakdown of a training job: the peak, every line, whether it fits",
    "plan": "the cheapest changes that make a job fit, what they save and what they cost",
    "fit": "GPUs on which a job fits",
    "divide": "all valid parallel layouts of a model over a cluster (tp, pp, cp, …), with their peaks",
    "job": "the job that configuration files describe, with the origin of every value, as a job file",
    "check": "one line and an exit code, for continuous integration",
    "compare": "several jobs side by side",
    "sweep": "peaks for many batch sizes and lengths, and the largest that fits",
    "params": "the parameters of a model, block by block",
    "models": "list and search the built-in models",
    "gpus": "list and search the built-in GPUs",
    "host": "CPU memory of a job: libraries, model, dataset, workers, prefetched batches; RAM and /dev/shm",
    "serve": "the page in your browser, with the engine on this machine",
    "accuracy": "predictions compared with published measurements, including all errors",
    "snapshot": "read a PyTorch memory snapshot: peak, fragmentation, what holds memory, other settings",
    "completion": "a script that completes commands and options in bash, zsh or fish",
}


MAX_ERROR_LINES = 60  # of an error that shows where a script failed
# Values that switches are given in launch scripts; sharding of HF's --fsdp, too.
SWITCHED = {
    **dict.fromkeys(("true", "yes", "on", "1", "full-shard", "full_shard"), True),
    **dict.fromkeys(("full_shard auto_wrap", "full-shard auto-wrap"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
WITHOUT_GC = ("estimate", "plan", "check", "compare")


class Parser(argparse.ArgumentParser):
    """A mistake in the flags is one line, like every other mistake. `shows_all`: help lists what few need, too."""

    shows_all = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("action", None, Once)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What is not known is refused with what to say instead, where that is known."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}")
        return found

    def _hint(self, unknown: Sequence[str]) -> str:
        from vramcast.everyday_words import KEYS, instead_of

        flags = [word.partition("=")[0][2:] for word in unknown if word.startswith("--")]
        for flag in flags:
            if "--batch" not in self._option_string_actions:
                break
            instead = instead_of(flag)
            if instead is not None:
                return f" (--{flag} {instead})"
        names = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        near = get_close_matches(flags[0], names, n=1, cutoff=0.75) if flags else []
        return f" (did you mean --{KEYS.get(near[0], near[0])}?)" if near else ""

    def error(self, message: str) -> NoReturn:
        print_error(in_language(f"{self.prog}: {message}. See {self.prog} --help.", sys.argv[1:]))
        self.exit(2)


def console() -> int:
    """The entry point of the installed script. Garbage collection is off for short commands: they keep what they make
    until they end, and looking for garbage among millions of objects takes a quarter of their time."""
    if sys.argv[1:2] and sys.argv[1] in WITHOUT_GC:
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
        lines = MAX_ERROR_LINES if isinstance(error, TraceError) else 1
        print_error(f"vramcast: {in_language(str(error), arguments)}", lines=lines)
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
    own, _ = _until_dashes(arguments[1:])
    check_empty(own)
    command = import_module(f"vramcast.cli.{name}")
    parser = Parser(prog=f"vramcast {name}", description=COMMANDS[name], allow_abbrev=False)
    parser.shows_all = "--help-all" in arguments
    command.configure(parser)
    result: int = command.run(parser.parse_args(with_dashes(arguments[1:])))
    return result


def with_dashes(arguments: list[str]) -> list[str]:
    """`--batch_size` is `--batch-size`, and `--bf16 True` is `--bf16`. What follows `--` belongs to a script."""
    own, others = _until_dashes(arguments)
    return [*_switched([*map(_dashed, own)]), *others]


def _switched(arguments: list[str]) -> list[str]:
    """Switches take no value here; launch scripts give them one."""
    from vramcast.everyday_words import SWITCHES

    kept: list[str] = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        before = kept[-1] if kept and not argument.startswith("--") else name
        said = value if before == name else argument
        if before.removeprefix("--") not in SWITCHES or said.lower() not in SWITCHED:
            kept.append(argument)
            continue
        word = before if SWITCHED[said.lower()] else f"--no-{before.removeprefix('--')}"
        kept[len(kept) - (before != name) :] = [word]
    return kept


def _until_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is said to vramcast, and what follows `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end:]


def _dashed(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument


def _no_command(name: str) -> int:
    if name in ("--version", "-V"):
        from importlib.metadata import version

        print(f"vramcast {version('vramcast')}")
        return 0
    if name in ("--help", "-h", "help"):
        print(_overview())
        return 0
    from vramcast.catalog.models import lookup_model
    from vramcast.errors import UnsupportedError, unknown

    if lookup_model(name) is not None:
        raise UnsupportedError(
            f"unknown command {name!r}. To estimate a model: vramcast estimate {name}"
        )
    raise unknown("command", name, COMMANDS)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return "\n".join(
        (
            "usage: vramcast COMMAND [options]        vramcast COMMAND --help for its options",
            "",
            "How much GPU and CPU memory a training job needs, where every byte goes, and what makes it fit.",
            "",
            *lines,
            "",
            "exit codes: 0 fits or done, 1 does not fit, 2 cannot answer",
        )
    )
