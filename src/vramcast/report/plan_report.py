"""Plans as text, Markdown or JSON: what to change, what it frees, what it costs, and how to do it."""

from __future__ import annotations

from typing import Any

from vramcast.job import job_values
from vramcast.plan.moves import Move
from vramcast.plan.search import Candidate, Plan, Plans
from vramcast.report.as_json import SCHEMA, verdict_json
from vramcast.report.bill import headline
from vramcast.units import GiB, format_gib

ZH = {
    "plans that fit, cheapest first": "可行的方案（代价从低到高）",
    "nothing that was tried fits; the smallest is": "没有找到可行的方案；最小的是",
    "single changes": "单项改动",
    "step time": "单步时间",
    "free": "无代价",
    "slower": "变慢",
    "changes the training": "改变训练",
    "frees": "释放",
    "combinations were priced": "种组合已计价",
}


def _word(text: str, lang: str) -> str:
    return ZH.get(text, text) if lang == "zh" else text


def render_text(plans: Plans, lang: str = "en") -> str:
    lines = [headline(plans.base.verdict(), lang), ""]
    if plans.fitting:
        lines.append(_word("plans that fit, cheapest first", lang))
        for number, plan in enumerate(plans.fitting, 1):
            lines += _plan_lines(f"{number}", plan, lang)
    elif plans.closest is not None:
        lines.append(_word("nothing that was tried fits; the smallest is", lang))
        lines += _plan_lines("–", plans.closest, lang)
    lines += ["", _word("single changes", lang), *_single_lines(plans, lang)]
    fast, slow = plans.cost.tokens_per_s
    lines += [
        "",
        f"{plans.num_candidates:,} {_word('combinations were priced', lang)}; {fast:,.0f}–{slow:,.0f} tokens/s",
    ]
    return "\n".join(lines)


def _plan_lines(number: str, plan: Plan, lang: str) -> list[str]:
    verdict = plan.forecast.verdict()
    process, room = verdict.process_bytes or 0, verdict.headroom_bytes or 0
    first = (
        f"  {number}  {format_gib(process)}  ({room / GiB:+.2f})   {_word(str(plan.kind), lang)}   "
        f"{_word('step time', lang)} {_ratio(plan.slowdown)}"
    )
    return [first, *(f"       {move.name}{_how(move.how)}" for move in plan.moves)]


def _ratio(slowdown: tuple[float, float]) -> str:
    low, high = sorted(slowdown)
    return f"×{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"×{low:.2f}–{high:.2f}"


def _how(how: dict[str, str]) -> str:
    return "".join(f"   {where}: {text}" for where, text in how.items())


def _single_lines(plans: Plans, lang: str) -> list[str]:
    base = plans.base.verdict().allocated_bytes or 0
    rows = sorted(plans.singles, key=lambda single: single.allocated_bytes)
    return [_single(single, base, lang) for single in rows]


def _single(single: Candidate, base: int, lang: str) -> str:
    move = single.moves[0]
    freed, kind = (base - single.allocated_bytes) / GiB, _word(str(move.kind), lang)
    return f"  {freed:>9.2f} GiB  {_ratio(single.slowdown):<12}  {_word(str(move.kind), lang):<20}  {move.name}: {move.why}"


def plans_json(plans: Plans) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "verdict": verdict_json(plans.base.verdict()),
        "plans": [_plan_json(plan) for plan in plans.fitting],
        "closest": None if plans.closest is None else _plan_json(plans.closest),
        "single_changes": [_single_json(single) for single in plans.singles],
        "tokens_per_s": list(plans.cost.tokens_per_s),
        "num_candidates": plans.num_candidates,
    }


def _plan_json(plan: Plan) -> dict[str, Any]:
    verdict = plan.forecast.verdict()
    return {
        "changes": [_move_json(move) for move in plan.moves],
        "fits": plan.fits,
        "peak": {
            "allocated_bytes": verdict.allocated_bytes, "reserved_bytes": verdict.reserved_bytes,
            "process_bytes": verdict.process_bytes, "phase": verdict.peak.phase,
        },
        "slowdown": list(plan.slowdown),
        "class": str(plan.kind),
        "job": job_values(plan.job),
    }  # fmt: skip


def _move_json(move: Move) -> dict[str, Any]:
    return {"name": move.name, "key": move.key, "class": str(move.kind), "how": move.how}


def _single_json(single: Candidate) -> dict[str, Any]:
    move = single.moves[0]
    return {
        "name": move.name, "key": move.key, "class": str(move.kind), "allocated_bytes": single.allocated_bytes,
        "slowdown": list(single.slowdown), "why": move.why,
    }  # fmt: skip
