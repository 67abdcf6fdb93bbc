"""A training script that saves in every way people save: run by test_sandbox.py in a folder with real files.

`python saving_idioms.py ENDING [KIND]`: each idiom changes real files and must find its own changes again.
Those that work beside Python (`beside_python`) are refused by the guard and must leave no trace there either.
"""

from __future__ import annotations

import csv
import ctypes
import dbm.dumb
import glob
import gzip
import io
import json
import logging
import mmap
import multiprocessing
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import tokenizers
import torch
from torch import nn

IDIOMS: dict[str, Callable[[], None]] = {}
BESIDE_PYTHON: set[str] = set()
model = nn.Linear(32, 32)
optimizer = torch.optim.AdamW(model.parameters())


def idiom(function: Callable[[], None]) -> Callable[[], None]:
    IDIOMS[function.__name__] = function
    return function


def beside_python(function: Callable[[], None]) -> Callable[[], None]:
    BESIDE_PYTHON.add(function.__name__)
    return idiom(function)


def weights() -> np.ndarray:
    return model.weight.detach().cpu().numpy()


@idiom
def torch_save_over_a_checkpoint() -> None:
    torch.save(model.state_dict(), "model.pt")
    model.load_state_dict(torch.load("model.pt"))


@idiom
def torch_save_then_replace() -> None:
    torch.save(model.state_dict(), "model.pt.tmp")
    os.replace("model.pt.tmp", "model.pt")
    assert not os.path.exists("model.pt.tmp")
    assert os.path.getsize("model.pt") > 0
    model.load_state_dict(torch.load("model.pt"))


@idiom
def torch_save_to_an_open_file() -> None:
    with open("model.pt", "wb") as file:
        torch.save({"model": model.state_dict(), "step": 3}, file)
    with open("model.pt", "rb") as file:
        assert torch.load(file)["step"] == 3


@idiom
def pickle_of_weights() -> None:
    with open("weights.pkl", "wb") as file:
        pickle.dump(weights(), file)
    with open("weights.pkl", "rb") as file:
        assert pickle.load(file).shape == (32, 32)


@idiom
def numpy_savez() -> None:
    np.savez("weights.npz", weight=weights())
    assert np.load("weights.npz")["weight"].shape == (32, 32)


@idiom
def numpy_save_and_tofile() -> None:
    np.save("weights.npy", weights())
    assert np.load("weights.npy").shape == (32, 32)
    weights().tofile("weights.bin")
    assert np.fromfile("weights.bin", dtype=np.float32).size == 1024


@idiom
def numpy_memmap() -> None:
    array = np.memmap("memmap.bin", dtype=np.int64, mode="r+", shape=(16,))
    array[:] = 7
    array.flush()
    assert np.memmap("memmap.bin", dtype=np.int64, mode="r", shape=(16,))[3] == 7


@idiom
def safetensors_file() -> None:
    safetensors.torch.save_file(model.state_dict(), "model.safetensors")
    assert safetensors.torch.load_file("model.safetensors")["weight"].shape == (32, 32)
    with safetensors.safe_open("model.safetensors", framework="pt") as file:
        assert file.get_slice("weight").get_shape() == [32, 32]


@idiom
def safetensors_bytes() -> None:
    with open("model.safetensors", "wb") as file:
        file.write(safetensors.torch.save(model.state_dict()))
    assert os.path.getsize("model.safetensors") > 4096
    assert safetensors.torch.load(Path("model.safetensors").read_bytes())["weight"].shape == (
        32,
        32,
    )


@idiom
def append_to_a_log() -> None:
    before = Path("log.txt").read_text()
    with open("log.txt", "a") as file:
        file.write("another line\n")
    assert Path("log.txt").read_text() == before + "another line\n"


@idiom
def change_in_place() -> None:
    with open("log.txt", "r+") as file:
        file.write("X")
        file.truncate(1)
    assert os.path.getsize("log.txt") == 1
    os.truncate("log.txt", 0)
    assert os.stat("log.txt").st_size == 0


@idiom
def pathlib_functions() -> None:
    Path("state.json").write_text(json.dumps({"step": 9}))
    Path("state.json").rename("state-9.json")
    assert not Path("state.json").exists()
    assert json.loads(Path("state-9.json").read_text())["step"] == 9
    Path("state-9.json").unlink()
    Path("new/deep").mkdir(parents=True)
    Path("new/deep/file").touch()
    assert [path.name for path in Path("new").rglob("*")] == ["deep", "file"]


@idiom
def delete_a_checkpoint() -> None:
    assert "checkpoint-4" in os.listdir(".")
    shutil.rmtree("checkpoint-4")
    assert "checkpoint-4" not in os.listdir(".")
    assert not os.path.exists("checkpoint-4/trainer_state.json")
    os.makedirs("checkpoint-4")
    assert os.listdir("checkpoint-4") == []


@idiom
def rename_a_folder() -> None:
    names = sorted(os.listdir("checkpoint-8"))
    os.rename("checkpoint-8", "checkpoint-best")
    assert sorted(os.listdir("checkpoint-best")) == names
    assert not os.path.isdir("checkpoint-8")
    shutil.move("checkpoint-best", "moved")
    assert sorted(os.listdir("moved")) == names


@idiom
def copy_a_folder() -> None:
    shutil.copytree("moved", "copied")
    assert sorted(os.listdir("copied")) == sorted(os.listdir("moved"))
    assert glob.glob("copied/**/*.json", recursive=True)


@idiom
def links() -> None:
    os.symlink("copied", "latest")
    Path("latest/note.txt").write_text("through a link")
    assert Path("copied/note.txt").read_text() == "through a link"
    os.link("copied/note.txt", "hard")
    assert os.path.samefile("hard", "copied/note.txt")
    os.remove("latest")
    assert os.path.exists("copied/note.txt")


