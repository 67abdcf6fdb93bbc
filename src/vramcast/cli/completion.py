"""`vramcast completion bash`: a script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
from importlib import import_module

from vramcast.cli import COMMANDS, Parser

SHELLS = ("bash", "zsh", "fish")
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
        flag: tuple(map(str, action.choices or ()))
        for action in vars(parser)["_actions"]
        for flag in action.option_strings
        if flag.startswith("--") and action.help != argparse.SUPPRESS
    }


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
        commands=" ".join(known), options="\n".join(options), values="\n".join(values)
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
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")
