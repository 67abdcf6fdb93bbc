"""Plans as text, Markdown or JSON: what to change, what it frees, what it costs, and how to do it."""

from __future__ import annotations

import dataclasses
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from vramcast.engine.recording.precision import card_warnings
from vramcast.forecast import Forecast
from vramcast.job import job_values
from vramcast.plan.bandwidth import NETWORK_BYTES_PER_S, Rates, link_rates, pcie_rates
from vramcast.plan.cost import UTILISATION, StepCost
from vramcast.plan.moves import Move
from vramcast.plan.ranking import Moves, peak_bytes
from vramcast.plan.search import Plan, Plans, Single
from vramcast.plan.verify import Traced
from vramcast.report.as_json import SCHEMA, verdict_json
from vramcast.report.bill import headline
from vramcast.report.sheet import Column, Row, Sheet, as_markdown, as_text
from vramcast.report.words.bill import word
from vramcast.report.words.plan import plan_word
from vramcast.units import GiB, MiB, format_gib

if TYPE_CHECKING:
    from vramcast.plan.table import Candidate  # with NumPy, which many GPUs do without

FRONT_SHOWN = 8
NOTHING = "nothing that was tried fits; the smallest is"
SHOWN_FROM = 10 * MiB  # a single change that frees less is named without a row


def render(plans: Plans, traced: tuple[Traced, ...] = (), *, markdown: bool = False, lang: str = "en") -> str:
    show = as_markdown if markdown else as_text
    first = headline(plans.base.verdict(), lang)
    parts = [f"**{first}**" if markdown else first, *(show(sheet) for sheet in _sheets(plans, lang))]
    return "\n\n".join([*parts, "\n".join((*_traced_lines(plans, traced, lang), *_last_lines(plans, lang)))])


def _traced_lines(plans: Plans, traced: tuple[Traced, ...], lang: str) -> list[str]:
    lines = [f"{plan_word('traced on the virtual GPU', lang)}:"] if traced else []
    for number, (plan, seen) in enumerate(zip(plans.fitting, traced, strict=False), 1):
        text = seen.reason
        if seen.allocated_bytes is not None and seen.reserved_bytes is not None:
            verdict = plan.forecast.verdict()
            text = (
                f"{plan_word('fits', lang)}; {plan_word('allocated', lang)} {format_gib(seen.allocated_bytes)} "
                f"({_error(verdict.allocated_bytes, seen.allocated_bytes)}), "
                f"{plan_word('reserved', lang)} {format_gib(seen.reserved_bytes)} "
                f"({_error(verdict.reserved_bytes, seen.reserved_bytes)})"
            )
        lines.append(f"  {number}  {text}")
    return lines


def _error(predicted: int | None, seen: int) -> str:
    return "–" if predicted is None else f"{100 * (predicted / seen - 1):+.1f} %"


def _sheets(plans: Plans, lang: str) -> list[Sheet]:
    sheets = []
    if plans.fitting:
        sheets.append(_plan_sheet("plans that fit, cheapest first", plans.fitting, plans, lang))
        sheets.append(_how_sheet(plans.fitting[0], lang))
    elif plans.closest is not None:
        barely = plans.closest.forecast.verdict().fits
        title = "fits only if what is assumed stays below its upper end" if barely else NOTHING
        sheets.append(_plan_sheet(title, (plans.closest,), plans, lang))
    if plans.singles:
        sheets.append(_single_sheet(plans, lang))
    if len(plans.front) > 1:
        sheets.append(_front_sheet(plans.front, lang))
    return sheets


def columns(lang: str, *titles: str) -> tuple[Column, ...]:
    numeric = ("#", "process", "allocated", "left", "frees", "time per token")
    return tuple(Column(title=plan_word(title, lang), right=title in numeric) for title in titles)


def _plan_sheet(title: str, found: tuple[Plan, ...], plans: Plans, lang: str) -> Sheet:
    rows = []
    for number, plan in enumerate(found, 1):
        verdict = plan.forecast.verdict()
        cells = (
            str(number), format_gib(peak_bytes(plan.forecast)), f"{(verdict.headroom_bytes or 0) / GiB:+,.2f}",
            plan_word(str(plan.kind), lang), ratio(plan.slowdown), _names(plan.moves, lang),
        )  # fmt: skip
        rows.append(Row(cells=cells))
    below: tuple[str, ...] = ()
    if plans.fewest is not None and plans.fewest is not found[0]:
        below = (f"{plan_word('fewest changes', lang)}: {_names(plans.fewest.moves, lang)}",)
    titles = columns(lang, "#", "process", "left", "kind", "time per token", "changes")
    return Sheet(title=plan_word(title, lang), columns=titles, rows=tuple(rows), below=below)


def _how_sheet(plan: Plan, lang: str) -> Sheet:
    """The first plan's lines, by where they are written."""
    rows = [
        Row(cells=(plan_word(move.name, lang), where, text)) for move in plan.moves for where, text in move.how.items()
    ]
    return Sheet(title=f"{plan_word('how', lang)} (1)", columns=columns(lang, "changes", "", "how"), rows=tuple(rows))


def _single_sheet(plans: Plans, lang: str) -> Sheet:
    useful = [single for single in plans.singles if single.frees_bytes >= SHOWN_FROM]
    rows = tuple(
        Row(cells=(
            format_gib(single.frees_bytes), ratio(single.slowdown), plan_word(str(single.move.kind), lang),
            plan_word(single.move.name, lang), plan_word(single.move.why, lang),
        ))
        for single in useful
    )  # fmt: skip
    rest = [plan_word(single.move.name, lang) for single in plans.singles if single not in useful]
    below = (f"{plan_word('frees nothing here', lang)}: {', '.join(rest)}",) if rest else ()
    titles = columns(lang, "frees", "time per token", "kind", "changes", "why")
    return Sheet(title=plan_word("single changes", lang), columns=titles, rows=rows, below=below)


