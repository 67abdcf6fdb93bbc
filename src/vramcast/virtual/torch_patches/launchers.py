"""Launchers that start processes: torchrun, accelerate, and programs that start `python train.py` themselves.

A launcher's own code runs as it is, until the moment at which it would start processes. There this process becomes the
first of them (or the rank asked for), with the environment that the launcher made, and runs what they would run. Does
not know launchers that start processes on other machines by themselves.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.launcher.api as launcher_api
import torch.distributed.run as torchrun

from vramcast.errors import InputError
from vramcast.patches import Patches
from vramcast.virtual.launch import Launch, read_command
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches.distributed import rank_environment

_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "torch.distributed.run")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)


class NeedsCards(BaseException):
    """The launcher starts more processes on a node than there are cards: begin again with as many."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} cards are needed")
        self.count = count


def install(gpu: GpuState, patches: Patches, run_here: Callable[[Launch], None]) -> None:
    """`run_here` runs what a process would run, in this one."""

    def elastic_launch(config: Any, entrypoint: Any) -> Callable[..., dict[int, Any]]:
        def start(*arguments: Any) -> dict[int, Any]:
            with as_one_rank(gpu, config.max_nodes, config.nproc_per_node):
                if callable(entrypoint):
                    return {0: entrypoint(*arguments)}
                run_here(read_command([entrypoint, *arguments]))
                return {0: None}

        return start

    for owner in (torchrun, launcher_api):
        patches.set(owner, "elastic_launch", elastic_launch)
    patches.set(torchrun, "_set_thread_name", lambda name: None) if hasattr(
        torchrun, "_set_thread_name"
    ) else None
    patches.set(subprocess, "Popen", _following(gpu, subprocess.Popen, run_here))


@contextmanager
def as_one_rank(gpu: GpuState, nodes: int, per_node: int) -> Iterator[None]:
    """This process is one of nodes × per_node; `gpu.world` knows which."""
    if per_node > gpu.count:
        raise NeedsCards(per_node)
    world = gpu.world
    if not world.fixed:
        world.rank = 0 if gpu.asked_rank is None else gpu.asked_rank
        world.size, world.fixed = nodes * per_node, True
        if world.rank >= world.size:
            raise InputError(
                f"rank {world.rank} is not one of the {world.size} ranks 0 to {world.size - 1}."
            )
    if world.size > 1:
        gpu.note(f"rank {world.rank} of the {world.size} that the launcher starts was run")
    before = dict(os.environ)
    os.environ.update(rank_environment(world.rank, world.size, per_node))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# -- `subprocess`: a program that starts `python train.py`, or a launcher, and waits for it ----------------------------


def _following(gpu: GpuState, true_popen: Any, run_here: Callable[[Launch], None]) -> Any:
    class Popen(true_popen):  # type: ignore[misc]
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            launch = _to_follow(args, options)
            if launch is None or more:
                super().__init__(args, *more, **options)
                return
            self.args, self.pid, self.returncode = args, os.getpid(), 0
            self.stdin = self.stdout = self.stderr = None
            self._child_created = False
            if _is_another_rank(options.get("env")):
                gpu.note("a rank that the script starts as a program of its own was left out")
                return
            gpu.note_once(
                f"{launch.name} is started by the script as a program: it was run in the same process"
            )
            with _environment(options.get("env")), _folder(options.get("cwd")):
                run_here(launch)

        def poll(self) -> Any:
            return self.returncode if not self._child_created else super().poll()

        def wait(self, timeout: float | None = None) -> Any:
            return self.returncode if not self._child_created else super().wait(timeout)

        def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
            if self._child_created:
                return super().communicate(input, timeout)
            return None, None

    return Popen


def _to_follow(args: Any, options: dict[str, Any]) -> Launch | None:
    """What a program runs, where it is training started from the script: its output is not read, and it is Python."""
    if any(options.get(name) is not None for name in ("stdout", "stdin")):
        return None
    words = _words(args, bool(options.get("shell")))
    if not words or not _is_training(words):
        return None
    try:
        return read_command(words)
    except InputError:
        return None


def _is_another_rank(environment: Any) -> bool:
    """Lightning's way: rank 0 starts the others, which find their number in their environment."""
    if environment is None:
        return False
    return any(
        environment.get(name, "0") not in ("0", os.environ.get(name, "0"))
        for name in ("LOCAL_RANK", "RANK")
    )


def _words(args: Any, is_shell: bool) -> Sequence[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        text = os.fsdecode(args)
        if any(letter in text for letter in "|&;<>$`\n"):
            return ()
        return shlex.split(text) if is_shell else (text,)
    return [os.fsdecode(word) for word in args]


def _is_training(words: Sequence[str]) -> bool:
    names = [os.path.basename(word) for word in words[:4]]
    if any(name in _LAUNCHERS for name in names[:1]):
        return True
    if not names[0].startswith("python") and os.path.realpath(words[0]) != os.path.realpath(
        sys.executable
    ):
        return False
    if "-m" in words[1:4]:
        module = words[list(words).index("-m") + 1 : list(words).index("-m") + 2]
        return bool(module) and (module[0] in _LAUNCHER_MODULES or _is_users_module(module[0]))
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    return Path(script).is_file()


def _is_users_module(name: str) -> bool:
    first = name.partition(".")[0]
    return Path(first).is_dir() or Path(f"{first}.py").is_file() or "train" in name


@contextmanager
def _environment(asked: Any) -> Iterator[None]:
    before = dict(os.environ)
    if asked is not None:
        os.environ.clear()
        os.environ.update(asked)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _folder(asked: Any) -> Iterator[None]:
    before = os.getcwd()
    if asked is not None:
        os.chdir(asked)
    try:
        yield
    finally:
        os.chdir(before)
