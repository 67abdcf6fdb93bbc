"""Every measured row against its own tolerance, and the rows themselves: unique, with a place to look them up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.accuracy.rows import Row, load_not_expressed, load_sources
from vramcast.accuracy.run import run_row
from vramcast.errors import InputError

FOLDER = Path(__file__).parent
SOURCES = load_sources(FOLDER)
ROWS = [row for source in SOURCES for row in source.rows]


def marked(row: Row) -> object:
    """Rows of many lengths replay a dozen steps each."""
    return pytest.param(row, id=row.id, marks=pytest.mark.slow if "mean-seq" in row.job else ())


@pytest.mark.parametrize("row", [marked(row) for row in ROWS if not row.pending])
def test_a_row_is_predicted_within_its_tolerance(row: Row) -> None:
    outcome = run_row(row)
    assert outcome.within, (
        f"{row.id} ({row.metric}): measured {row.peak_bytes:,}, predicted {outcome.predicted_bytes:,}, "
        f"{100 * outcome.error:+.1f} % against ± {100 * row.tolerance:.0f} %"
    )


def test_there_are_enough_rows_of_enough_sources() -> None:
    assert len(ROWS) >= 150
    assert len(SOURCES) >= 10


def test_every_row_stands_once_with_its_provenance() -> None:
    ids = [row.id for row in ROWS] + list(load_not_expressed(FOLDER))
    assert len(ids) == len(set(ids))
    assert [row.id for row in ROWS if not (row.gpu and row.versions)] == []
    assert [source.name for source in SOURCES if not (source.published and source.license)] == []


def test_a_distributed_row_says_on_how_many_gpus_and_how() -> None:
    many = [row for row in ROWS if row.parallel]
    assert len(many) > 50
    assert all(row.parallel["gpus"] > 1 and "strategy" in row.parallel for row in many)


def test_a_mean_of_lengths_is_no_publication_of_lengths() -> None:
    assert {row.lengths for row in ROWS if "mean-seq" in row.job} == {"assumed"}


def test_wide_tolerances_have_an_explanation() -> None:
    assert [
        row.id for row in ROWS if not row.pending and row.tolerance >= 0.16 and not row.explanation
    ] == []


def test_a_row_of_the_last_stage_is_held_against_that_stage() -> None:
    """Stage 0 holds the embedding and a micro-batch more: with a pipeline it is the fuller one."""
    row = next(row for row in ROWS if row.id == "megatron-002")
    last, fullest = run_row(row), run_row(replace(row, rank=""))
    assert row.rank == "last"
    assert last.predicted_bytes < fullest.predicted_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{id: a, job: {}, peak_bytes: 1, metric: rss, confidence: high, tolerance: 0.1}",
            "metric",
        ),
        (
            "{id: a, job: {}, peak_bytes: 1, metric: nvml, confidence: high, tolerance: 2}",
            "tolerance",
        ),
        (
            "{id: a, job: {}, peak_bytes: 1.5, metric: nvml, confidence: high, tolerance: 0.1}",
            "peak_bytes",
        ),
        (
            "{id: a, job: {}, peak_bytes: 1, metric: allocated, confidence: high, tolerance: 0.1, rank: 3}",
            "rank 3",
        ),
        (
            "{id: a, job: {}, peak_bytes: 1, metric: nvml, confidence: high, tolerance: 0.1, rank: last}",
            "allocated",
        ),
        ("{id: a, peak: 1}", "row a"),
        ("[", "not YAML"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text(
        f"source: x\nlicense: y\nrows:\n- {text}\n", encoding="utf-8"
    )
    with pytest.raises(InputError, match=message):
        load_sources(tmp_path)
