"""The line by which a training run is started, as words: which Python code it runs, with what arguments.

    train.py --lr 1e-4                       a script
    -m package.train --lr 1e-4               a module
    python -u train.py, python -m …          the same, by name
    CUDA_VISIBLE_DEVICES=0 uv run train.py   with an environment; `env`, `nohup`, `uv run` and their like are skipped
    torchrun --nproc-per-node 8 train.py     a console script of an installed package: its own code is run, and
                                             `torch_patches/launchers.py` becomes one of the processes it starts
    deepspeed --num_gpus 8 train.py          the same, read here: DeepSpeed need not be installed

Does not run anything: see `script`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from vramcast.errors import InputError, unknown

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)?)?(\.exe)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_BEFORE_A_COMMAND = ("env", "nohup", "time", "exec", "command")
_RUNNERS = ("uv", "poetry", "pdm", "hatch", "pipenv", "rye", "pixi")  # `uv run …`
_KNOWN = ("python", "torchrun", "accelerate launch", "deepspeed", "a script", "-m MODULE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Python code to run: a script, a module, or a console script of a package."""

    name: str  # as the user said it
    arguments: tuple[str, ...] = ()
    script: Path | None = None
    module: str = ""
    console: EntryPoint | None = None
    environment: tuple[tuple[str, str], ...] = ()
    nodes: int = 1
    per_node: int = 0  # processes on each, where the line itself says so; 0: it is one process


def read_command(words: Sequence[str]) -> Launch:
    """What a command line runs. Raises InputError for what is not Python, and says what is known."""
    environment: list[tuple[str, str]] = []
    left = list(words)
    while left:
        if _ASSIGNMENT.match(left[0]):
            name, _, value = left.pop(0).partition("=")
            environment.append((name, value))
        elif left[0] in _BEFORE_A_COMMAND:
            left.pop(0)
        elif left[0] in _RUNNERS and left[1:2] == ["run"]:
            left = left[2:]
        else:
            break
    if not left:
        raise InputError(
            "there is nothing to run: give a script, or -- and the line that starts it."
        )
    return replace(_read(left), environment=tuple(environment))


def _read(words: list[str]) -> Launch:
    first, rest = words[0], words[1:]
    base = os.path.basename(first)
    if first == "-m":
        return _module(rest)
    if _PYTHON.fullmatch(base) and Path(first).suffix != ".py":
        return _python(rest)
    if base == "deepspeed":
        return _deepspeed(rest)
    if Path(first).is_file():
        return _file(Path(first), rest)
    found = next(
        (point for point in entry_points(group="console_scripts") if point.name == base), None
    )
    if found is not None:
        return Launch(name=first, arguments=tuple(rest), console=found)
    on_path = shutil.which(first)
    if on_path is not None:
        return _file(Path(on_path), rest)
    if os.sep in first or first.endswith(".py"):
        raise InputError(f"{first}: no such script.")
    raise unknown(
        "command", first, _KNOWN, "A console script must be installed where vramcast is installed."
    )


def _module(words: list[str]) -> Launch:
    if not words:
        raise InputError("-m needs the name of a module.")
    return Launch(name=f"-m {words[0]}", module=words[0], arguments=tuple(words[1:]))


def _python(words: list[str]) -> Launch:
    """The interpreter's own flags are left out, but for -m."""
    left = list(words)
    while left and left[0].startswith("-"):
        flag = left.pop(0)
        if flag == "-m":
            return _module(left)
        if flag == "-c":
            raise InputError("python -c cannot be traced: put the code into a file.")
        if flag in _FLAGS_WITH_VALUE and left:
            left.pop(0)
    if not left:
        raise InputError("python is given no script to run.")
    path = Path(left[0])
    if path.is_dir() and (path / "__main__.py").is_file():
        path = path / "__main__.py"
    if not path.is_file():
        raise InputError(f"{left[0]}: no such script.")
    return Launch(name=left[0], script=path, arguments=tuple(left[1:]))


