"""Plans as text, Markdown or JSON: what to change, what it saves, what it costs, and how to do it."""

from __future__ import annotations

import dataclasses
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from vramcast.forecast import Answer
from vramcast.job import job_values
from vramcast.plan.cost import AssumedSpeeds, StepCost
from vramcast.plan.moves import Move
from vramcast.plan.plans import Plan, Plans, Single
from vramcast.plan.ranking import Moves
from vramcast.plan.verify import Traced
from vramcast.report.as_json import SCHEMA, answer_json, verdict_json
from vramcast.report.table import Column, Row, Table, align, as_markdown, as_text
from vramcast.report.verdict import headline, not_counted_lines
from vramcast.report.words import say
from vramcast.report.words.forecast import LABELS
from vramcast.report.words.plan import COLUMNS, HEADINGS, KINDS, MOVES, REASONS
from vramcast.report.words.sentences import translate
from vramcast.units import GiB, MiB, format_gib

if TYPE_CHECKING:
    from vramcast.plan.headroom import Reach
    from vramcast.plan.table import Candidate  # with NumPy, which many GPUs do without

FRONT_SHOWN = 8
SINGLES_SHOWN = 4  # of each kind of cost
SHOWN_FROM = 10 * MiB  # a single change that saves less is named without a row
NUMERIC = ("number", "process", "allocated", "left", "frees", "time")


def render(
    plans: Plans,
    traced: tuple[Traced, ...] = (),
    *,
    markdown: bool = False,
    lang: str = "en",
    width: int | None = None,
    verbose: bool = False,
) -> str:
    """`verbose`: every single change with its reason, and memory against time."""
    first = headline(plans.base.verdict(), lang)
    last = (*_traced_lines(plans, traced, lang), *last_lines(plans, lang))
    parts = [
        f"**{first}**" if markdown else first,
        *(
            as_markdown(table) if markdown else as_text(table, width)
            for table in plan_tables(plans, lang, verbose=verbose)
        ),
        "\n".join(last),
    ]
    return "\n\n".join(parts)


def plan_tables(plans: Plans, lang: str, *, verbose: bool) -> list[Table]:
    tables = []
    if plans.fitting:
        tables.append(_plan_table("fitting", plans.fitting, plans, lang))
        tables.append(_how_table(plans.fitting[0], lang))
    elif plans.closest is not None:
        fits_by_the_estimate = plans.closest.forecast.verdict().fits
        title = "barely" if fits_by_the_estimate else "nothing"
        tables.append(_plan_table(title, (plans.closest,), plans, lang))
    if plans.singles:
        tables.append(_single_table(plans, lang, verbose=verbose))
    if verbose and len(plans.front) > 1:
        tables.append(_front_table(plans.front, lang))
    return tables


def columns(lang: str, *keys: str) -> tuple[Column, ...]:
    return tuple(Column(title=say(COLUMNS, key, lang), right=key in NUMERIC) for key in keys)


def _plan_table(title: str, found: tuple[Plan, ...], plans: Plans, lang: str) -> Table:
    rows = [_plan_row(number, plan, lang) for number, plan in enumerate(found, 1)]
    below: tuple[str, ...] = ()
    if plans.fewest is not None and plans.fewest is not found[0]:
        below = (f"{say(HEADINGS, 'fewest', lang)}: {move_names(plans.fewest.moves, lang)}",)
    return Table(
        title=say(HEADINGS, title, lang),
        columns=columns(lang, "number", "process", "left", "kind", "time", "changes"),
        rows=tuple(rows),
        below=below,
    )


def _plan_row(number: int, plan: Plan, lang: str) -> Row:
    verdict = plan.forecast.verdict()
    cells = (
        str(number),
        format_gib(verdict.highest_bytes),
        f"{(verdict.headroom_bytes or 0) / GiB:+,.2f}",
        say(KINDS, str(plan.kind), lang),
        ratio(plan.slowdown),
        move_names(plan.moves, lang),
    )
    return Row(cells=cells)


