"""Keeps the documentation true: writes docs/commands.md from the parsers, and runs what the pages show.

A fenced block whose first line is `$ vramcast …` is a session: each command is run from the repository's root and what
it prints stands below it. A line of three dots stands for any lines. `make docs` rewrites; the tests compare.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from defaults_page import defaults_page

from vramcast.cli import COMMANDS
from vramcast.cli import main as main_of_commands
from vramcast.configs import Patch, job_of_files, understand, write_change

ROOT = Path(__file__).resolve().parent.parent
COMMANDS_PAGE = ROOT / "docs" / "commands.md"
CONFIGS_PAGE = ROOT / "docs" / "configs.md"
EXAMPLES = ROOT / "docs" / "configs"
DEFAULTS_PAGE = ROOT / "docs" / "defaults.md"
FENCE = re.compile(r"^```[a-z]*\n(?P<session>\$ vramcast .*?)^```$", re.MULTILINE | re.DOTALL)
ANYTHING = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One command of a page and what the page says it prints."""

    page: Path
    command: str
    output: str


# ---- sessions


def pages() -> list[Path]:
    return sorted((*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))


def sessions(page: Path) -> Iterator[Shown]:
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block["session"], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Shown(page=page, command=command, output=output)


def run(command: str) -> str:
    """What the command prints, errors included, as on a terminal that does not fold."""
    words = shlex.split(command)
    environment = os.environ | {
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    return done.stdout


def agrees(shown: str, printed: str) -> bool:
    """Equal line by line, where a line of three dots stands for any lines."""
    pattern = ".*".join(re.escape(part) for part in _lines(shown).split(f"\n{ANYTHING}\n"))
    return re.fullmatch(pattern, _lines(printed), re.DOTALL) is not None


def _lines(text: str) -> str:
    return "\n" + "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def refreshed(text: str) -> str:
    """The page with every session's output as it is now; sessions with dots are left to their writer."""

    def again(block: re.Match[str]) -> str:
        parts = re.split(r"^\$ ", block["session"], flags=re.MULTILINE)[1:]
        return block[0].replace(block["session"], "".join(map(_refreshed_part, parts)))

    return FENCE.sub(again, text)


def _refreshed_part(part: str) -> str:
    command, _, output = part.partition("\n")
    if f"\n{ANYTHING}\n" in f"\n{output}":
        return f"$ {part}"
    return f"$ {command}\n{_lines(run(command))[1:]}"


# ---- the page of commands


def commands_page() -> str:
    parts = ["# Commands", "", "Written by `make docs` from the commands themselves.", ""]
    for name, text in COMMANDS.items():
        parts += [
            f"## vramcast {name}",
            "",
            f"{text[0].upper()}{text[1:]}.",
            "",
            *_options(parser_of(name)),
            "",
        ]
    return "\n".join(parts).rstrip() + "\n"


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"vramcast {name}", description=COMMANDS[name], allow_abbrev=False
    )
    import_module(f"vramcast.cli.{name}").configure(parser)
    return parser


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for action in parser._actions:
        is_hidden = action.help == argparse.SUPPRESS
        if not isinstance(action, argparse._HelpAction) and not is_hidden:
            yield f"| `{_name(action)}` | {_help(parser, action)} |"


def _name(action: argparse.Action) -> str:
    value = action.metavar or (
        "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    )
    if not action.option_strings:
        return str(value).replace("|", "\\|")
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}".replace("|", "\\|")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action).replace("|", "\\|") if action.help else ""


# ---- the page of configuration files


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Files of one framework, what else must be said, and the card on which `plan` is asked."""

    title: str
    files: tuple[str, ...]
    flags: str = ""
    gpu: str = ""
    change: tuple[tuple[str, object], ...] = ()  # shown where a search for plans takes long
    text: str = ""


INTRODUCTION = """# Configuration files

Written by `make docs` from the files in docs/configs.

`vramcast estimate --from FILE…` (and `plan`, `check`, `fit`, `job`, `diagnose`, …) reads configuration files of
other frameworks as they are. Several files are one job: a training YAML, accelerate's YAML, DeepSpeed's JSON, a
model's folder, a launch script. Flags beside them win.

- The framework is recognised by its words; `--framework NAME` forces it.
- Nothing is executed: shell scripts are read word by word, Python by its syntax tree (literals only), YAML
  without tags.