def _file(path: Path, words: list[str]) -> Launch:
    """A script; one without .py is Python's if its first line says so."""
    if path.suffix not in (".py", ".pyw", ".pyc"):
        with path.open("rb") as file:
            start = file.read(200).splitlines()[:1]
        if start and start[0].startswith(b"#!") and b"python" not in start[0]:
            raise InputError(
                f"{path} is not Python ({start[0].decode(errors='replace')}). Give the line in it that starts Python."
            )
        if path.suffix in (".sh", ".bash", ".yaml", ".yml", ".json", ".ipynb"):
            raise InputError(f"{path} is not a Python script.")
    return Launch(name=str(path), script=path, arguments=tuple(words))


def _deepspeed(words: list[str]) -> Launch:
    """deepspeed/launcher/runner.py and launch.py: every process gets --local_rank as its first argument."""
    parser = _Quiet(prog="deepspeed", add_help=False, allow_abbrev=False)
    parser.add_argument("--num_gpus", "--num_accelerators", type=int, default=0)
    parser.add_argument("--num_nodes", type=int, default=1)
    for flag in (
        "--include",
        "-i",
        "--exclude",
        "-e",
        "--hostfile",
        "-H",
        "--master_port",
        "--master_addr",
    ):
        parser.add_argument(flag)
    for flag in (
        "--launcher",
        "--launcher_args",
        "--node_rank",
        "--autotuning",
        "--bind_core_list",
    ):
        parser.add_argument(flag)
    for flag in ("--module", "--no_python", "--no_local_rank", "--force_multi", "--save_pid"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--enable_each_rank_log")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    include = asked.include or asked.i or ""
    listed = include.partition(":")[2] or (include if include[:1].isdigit() else "")
    per_node = asked.num_gpus or len([number for number in listed.split(",") if number])
    arguments = asked.arguments if asked.no_local_rank else ["--local_rank=0", *asked.arguments]
    inner = _module([asked.script]) if asked.module else _python([asked.script])
    return replace(inner, arguments=tuple(arguments), nodes=asked.num_nodes, per_node=per_node or 1)


class _Quiet(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise InputError(f"{self.prog}: {message}.")


# -- how many cards the line asks for ------------------------------------------------------------------------------

_MOST_CONFIG_BYTES = 1 << 20
_COUNTS = ("nproc-per-node", "num-processes", "num-gpus", "num-accelerators")


def cards_asked_for(words: Sequence[str]) -> int | None:
    """The number of processes on a node that a launcher's flags or its config file name; None if they do not."""
    for name, value in (word.split("=", 1) for word in words if _ASSIGNMENT.match(word)):
        if name == "CUDA_VISIBLE_DEVICES" and value:
            return len(value.split(","))
    launcher = {os.path.basename(word) for word in words}.intersection(
        ("torchrun", "accelerate", "deepspeed", "accelerate-launch", "tune", "trl", "axolotl")
    ) or any("torch.distributed" in word or "accelerate" in word for word in words)
    if not launcher:
        return None
    for name, value in _options(words):
        if name in _COUNTS and value.isdigit():
            machines = next(
                (
                    int(count)
                    for other, count in _options(words)
                    if other == "num-machines" and count.isdigit()
                ),
                1,
            )
            return max(1, int(value) // (machines if name == "num-processes" else 1))
    for name, value in _options(words):
        if name in ("config-file", "accelerate-config") and Path(value).is_file():
            return _processes_of(Path(value))
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--name value` and `--name=value`, dashes and underscores alike."""
    for index, word in enumerate(words):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            if not equals:
                value = words[index + 1] if index + 1 < len(words) else ""
            yield name.replace("_", "-"), value


def _processes_of(path: Path) -> int | None:
    """accelerate's config file: `num_processes` counts those of all machines."""
    import yaml

    from vramcast.files import read_text

    try:
        found = yaml.safe_load(read_text(path, _MOST_CONFIG_BYTES))
    except yaml.YAMLError:
        return None
    processes = found.get("num_processes") if isinstance(found, dict) else None
    machines = found.get("num_machines") if isinstance(found, dict) else None
    if not isinstance(processes, int):
        return None
    return max(1, processes // (machines if isinstance(machines, int) and machines > 0 else 1))
