"""Traces and snapshots that a page sends: read without running anything, bounded, and nothing else of the disk."""

from __future__ import annotations

import gzip
import http.client
import json
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import VramcastError
from vramcast.web import recordings
from vramcast.web.answers import answer
from vramcast.web.given import Place
from vramcast.web.recordings import Keeper

TRACE = {
    "format": "vramcast trace", "version": 1, "command": ["train.py"], "card": "24GiB",
    "capacity_bytes": 24 << 30, "context_bytes": 0, "steps": 1, "ending": "ran", "entries": [
        {"category": "weights", "component": "w", "place": "cuda:0", "phases": ["load"], "nbytes": 1024,
         "origin": "traced", "level": "allocated", "source": "", "range_bytes": None}],
    "cards": {"cuda:0": {
        "labels": [["weights", "net.0", "train.py:3", "aten::empty", "load"]],
        "bytes": [4 << 20, 1000], "label": [0, 0], "stream": [0, 0], "events": [0, 1, -2]}},
}  # fmt: skip


def packed(data: Any) -> bytes:
    return gzip.compress(json.dumps(data).encode())


def keep(place: Place, name: str, data: bytes) -> str:
    keeper = Keeper(place, name)
    keeper.add(data)
    return keeper.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(folder=tmp_path / "own")


def test_a_trace_becomes_a_timeline(place: Place) -> None:
    token = keep(place, "../../run 1.trace", packed(TRACE))
    told = answer("timeline", {"file": token}, place)
    assert told["timeline"]["peak"] == {"event": 1, "bytes": (4 << 20) + 1024, "phase": "load"}
    assert told["timeline"]["labels"] == [
        ["weights", "net.0", "train.py:3", "aten::empty", "weights"]
    ]
    assert told["words"]["parts"]["weights"] == "weights"
    (kept,) = (place.folder / "kept" / token).iterdir()
    assert kept.name == "run_1.trace"
    assert keep(place, "again.trace", packed(TRACE)) != ""


def test_a_job_has_a_timeline_whose_peak_is_its_own(place: Place) -> None:
    job = {"model": "gpt2", "gpu": "rtx4090"}
    told = answer("timeline", {"job": job, "lang": "zh"}, place)
    verdict = answer("estimate", {"job": job}, place)["verdict"]
    assert told["timeline"]["peak"]["bytes"] == verdict["allocated_bytes"]
    assert told["words"]["parts"]["weights"] == "权重"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps({"segments": [Evil()], "device_traces": []}),
        pickle.dumps({"segments": [], "device_traces": [[]]}),
        b"\x80\x04",
        b"no recording",
        gzip.compress(b"{"),
        gzip.compress(b"0" * (1 << 22)),
        packed({**TRACE, "cards": {"cuda:0": {**TRACE["cards"]["cuda:0"], "events": [9]}}}),  # type: ignore[index]
        packed({**TRACE, "cards": {"cuda:0": {**TRACE["cards"]["cuda:0"], "events": [-1]}}}),  # type: ignore[index]
        packed({**TRACE, "cards": {}}),
        packed({**TRACE, "version": 99}),
    ],
    ids=(  # bytes that gzip writes hold the time of day
        "code",
        "nested code",
        "empty device",
        "cut pickle",
        "text",
        "cut JSON",
        "long number",
        "event of another kind",
        "negative event",
        "no cards",
        "version",
    ),
)
def test_hostile_files_are_refused_in_one_line(
    data: bytes, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    token = keep(place, "evil.bin", data)
    for question in ("timeline", "diagnose"):
        with pytest.raises(VramcastError) as raised:
            answer(question, {"file": token}, place)
        assert "\n" not in str(raised.value)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "said", ["/etc/passwd", "0" * 40, "../kept", "a" * 39, "~/.ssh/id_rsa", ""]
)
def test_no_name_leads_elsewhere(said: str, place: Place) -> None:
    keep(place, "a.trace", packed(TRACE))
    with pytest.raises(VramcastError):
        answer("timeline", {"file": said}, place)


def test_a_named_folder_may_hold_recordings(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    home.mkdir()
    (home / "a.trace").write_bytes(packed(TRACE))
    place = Place(folder=tmp_path / "own", roots=(home,))
    assert answer("timeline", {"file": str(home / "a.trace")}, place)["timeline"]["bytes"]


def test_what_is_kept_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MOST_BYTES", 1000)
    monkeypatch.setattr(recordings, "MOST_KEPT_BYTES", 2500)
    keeper = Keeper(place, "long")
    keeper.add(b"x" * 900)
    with pytest.raises(VramcastError, match="more than"):
        keeper.add(b"x" * 900)
    keeper.discard()
    assert list((place.folder / "kept").iterdir()) == []
    tokens = [keep(place, "a.trace", bytes([number]) * 900) for number in range(6)]
    left = {path.name for path in (place.folder / "kept").iterdir()}
    assert len(left) == 2
    assert tokens[-1] in left


# ---- through HTTP


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number = int(found.getsockname()[1])
    command = [sys.executable, "-m", "vramcast", "serve", "--port", str(number), "--processes", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(100):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", number)) == 0:
                break
        time.sleep(0.1)
    yield number
    process.terminate()
    process.wait()


def send(port: int, path: str, data: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, data, given)
    reply = connection.getresponse()
    told = json.loads(reply.read() or b"{}")
    connection.close()
    return reply.status, told


def test_a_sent_file_is_found_again(port: int) -> None:
    status, told = send(port, "/api/file?name=a.trace", packed(TRACE))
    assert status == 200
    body = json.dumps({"file": told["file"]})
    status, told = send(port, "/api/timeline", body, Content_Type="application/json")
    assert status == 200
    assert told["timeline"]["peak"]["bytes"] == (4 << 20) + 1024


def test_sending_is_bounded_and_for_our_own_page_alone(port: int) -> None:
    assert send(port, "/api/file?name=a", b"x", Content_Length=str(1 << 30))[0] == 413
    assert send(port, "/api/file?name=a", b"x", Origin="http://evil.example")[0] == 403
    assert send(port, "/api/file?name=a", b"x", Host="evil.example")[0] == 403
    assert send(port, "/api/file?name=a", b"")[0] == 413
    assert send(port, "/api/file", b"x")[0] == 422
    assert send(port, f"/api/file?name={'a' * 400}", b"x")[0] == 422


def test_a_long_body_without_a_length_is_cut_off(port: int) -> None:
    """Sent in pieces, its length is not known before it ends; the server may hang up while it is still coming."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    pieces = (b"x" * (1 << 20) for _ in range(20))
    kind = {"Content-Type": "application/json"}
    try:
        connection.request("POST", "/api/estimate", pieces, kind, encode_chunked=True)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        status = 413
    connection.close()
    assert status == 413
