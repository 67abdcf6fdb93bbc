"""A Sweep as a table, CSV or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramcast.forecast import Answer
from vramcast.report.as_json import SCHEMA, answer_json
from vramcast.report.table import Column, Row, Table, as_markdown, as_text
from vramcast.report.words import say
from vramcast.report.words.forecast import LABELS
from vramcast.report.words.sentences import translate
from vramcast.report.words.tables import SWEEP
from vramcast.units import GiB, format_gib

if TYPE_CHECKING:
    from vramcast.engine import Sweep

UNMARKED = " "  # after a number: so that numbers line up
_MARKS: dict[Answer | None, str] = {Answer.TIGHT: "~", Answer.DOES_NOT_FIT: "×"}


def render_text(
    sweep: Sweep, *, markdown: bool = False, lang: str = "en", width: int | None = None
) -> str:
    """GiB allocated at the peak; a cell that cannot fit is marked."""
    columns = (
        Column(title=say(SWEEP, "corner", lang), right=True),
        *(Column(title=f"{seq:,}{UNMARKED}", right=True) for seq in sweep.seqs),
    )
    rows = [
        Row(cells=(str(batch), *_row_cells(sweep, row))) for row, batch in enumerate(sweep.batches)
    ]
    if sweep.gpu:
        rows.append(Row(cells=(say(SWEEP, "largest", lang), *_largest(sweep, lang))))
    below = tuple(
        f"{say(LABELS, 'warning', lang)}: {translate(text, lang)}" for text in sweep.warnings
    )
    table = Table(title=_title(sweep, lang), columns=columns, rows=tuple(rows), below=below)
    return as_markdown(table) if markdown else as_text(table, width)


def _title(sweep: Sweep, lang: str) -> str:
    if sweep.gpu is None:
        return say(SWEEP, "title", lang, model=sweep.job.model)
    capacity = format_gib(sweep.gpu.capacity_bytes())
    return say(
        SWEEP, "title_gpu", lang, model=sweep.job.model, gpu=sweep.gpu.name, capacity=capacity
    )


def _largest(sweep: Sweep, lang: str) -> list[str]:
    none = say(SWEEP, "none", lang)
    return [f"{batch or none}{UNMARKED}" for batch in sweep.largest]


def _row_cells(sweep: Sweep, row: int) -> list[str]:
    return [_cell(sweep, row, column) for column in range(len(sweep.seqs))]


def _cell(sweep: Sweep, row: int, column: int) -> str:
    nbytes = int(sweep.allocated_bytes[row, column])
    return f"{nbytes / GiB:,.2f}{_MARKS.get(sweep.answer(row, column), UNMARKED)}"


def render_csv(sweep: Sweep) -> str:
    lines = ["batch,seq,allocated_bytes"]
    for row, batch in enumerate(sweep.batches):
        lines += [
            f"{batch},{seq},{int(sweep.allocated_bytes[row, column])}"
            for column, seq in enumerate(sweep.seqs)
        ]
    return "\n".join(lines)


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    points = [
        {
            "batch": batch,
            "seq": seq,
            "allocated_bytes": int(sweep.allocated_bytes[row, column]),
            "answer": answer_json(sweep.answer(row, column)),
        }
        for row, batch in enumerate(sweep.batches)
        for column, seq in enumerate(sweep.seqs)
    ]
    largest = [
        {"seq": seq, "batch": best} for seq, best in zip(sweep.seqs, sweep.largest, strict=True)
    ]
    return {
        "schema": SCHEMA,
        "points": points,
        "largest_batch_that_fits": largest if sweep.gpu else None,
        "warnings": list(sweep.warnings),
    }
