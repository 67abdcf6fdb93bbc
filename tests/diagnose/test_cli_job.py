# ruff: noqa: E501 (pasted messages keep their lines)
"""The command and the hook with a job, a snapshot or a script, as a user meets them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.cli.oom_hook import explain_oom
from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.planned_steps import planned_steps
from vramcast.diagnose.readers.log import read_text
from vramcast.job import Job
from vramcast.report import diagnose_text

SAMPLES = Path(__file__).parent / "samples"
PHI_LOG = str(SAMPLES / "83_cuda_cut_phi3_reference.txt")
PHI = [
    "--framework",
    "plain",
    "--model",
    "phi-3-mini",
    "--batch",
    "2",
    "--seq",
    "256",
    "--reference",
    "same",
    "--gpu",
    "a100-80gb",
]
GIB = 2**30
MIB = 2**20


@pytest.mark.slow
def test_json_of_a_job_has_need_changes_phase_and_advice_with_its_forecast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "diagnose",
                PHI_LOG,
                *PHI,
                "--precision",
                "bf16-true",
                "--expected",
                "62.6GB",
                "--json",
            ]
        )
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    (first,) = [item for item in data["hypotheses"] if item["need_bytes"] is not None]
    assert first == data["hypotheses"][0]
    assert first["need_bytes"] / GIB == pytest.approx(85.4, abs=0.05)
    assert first["phase"] == "step"
    assert [change["name"] for change in first["changes"]] == ["weights_fp32"]
    assert first["setup"] == [
        "fp32 weights",
        "fp32 reference model on the same GPU",
        "foreach adamw",
    ]
    assert sum(first["bill"].values()) == first["phase_peak_bytes"]
    fitting = {item["name"]: item for item in data["gap"]["contrasts"]}
    assert fitting["textbook"]["fits"]
    assert fitting["reference on the CPU"]["need_bytes"] / GIB == pytest.approx(71.2, abs=0.05)
    plans = [step for step in data["advice"] if step["step"] == "plan"]
    assert plans
    assert all(step["process_bytes"] <= step["capacity_bytes"] for step in plans)
    assert "expected_refuted" in [finding["rule"] for finding in data["findings"]]


def test_text_of_a_job_in_both_languages() -> None:
    job = Job(
        model="phi-3-mini", batch=2, seq=256, reference="same", gpu="a100-80gb", framework="plain"
    )
    diagnosis = diagnose(read_text(Path(PHI_LOG).read_text()), job)
    english = diagnose_text.render(diagnosis)
    assert "fp32 reference model on the same GPU" in english
    assert "needs at least 85.43 GiB" in english
    assert "first optimizer step" in english
    chinese = diagnose_text.render(diagnosis, lang="zh")
    assert "至少需要 85.43 GiB" in chinese
    assert "needs" not in chinese


@pytest.mark.slow
def test_a_job_file_is_read_and_flags_beside_it_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: phi-3-mini\nbatch: 2\nseq: 256\nreference: cpu\ngpu: a100-80gb\nframework: plain\n"
        "precision: bf16-mixed\n"
    )
    assert main(["diagnose", PHI_LOG, "--job", str(path), "--reference", "same", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["hypotheses"][0]["changes"] == []


def test_a_flag_of_a_job_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", PHI_LOG, "--batch", "2"]) == 2
    assert "give a model name or --params" in capsys.readouterr().err


def test_without_a_job_the_fields_are_there_and_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", PHI_LOG, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["gap"] is None
    assert data["hypotheses"][0]["changes"] == []
    assert data["hypotheses"][0]["need_bytes"] is None


@pytest.mark.slow
def test_the_request_is_named_with_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    job = [
        "--model",
        "qwen2.5-7b",
        "--batch",
        "1",
        "--seq",
        "1024",
        "--precision",
        "bf16-true",
        "--reference",
        "same",
    ]
    assert main(["diagnose", str(SAMPLES / "14_cuda_v2.5_grpo_foreach_sqrt.txt"), *job]) == 0
    out = capsys.readouterr().out
    assert "[3584, 18944] (129.50 MiB)" in out
    assert "_multi_tensor_adamw" in out


@pytest.mark.slow
def test_nothing_is_planned_where_a_neighbour_is_the_cause() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 188.00 MiB (GPU 0; 79.32 GiB total capacity; 39.00 GiB already allocated; "
        "100.00 MiB free; 39.50 GiB reserved in total by PyTorch)"
    )
    job = Job(model="phi-3-mini", batch=2, seq=256, reference="same", precision="bf16-true")  # type: ignore[arg-type]
    diagnosis = diagnose(read_text(text), job)
    assert planned_steps(diagnosis) == ()
    assert "somebody else holds part of the card" in diagnose_text.render(diagnosis)


@pytest.mark.slow
def test_an_exception_is_explained_with_its_job() -> None:
    error = RuntimeError(
        "CUDA out of memory. Of the allocated memory 76.72 GiB is allocated by PyTorch, and 1.81 GiB is reserved by PyTorch "
        "but unallocated."
    )
    text = explain_oom(
        error,
        job=Job(
            model="phi-3-mini",
            batch=2,
            seq=256,
            reference="same",
            gpu="a100-80gb",
            framework="plain",
        ),
    )
    assert text is not None
    assert "needs at least 85.43 GiB" in text


def snapshot(path: Path) -> Path:
    """A segment with one live block, and a request that was refused."""
    frames = [{"filename": "train.py", "line": 7, "name": "<module>"}]
    block = {
        "size": 48 * MIB,
        "requested_size": 48 * MIB,
        "address": 1 << 30,
        "state": "active_allocated",
        "frames": frames,
    }
    free = {
        "size": 16 * MIB,
        "requested_size": 0,
        "address": (1 << 30) + 48 * MIB,
        "state": "inactive",
        "frames": [],
    }
    segment = {
        "device": 0, "address": 1 << 30, "total_size": 64 * MIB, "allocated_size": 48 * MIB, "active_size": 48 * MIB,
        "requested_size": 48 * MIB, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": frames, "blocks": [block, free],
    }  # fmt: skip
    trace = [
        {
            "action": "oom",
            "device_free": 8 * MIB,
            "size": 40 * MIB,
            "stream": 0,
            "frames": frames,
            "time_us": 5,
        }
    ]
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}))
    return path


def test_a_snapshot_gives_its_ledger_and_its_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = snapshot(tmp_path / "snapshot.pickle")
    assert main(["diagnose", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    failure = data["observations"][0]
    assert failure["kind"] == "snapshot_oom"
    assert (failure["requested_bytes"], failure["free_bytes"]) == (40 * MIB, 8 * MIB)
    assert (failure["allocated_bytes"], failure["unallocated_bytes"]) == (48 * MIB, 16 * MIB)
    assert sum(entry["bytes"] for entry in data["snapshot"]["ledger"]) == 64 * MIB
    assert main(["diagnose", str(path)]) == 0
    assert "train.py:7" in capsys.readouterr().out


def test_a_pickle_that_is_no_snapshot_is_not_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x08touch /x\x85R.")
    assert main(["diagnose", str(path)]) == 2
    assert "vramcast:" in capsys.readouterr().err


SCRIPT = """import torch
model = torch.nn.Linear(8192, 8192, bias=False).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(64, 8192, device="cuda")).sum().backward()
    optimizer.step()