- A path inside a file is followed, from its own folder or from one above it, where it lies within the folders of
  the given files, or means one of them by name. Anything else is not opened, and the report says so. The same holds
  for what a shell script takes in with `source`, and for files that a configuration inherits from.
- A launch script is read as if it were started without arguments: variables get their defaults, and the branches
  of `if`, `case` and loops are taken that follow from them. What only the machine decides is said.
- A Python file is read the same way: options of argparse, fields of settings classes, keys of dictionaries and
  parameters of functions stand for their defaults, and of several trainings in it the last is read. The report says
  so.
- Defaults are those of the framework's version: `--framework-version` says it, else a requirements.txt, uv.lock or
  poetry.lock beside the files (or a notebook's `pip install`), else it is the newest that was read. It is printed.
  The same files give the versions of torch, transformers, TRL, PEFT, bitsandbytes and Liger.
- Every setting is used, known not to matter, or named. What matters and cannot be counted is said in the
  verdict.
- `vramcast job --from FILE…` prints what was understood, with the origin of every value, as a job file.
- `vramcast plan --from FILE…` ends with a diff of the files for every plan; `--write` without a file name
  applies the first.

torchtitan and Megatron-Bridge are configured in Python, and Lightning's CLI trains a class of your own:
`vramcast trace -- LAUNCH LINE` runs them on virtual GPUs instead."""
CONFIGS = (
    Example(title="LLaMA-Factory", files=("llama-factory.yaml",), gpu="rtx4090"),
    Example(title="axolotl", files=("axolotl.yaml",), gpu="12GiB"),
    Example(
        title="LLaMA-Factory v1",
        files=("llama-factory-v1.yaml",),
        change=(("batch", 1), ("checkpointing", "full")),
        text="Its second schema, of `examples/v1`.",
    ),
    Example(
        title="transformers' TrainingArguments",
        files=("arguments.json",),
        change=(("batch", 1), ("accumulate", 16), ("optimizer", "paged-adamw-8bit")),
        text="As YAML, JSON or flags; PEFT's `adapter_config.json` beside it says the adapters.",
    ),
    Example(
        title="TRL with accelerate and DeepSpeed",
        files=("trl.yaml", "accelerate.yaml", "deepspeed.json"),
        change=(("batch", 1), ("accumulate", 4), ("strategy", "zero3"), ("offload", "optimizer")),
        text='`"auto"` in the file of DeepSpeed is what the Trainer fills in. Which trainer a recipe is for is read '
        "from its command, from settings that only one trainer has, or from the file's name.",
    ),
    Example(
        title="ms-swift",
        files=("ms-swift.sh",),
        gpu="rtx4090",
        text="Of vision-language models, `MAX_PIXELS` becomes tokens by the processor's rule, and the parts that are "
        "frozen are named.",
    ),
    Example(
        title="ms-swift with Megatron",
        files=("ms-swift-megatron.sh",),
        change=(("batch", 1), ("checkpointing", "full"), ("recompute", ())),
        text="With Megatron's defaults as ms-swift sets them: a distributed optimizer, selective recomputation.",
    ),
    Example(
        title="Launch scripts in the manner of LLaVA",
        files=("llava-style.sh",),
        change=(("batch", 1), ("accumulate", 8)),
    ),
    Example(
        title="Megatron-LM",
        files=("megatron.sh",),
        flags="llama-2-7b",
        change=(("batch", 1), ("accumulate", 64), ("checkpointing", "full")),
        text="Where the model is given by sizes that the catalog's models do not share, MODEL says which one it is.",
    ),
    Example(
        title="Megatron-LM's model_config.yaml",
        files=("model_config.yaml",),
        flags="--gpus 8",
        change=(("batch", 1), ("accumulate", 64), ("checkpointing", "full")),
    ),
    Example(
        title="OpenRLHF",
        files=("openrlhf.sh",),
        change=(("batch", 1), ("accumulate", 16), ("offload", "optimizer")),
    ),
    Example(
        title="verl",
        files=("verl.sh",),
        change=(("batch", 1), ("checkpointing", "full")),
        text="The actor's update is counted; what shares its cards is named.",
    ),
    Example(title="unsloth, and other Python", files=("unsloth_train.py",), gpu="rtx4090"),
    Example(
        title="torchtune",
        files=("torchtune.yaml",),
        change=(("batch", 1), ("checkpointing", "full")),
    ),
    Example(title="litgpt", files=("litgpt.yaml",), change=(("batch", 1), ("quantize", "nf4"))),
    Example(
        title="NeMo Automodel",
        files=("nemo.yaml",),
        flags="--gpus 8",
        change=(("batch", 1), ("checkpointing", "full")),
    ),
    Example(
        title="NeMo RL",
        files=("nemo-rl.yaml", "nemo-rl-base.yaml"),
        change=(("seq", 2048),),
        text="A file that inherits is read with its parent where that lies beside it or is given.",
    ),
    Example(
        title="llm-foundry",
        files=("llm-foundry.yaml",),
        flags="--gpus 8",
        change=(("batch", 1), ("checkpointing", "full")),
    ),
    Example(
        title="nanotron",
        files=("nanotron.yaml",),
        flags="llama-2-7b",
        change=(("batch", 1), ("checkpointing", "full")),
    ),
)


def configs_page() -> str:
    return "\n\n".join((INTRODUCTION, *map(_example, CONFIGS))) + "\n"


def _example(example: Example) -> str:
    parts = [f"## {example.title}"]
    if example.text:
        parts.append(example.text)
    for name in example.files:
        kind = {"sh": "bash", "py": "python"}.get(name.rpartition(".")[2], name.rpartition(".")[2])
        text = (EXAMPLES / name).read_text(encoding="utf-8").rstrip()
        parts.append(f"docs/configs/{name}:\n\n```{kind}\n{text}\n```")
    files = " ".join(f"docs/configs/{name}" for name in example.files)
    job = f"job {example.flags} --from {files}".replace("  ", " ")
    parts.append(f"```\n> vramcast {job}\n{_printed(job)}\n```")
    if example.gpu:
        plan = f"plan {example.flags} --from {files} --gpu {example.gpu}".replace("  ", " ")
        heading = f"The end of `vramcast {plan}`, the first plan that the files have words for:"
        parts.append(f"{heading}\n\n```diff\n{_first_diff(plan)}\n```")
    if example.change:
        said = ", ".join(f"`{key} {_shown(value)}`" for key, value in example.change)
        parts.append(f"The files with {said}:\n\n```diff\n{_changed(example)}\n```")
    return "\n\n".join(parts)


def _shown(value: object) -> str:
    return "none" if value == () else str(value)


def _changed(example: Example) -> str:
    """What `plan` writes for a change of the job."""
    words = shlex.split(example.flags)
    has_gpus = words[:1] == ["--gpus"]
    flags = {"gpus": int(words[1])} if has_gpus else {"model": words[0]} if words else {}
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        paths = [Path("docs/configs") / name for name in example.files]
        job, understood = job_of_files(understand(paths), flags)
        after = job.changed(**dict(example.change))
        return _as_text(write_change(understood, paths, job, after, flags))
    finally:
        os.chdir(here)


def _as_text(patch: Patch) -> str:
    flags = " ".join(f"--{key} {value}" for key, value in patch.left.items())
    return patch.diff().rstrip() + (f"\n# and as flags or variables: {flags}" if flags else "")


def _printed(command: str) -> str:
    """What a command prints, in this process: a page of them is quick."""
    here, out = Path.cwd(), io.StringIO()
    os.chdir(ROOT)
    try:
        with redirect_stdout(out):
            main_of_commands(shlex.split(command))
    finally:
        os.chdir(here)
    return out.getvalue().rstrip()


def _first_diff(command: str) -> str:
    """Of the first plan that the files have words for."""
    patches = json.loads(_printed(f"{command} --json")).get("patches", [])
    patch = next((each for each in patches if each["diff"]), None)
    if patch is None:
        return "# the files have no words for it"
    flags = " ".join(f"--{key} {value}" for key, value in patch["flags"].items())
    return patch["diff"].rstrip() + (f"\n# and as flags or variables: {flags}" if flags else "")


def main() -> int:
    COMMANDS_PAGE.write_text(commands_page(), encoding="utf-8")
    CONFIGS_PAGE.write_text(configs_page(), encoding="utf-8")
    DEFAULTS_PAGE.write_text(defaults_page(), encoding="utf-8")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(refreshed(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