def _how_table(plan: Plan, lang: str) -> Table:
    """The first plan's lines, by where they are written."""
    rows = [
        Row(cells=(say(MOVES, move.name, lang), where, text))
        for move in plan.moves
        for where, text in move.how.items()
    ]
    return Table(
        title=say(HEADINGS, "how", lang),
        columns=columns(lang, "change", "where", "how"),
        rows=tuple(rows),
    )


def _single_table(plans: Plans, lang: str, *, verbose: bool) -> Table:
    """Of each kind of cost those that save most; with their reasons and all of them where asked for."""
    useful = [single for single in plans.singles if single.frees_bytes >= SHOWN_FROM]
    useless = [single for single in plans.singles if single.frees_bytes < SHOWN_FROM]
    if not verbose:
        useful = _largest_of_each_kind(useful)
    below: tuple[str, ...] = () if verbose else (say(HEADINGS, "verbose", lang),)
    if useless and verbose:
        names = ", ".join(say(MOVES, single.move.name, lang) for single in useless)
        below = (f"{say(HEADINGS, 'no_effect', lang)}: {names}",)
    return Table(
        title=say(HEADINGS, "singles", lang),
        columns=columns(lang, "frees", "time", "kind", "change", *(["why"] if verbose else [])),
        rows=tuple(_single_row(single, lang, verbose=verbose) for single in useful),
        below=below,
    )


def _largest_of_each_kind(singles: list[Single]) -> list[Single]:
    found = []
    for kind in dict.fromkeys(single.move.kind for single in singles):
        found += [single for single in singles if single.move.kind == kind][:SINGLES_SHOWN]
    return found


def _single_row(single: Single, lang: str, *, verbose: bool) -> Row:
    move = single.move
    cells = (
        format_gib(single.frees_bytes),
        ratio(single.slowdown),
        say(KINDS, str(move.kind), lang),
        say(MOVES, move.name, lang),
    )
    return Row(cells=(*cells, say(REASONS, move.why, lang)) if verbose else cells)