"""
SCRIPT_OOM = (
    "CUDA out of memory. Tried to allocate 256.00 MiB (GPU 0; 1.50 GiB total capacity; 768.00 MiB already allocated; "
    "10.00 MiB free; 900.00 MiB reserved in total by PyTorch)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "said"), [([], "train.py:6"), (["--gpu", "24GiB"], "does not run out")]
)
def test_the_script_is_followed_on_a_card_of_the_same_size(
    gpu: list[str], said: str, tmp_path: Path
) -> None:
    """256 MiB of weights, gradients and two states each, and a foreach list: 1.25 GiB beside the context of 1.5 GiB."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "log").write_text(SCRIPT_OOM)
    command = [sys.executable, "-m", "vramcast", "diagnose", "log", "--script", "train.py", *gpu]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_a_script_without_a_known_card_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", PHI_LOG, "--script", "train.py"]) == 2
    assert "--gpu" in capsys.readouterr().err


HOOKED = """\
import torch, vramcast

vramcast.install_excepthook()
with vramcast.virtual_gpu("3.5GiB"):
    model = torch.nn.Linear(16384, 16384, bias=False, device="cuda")  # 1 GiB
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 16384, device="cuda")).sum().backward()
    try:
        torch.empty(8, 2**30, device="cuda")
    except torch.OutOfMemoryError as error:
        print(vramcast.explain_oom(error))
    optimizer.step()
"""


@pytest.mark.slow
def test_a_script_explains_its_own_failure_on_a_virtual_card(tmp_path: Path) -> None:
    """Weights, gradients and the first state are 3 of 3.5 GiB; the second state is refused, in torch's own frames."""
    script = tmp_path / "train.py"
    script.write_text(HOOKED)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "One tensor is larger than the card" in done.stdout
    assert "_init_group" in done.stderr.split("Answer")[1]
    first = done.stderr.split("most likely first")[1].strip().splitlines()[0]
    assert "Optimizer states" in first
    assert "Traceback" in done.stderr
