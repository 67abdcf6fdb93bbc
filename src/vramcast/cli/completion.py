"""`vramcast completion bash`: a script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
import re
from importlib import import_module

from vramcast.catalog.gpus import all_gpus, is_known
from vramcast.catalog.models import all_models
from vramcast.cli import COMMANDS, Parser
from vramcast.job import fields

MAKER = re.compile(r"\b(nvidia|geforce|amd|intel)\b ?")
SERIES = re.compile(r"\b(rtx|gtx|rx) (?=\d)")
SHELLS = ("bash", "zsh", "fish")
TAKES_MODEL = ("estimate", "plan", "fit", "divide", "check", "compare", "sweep", "params", "models")
HOW = {
    "bash": 'eval "$(vramcast completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(vramcast completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "vramcast completion fish > ~/.config/fish/completions/vramcast.fish",
}

BASH = """_vramcast() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}} $before" in
{values}
        esac
        if [ -z "$words" ]; then
            case "${{COMP_WORDS[1]}}" in
{options}
            esac
            case "$current" in -*) ;; *) words="" ;; esac
            if [ "$COMP_CWORD" -eq 2 ] && [ -z "$words" ]; then
                case "${{COMP_WORDS[1]}}" in
                {takes_model}) words="{models}" ;;
                completion) words="{shells}" ;;
                esac
            fi
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- "$current"))
}}
complete -F _vramcast vramcast"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="; ".join(HOW.values()))


def run(args: argparse.Namespace) -> int:
    known = {name: _options(name) for name in COMMANDS}
    print(_fish(known) if args.shell == "fish" else _bash(known, args.shell))
    return 0


def _options(command: str) -> dict[str, tuple[str, ...]]:
    """A command's long options that help shows, and the values of those that have a closed set."""
    parser = Parser(prog=f"vramcast {command}", allow_abbrev=False)
    import_module(f"vramcast.cli.{command}").configure(parser)
    return {
        flag: tuple(map(str, action.choices or ())) or _values(flag.removeprefix("--"))
        for action in vars(parser)["_actions"]
        for flag in action.option_strings
        if flag.startswith("--") and action.help != argparse.SUPPRESS
    }


def _values(name: str) -> tuple[str, ...]:
    """Of a job's option: the words that it knows, and names of cards."""
    if name == "gpu":
        return tuple(_card_names())
    field = fields().get(name)
    return field.metadata["choices"] if field else ()


def _card_names() -> list[str]:
    """One word for each card, as people type it: rtx4090, a100-80gb-sxm4."""
    names = (MAKER.sub("", gpu.name.lower()) for gpu in all_gpus())
    words = {re.sub(r"[^a-z0-9.]+", "-", SERIES.sub(r"\1", name)).strip("-") for name in names}
    return sorted(word for word in words if is_known(word))


def _bash(known: dict[str, dict[str, tuple[str, ...]]], shell: str) -> str:
    options = [
        f'            {command}) words="{" ".join(flags)}" ;;' for command, flags in known.items()
    ]
    values = [
        f'            "{command} {flag}") words="{" ".join(choices)}" ;;'
        for command, flags in known.items()
        for flag, choices in flags.items()
        if choices
    ]
    script = BASH.format(
        commands=" ".join(known),
        options="\n".join(options),
        values="\n".join(values),
        takes_model="|".join(TAKES_MODEL),
        models=" ".join(model.name for model in all_models()),
        shells=" ".join(SHELLS),
    )
    return f"autoload -U bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def _fish(known: dict[str, dict[str, tuple[str, ...]]]) -> str:
    lines = [
        f"complete -c vramcast -n __fish_use_subcommand -a {command} -d '{_quoted(COMMANDS[command])}'"
        for command in known
    ]
    for command, flags in known.items():
        for flag, choices in flags.items():
            values = f" -x -a '{' '.join(choices)}'" if choices else ""
            lines.append(
                f"complete -c vramcast -n '__fish_seen_subcommand_from {command}' -l {flag[2:]}{values}"
            )
    names = " ".join(model.name for model in all_models())
    lines += [
        f"complete -c vramcast -n '__fish_seen_subcommand_from {each}' -a '{names}'"
        for each in TAKES_MODEL
    ]
    lines.append(
        f"complete -c vramcast -n '__fish_seen_subcommand_from completion' -x -a '{' '.join(SHELLS)}'"
    )
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")
