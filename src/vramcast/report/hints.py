"""The last lines of a breakdown that does not fit: what would help, and where to ask for more."""

from __future__ import annotations

from vramcast.plan.hints import Hint
from vramcast.report.table import align
from vramcast.report.words import say
from vramcast.report.words.plan import HEADINGS, KINDS, MOVES
from vramcast.units import format_gib


def render_hints(found: tuple[Hint, ...], lang: str) -> str:
    lines = [f"{say(HEADINGS, 'hints', lang)}:"] if found else []
    lines += align([_row(hint, lang) for hint in found], "rl")
    return "\n".join([*lines, f"{say(HEADINGS, 'more', lang)}: vramcast plan …"])


def _row(hint: Hint, lang: str) -> tuple[str, str]:
    names = " + ".join(say(MOVES, move.name, lang) for move in hint.moves)
    text = f"{say(KINDS, str(hint.kind), lang)}: {names}"
    if hint.fits:
        text += f"   {say(HEADINGS, 'then_fits', lang)}"
    return f"−{format_gib(hint.frees_bytes)}", text
