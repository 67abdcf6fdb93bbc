"""The last lines of a bill that does not fit: true prices, quickly, without NumPy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vramcast.cli import main
from vramcast.engine.estimate import estimate
from vramcast.job import job_from
from vramcast.plan.hints import hints
from vramcast.plan.ranking import applied
from vramcast.setup import complete

BIG = {"model": "llama-3.2-1b", "batch": 8, "seq": 1024, "gpu": "16GiB"}


def allocated(values: dict[str, object]) -> int:
    ledger = estimate(job_from(values)).ledger
    rounding = sum(
        entry.nbytes for entry in ledger.entries if entry.component == "rounding inside blocks"
    )
    return ledger.peak("cuda:0").allocated_bytes - rounding


@pytest.mark.slow
def test_each_price_is_an_estimates() -> None:
    job = complete(job_from(BIG))
    found = hints(estimate(job))
    assert len(found) >= 3
    for hint in found:
        changed = applied(job, hint.moves)
        assert changed is not None
        ledger = estimate(changed).ledger
        rounding = sum(
            entry.nbytes for entry in ledger.entries if entry.component == "rounding inside blocks"
        )
        assert (
            allocated(BIG) - (ledger.peak("cuda:0").allocated_bytes - rounding) == hint.frees_bytes
        )


def test_something_that_fits_is_among_them() -> None:
    assert any(hint.fits for hint in hints(estimate(job_from(BIG))))


@pytest.mark.parametrize(
    "values", [{**BIG, "gpu": "a100-80gb"}, {"params": "70B", "gpu": "rtx4090"}]
)
def test_no_hints_where_none_are_due(values: dict[str, object]) -> None:
    assert hints(estimate(job_from(values))) == ()


def test_estimate_ends_with_them_and_points_to_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["estimate", "llama-3.2-1b", "--batch", "8", "--seq", "1024", "--gpu", "16GiB"]) == 1
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("vramcast plan …")
    assert any("slower: " in line or "no cost: " in line for line in lines[-6:])


def test_they_load_no_numpy() -> None:
    code = (
        "import sys, json; from vramcast.cli import main; "
        "main(['estimate', 'qwen2.5-7b', '--gpu', 'rtx4090', '--seq', '4096']); "
        "print(json.dumps(sorted({'numpy', 'torch'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
