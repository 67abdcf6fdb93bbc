"""Rows that are scripts: their files, and a fast subset on the virtual GPU (`vramcast accuracy --traces`: all)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.accuracy.rows import load_sources
from vramcast.accuracy.traced import (
    TraceOutcome,
    TraceRow,
    load_trace_rows,
    run_trace_row,
    run_trace_rows,
    traced_page,
    traced_table,
)

FOLDER = Path(__file__).parent
ROWS = {row.id: row for row in load_trace_rows(FOLDER)}
# Quick, and within their tolerance also with the installed transformers.
FAST = ("xmem-004", "xmem-010", "xmem-031", "xmem-053")


def test_every_script_and_config_is_here() -> None:
    for row in ROWS.values():
        assert (FOLDER / "scripts" / row.script).is_file(), row.id
        first = row.arguments[0]
        assert not first.endswith(".json") or (FOLDER / "scripts" / first).is_file(), row.id


def test_the_same_row_has_the_same_peak_everywhere() -> None:
    expressed = {row.id: row.peak_bytes for source in load_sources(FOLDER) for row in source.rows}
    assert {id: row.peak_bytes for id, row in ROWS.items() if id in expressed} == {
        id: peak for id, peak in expressed.items() if id in ROWS
    }


@pytest.mark.slow
@pytest.mark.parametrize("id", FAST)
def test_a_traced_row_lies_within_its_tolerance(id: str) -> None:
    outcome = run_trace_row(ROWS[id], FOLDER, None)
    assert outcome.fits, "it ran on this card"
    assert outcome.within, f"{id}: traced {outcome.predicted_bytes}, measured {ROWS[id].peak_bytes}"


def test_rows_are_told_as_they_end_and_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(row: TraceRow, folder: Path, environments: Path | None) -> TraceOutcome:
        peak = row.peak_bytes
        return TraceOutcome(
            row=row, predicted_bytes=peak, range_bytes=(peak, peak), fits=True, transformers="", seconds=1.0
        )

    monkeypatch.setattr("vramcast.accuracy.traced.run_trace_row", ended)
    told: list[str] = []
    rows = tuple(ROWS.values())
    outcomes = run_trace_rows(rows, FOLDER, None, told.append)
    assert [outcome.row for outcome in outcomes] == list(rows)
    assert told[-1].startswith(f"{len(rows)} of {len(rows)}: ")
    page = traced_page("today", outcomes)
    assert page.count("\n- xmem-") == sum(bool(row.explanation) for row in rows)


def test_rows_apart_follow_their_rule() -> None:
    for row in ROWS.values():
        batch = int(row.arguments[row.arguments.index("--batch") + 1])
        plain_images = row.script == "xmem_cnn.py" and not row.arguments[0].startswith("ConvNeXt")
        few = row.script == "xmem_transformer.py" and batch < 10
        assert row.unknown == ("kernels" if plain_images else "lengths" if few else ""), row.id


def test_figures_by_hand() -> None:
    row = TraceRow(
        id="a", script="s.py", arguments=[], gpu="rtx3060", peak_bytes=1000, metric="reserved", confidence="high",
        tolerance=0.05,
    )  # fmt: skip
    outcomes = [
        TraceOutcome(
            row=row, predicted_bytes=value, range_bytes=(1010, high), fits=value < 1040, transformers="", seconds=1.0
        )
        for value, high in ((1010, 1010), (1020, 1050), (1040, 1050))
    ]
    table = traced_table(
        [*outcomes[:2], replace(outcomes[2], range_bytes=(990, 1050), row=replace(row, unknown="kernels"))]
    )
    assert "| s.py | 3 | 2.00% | 4.00% | +2.33% | 1 | 1 of 2 | 3 |" in table
    assert "| nothing unknown | 2 | 1.50% | 2.00% | +1.50% | 0 | 0 of 1 | 2 |" in table
    assert "| unknown: kernels | 1 | 4.00% | 4.00% | +4.00% | 1 | 1 of 1 | 1 |" in table
    assert "| 1040 | +4.00%, OOM | -5% to +1% |" in table
