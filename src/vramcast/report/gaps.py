"""A grid of gaps as text, as the page docs/gaps.md and as JSON.

All three say the same: how far formula and trace are apart per version, which mechanisms explain it, the worst jobs,
and what could not be run, with commands that show one job again.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.accuracy.gaps.draw import GapJob
from vramcast.accuracy.gaps.mechanisms import Cell, Mechanism, Spread, mechanisms, spread
from vramcast.accuracy.gaps.run import Failure, Grid, said_version
from vramcast.units import format_gib

SHOWN_MECHANISMS, SHOWN_NAMES, SHOWN_CELLS = 25, 3, 15
LEAST_WEIGHT = 5e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class GapsReport:
    seed: int
    jobs: int
    grid: Grid
    versions: tuple[str, ...]
    written: str = ""  # date and versions, for the page
    worked_on: tuple[int, ...] = ()  # seeds that the formulas have seen


def gaps_text(report: GapsReport) -> str:
    lines = [_headline(report), ""]
    lines += _aligned(_spread_rows(report))
    lines += ["", "mechanisms: share of the traced peak, mean over all cells"]
    for number, each in enumerate(_shown(report), 1):
        lines += _mechanism_lines(number, each, report)
    lines += ["", "worst cells"]
    lines += _aligned(_worst_rows(report))
    if report.grid.failures:
        lines += ["", "not compared"]
        lines += [f"  {_failure(each)}" for each in report.grid.failures]
    return "\n".join(lines)


def _headline(report: GapsReport) -> str:
    cells, failed = len(report.grid.cells), len(report.grid.failures)
    return (
        f"seed {report.seed}, {report.jobs} jobs, {cells} cells compared, {failed} not: formula against trace, "
        "peak allocated"
    )


def _spread_rows(report: GapsReport) -> list[list[str]]:
    rows = [["", "cells", "median", "90 %", "worst", "within 1 %"]]
    for name, cells in _groups(report):
        found = spread(cells)
        if found is not None:
            rows.append([name, *_spread_texts(found)])
    return rows


def _groups(report: GapsReport) -> Iterable[tuple[str, Sequence[Cell]]]:
    """All cells, then by version, framework and whether there are adapters."""
    every = report.grid.cells
    yield "all", every
    for version in report.versions:
        shown = f"transformers {_version_name(version)}"
        yield shown, [cell for cell in every if cell.version == version]
    for framework in sorted({cell.job.framework for cell in every}):
        yield framework, [cell for cell in every if cell.job.framework == framework]
    yield "LoRA", [cell for cell in every if cell.job.lora_rank is not None]


def _version_name(version: str) -> str:
    return version if version[0].isdigit() else f"{said_version(version)} ({version})"


def _spread_texts(found: Spread) -> list[str]:
    return [
        str(found.cells),
        f"{found.median:.2%}",
        f"{found.ninth_decile:.2%}",
        f"{found.worst:+.2%}",
        f"{found.within_one_percent / found.cells:.0%}",
    ]


def _shown(report: GapsReport) -> list[Mechanism]:
    found = mechanisms(report.grid.cells)
    return [each for each in found if each.weight >= LEAST_WEIGHT][:SHOWN_MECHANISMS]


def mechanism_title(each: Mechanism) -> str:
    """`missing in backward, attention: self_attn aten::cat float32 (b, n, s, d) and 2 more`"""
    more = len(each.names) - SHOWN_NAMES
    names = "; ".join(each.names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
    part = f", {each.part}" if each.part else ""
    return f"{each.kind} in {each.phase}{part}: {names}"


def _mechanism_lines(number: int, each: Mechanism, report: GapsReport) -> list[str]:
    cell = _cell(report, each.worst)
    return [
        f"{number:3}. {each.weight:.3%}  {mechanism_title(each)}",
        f"     {len(each.shares)} cells ({_where(each, report)}); worst {each.shares[each.worst]:+.1%} in job "
        f"{cell.job.number} under {cell.version}",
        f"     formula: {formula_command(cell)}",
        f"     trace:   {trace_command(cell)}",
    ]


def _cell(report: GapsReport, id: tuple[int, str]) -> Cell:
    return next(cell for cell in report.grid.cells if cell.id == id)


def _where(each: Mechanism, report: GapsReport) -> str:
    """In which families, loops and versions it occurs, the most frequent first."""
    cells = [cell for cell in report.grid.cells if cell.id in each.shares]
    facets = (
        [cell.job.family for cell in cells],
        [cell.job.framework for cell in cells],
        [cell.version for cell in cells],
    )
    return "; ".join(
        ", ".join(f"{name} {n}" for name, n in Counter(f).most_common(4)) for f in facets
    )


def job_folder(job: GapJob) -> str:
    return f"build/gaps/seed-{job.seed}/job-{job.number}"


def formula_command(cell: Cell) -> str:
    said = {**cell.job.words(), "transformers-version": said_version(cell.version)}
    flags = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in said.items())
    return f"vramcast estimate {job_folder(cell.job)} {flags}"


def trace_command(cell: Cell) -> str:
    return f"make gaps SEED={cell.job.seed} ONLY={cell.job.number} VERSIONS={cell.version}"


def _worst_rows(report: GapsReport) -> list[list[str]]:
    rows = [["error", "formula", "traced", "phase", "job"]]
    worst = sorted(report.grid.cells, key=lambda cell: (-abs(cell.error), cell.id))[:SHOWN_CELLS]
    for cell in worst:
        rows.append(
            [
                f"{cell.error:+.2%}",
                format_gib(cell.formula_bytes),
                format_gib(cell.traced_bytes),
                cell.phase,
                f"{cell.job.number} {cell.job.family}, {_words(cell.job)}, transformers {cell.version}",
            ]
        )
    return rows


def _words(job: GapJob) -> str:
    said = {name: value for name, value in job.words().items() if name != "gpu"}
    alone = (said.pop("framework"), said.pop("precision"))
    return " ".join([*alone, *(f"{name} {value}" for name, value in said.items())])


def _failure(each: Failure) -> str:
    name = f"job {each.job.number} {each.job.family} {each.job.framework}"
    return f"{name}, transformers {each.version}, {each.side}: {each.reason}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


# ---- one job


def cell_text(cell: Cell, most: int = 40) -> str:
    """Everything about one cell: phases, and the differences in the one that decides."""
    versions = ", ".join(f"{name} {number}" for name, number in cell.versions.items())
    lines = [
        f"job {cell.job.number} {cell.job.family}, {_words(cell.job)}",
        f"traced with {versions}",
        f"formula: {formula_command(cell)}",
        "",
    ]
    rows = [["phase", "traced", "formula", "error"]]
    for phase, (traced, formula) in cell.phases.items():
        rows.append([phase, f"{traced:,}", f"{formula:,}", f"{formula / traced - 1:+.2%}"])
    lines += [*_aligned(rows), "", f"differences in {cell.phase}, formula − trace"]
    for each in cell.differences[:most]:
        shape = f" {each.dtype} {each.shape}" if each.shape else ""
        lines.append(
            f"  {each.nbytes:>+16,}  {each.kind}, {each.part or each.group}: {each.name}{shape}"
        )
    return "\n".join(lines)


# ---- the page


def gaps_page(report: GapsReport) -> str:
    lines = [
        "# Formula against trace",
        "",
        f"Written by `make gaps SEED={report.seed} JOBS={report.jobs} WRITE=1` ({report.written}); not edited by hand.",
        "",
        "Random small jobs on one GPU run twice: through the formulas, and as a real loop (plain torch, transformers' "
        "Trainer, TRL's SFTTrainer, accelerate) on the virtual GPU, with the libraries of each version installed side "
        "by side. The trace is the truth here: what differs is a gap of the formulas. Errors are formula ÷ trace − 1 "
        "of the peak allocated bytes; medians and deciles are of their absolute values.",
        "",
        _whether_blind(report),
        "",
        *_table(_spread_rows(report)),
        "",
        "## Mechanisms",
        "",
        "The weight is the share in the traced peak, averaged over all cells. *Missing*: traced, not in the formulas. "
        "*Extra*: the other way round. *Dtype* and *size*: the same tensor with other bytes (traced | formula). "
        "*Total*: groups of which the formulas know no single tensors. *Moment*: the formulas' peak is another moment "
        "of the phase. Letters: b batch, s tokens, h hidden, f MLP width, n heads, k key-value heads, d head size, "
        "v vocabulary.",
        "",
    ]
    rows = [["weight", "mechanism", "cells", "where", "worst", "example"]]
    for each in _shown(report):
        cell = _cell(report, each.worst)
        rows.append(
            [
                f"{each.weight:.3%}",
                mechanism_title(each).replace("|", "\\|"),
                str(len(each.shares)),
                _where(each, report),
                f"{each.shares[each.worst]:+.1%}",
                f"`{trace_command(cell)}`",
            ]
        )
    lines += [*_table(rows), "", "## Worst jobs", "", *_table(_worst_rows(report)), ""]
    if report.grid.failures:
        lines += ["## Not compared", ""]
        lines += [f"- {_failure(each)}" for each in report.grid.failures]
        lines.append("")
    return "\n".join(lines)


def _whether_blind(report: GapsReport) -> str:
    """Were these jobs known while the formulas were mended?"""
    seeds = ", ".join(map(str, report.worked_on)) or "none"
    blind = report.seed not in report.worked_on
    this = "is not among them: its jobs are new to the formulas" if blind else "is one of them"
    return f"Seeds whose jobs were looked at while the formulas were mended: {seeds}. Seed {report.seed} {this}."


def _table(rows: list[list[str]]) -> list[str]:
    head, *body = rows
    return [_row(head), _row(["---"] * len(head)), *map(_row, body)]


def _row(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


# ---- JSON


def gaps_json(report: GapsReport) -> dict[str, Any]:
    return {
        "seed": report.seed,
        "jobs": report.jobs,
        "versions": list(report.versions),
        "spread": [_spread_json(name, cells) for name, cells in _groups(report) if cells],
        "mechanisms": [_mechanism_json(each) for each in mechanisms(report.grid.cells)],
        "cells": [_cell_json(cell) for cell in report.grid.cells],
        "failures": [
            {
                "job": each.job.number,
                "version": each.version,
                "side": each.side,
                "reason": each.reason,
            }
            for each in report.grid.failures
        ],
    }


def _spread_json(name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    found = spread(cells)
    assert found is not None
    return {
        "of": name,
        "cells": found.cells,
        "median": found.median,
        "ninth_decile": found.ninth_decile,
        "worst": found.worst,
        "within_one_percent": found.within_one_percent,
    }


def _mechanism_json(each: Mechanism) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "phase": each.phase,
        "group": each.group,
        "part": each.part,
        "names": list(each.names),
        "weight": each.weight,
        "cells": [
            {"job": number, "version": version, "share": share}
            for (number, version), share in each.shares.items()
        ],
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "job": cell.job.number,
        "version": cell.version,
        "family": cell.job.family,
        "words": cell.job.words(),
        "versions": cell.versions,
        "phase": cell.phase,
        "traced_bytes": cell.traced_bytes,
        "formula_bytes": cell.formula_bytes,
        "error": cell.error,
        "phases": {
            phase: {"traced_bytes": traced, "formula_bytes": formula}
            for phase, (traced, formula) in cell.phases.items()
        },
        "differences": [
            {
                "kind": each.kind,
                "group": each.group,
                "part": each.part,
                "name": each.name,
                "dtype": each.dtype,
                "shape": list(each.shape),
                "bytes": each.nbytes,
            }
            for each in cell.differences
        ],
    }
