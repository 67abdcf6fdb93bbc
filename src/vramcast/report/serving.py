"""A serving engine's part of a report: its cache, what it prints at start-up, and changes that would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vramcast.forecast import Served
from vramcast.report.as_json import served_json
from vramcast.report.table import align
from vramcast.report.words import say
from vramcast.report.words.serving import COSTS, SERVING
from vramcast.units import format_bytes, format_gib

if TYPE_CHECKING:
    from vramcast.plan.inference import InferenceHint
    from vramcast.plan.serving import Change

NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tgi": "TGI", "llama.cpp": "llama.cpp"}


def served_lines(served: Served, lang: str) -> Iterator[str]:
    """The answer about the cache, then the engine's own lines."""
    yield from answer_lines(served, lang)
    yield f"{say(SERVING, 'prints', lang, engine=NAMES[served.engine])}:"
    yield from (f"  {line}" for line in served.lines)


def answer_lines(served: Served, lang: str) -> Iterator[str]:
    """What the cache holds, or why the engine would not start."""
    name = NAMES[served.engine]
    if served.starts:
        yield from _cache_lines(served, lang)
    else:
        text = say(SERVING, "starts_not", lang, engine=name, version=served.version)
        yield f"{text}: {served.refusal}"
        if served.longest:
            yield say(SERVING, "longest", lang, longest=f"{served.longest:,}")


def _cache_lines(served: Served, lang: str) -> Iterator[str]:
    low, high = served.kv_tokens_range
    key = "cache_exact" if low == high else "cache"
    yield say(
        SERVING,
        key,
        lang,
        size=format_gib(served.kv_bytes),
        tokens=f"{served.kv_tokens:,}",
        each=format_bytes(served.kv_token_bytes),
        low=f"{low:,}",
        high=f"{high:,}",
    )
    length = f"{served.max_model_len:,}"
    yield say(SERVING, "requests", lang, length=length, count=f"{served.concurrency:,.2f}")
    if served.kv_token_bytes:
        tokens = served.weights_bytes // served.kv_token_bytes
        yield say(SERVING, "crossover", lang, tokens=f"{tokens:,}")


def render_changes(served: Served, changes: tuple[Change, ...], lang: str) -> str:
    if not changes:
        return "" if served.starts else say(SERVING, "no_change", lang)
    heading = say(SERVING, "more_cache" if served.starts else "changes", lang)
    return "\n".join([f"{heading}:", *align([_row(change, lang) for change in changes], "lrl")])


def _row(change: Change, lang: str) -> tuple[str, str, str]:
    tokens = say(SERVING, "tokens", lang, tokens=f"{change.served.kv_tokens:,}")
    return change.flag, tokens, say(COSTS, change.cost, lang)


def render_inference_hints(hints: tuple[InferenceHint, ...], lang: str) -> str:
    """Changes to generate() and passes that do not fit."""
    rows = [
        (
            f"−{format_gib(hint.frees_bytes)}",
            hint.flag,
            say(COSTS, hint.cost, lang),
            say(SERVING, "then_fits", lang) if hint.fits else "",
        )
        for hint in hints
    ]
    return "\n".join([f"{say(SERVING, 'helps', lang)}:", *align(rows, "rlll")])


def inference_json(hints: tuple[InferenceHint, ...]) -> list[dict[str, Any]]:
    return [
        {
            "flag": hint.flag,
            "cost": hint.cost,
            "peak_bytes": hint.peak_bytes,
            "frees_bytes": hint.frees_bytes,
            "fits": hint.fits,
        }
        for hint in hints
    ]


def changes_json(changes: tuple[Change, ...]) -> list[dict[str, Any]]:
    return [
        {"flag": one.flag, "cost": one.cost, "served": served_json(one.served)} for one in changes
    ]
