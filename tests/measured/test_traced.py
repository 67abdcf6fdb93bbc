"""Rows that are scripts: their files, and a fast subset on the virtual GPU (`vramcast accuracy --traces`: all)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.accuracy.environments import INSTALLED_LIST, environment, requirements
from vramcast.accuracy.rows import load_sources
from vramcast.accuracy.traced import (
    NotTraced,
    TraceOutcome,
    TraceRow,
    load_not_traced,
    load_trace_rows,
    run_trace_row,
    run_trace_rows,
)
from vramcast.errors import InputError, TraceError
from vramcast.report.accuracy_traces import traced_page, traced_table

FOLDER = Path(__file__).parent
ROWS = {row.id: row for row in load_trace_rows(FOLDER)}
# Quick, and within their tolerance also with the installed transformers.
FAST = ("xmem-004", "xmem-010", "xmem-031", "xmem-053", "liger-005")


def test_every_script_and_config_is_here() -> None:
    for row in ROWS.values():
        assert (FOLDER / "scripts" / row.script).is_file(), row.id
        first = row.arguments[0]
        assert not first.endswith(".json") or (FOLDER / "scripts" / first).is_file(), row.id
        assert not row.environment or requirements(row.environment, FOLDER).is_file(), row.id


def test_a_row_is_traced_or_says_why_not() -> None:
    assert not {each.id for each in load_not_traced(FOLDER)} & set(ROWS)


def test_environments_pin_every_package() -> None:
    for path in (FOLDER / "environments").glob("*.txt"):
        for line in path.read_text().split("\n"):
            assert not line or line.startswith("#") or "==" in line, (path.name, line)
            assert not line.startswith("torch="), "torch stays the installed one"


def test_an_environment_that_is_there_is_taken(tmp_path: Path) -> None:
    name = "transformers-4.49.0"
    (tmp_path / name).mkdir()
    (tmp_path / name / INSTALLED_LIST).write_text(requirements(name, FOLDER).read_text())
    assert environment(name, FOLDER, tmp_path) == tmp_path.resolve() / name


def test_an_unknown_environment_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no environment 'numpy-1'.*transformers-4\.49\.0"):
        environment("numpy-1", FOLDER, tmp_path)


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


@pytest.mark.slow
def test_a_published_context_takes_the_place_of_todays() -> None:
    row = replace(ROWS["liger-005"], metric="process", context_bytes=1406140416)
    outcome = run_trace_row(row, FOLDER, None)
    reserved = run_trace_row(replace(row, metric="reserved", context_bytes=0), FOLDER, None)
    assert outcome.predicted_bytes == reserved.predicted_bytes + 1406140416
    assert outcome.range_bytes == (outcome.predicted_bytes, outcome.predicted_bytes)


def test_rows_are_told_as_they_end_and_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(row: TraceRow, folder: Path, environments: Path | None) -> TraceOutcome:
        if row.id == "xmem-011":
            raise TraceError("the script\nwas not followed")
        peak = row.peak_bytes
        return TraceOutcome(
            row=row,
            predicted_bytes=peak,
            range_bytes=(peak, peak),
            fits=True,
            environment="",
            seconds=1.0,
        )

    monkeypatch.setattr("vramcast.accuracy.traced.run_trace_row", ended)
    told: list[str] = []
    rows = tuple(ROWS.values())
    outcomes, failed = run_trace_rows(rows, FOLDER, None, told.append)
    assert [outcome.row for outcome in outcomes] == [row for row in rows if row.id != "xmem-011"]
    assert failed == (NotTraced(id="xmem-011", reason="the script\nwas not followed"),)
    assert told[-1].startswith(f"{len(rows)} of {len(rows)}: ")
    page = traced_page("today", outcomes, failed)
    assert page.count("%): ") == sum(bool(outcome.row.explanation) for outcome in outcomes)
    assert page.endswith("not traced\n\n- xmem-011: the script was not followed\n")


def test_rows_apart_follow_their_rule() -> None:
    for row in [row for row in ROWS.values() if row.script.startswith("xmem_")]:
        batch = int(row.arguments[row.arguments.index("--batch") + 1])
        plain_images = row.script == "xmem_cnn.py" and not row.arguments[0].startswith("ConvNeXt")
        padded = row.arguments[0].startswith(
            ("configs/qwen3", "configs/deepseek-r1")
        )  # all lines alike
        few = row.script == "xmem_transformer.py" and batch < 10 and not padded
        assert row.unknown == ("kernels" if plain_images else "lengths" if few else ""), row.id


def test_figures_by_hand() -> None:
    row = TraceRow(
        id="a", script="s.py", arguments=[], gpu="rtx3060", peak_bytes=1000, metric="reserved", confidence="high",
        tolerance=0.05,
    )  # fmt: skip
    outcomes = [
        TraceOutcome(
            row=row,
            predicted_bytes=value,
            range_bytes=(1010, high),
            fits=value < 1040,
            environment="",
            seconds=1.0,
        )
        for value, high in ((1010, 1010), (1020, 1050), (1040, 1050))
    ]
    table = traced_table(
        [
            *outcomes[:2],
            replace(outcomes[2], range_bytes=(990, 1050), row=replace(row, unknown="kernels")),
        ]
    )
    assert "| reserved | s.py | 3 | 2.00% | 4.00% | +2.33% | 1 | 1 of 2 | 3 |" in table
    assert "| reserved | nothing unknown | 2 | 1.50% | 2.00% | +1.50% | 0 | 0 of 1 | 2 |" in table
    assert "| reserved | unknown: kernels | 1 | 4.00% | 4.00% | +4.00% | 1 | 1 of 1 | 1 |" in table
    assert "| 1040 | +4.00%, OOM | -5% to +1% |  |" in table


def test_metrics_are_not_pooled_and_the_formula_stands_beside() -> None:
    rows = [
        TraceRow(
            id=metric, script="s.py", arguments=[], gpu="rtx3060", peak_bytes=1000, metric=metric, confidence="high",
            tolerance=0.05,
        )
        for metric in ("reserved", "allocated")
    ]  # fmt: skip
    outcomes = [
        TraceOutcome(
            row=row,
            predicted_bytes=value,
            range_bytes=(value, value),
            fits=True,
            environment="",
            seconds=1.0,
        )
        for row, value in zip(rows, (1010, 1030), strict=True)
    ]
    table = traced_table(outcomes, {"allocated": 990})
    assert "| reserved | all | 1 | 1.00% | 1.00% | +1.00% | 0 |  | 1 |" in table
    assert "| allocated | all | 1 | 3.00% | 3.00% | +3.00% | 0 |  | 1 |" in table
    assert "| 1030 | +3.00% |  | -1.00% |" in table
