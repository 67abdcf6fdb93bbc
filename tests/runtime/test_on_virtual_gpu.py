"""The examples, unmodified, on virtual cards: what runs out, what fits, and what the script's own monitor says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GiB = 1 << 30


def trace(example, *arguments, gpu, gpus=1, steps=2, folder="examples"):
    command = [
        sys.executable, "-m", "vramcast", "trace", f"{folder}/{example}", "--gpu", gpu, "--gpus", str(gpus),
        "--steps", str(steps), "--json", "--", *arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout), done.stderr


def last_metrics(text):
    return ast.literal_eval(re.findall(r"^step \d+: .*?(\{.*\})$", text, flags=re.MULTILINE)[-1])


@pytest.mark.slow
def test_every_phase_of_gpt2_is_observed_as_it_was_predicted():
    code, _, text = trace("monitored_gpt2.py", gpu="rtx3060", steps=4, folder="tests/runtime")
    assert code == 0
    lines = re.findall(
        r"^cuda:0, (.+): predicted ([\d.]+) GiB, observed ([\d.]+) GiB", text, flags=re.MULTILINE
    )
    phases = [
        f"{phase}, {steps}"
        for steps in ("first step", "later steps")
        for phase in ("forward", "backward", "step")
    ]
    assert [name for name, _, _ in lines] == [*phases, "the whole step, all steps"]
    for name, predicted, observed in lines:
        assert float(observed) == pytest.approx(float(predicted), rel=0.01), name


@pytest.mark.slow
def test_phi_3_mini_with_its_reference_on_the_card_runs_out_of_80_gb_in_the_first_optimizer_step():
    code, data, _ = trace(
        "npo_reference.py", "--model", "phi-3-mini", "--reference", "same", gpu="a100-80gb"
    )
    assert code == 1
    assert data["verdict"]["fits"] is False
    found = data["trace"]
    name, _, number = found["out_of_memory_line"].partition(":")
    assert name == "npo_reference.py"
    line = (ROOT / "examples" / name).read_text("utf-8").splitlines()[int(number) - 1]
    assert line.strip() == "optimizer.step()"
    assert found["steps_before_limit"] == 0  # it would never have come back from the first one


@pytest.mark.slow
def test_phi_3_mini_with_its_reference_on_the_host_peaks_at_71_gib():
    code, _, text = trace(
        "npo_reference.py", "--model", "phi-3-mini", "--reference", "cpu", gpu="a100-80gb", steps=3
    )
    assert code == 0
    peaks = [float(peak) for peak in re.findall(r"memory/alloc_max ([\d.]+) GiB", text)]
    # Weights, gradients, two moments and the list of roots in float32: 20 bytes for each of 3,821,079,552 parameters.
    assert (
        peaks[0]
        == pytest.approx(20 * 3_821_079_552 / GiB, rel=0.002)
        == pytest.approx(71.2, rel=0.002)
    )


@pytest.mark.slow
def test_editing_qwen2_vl_7b_fits_two_24_gb_cards_and_both_peaks_are_the_ledgers():
    code, _, text = trace(
        "edit_two_devices.py", "--model", "qwen2-vl-7b", "--device", "0", "--sub-device", "1", "--sequence", "420",
        gpu="rtx3090", gpus=2, steps=3,
    )  # fmt: skip
    assert code == 0
    metrics = last_metrics(text)
    assert metrics["memory/alloc_max"] > 18 * GiB
    assert metrics["memory/alloc_max_sub"] > 4 * GiB
    assert metrics["memory/alloc_over_predicted"] == pytest.approx(1, abs=0.02)
    assert metrics["memory/alloc_over_predicted_sub"] == pytest.approx(1, abs=0.02)
