"""What every command shows on terminals of 80 and 120 columns, plain and in colour, in English and Chinese.

`python tests/cli/screens.py` writes the golden texts again. Digits are shown as 0: figures belong to other tests.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

from vramcast.cli import main

FOLDER = Path(__file__).parent / "screens"
INPUTS = Path(__file__).parent / "screen_inputs"
WIDTHS = (80, 120)
LANGUAGES = ("en", "zh")

COMMANDS = {
    "estimate": "estimate llama-2-7b --batch 2 --seq 1024 --gpu rtx4090",
    "estimate_fits": "estimate gpt2 --seq 512 --gpu rtx4090 --images 3",
    "estimate_tight": "estimate gpt2 --seq 1024 --batch 15 --gpu rtx4090",
    "estimate_verbose": "estimate gpt2 --seq 512 --gpu rtx4090 --gpus 2 -v",
    "check": "check gpt2 --seq 512 --gpu rtx4090",
    "compare": "compare 'gpt2 --batch 4' distilgpt2 --seq 512 --gpu rtx4090",
    "sweep": "sweep gpt2 --batch 1..32 --gpu rtx4090",
    "fit": "fit gpt2 --batch 32 --price rtx4060=0.1,rtx4090=0.5,a100-80gb-pcie=2",
    "plan": "plan gpt2 --gpu 8GiB --batch 32 --seq 512",
    "divide": "divide llama-2-7b --gpus 8 --gpu h100-80gb --seq 4096",
    "params": "params gpt2",
    "models": "models gpt2",
    "gpus": "gpus a100",
    "host": "host --batch 2 --seq 64 --workers 2 --ram 16GiB --shm 64MiB",
    "diagnose": f"diagnose {INPUTS / 'oom.txt'}",
}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(command: str, *, width: int, lang: str, colour: bool) -> str:
    """What the command writes to a terminal."""
    terminal = Terminal()
    variables = {"COLUMNS": str(width), "TERM": "xterm-256color"}
    variables["LC_ALL"] = "zh_CN.UTF-8" if lang == "zh" else "C.UTF-8"
    if not colour:
        variables["NO_COLOR"] = "1"
    with mock.patch.dict(os.environ, variables), contextlib.redirect_stdout(terminal):
        if colour:
            os.environ.pop("NO_COLOR", None)
        main(shlex.split(command))
    return terminal.getvalue()


def without_figures(text: str) -> str:
    """Digits as 0; those of colours stay."""
    parts = re.split(r"(\x1b\[[0-9;]*m)", text)
    return "".join(part if part.startswith("\x1b") else re.sub(r"\d", "0", part) for part in parts)


def golden(name: str, width: int, lang: str, *, colour: bool) -> Path:
    return FOLDER / f"{name}.{lang}.{width}{'.colour' if colour else ''}.txt"


def write_all() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, command in COMMANDS.items():
        for lang in LANGUAGES:
            for width in WIDTHS:
                for colour in (False, True):
                    text = shown(command, width=width, lang=lang, colour=colour)
                    path = golden(name, width, lang, colour=colour)
                    path.write_text(without_figures(text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(write_all())
