"""A trace leaves the disk as it was: every way of saving, every ending, protected by the kernel and by the guard."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
PROTECTIONS = ["namespace", "guard"] if sys.platform == "linux" else ["guard"]
_CAP_SYS_ADMIN, _PR_CAPBSET_DROP = 21, 24
_CLONE_NEWUSER = 0x10000000


@pytest.fixture(scope="session")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real checkpoints of Trainer, Lightning, accelerate, torch, safetensors, numpy and sqlite; no test changes it."""
    folder = tmp_path_factory.mktemp("real")
    subprocess.run(
        [sys.executable, HERE / "real_files.py", folder],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
    )
    return folder


def tree(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that can be seen of a folder's files, times and numbers included."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        seen = path.lstat()
        content: str | None = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path)] = (
            seen.st_mode,
            seen.st_ino,
            seen.st_size,
            seen.st_mtime_ns,
            seen.st_nlink,
            content,
        )
    return found


def command(script: str, protect: str, *arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
    options = ["--gpu", "1GiB", "--protect", protect, *flags, "--json"]
    return [
        sys.executable,
        "-m",
        "vramcast",
        "trace",
        str(HERE / script),
        *options,
        "--",
        *arguments,
    ]


def trace(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(words), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("protect", PROTECTIONS)
@pytest.mark.parametrize(
    ("ending", "exit_code"), [("success", 0), ("exception", 2), ("oom", 1), ("kill-itself", 2)]
)
def test_every_idiom_leaves_the_disk_as_it_was(
    real_folder: Path, protect: str, ending: str, exit_code: int
) -> None:
    before = tree(real_folder)
    done = trace(real_folder, *command("saving_idioms.py", protect, ending, protect))
    assert "saved 3" in done.stderr, done.stderr[
        -3000:
    ]  # more than thirty, all checked by the script itself
    assert done.returncode == exit_code, done.stderr[-3000:]
    assert tree(real_folder) == before
    assert not (Path.home() / ".vramcast-test").exists()
    assert not Path(ENVIRONMENT.get("TMPDIR", "/tmp"), "vramcast-test").exists()
    if ending in ("success", "oom"):
        footprint = json.loads(done.stdout)["trace"]["footprint"]
        assert footprint["protection"]["kind"] == protect
        assert min(footprint["written"], footprint["replaced"], footprint["deleted"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("protect", PROTECTIONS)
@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("target", ["script", "vramcast"])
def test_signals_leave_the_disk_as_it_was(
    real_folder: Path, tmp_path: Path, protect: str, ending: str, target: str
) -> None:
    before = tree(real_folder)
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}  # scratch folders of this run alone
    words = command("saving_idioms.py", protect, ending, protect)
    with subprocess.Popen(
        words,
        cwd=real_folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    ) as process:
        assert process.stderr is not None
        started = next((line for line in process.stderr if line.startswith("process ")), "")
        assert started, "the script did not reach its end"
        traced = int(started.split()[1])
        os.kill(traced if target == "script" else process.pid, getattr(signal, ending))
        process.communicate(timeout=60)
    assert process.returncode != 0
    _wait_until_dead(traced)
    assert tree(real_folder) == before
    if (ending, target) != ("SIGKILL", "vramcast"):  # there the next run removes it
        assert list(tmp_path.glob("vramcast-scratch-*")) == []


def _heed_interrupts() -> None:
    """Shells ignore SIGINT in what they start in the background, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait_until_dead(process: int) -> None:
    """The kernel ends it with its parent, in its own time."""
    deadline = time.monotonic() + 60
    while _is_alive(process):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_alive(process: int) -> bool:
    """A dead child whose parent was killed waits for whoever collects it: that is not alive."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


@pytest.mark.slow
def test_a_scratch_folder_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    from vramcast.sandbox.layer import Scratch, remove_abandoned

    held, abandoned = Scratch(str(tmp_path)), Scratch(str(tmp_path))
    Path(abandoned.path, "0", "work").mkdir(parents=True)
    Path(abandoned.path, "0", "work").chmod(0)
    abandoned._lock.close()
    remove_abandoned(str(tmp_path))
    assert [str(path) for path in tmp_path.iterdir()] == [held.path]
    held.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("protect", PROTECTIONS)
@pytest.mark.parametrize("script", ["rotate", "resume", "lightning", "accelerate"])
def test_frameworks_rotate_and_resume_in_the_scratch_layer(
    real_folder: Path, protect: str, script: str
) -> None:
    before = tree(real_folder)
    done = trace(real_folder, *command("framework_scripts.py", protect, script))
    assert done.returncode == 0, done.stderr[-3000:]
    assert tree(real_folder) == before
    footprint = json.loads(done.stdout)["trace"]["footprint"]
    if script == "rotate":
        assert footprint["replaced"] == 8  # the files of checkpoint-4
        assert footprint["deleted"] == 24  # those of the other three


def _drop_administration() -> None:
    """Root without the right to mount: what an ordinary user's process is to the kernel."""
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)


def _forbid_namespaces() -> None:
    """A user namespace in which no other can be made, as some machines and most containers are set up."""
    user = os.getuid()
    assert ctypes.CDLL(None).unshare(_CLONE_NEWUSER) == 0
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    _drop_administration()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
@pytest.mark.parametrize(
    ("prepare", "expected"),
    [(_drop_administration, "namespace"), (_forbid_namespaces, "guard")],
    ids=["ordinary user", "no namespaces"],
)
def test_the_strongest_protection_that_the_machine_allows_is_taken(
    real_folder: Path, prepare: Callable[[], None], expected: str
) -> None:
    before = tree(real_folder)
    words = command("saving_idioms.py", "auto", "success", expected)
    done = trace(real_folder, *words, preexec_fn=prepare)
    assert done.returncode == 0, done.stderr[-3000:]
    protection = json.loads(done.stdout)["trace"]["footprint"]["protection"]
    assert protection["kind"] == expected
    assert bool(protection["reason"]) == (expected == "guard")
    assert tree(real_folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("protect", PROTECTIONS)
def test_files_can_be_kept(real_folder: Path, tmp_path: Path, protect: str) -> None:
    before = tree(real_folder)
    kept = tmp_path / "kept"
    words = command("framework_scripts.py", protect, "rotate", flags=("--keep-files", str(kept)))
    assert trace(real_folder, *words).returncode == 0
    assert tree(real_folder) == before
    inside = Path(f"{kept}{real_folder}")
    assert (inside / "checkpoint-4" / "model.safetensors").stat().st_size > 1000
    listed = json.loads((kept / "changes.json").read_text())
    assert str(real_folder / "checkpoint-2" / "trainer_state.json") in listed["deleted"]
    assert str(real_folder / "checkpoint-4" / "trainer_state.json") in listed["replaced"]
    again = trace(real_folder, *words)
    assert again.returncode == 2
    assert "not an empty folder" in again.stderr


@pytest.mark.slow
def test_without_protection_the_script_writes_and_is_warned_about(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text("import torch\ntorch.save(torch.ones(3, device='cuda'), 'saved.pt')\n")
    words = [sys.executable, "-m", "vramcast", "trace", "save.py", "--gpu", "1GiB", "--no-protect"]
    done = trace(tmp_path, *words)
    assert done.returncode == 0
    assert (tmp_path / "saved.pt").exists()
    assert "--no-protect" in done.stderr
    assert "not protected" in done.stdout


NETWORK = """
import http.server, socket, subprocess, sys, threading, urllib.request
import torch

torch.ones(3, device="cuda")
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
assert urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").status == 200
TRY = "import socket; s = socket.socket(socket.AF_INET6); s.connect(('2001:db8::1', 443))"
for run in (lambda: exec(TRY), lambda: subprocess.run([sys.executable, "-c", TRY], check=True)):
    try:
        run()
    except (OSError, subprocess.CalledProcessError) as error:
        print(error)
    else:
        raise SystemExit("went through")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="programs that a script starts are watched by Linux's kernel"
)
def test_connections_to_other_machines_are_counted_and_refused(tmp_path: Path) -> None:
    """Refused before anything is sent: no test talks to another machine."""
    (tmp_path / "net.py").write_text(NETWORK)
    words = [sys.executable, "-m", "vramcast", "trace", "net.py", "--gpu", "1GiB", "--offline"]
    done = trace(tmp_path, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("Network is unreachable") == 2
    assert "network: 2 connections refused (--offline): 2001:db8::1" in done.stdout


def test_connections_are_told_by_name() -> None:
    from vramcast.sandbox.network import Connections, is_this_machine

    seen = Connections(refuse=False, addresses=["192.0.2.1", "198.51.100.2", "192.0.2.1"])
    told = seen.summary({"hub.example": ["192.0.2.1"], "missing.example": []})
    assert told == {"connections": 4, "hosts": ["hub.example", "198.51.100.2", "missing.example"]}
    assert is_this_machine("127.0.0.5")
    assert is_this_machine("::ffff:127.0.0.1")
    assert not is_this_machine("2001:db8::1")


def test_the_api_has_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import vramcast

    monkeypatch.chdir(tmp_path)
    Path("model.pt").write_text("real")
    before = tree(tmp_path)
    with vramcast.virtual_gpu("rtx4090"):
        torch.save(torch.ones(4, device="cuda"), "model.pt")
        assert torch.load("model.pt").shape == (4,)
        Path("other.txt").write_text("x")
        assert sorted(os.listdir()) == ["model.pt", "other.txt"]
        with pytest.raises(PermissionError, match="vramcast refuses to start touch"):
            subprocess.run(["touch", "file"], check=True)
    assert tree(tmp_path) == before
    Path("after.txt").write_text("the guard is gone")
    assert sorted(os.listdir(tmp_path)) == ["after.txt", "model.pt"]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")
def test_the_guard_covers_files_in_shared_memory() -> None:
    import multiprocessing

    import vramcast

    mine = Path(f"/dev/shm/vramcast-test-{os.getpid()}")
    mine.write_text("real")
    try:
        with vramcast.virtual_gpu("rtx4090"):
            mine.write_text("changed")
            assert mine.read_text() == "changed"
            shared = multiprocessing.Array("i", 4)  # a file of Python's own there, and a semaphore
            shared[0] = 7
            assert list(shared) == [7, 0, 0, 0]
        assert mine.read_text() == "real"
    finally:
        mine.unlink()


# A library in C opens a file itself; a program does too.
BY_A_LIBRARY = """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.open(b"made.txt", os.O_CREAT | os.O_WRONLY, 0o644) < 0:
    raise RuntimeError(f"made.txt: {os.strerror(ctypes.get_errno())}")
"""
BY_A_PROGRAM = "import subprocess\nsubprocess.run(['touch', 'made.txt'], check=True)\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
@pytest.mark.parametrize("writes", [BY_A_LIBRARY, BY_A_PROGRAM])
def test_what_the_kernel_refuses_is_told_in_one_sentence(tmp_path: Path, writes: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(writes)
    before = tree(tmp_path)
    words = [sys.executable, "-m", "vramcast", "trace", str(script), "--gpu", "1GiB", "--protect"]
    done = subprocess.run(
        [*words, "guard"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no library in C or Rust write outside of the scratch layer" in done.stderr
    assert "cannot follow it here" not in done.stderr
    assert tree(tmp_path) == before


@pytest.mark.slow
def test_a_script_that_is_diagnosed_is_protected_too(real_folder: Path) -> None:
    from vramcast.diagnose.follow_script import Following, follow

    script = real_folder.parent / "again.py"
    script.write_text(
        f"import os, torch\nos.chdir({str(real_folder)!r})\nos.remove('model.pt')\ntorch.ones(9, device='cuda')\n"
    )
    before = tree(real_folder)
    assert follow(Following(script=str(script)), "1GiB").rule == "script_fits"
    assert tree(real_folder) == before
