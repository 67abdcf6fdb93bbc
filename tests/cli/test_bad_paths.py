"""Paths that are no files, files that are too large, and outputs that cannot be written: one line, exit code 2."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.errors import InputError
from vramcast.files import Bounded, open_file, read_bytes, read_text

# Every command that takes a path to read.
READING = {
    "--job": ("estimate", "--job", "PATH"),
    "check": ("check", "PATH"),
    "--baseline": ("check", "JOB", "--baseline", "PATH"),
    "--lengths": ("estimate", "gpt2", "--lengths", "PATH"),
    "diagnose": ("diagnose", "PATH"),
    "snapshot": ("snapshot", "PATH"),
    "model": ("params", "PATH"),
    "host --dataset": ("host", "--dataset", "PATH"),
    "estimate --dataset": ("estimate", "gpt2", "--dataset", "PATH"),
}


def command(name: str, path: Path, folder: Path) -> list[str]:
    job = folder / "job.yaml"
    job.write_text("model: gpt2\n", encoding="utf-8")
    return [word.replace("PATH", str(path)).replace("JOB", str(job)) for word in READING[name]]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(
    name: str, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device in refused(command(name, Path(device), tmp_path), capsys)


@pytest.mark.parametrize("name", READING)
def test_a_pipe_is_refused_and_not_waited_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "pipe" in refused(command(name, path, tmp_path), capsys)


@pytest.mark.parametrize("name", READING)
def test_a_sparse_terabyte_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert str(path) in refused(command(name, path, tmp_path), capsys)


@pytest.mark.parametrize(
    "name", [name for name in READING if name not in ("model", "host --dataset")]
)
def test_a_folder_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert str(folder) in refused(command(name, folder, tmp_path), capsys)


def test_a_shard_that_is_a_pipe_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "model-1.safetensors")
    assert "a pipe, not a file" in refused(["params", str(tmp_path)], capsys)


def test_a_socket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        with pytest.raises(InputError, match="a socket, not a file"):
            open_file(path)


def test_a_pipe_that_takes_a_files_place_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(path)
    file.write_text("x", encoding="utf-8")
    seen = os.stat(file)
    monkeypatch.setattr(os, "stat", lambda *_, **__: seen)  # it was a file when it was looked at
    with pytest.raises(InputError, match="a pipe, not a file"):
        open_file(path)


def test_a_file_of_unknown_size_is_read_up_to_the_limit() -> None:
    assert os.stat("/proc/self/status").st_size == 0
    with pytest.raises(InputError, match="more where at most 16 B are read"):
        read_bytes("/proc/self/status", 16)


def test_text_is_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfmodel")
    assert read_text(path, 100) == "model"
    path.write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"not text in UTF-8 \(byte 2 is 0xff\)"):
        read_text(path, 100)
    with pytest.raises(InputError, match="cannot be read"):
        read_text("a\0b", 100)


def test_standard_input_is_bounded() -> None:
    stream = io.BufferedReader(Bounded(io.BytesIO(b"x" * 100), "standard input", 99))
    with pytest.raises(InputError, match="standard input: more where at most 99 B are read"):
        stream.read()
    assert (
        io.BufferedReader(Bounded(io.BytesIO(b"x" * 100), "standard input", 100)).read()
        == b"x" * 100
    )


def test_a_log_that_begins_with_a_hole_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.log"
    with path.open("wb") as file:
        file.seek(300 * 2**20)
        file.write(b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert main(["diagnose", str(path)]) == 0
    assert "2.00 GiB" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("host", "--dataset"), ("estimate", "gpt2", "--dataset")])
def test_without_pyarrow_the_way_to_it_is_named(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1" * 4)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'vramcast[runtime]'" in refused([*words, str(path)], capsys)


def code_of(words: list[str]) -> object:
    try:
        return main(words)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize("job", ['gpt2 "', "gpt2 --batch", "gpt2 --nonsense 1", ""])
def test_a_job_in_quotes_that_is_none_is_one_line(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["compare", job]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- outputs


def run(*words: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **more.pop("environment", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [sys.executable, "-m", "vramcast", *words],
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
        **more,
    )  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("words", [("gpus", "rtx4090"), ("--help",), ("estimate", "--help")])
def test_a_full_disk_is_one_line(words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = run(*words, stdout=full)
    assert done.returncode == 2
    assert (
        done.stderr
        == b"vramcast: the answer cannot be written to standard output: No space left on device\n"
    )


def test_a_closed_output_is_one_line() -> None:
    done = run("gpus", "rtx4090", preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (
        2, b"vramcast: the answer cannot be written: standard output is closed\n",
    )  # fmt: skip


def test_a_closed_input_is_one_line() -> None:
    done = run("diagnose", "-", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    assert done.returncode == 2
    assert (
        done.stderr
        == b"vramcast: standard input is closed. Give a file, or pipe the log into it.\n"
    )


def test_a_home_that_does_not_exist_is_not_missed() -> None:
    done = run(
        "params",
        "gpt2",
        stdout=subprocess.PIPE,
        environment={"HOME": "/proc/nowhere", "XDG_CACHE_HOME": ""},
    )
    assert done.returncode == 0, done.stderr