@idiom
def write_through_a_real_link() -> None:
    Path("link.txt").write_text("changed")
    assert Path("linked/target.txt").read_text() == "changed"


@idiom
def temporary_file_then_replace() -> None:
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("{}")
    os.replace(file.name, "config.json")
    assert Path("config.json").read_text() == "{}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_text("x")
        assert os.listdir(folder) == ["file"]
    with tempfile.NamedTemporaryFile(dir=".") as held:
        assert os.path.exists(held.name)


@idiom
def sqlite_database() -> None:
    with sqlite3.connect("runs.db") as database:
        database.execute("insert into runs values (2)")
    database.close()
    database = sqlite3.connect("runs.db")
    assert database.execute("select count(*) from runs").fetchone() == (2,)
    database.close()


@idiom
def logging_and_csv() -> None:
    handler = logging.FileHandler("log.txt")
    handler.emit(logging.LogRecord("a", 20, "a", 1, "logged", None, None))
    handler.close()
    assert "logged" in Path("log.txt").read_text()
    with open("metrics.csv", "a", newline="") as file:
        csv.writer(file).writerow([3, 0.5])
    assert len(Path("metrics.csv").read_text().splitlines()) == 2


@idiom
def archives() -> None:
    with zipfile.ZipFile("archive.zip", "a") as archive:
        archive.writestr("more", "x")
    assert len(zipfile.ZipFile("archive.zip").namelist()) == 2
    with tarfile.open("archive.tar.gz", "w:gz") as archive:
        archive.add("config.json")
    with gzip.open("log.gz", "wt") as file:
        file.write("x")
    with gzip.open("log.gz", "rt") as file:
        assert file.read() == "x"


@idiom
def modes_and_times() -> None:
    os.chmod("metrics.csv", 0o600)
    os.utime("metrics.csv", (1, 1))
    assert os.stat("metrics.csv").st_mtime == 1
    os.chmod("linked", 0o700)
    assert os.stat("linked").st_mode & 0o777 == 0o700


@idiom
def memory_map() -> None:
    with open("memmap.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:4] = b"MMAP"
    assert Path("memmap.bin").read_bytes()[:4] == b"MMAP"


@idiom
def descriptors() -> None:
    descriptor = os.open("weights.bin", os.O_RDWR | os.O_TRUNC)
    os.write(descriptor, b"short")
    os.close(descriptor)
    assert os.path.getsize("weights.bin") == 5
    try:
        os.open("weights.bin", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    raise AssertionError("the file exists")


@idiom
def small_database() -> None:
    with dbm.dumb.open("dumb", "c") as database:
        database["a"] = "b"
    with dbm.dumb.open("dumb", "r") as database:
        assert database["a"] == b"b"


@idiom
def parquet() -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), "data.parquet")
    assert pq.read_table("data.parquet").num_rows == 3
    with (
        pa.OSFile("data.arrow", "wb") as sink,
        pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())])) as writer,
    ):
        writer.write_table(pa.table({"a": [1]}))
    assert pa.ipc.open_stream(pa.memory_map("data.arrow")).read_all().num_rows == 1


@idiom
def tokenizer_in_rust() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    made.save("tokenizer.json")
    assert tokenizers.Tokenizer.from_file("tokenizer.json").get_vocab_size() == 2


@idiom
def outside_the_working_folder() -> None:
    home = Path.home() / ".vramcast-test"
    home.write_text("x")
    shared = Path(tempfile.gettempdir(), "vramcast-test")
    shared.write_text("y")
    assert (home.read_text(), shared.read_text()) == ("x", "y")


def _write_in_a_fork() -> None:
    Path("fork.txt").write_text("from a fork")
    os.remove("config.json")


@idiom
def forked_process() -> None:
    process = multiprocessing.get_context("fork").Process(target=_write_in_a_fork)
    process.start()
    process.join()
    assert Path("fork.txt").read_text() == "from a fork"


@beside_python
def shell() -> None:
    subprocess.run(
        "echo shell > log.txt; rm -rf linked; mv metrics.csv moved.csv; touch made",
        shell=True,
        check=True,
    )
    assert Path("log.txt").read_text() == "shell\n"
    assert not os.path.exists("linked")
    assert os.path.exists("moved.csv")


@beside_python
def unlink_in_c() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unlink(b"archive.zip") == 0, os.strerror(ctypes.get_errno())
    assert not os.path.exists("archive.zip")


@beside_python
def bare_file() -> None:
    with io.FileIO("weights.npy", "w") as file:
        file.write(b"bare")
    assert Path("weights.npy").read_bytes() == b"bare"


@beside_python
def torch_script_in_cpp() -> None:
    torch._C.PyTorchFileWriter(os.path.abspath("script.pt")).write_end_of_file()
    assert os.path.exists("script.pt")


def main(ending: str, kind: str) -> None:
    model.cuda()
    for _ in range(2):
        model(torch.randn(4, 32, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, function in IDIOMS.items():
        if kind == "guard" and name in BESIDE_PYTHON:
            try:
                function()
            except (OSError, AssertionError, RuntimeError, subprocess.CalledProcessError):
                continue
            raise AssertionError(f"{name} went through")
        try:
            function()
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    print(f"saved {len(IDIOMS)}", flush=True)
    if ending == "exception":
        raise ValueError("ended by an exception")
    if ending == "oom":
        torch.empty(1 << 42, device="cuda")
    if ending in ("SIGINT", "SIGTERM", "SIGKILL"):
        print(f"process {os.getpid()}", file=sys.stderr, flush=True)
        time.sleep(60)
    if ending == "kill-itself":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
