"""The last lines of a bill that does not fit: what would help, and where to ask for more."""

from __future__ import annotations

from vramcast.plan.hints import Hint
from vramcast.report.words.plan import plan_word
from vramcast.units import format_gib


def render_hints(found: tuple[Hint, ...], lang: str) -> str:
    lines = [f"{plan_word('the cheapest single changes', lang)}:"] if found else []
    for hint in found:
        names = " + ".join(plan_word(move.name, lang) for move in hint.moves)
        fits = f"   {plan_word('fits', lang)}" if hint.fits else ""
        lines.append(f"  −{format_gib(hint.frees_bytes)}  {plan_word(str(hint.kind), lang)}: {names}{fits}")
    return "\n".join([*lines, f"{plan_word('more, and combinations that fit', lang)}: vramcast plan"])
