"""A Sweep as a table, CSV or JSON."""

from __future__ import annotations

from typing import Any

from vramcast.engine.prices.sweep import Sweep
from vramcast.report.as_json import SCHEMA
from vramcast.units import GiB, format_gib


def render_text(sweep: Sweep, *, markdown: bool = False) -> str:
    """GiB allocated at the peak; a cell that cannot fit is marked."""
    rows = [["batch \\ seq", *(f"{seq:,}" for seq in sweep.seqs)]]
    for index, batch in enumerate(sweep.batches):
        rows.append([str(batch), *(_cell(sweep, index, column) for column in range(len(sweep.seqs)))])
    if sweep.gpu:
        rows.append(["largest that fits", *("none" if best == 0 else str(best) for best in sweep.largest)])
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|---" + "|--:" * len(sweep.seqs) + "|", *lines[1:]])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return f"{_title(sweep)}\n{table}"


def _title(sweep: Sweep) -> str:
    card = f"; × cannot fit {sweep.gpu.name}, {format_gib(sweep.gpu.capacity_bytes())}" if sweep.gpu else ""
    return f"{sweep.job.model}: GiB allocated at the peak{card}"


def _cell(sweep: Sweep, row: int, column: int) -> str:
    nbytes = int(sweep.allocated_bytes[row, column])
    over = sweep.gpu is not None and nbytes + sweep.context_bytes > sweep.gpu.capacity_bytes()
    return f"{nbytes / GiB:,.2f}{'×' if over else ' '}"


def render_csv(sweep: Sweep) -> str:
    lines = ["batch,seq,allocated_bytes"]
    for row, batch in enumerate(sweep.batches):
        lines += [f"{batch},{seq},{int(sweep.allocated_bytes[row, column])}" for column, seq in enumerate(sweep.seqs)]
    return "\n".join(lines)


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    points = [
        {"batch": batch, "seq": seq, "allocated_bytes": int(sweep.allocated_bytes[row, column])}
        for row, batch in enumerate(sweep.batches)
        for column, seq in enumerate(sweep.seqs)
    ]
    largest = [{"seq": seq, "batch": best} for seq, best in zip(sweep.seqs, sweep.largest, strict=True)]
    return {"schema": SCHEMA, "points": points, "largest_batch_that_fits": largest if sweep.gpu else None}
