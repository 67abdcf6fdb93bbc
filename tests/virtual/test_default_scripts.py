"""A few of benchmarks/defaults: scripts that leave all to their library, against `estimate` with as few words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "defaults"))

from cases import CASES, Case
from run import estimated_bytes, file_of, make_model, trace, traced_bytes

CHOSEN = ("hf lora gpt2 b4 s512", "trl_trainer dpo smollm2-135m b4 s512")
ALLOWED = 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_a_script_with_its_librarys_defaults(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == name)
    answer = tmp_path / file_of(case)
    trace(case, make_model(case.model, tmp_path / "models"), answer)
    assert answer.exists(), "the script ended with an error, which is printed above"
    told = estimated_bytes(case, tmp_path)
    assert isinstance(told, int), told
    assert told == pytest.approx(traced_bytes(answer), rel=ALLOWED)


def test_there_are_scripts_of_every_library_over_ten_models() -> None:
    assert len(CASES) >= 40
    assert len({case.model for case in CASES}) >= 10
    kinds = {(case.script, case.what) for case in CASES}
    trainers = ("sft", "dpo", "kto", "reward", "orpo", "grpo")
    assert {("trl_trainer", task) for task in trainers} <= kinds
    assert {("accelerate_loop", "ddp"), ("accelerate_loop", "fsdp2")} <= kinds
    assert all(isinstance(case, Case) for case in CASES)