def _front_table(front: tuple[Candidate, ...], lang: str) -> Table:
    every = -(-len(front) // FRONT_SHOWN)
    rows = [_front_row(point, lang) for point in front[::every]]
    return Table(
        title=say(HEADINGS, "front", lang),
        columns=columns(lang, "allocated", "time", "changes"),
        rows=tuple(rows),
    )


def _front_row(point: Candidate, lang: str) -> Row:
    allocated = format_gib(point.allocated_bytes)
    return Row(cells=(allocated, ratio(point.slowdown), move_names(point.moves, lang)))


# ---- lines below the tables


def _traced_lines(plans: Plans, traced: tuple[Traced, ...], lang: str) -> list[str]:
    if not traced:
        return []
    rows = [
        (str(number), _traced_text(plan, seen, lang))
        for number, (plan, seen) in enumerate(zip(plans.fitting, traced, strict=False), 1)
    ]
    return [f"{say(HEADINGS, 'traced', lang)}:", *align(rows, "rl")]


def _traced_text(plan: Plan, seen: Traced, lang: str) -> str:
    if seen.allocated_bytes is None or seen.reserved_bytes is None:
        return seen.reason
    verdict = plan.forecast.verdict()
    return say(
        HEADINGS,
        "traced_fits",
        lang,
        allocated=_with_error(verdict.allocated_bytes, seen.allocated_bytes),
        reserved=_with_error(verdict.reserved_bytes, seen.reserved_bytes),
    )


def _with_error(predicted: int | None, seen: int) -> str:
    """What was seen, and how far the prediction was from it."""
    error = "–" if predicted is None else f"{100 * (predicted / seen - 1):+.1f} %"
    return f"{format_gib(seen)} ({error})"


def last_lines(plans: Plans, lang: str) -> list[str]:
    lines = [
        f"{say(LABELS, 'warning', lang)}: {translate(text, lang)}" for text in plans.base.warnings
    ]
    lines += not_counted_lines(plans.base.not_understood, lang)
    if plans.base.verdict().fits:
        is_tight = plans.base.verdict().answer is Answer.TIGHT
        lines.append(say(HEADINGS, "tight_already" if is_tight else "fits_already", lang))
    if plans.reach is not None:
        lines.append(_reach(plans.reach, lang))
    if plans.cost is not None:
        lines.append(f"{say(HEADINGS, 'as_given', lang)}: {_speed(plans.cost)}")
        lines.append(f"{say(HEADINGS, 'times_assume', lang)}: {_assumed(plans.speeds, lang)}")
    key = "evaluated_one" if plans.num_candidates == 1 else "evaluated"
    lines.append(say(HEADINGS, key, lang, count=f"{plans.num_candidates:,}"))
    return lines


def _reach(reach: Reach, lang: str) -> str:
    if reach.longest_seq is None:
        return say(HEADINGS, "reach", lang, batch=reach.largest_batch)
    seq = f"{reach.longest_seq:,}"
    return say(HEADINGS, "reach_seq", lang, batch=reach.largest_batch, seq=seq)


def _speed(cost: StepCost) -> str:
    (fast, slow), (low, high) = cost.seconds, cost.tokens_per_s
    return f"{fast:.3g}–{slow:.3g} s/step, {low:,.0f}–{high:,.0f} tokens/s"


def _assumed(speeds: AssumedSpeeds, lang: str) -> str:
    """What seconds rest on, in numbers."""
    low, high = (f"{share:.0%}" for share in speeds.peak_share)
    parts = [say(HEADINGS, "peak_flops", lang, low=low, high=high)]
    links = (
        ("pcie", speeds.pcie),
        ("between_gpus", speeds.between_gpus),
        ("between_machines", speeds.between_machines),
    )
    for key, rates in links:
        if rates is not None:
            parts.append(say(HEADINGS, key, lang, rates=_gb_per_s(rates)))
    return ", ".join(parts)


def _gb_per_s(rates: tuple[float, float]) -> str:
    low, high = (rate / 1e9 for rate in rates)
    return f"{low:.1f}–{high:.0f} GB/s" if low < 2 else f"{low:.0f}–{high:.0f} GB/s"


def move_names(moves: Moves, lang: str) -> str:
    if not moves:
        return say(HEADINGS, "as_given", lang)
    return " + ".join(say(MOVES, move.name, lang) for move in moves)


def ratio(slowdown: tuple[float, float] | None) -> str:
    if slowdown is None:
        return "–"
    low, high = (f"{each:.2f}" for each in sorted(slowdown))
    return f"×{low}" if low == high else f"×{low}–{high}"


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
        "reach": None
        if plans.reach is None
        else {
            "largest_batch": plans.reach.largest_batch,
            "longest_seq": plans.reach.longest_seq,
        },
        "step_seconds": None if plans.cost is None else list(plans.cost.seconds),
        "tokens_per_s": None if plans.cost is None else list(plans.cost.tokens_per_s),
        "num_candidates": plans.num_candidates,
        "not_understood": list(plans.base.not_understood),
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    verdict = plan.forecast.verdict()
    return {
        "changes": [_move_json(move) for move in plan.moves],
        "answer": answer_json(verdict.answer),
        "fits": plan.fits,
        "peak": {
            "allocated_bytes": verdict.allocated_bytes,
            "reserved_bytes": verdict.reserved_bytes,
            "process_bytes": verdict.process_bytes,
            "phase": verdict.peak.phase,
            "place": verdict.peak.place,
            "headroom_bytes": verdict.headroom_bytes,
        },
        "slowdown": None if plan.slowdown is None else list(plan.slowdown),
        "class": str(plan.kind),
        "job": job_values(plan.job),
    }


def _move_json(move: Move) -> dict[str, Any]:
    return {
        "name": move.name,
        "key": move.axis,
        "class": str(move.kind),
        "why": move.why,
        "how": move.how,
    }


def _single_json(single: Single) -> dict[str, Any]:
    slowdown = None if single.slowdown is None else list(single.slowdown)
    return {**_move_json(single.move), "frees_bytes": single.frees_bytes, "slowdown": slowdown}


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "changes": [_move_json(move) for move in candidate.moves],
        "class": str(candidate.kind),
        "allocated_bytes": candidate.allocated_bytes,
        "slowdown": list(candidate.slowdown),
    }
