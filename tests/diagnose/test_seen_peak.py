"""A peak that was seen against the job that should have come to it; figures by hand from Phi-3-mini's parameter count.

3,821,079,552 parameters are 14.23 GiB in fp32 and 7.12 GiB in bf16. A plain foreach AdamW step holds five copies.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.job_gap.seen_peak import seen_peak
from vramcast.diagnose.readers.log import read_text
from vramcast.engine.estimate import estimate
from vramcast.engine.recording.record import DEVICE
from vramcast.job import Job, Precision
from vramcast.ledger import Level

GIB = 2**30
PHI = Job(framework="plain", model="phi-3-mini", batch=2, seq=256, precision=Precision.BF16_TRUE)
NVIDIA_SMI = """\
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   35C    P0              60W / 400W |  {mib}MiB / 81920MiB |      0%      Default |
"""


def diagnosed(text: str, job: Job = PHI) -> Diagnosis:
    return diagnose(read_text(text), job, expected_bytes=40 * 10**9)


def rules(diagnosis: Diagnosis) -> dict[str, dict[str, object]]:
    return {finding.rule: dict(finding.values) for finding in diagnosis.findings}


def test_twice_the_expected_peak_is_explained_by_weights_in_fp32() -> None:
    """Five copies in bf16 are 35.6 GiB, in fp32 71.2 GiB."""
    diagnosis = diagnosed("max_memory_allocated: 71.19 GiB")
    best = diagnosis.hypotheses[0].explanation
    assert best is not None
    assert best.changes == ("weights_fp32",)
    facts = rules(diagnosis)
    assert facts["peak_above"]["need_bytes"] == pytest.approx(5 * 3_821_079_552 * 2, rel=0.002)
    assert "expected_exceeded" in facts


def test_a_peak_that_the_job_comes_to_needs_no_deviation() -> None:
    diagnosis = diagnosed("max_memory_allocated: 35.60 GiB")
    assert "peak_as_described" in rules(diagnosis)
    assert [item.explanation.changes for item in diagnosis.hypotheses if item.explanation] == [()]


@pytest.mark.slow
def test_what_nvidia_smi_shows_is_compared_with_the_whole_process() -> None:
    """Four fp32 copies under a fused step are 56.9 GiB; cache, context and activations come on top.

    How much comes on top is the forecast's own figure: its range follows the measured rows and changes with them.
    """
    ran = replace(PHI, precision=Precision.FP32, optimizer_impl="fused", gpu="a100-80gb")
    process_bytes = estimate(ran).verdict(DEVICE).process_bytes
    assert process_bytes is not None
    assert process_bytes > 4 * 4 * 3_821_079_552
    diagnosis = diagnosed(NVIDIA_SMI.format(mib=process_bytes // 2**20))
    facts = rules(diagnosis)
    assert facts["peak_above"]["level"] == "process"
    levels = [
        facts["peak_levels"][f"{name}_bytes"] for name in ("allocated", "reserved", "process")
    ]
    assert levels == sorted(levels, key=lambda size: int(str(size)))
    changes = [set(item.explanation.changes) for item in diagnosis.hypotheses if item.explanation]
    assert {"weights_fp32", "fused_step"} in changes


def test_the_sharpest_level_is_taken() -> None:
    text = NVIDIA_SMI.format(mib=61300) + "max_memory_allocated: 35.60 GiB\n"
    seen = seen_peak(read_text(text))
    assert seen is not None
    assert (seen.level, seen.nbytes) == (Level.ALLOCATED, round(35.60 * GIB))


def test_a_failure_is_explained_before_any_peak() -> None:
    text = "max_memory_allocated: 35.60 GiB\nCUDA out of memory. Tried to allocate 1.00 GiB."
    assert seen_peak(read_text(text)) is None


def test_a_peak_that_nothing_comes_to_is_said_to_be_unexplained() -> None:
    facts = rules(
        diagnosed("max_memory_allocated: 20.00 GiB", replace(PHI, precision=Precision.FP32))
    )
    assert "peak_below" in facts
    assert "no_explanation" in facts


def test_without_a_card_a_process_cannot_be_compared() -> None:
    text = "GPU memory occupied: 59900 MB."
    assert "card_unknown" in rules(diagnosed(text))


def test_json_has_the_peak_and_plans_nothing_where_nothing_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("max_memory_allocated: 71.19 GiB\n")
    flags = [
        "--model",
        "phi-3-mini",
        "--batch",
        "2",
        "--seq",
        "256",
        "--precision",
        "bf16-true",
        "--gpu",
        "a100-80gb",
    ]
    assert main(["diagnose", str(log), "--json", *flags]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["gap"]["seen"] == {"level": "allocated", "bytes": round(71.19 * GIB)}
    assert data["hypotheses"][0]["changes"][0]["name"] == "weights_fp32"
    assert all(step["step"] != "plan" for step in data["advice"])


def test_an_unknown_model_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    log.write_text("CUDA out of memory. Tried to allocate 1.00 GiB.")
    assert main(["diagnose", str(log), "--model", "no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().out
