"""The command and the hook as a user meets them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.cli.oom_hook import ExceptHook, explain_oom

SAMPLES = Path(__file__).parent / "samples"
KEYS = (
    "kind", "requested_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "unallocated_bytes",
    "process_bytes", "other_processes",
)  # fmt: skip
OOM = (
    "CUDA out of memory. Tried to allocate 4.00 GiB (GPU 0; 15.90 GiB total capacity; 13.13 GiB already allocated; "
    "415.88 MiB free; 14.80 GiB reserved in total by PyTorch)"
)


def test_json_has_the_promised_keys_with_null_where_the_text_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["diagnose", str(SAMPLES / "33_xpu_legacy.txt"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"schema", "observations", "findings", "hypotheses", "advice"} <= set(data)
    assert data["schema"] == "vramcast/1"
    (observation,) = data["observations"]
    assert tuple(observation)[: len(KEYS)] == KEYS
    assert observation["free_bytes"] is None
    assert observation["other_processes"] is None
    assert observation["requested_bytes"] == round(1.71 * 2**30)


def test_json_lists_other_processes_by_pid_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(SAMPLES / "15_cuda_v2.x_two_processes.txt"), "--json"]) == 0
    (observation,) = json.loads(capsys.readouterr().out)["observations"]
    assert observation["other_processes"] == [
        {"pid": 3269913, "bytes": round(1.88 * 2**30)},
        {"pid": 3269914, "bytes": round(13.17 * 2**30)},
    ]
    assert {entry["origin"] for entry in observation["ledger"]} == {"measured"}


def test_a_message_can_be_piped_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OOM.encode())))
    assert main(["diagnose", "-"]) == 0
    out = capsys.readouterr().out
    assert "requested 4.00 GiB" in out
    assert "What to do" in out


def test_chinese_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(SAMPLES / "45_dataloader_bus_error.txt"), "--lang", "zh"]) == 0
    assert "/dev/shm 太小" in capsys.readouterr().out


def test_text_without_memory_cannot_be_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_text("epoch 1 loss 0.3\n")
    assert main(["diagnose", str(path)]) == 2
    assert "Nothing about memory" in capsys.readouterr().out
    assert main(["diagnose", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["observations"] == []


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_a_file_that_cannot_be_read_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path / name)]) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("magic", "way"),
    [
        (b"\x80\x04\x95}", "not a readable memory snapshot"),
        (b"\x1f\x8b\x08", "zcat"),
        (b"PK\x03", "archive"),
    ],
)
def test_a_file_that_is_no_text_is_sent_where_it_can_be_read(
    magic: bytes, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(magic + bytes(100))
    assert main(["diagnose", str(path)]) == 2
    assert way in capsys.readouterr().err


def test_a_terminal_without_the_letters_gets_escapes_instead_of_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"训练失败 {OOM}\n", encoding="utf-8")
    command = [sys.executable, "-m", "vramcast", "diagnose", str(path), "--lang", "zh", "--json"]
    done = subprocess.run(
        command, capture_output=True, env={"PYTHONIOENCODING": "ascii", "PATH": ""}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["observations"][0]["requested_bytes"] == 4 * 2**30


def test_eight_ranks_that_fail_alike_give_each_fact_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_text(
        "\n".join(f"[rank{rank}]: {OOM.replace('13.13', f'13.{10 + rank}')}" for rank in range(8))
    )
    assert main(["diagnose", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.count("is a lower bound") == 1
    assert "8 ranks failed (0, 1, 2, 3, 4, 5, 6, 7)" in out


def test_an_exception_explains_itself_with_its_own_frames() -> None:
    def _multi_tensor_adamw() -> None:
        raise RuntimeError(OOM)

    with pytest.raises(RuntimeError) as caught:
        _multi_tensor_adamw()
    text = explain_oom(caught.value)
    assert text is not None
    assert "_multi_tensor_adamw" in text
    assert "foreach optimizer" in text


def test_other_exceptions_are_left_alone() -> None:
    assert explain_oom(ValueError("shapes (2, 3) and (4, 5) not aligned")) is None
    assert explain_oom(KeyError("memory")) is None


def test_a_host_memory_error_without_words_is_explained_too() -> None:
    text = explain_oom(MemoryError())
    assert text is not None
    assert "host" in text.lower()


def test_the_hook_adds_below_the_traceback_and_can_be_taken_away() -> None:
    before = sys.excepthook
    with ExceptHook():
        assert sys.excepthook is not before
    assert sys.excepthook is before


def test_a_script_prints_its_own_diagnosis(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"import vramcast\nvramcast.install_excepthook(lang='en')\nraise RuntimeError({OOM!r})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    traceback_at, diagnosis_at = (
        done.stderr.index("Traceback"),
        done.stderr.index("What the numbers say"),
    )
    assert traceback_at < diagnosis_at


def test_importing_vramcast_loads_neither_torch_nor_numpy_nor_the_diagnosis() -> None:
    code = "import sys, vramcast; print([m for m in ('torch', 'numpy', 'vramcast.diagnose') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
