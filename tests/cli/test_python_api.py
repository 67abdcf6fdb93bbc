"""`import vramcast` as a Python user meets it: names, short texts, examples that run."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys

import pytest

import vramcast
import vramcast.api
from vramcast.errors import InputError

CALLED = ("diagnose", "estimate", "fit", "plan", "sweep")


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert dir(vramcast) == sorted(vramcast.__all__)
    assert set(CALLED) <= set(dir(vramcast))


@pytest.mark.parametrize("name", CALLED)
def test_every_function_has_an_example_that_runs(name: str) -> None:
    function = getattr(vramcast.api, name)
    tests = doctest.DocTestFinder().find(function, name, globs={name: function})
    results = [doctest.DocTestRunner().run(test) for test in tests]
    assert [result.failed for result in results] == [0]
    assert results[0].attempted > 0


@pytest.mark.parametrize("name", ["Forecast", "Job", "Ledger", "Verdict"])
def test_every_record_has_an_example_that_runs(name: str) -> None:
    record = getattr(vramcast, name)
    tests = doctest.DocTestFinder(recurse=False).find(record, name, globs={name: record})
    results = [doctest.DocTestRunner().run(test) for test in tests]
    assert [result.failed for result in results] == [0]
    assert results[0].attempted > 0


def test_packages_that_are_functions_stay_packages() -> None:
    """In a process of its own, whichever is used first."""
    code = (
        "import vramcast; import vramcast.plan.search as search; import vramcast.diagnose.diagnosis; "
        "plans = vramcast.plan('gpt2', batch=32, seq=512, gpu='8GiB'); "
        "print(search.__name__, len(plans.fitting) > 0, vramcast.diagnose('CUDA out of memory.').reading is not None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["vramcast.plan.search", "True", "True"]


def test_records_print_in_a_few_lines() -> None:
    forecast = vramcast.estimate("gpt2", batch=4, seq=512, gpu="rtx4090")
    text = repr(forecast)
    assert len(text) < 400
    assert len(text.splitlines()) <= 4
    assert "gpt2 on GeForce RTX 4090" in text
    assert "fits, peak" in text
    assert len(repr(forecast.ledger)) < 200
    assert repr(vramcast.Job(model="gpt2", batch=4)) == "Job(model='gpt2', batch=4)"


def test_a_forecast_as_a_dictionary_is_what_json_prints() -> None:
    found = vramcast.estimate("gpt2", seq=512, gpu="rtx4090").to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["verdict"]["answer"] == "fits"


def test_options_are_the_flags_words() -> None:
    plain = vramcast.estimate("gpt2", seq=512)
    lora = vramcast.estimate("gpt2", seq=512, lora=True)
    assert lora.verdict().highest_bytes < plain.verdict().highest_bytes
    job = vramcast.Job(model="gpt2", seq=512)
    assert vramcast.estimate(job, lora=True).verdict() == lora.verdict()
    with pytest.raises(Exception, match="batch must be a whole number"):
        vramcast.estimate("gpt2", batch="many")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"torch_version": "abc"}, "torch-version must be a version such as 2.13, not 'abc'"),
        ({"batch": "x"}, "batch must be a whole number, not 'x'"),
        ({"compile": "yes"}, "compile must be true or false, not 'yes'"),
        ({"lora_dropout": "0.1"}, "lora-dropout must be a number, not '0.1'"),
    ],
)
def test_a_job_made_in_python_is_refused_as_a_flag_is(words: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        vramcast.Job(model="gpt2", **words)  # type: ignore[arg-type]
