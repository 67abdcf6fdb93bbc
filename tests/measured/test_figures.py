"""Figures, ranges, page and plot from outcomes made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vramcast.accuracy.changes import Written, changes, load_written, written_text
from vramcast.accuracy.residuals import classes, coverage
from vramcast.accuracy.rows import Row, Source
from vramcast.accuracy.run import Outcome
from vramcast.accuracy.tables import by_source_and_metric, figures, worst
from vramcast.catalog.residuals import (
    MIN_ROWS,
    MIN_SOURCES,
    classes_of,
    spread_from,
    spread_of,
)
from vramcast.errors import InputError
from vramcast.job import Job, Precision
from vramcast.report.accuracy import Accuracy, accuracy_json, accuracy_markdown
from vramcast.report.accuracy_changes import changes_markdown
from vramcast.report.accuracy_svg import accuracy_svg
from vramcast.units import GiB

JOB = Job(framework="plain", model="gpt2", precision=Precision.FP32)


def outcome(
    percent: float, source: str = "one", metric: str = "nvml", fits: bool | None = True
) -> Outcome:
    row = Row(
        id=f"{source}{percent}", source=source, job={}, peak_bytes=100 * GiB, metric=metric, confidence="high",
        tolerance=0.1,
    )  # fmt: skip
    return Outcome(
        row=row, job=JOB, predicted_bytes=round((100 + percent) * GiB), fits=fits, seconds=0.5
    )


TEN = [outcome(percent) for percent in (-10, -5, -1, 0, 1, 2, 3, 4, 20, 30)]


def test_figures_by_hand() -> None:
    found = figures(TEN)
    assert (found.rows, found.over, found.under) == (10, 6, 3)
    assert found.median_abs == pytest.approx(0.035)
    assert found.p90_abs == pytest.approx(0.20)
    assert found.bias == pytest.approx(0.044)
    assert (found.over_median, found.under_median) == (pytest.approx(0.035), pytest.approx(-0.05))
    assert found.seconds == 5.0


def test_a_job_that_ran_and_was_said_not_to_fit_is_a_wrong_verdict() -> None:
    found = figures([outcome(1, fits=False), outcome(2, fits=None), outcome(3)])
    assert (found.wrong_verdicts, found.verdicts) == (1, 2)


def test_metrics_are_never_pooled() -> None:
    groups = by_source_and_metric(
        [outcome(1), outcome(2, metric="reserved"), outcome(3, source="two")]
    )
    assert list(groups) == [("one", "nvml"), ("one", "reserved"), ("two", "nvml")]


def test_the_worst_rows_come_first_whatever_their_sign() -> None:
    assert [each.row.id for each in worst([outcome(5), outcome(-9), outcome(7)], 2)] == [
        "one-9",
        "one7",
    ]


def test_a_range_holds_nine_of_ten_rows_and_the_prediction() -> None:
    made = classes(TEN)["one length"]
    assert made["low"] <= 1 <= made["high"] <= made["safe"]
    ratios = sorted(100 / (100 + percent) for percent in (-10, -5, -1, 0, 1, 2, 3, 4, 20, 30))
    assert sum(made["low"] <= round(ratio, 4) <= made["high"] for ratio in ratios) >= 9


def test_a_source_weighs_as_the_square_root_of_its_rows() -> None:
    """100 rows weigh 10, one row weighs 1: of 12 a tenth is far, so the end is there; of three draws the farthest is
    at three quarters."""
    rows = [outcome(0) for _ in range(100)]
    made = classes([*rows, outcome(25, source="two"), outcome(0, source="three")])["one length"]
    assert made["low"] == pytest.approx(0.8 ** (4 / 3), abs=1e-4)
    assert (made["rows"], made["sources"]) == (102, 3)


def test_of_a_large_source_the_outliers_do_not_count() -> None:
    rows = [*(outcome(percent / 100) for percent in range(38)), outcome(-50), outcome(90)]
    made = classes(rows)["one length"]
    assert (made["low"], made["high"]) == (pytest.approx(1 / 1.0037, abs=1e-4), 1.0)


def test_two_of_a_hundred_rows_may_lie_above_the_safe_limit() -> None:
    rows = [outcome(-percent) for percent in range(100) if percent < 90]
    rows += [outcome(0) for _ in range(200 - len(rows))]
    made = classes(rows)["one length"]
    ratios = [1 / (1 - percent / 100) for percent in range(90)] + [1.0] * 110
    assert sum(ratio > made["safe"] + 1e-4 for ratio in ratios) == 4
    many = classes(
        [replace(row, row=replace(row.row, source=name)) for row in rows for name in "abc"]
    )
    assert many["one length"]["safe"] == pytest.approx(made["safe"] ** (4 / 3), abs=1e-3)


def test_coverage_leaves_the_judged_source_out() -> None:
    near = [outcome(p / 10, source=name) for p in range(10) for name in ("one", "two", "three")]
    far = [outcome(50 + p, source="far") for p in range(10)]
    found = {each.source: each for each in coverage([*near, *far])}
    assert (found["far"].with_range, found["far"].inside) == (10, 0)
    assert (found["one"].with_range, found["one"].inside) == (
        10,
        10,
    )  # far's range reaches up to the prediction
    low = [outcome(-50, source="low") for _ in range(5)]
    judged = {each.source: each for each in coverage([*near, *low])}["low"]
    assert judged.above_safe == 5
    assert judged.slack == pytest.approx(-0.5, abs=0.01)


def test_few_rows_give_no_range_and_few_sources_the_wider_one() -> None:
    few = {
        "a": {"rows": MIN_ROWS - 1, "sources": 9, "low": 0.5, "high": 2.0, "safe": 2.0},
        "b": {"rows": 50, "sources": MIN_SOURCES - 1, "low": 0.6, "high": 1.9, "safe": 2.0},
        "c": {"rows": MIN_ROWS, "sources": MIN_SOURCES, "low": 0.9, "high": 1.2, "safe": 1.3},
    }
    assert spread_from(few, ("a", "b")) is None
    found = spread_from(few, ("a", "b", "c"))
    assert found is not None
    assert (found.name, found.low, found.high, found.safe) == ("b", 0.6, 1.9, 2.0)
    few["b"] |= {"low": 0.95, "high": 1.1}
    found = spread_from(few, ("b", "c"))
    assert found is not None
    assert (found.name, found.low, found.high, found.safe) == ("b", 0.9, 1.2, 2.0)


def test_assumed_lengths_are_many_lengths() -> None:
    assert classes_of(JOB, assumed_lengths=True)[0] == "varied lengths"
    assert classes_of(replace(JOB, mean_seq=100, seq=512))[0] == "varied lengths"


def test_what_is_not_modelled_in_full_is_a_class_of_its_own() -> None:
    hard = "not modelled in full"
    assert classes_of(JOB)[0] == "one length"
    assert classes_of(replace(JOB, compile=True))[0] == hard
    assert classes_of(replace(JOB, framework="unsloth"))[:2] == ("unsloth", hard)
    assert classes_of(replace(JOB, framework="trl", checkpointing="offload"))[0] == "unsloth"
    assert classes_of(replace(JOB, framework="deepspeed", checkpointing="offload"))[0] == hard
    assert classes_of(replace(JOB, gpus=2, tp=2, torch_version="2.4"))[0] == hard
    assert classes_of(replace(JOB, gpus=2, tp=2, torch_version="2.8"))[0] == "one length"


def test_the_stored_spreads_hold_the_prediction() -> None:
    for job in (JOB, replace(JOB, compile=True), replace(JOB, mean_seq=100, seq=512)):
        found = spread_of(job)
        assert found is not None
        assert found.low <= 1 <= found.high <= found.safe


def test_before_and_after_show_what_moved_worst_first() -> None:
    last = Written(
        written="then", predicted_bytes={each.row.id: each.predicted_bytes for each in TEN}
    )
    assert changes_markdown(TEN, last) == "No prediction moved since then.\n"
    better, worse = (
        replace(TEN[0], predicted_bytes=99 * GiB),
        replace(TEN[3], predicted_bytes=112 * GiB),
    )
    text = changes_markdown([better, *TEN[1:3], worse, *TEN[4:]], last)
    assert "2 of 10 predictions moved since then: 1 worse, 1 better." in text
    assert "| one | nvml | 2 | 5.0% → 6.5% | 10.0% → 12.0% |" in text
    assert text.index("| one0 | nvml | +0.00% | +12.00% | +12.00% | 10% exceeded |") < text.index(
        "| one-10 | nvml |"
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "predicted.json"
    assert load_written(path) is None
    path.write_text(written_text("now", TEN), encoding="utf-8")
    last = load_written(path)
    assert last is not None
    assert changes(TEN, last) == []
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match="not what"):
        load_written(path)


def test_lengths_that_are_assumed_stand_apart() -> None:
    assumed = replace(TEN[0], row=replace(TEN[0].row, lengths="assumed"))
    text = accuracy_markdown(replace(page(), outcomes=[assumed, *TEN[1:]]))
    assert "| one | published | nvml | 9 |" in text
    assert "| one | assumed | nvml | 1 |" in text


def page() -> Accuracy:
    source = Source(
        name="one", published="somewhere", license="MIT", rows=tuple(each.row for each in TEN)
    )
    return Accuracy(
        written="today",
        sources=(source,),
        not_expressed={"x": "no key"},
        outcomes=TEN,
        coverage=coverage(TEN),
    )


def test_the_page_shows_tables_worst_rows_and_reasons() -> None:
    text = accuracy_markdown(page())
    assert "| one | nvml | 10 | 3.5 % | 20.0 % | +4.4 % |" in text
    assert "| one30 | nvml | 100.00 GiB | 130.00 GiB | +30.0 % | not explained yet |" in text
    assert "1 rows not expressed: no key" in text


def test_the_json_has_every_row() -> None:
    data = accuracy_json(page())
    assert [row["error"] for row in data["rows"]] == [each.error for each in TEN]


def test_the_plot_is_xml_with_a_dot_per_row() -> None:
    root = ElementTree.fromstring(accuracy_svg(TEN))
    dots = [
        node for node in root.iter("{http://www.w3.org/2000/svg}circle") if node.get("r") == "4"
    ]
    assert len(dots) == len(TEN)