def _front_sheet(front: tuple[Candidate, ...], lang: str) -> Sheet:
    every = -(-len(front) // FRONT_SHOWN)
    rows = [
        Row(cells=(format_gib(point.allocated_bytes), ratio(point.slowdown), _names(point.moves, lang)))
        for point in front[::every]
    ]
    titles = columns(lang, "allocated", "time per token", "changes")
    return Sheet(title=plan_word("memory against time", lang), columns=titles, rows=tuple(rows))


def _last_lines(plans: Plans, lang: str) -> list[str]:
    job = plans.base.job
    warned = card_warnings(job.precision, plans.base.gpu) if job is not None else ()
    lines = [f"{word('warning', lang)}: {text}" for text in warned]
    if plans.base.verdict().fits:
        lines.append(plan_word("it fits as it is", lang))
    if plans.reach is not None:
        text = f"{plan_word('fits up to', lang)}: {plan_word('micro-batch', lang)} {plans.reach.largest_batch}"
        if plans.reach.longest_seq is not None:
            text += f", {plan_word('sequence length', lang)} {plans.reach.longest_seq:,}"
        lines.append(text)
    if plans.cost is not None:
        lines.append(f"{plan_word('as given', lang)}: {_speed(plans.cost)}")
        lines.append(f"{plan_word('times assume', lang)}: {_assumed(plans.base)}")
    lines.append(f"{plans.num_candidates:,} {plan_word('combinations were priced', lang)}")
    return lines


def _speed(cost: StepCost) -> str:
    (fast, slow), (low, high) = cost.seconds, cost.tokens_per_s
    return f"{fast:.3g}–{slow:.3g} s/step, {low:,.0f}–{high:,.0f} tokens/s"


def _assumed(base: Forecast) -> str:
    """The assumptions behind seconds, in numbers."""
    gpu, job = base.gpu, base.job
    low, high = UTILISATION
    parts = [f"{low:.0%}–{high:.0%} of peak FLOP/s", "PCIe {:.0f}–{:.0f} GB/s".format(*_giga(pcie_rates(gpu)))]
    if job is not None and job.gpus > 1:
        parts.append("between GPUs {:.0f}–{:.0f} GB/s".format(*_giga(link_rates(gpu))))
    if job is not None and job.gpus > job.gpus_per_node:
        parts.append("between machines {:.1f}–{:.0f} GB/s".format(*_giga(NETWORK_BYTES_PER_S)))
    return ", ".join(parts)


def _giga(rates: Rates) -> tuple[float, float]:
    return (rates[0] / 1e9, rates[1] / 1e9)


def _names(moves: Moves, lang: str) -> str:
    return " + ".join(plan_word(move.name, lang) for move in moves) or plan_word("as given", lang)


def ratio(slowdown: tuple[float, float] | None) -> str:
    if slowdown is None:
        return "–"
    low, high = sorted(slowdown)
    return f"×{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"×{low:.2f}–{high:.2f}"


# ---- JSON


def plans_json(plans: Plans, traced: tuple[Traced, ...] = ()) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "verdict": verdict_json(plans.base.verdict()),
        "plans": [
            {**plan_json(plan), **({"traced": dataclasses.asdict(seen)} if seen else {})}
            for plan, seen in zip_longest(plans.fitting, traced)
        ],
        "fewest_changes": None if plans.fewest is None else plan_json(plans.fewest),
        "closest": None if plans.closest is None else plan_json(plans.closest),
        "single_changes": [_single_json(single) for single in plans.singles],
        "front": [_candidate_json(point) for point in plans.front],
        "reach": None if plans.reach is None else {
            "largest_batch": plans.reach.largest_batch, "longest_seq": plans.reach.longest_seq,
        },
        "step_seconds": None if plans.cost is None else list(plans.cost.seconds),
        "tokens_per_s": None if plans.cost is None else list(plans.cost.tokens_per_s),
        "num_candidates": plans.num_candidates,
    }  # fmt: skip


def plan_json(plan: Plan) -> dict[str, Any]:
    verdict = plan.forecast.verdict()
    return {
        "changes": [_move_json(move) for move in plan.moves],
        "fits": plan.fits,
        "peak": {
            "allocated_bytes": verdict.allocated_bytes, "reserved_bytes": verdict.reserved_bytes,
            "process_bytes": verdict.process_bytes, "phase": verdict.peak.phase, "place": verdict.peak.place,
            "headroom_bytes": verdict.headroom_bytes,
        },
        "slowdown": None if plan.slowdown is None else list(plan.slowdown),
        "class": str(plan.kind),
        "job": job_values(plan.job),
    }  # fmt: skip


def _move_json(move: Move) -> dict[str, Any]:
    return {"name": move.name, "key": move.axis, "class": str(move.kind), "why": move.why, "how": move.how}


def _single_json(single: Single) -> dict[str, Any]:
    slowdown = None if single.slowdown is None else list(single.slowdown)
    return {**_move_json(single.move), "frees_bytes": single.frees_bytes, "slowdown": slowdown}


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "changes": [_move_json(move) for move in candidate.moves], "class": str(candidate.kind),
        "allocated_bytes": candidate.allocated_bytes,
        "slowdown": list(candidate.slowdown),
    }  # fmt: skip
