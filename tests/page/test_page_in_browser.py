"""The page in a real Chromium with both of its engines: every control, links, files, languages, accessibility, and the
figures of fifty jobs against `vramcast estimate --json`.

What it needs (Chromium, node, the packages of page/) is installed by `make page-tools`; without it these tests are left
out, and `make test` says so.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import pytest

import vramcast
from vramcast.job import job_from
from vramcast.report.as_json import forecast_json

ROOT = Path(__file__).parents[2]
CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
MODULES = ROOT / "page" / "node_modules"
MISSING = [
    name
    for name, found in (
        ("Chromium", CHROMIUM),
        ("node", shutil.which("node")),
        ("the packages of page/ (make page-tools)", (MODULES / "pyodide").is_dir()),
    )
    if not found
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"left out: no {', no '.join(MISSING)}"),
]
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 1.20 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
    "PyTorch but unallocated.\n"
)


def _recordings() -> list[tuple[str, str, str]]:
    """A trace and a memory snapshot: name, content, and the peak that is to be seen."""
    import base64
    import gzip
    import pickle

    stream = {
        "labels": [["weights", "net.0", "train.py:3", "aten::empty", "load"],
                   ["activations", "net.1", "train.py:5", "aten::mm", "forward"]],
        "bytes": [64 << 20, 32 << 20], "label": [0, 1], "stream": [0, 0], "events": [0, 1, -2],
    }  # fmt: skip
    trace = {
        "format": "vramcast trace", "version": 1, "command": ["train.py"], "card": "24GiB",
        "capacity_bytes": 24 << 30, "context_bytes": 0, "steps": 1, "ending": "ran", "entries": [
            {"category": "weights", "component": "net.0", "place": "cuda:0", "phases": ["load"], "nbytes": 64 << 20,
             "origin": "traced", "level": "allocated", "source": "", "range_bytes": None}],
        "cards": {"cuda:0": stream},
    }  # fmt: skip
    base, mib = 1 << 40, 1 << 20
    frames = [{"filename": "/home/me/train.py", "line": 7, "name": "<module>"}]
    events = [
        {"action": "segment_alloc", "addr": base, "size": 20 * mib, "stream": 0, "time_us": 1},
        {
            "action": "alloc",
            "addr": base,
            "size": 12 * mib,
            "stream": 0,
            "frames": frames,
            "time_us": 2,
        },
    ]
    block = {
        "size": 12 * mib,
        "requested_size": 12 * mib,
        "address": base,
        "state": "active_allocated",
        "frames": frames,
    }
    free = {
        "size": 8 * mib,
        "requested_size": 0,
        "address": base + 12 * mib,
        "state": "inactive",
        "frames": [],
    }
    segment = {
        "device": 0, "address": base, "total_size": 20 * mib, "stream": 0, "segment_type": "large",
        "allocated_size": 12 * mib, "active_size": 12 * mib, "requested_size": 12 * mib, "blocks": [block, free],
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
    }  # fmt: skip
    snapshot = {"segments": [segment], "device_traces": [events], "allocator_settings": {}}
    contents = (
        ("a.trace", gzip.compress(json.dumps(trace).encode()), "96.0 MiB"),
        ("b.pickle", pickle.dumps(snapshot, protocol=4), "12.0 MiB"),
    )
    return [(name, base64.b64encode(data).decode(), peak) for name, data, peak in contents]


RECORDINGS = _recordings()
MODELS = ("gpt2", "phi-3-mini", "qwen3-8b", "llama-3.1-8b", "t5-base")
WAYS: tuple[dict[str, object], ...] = (
    {},
    {"qlora": True, "gpu": "rtx4090"},
    {"lora-rank": 8, "batch": 3, "seq": 777, "gpu": "24GiB"},
    {"framework": "trl", "precision": "bf16-mixed", "gpu": "a100-80gb"},
    {"checkpointing": "full", "optimizer": "adafactor", "seq": 300},
    {"gpus": 8, "strategy": "fsdp2", "gpu": "h100-80gb"},
    {"gpus": 16, "strategy": "zero3", "gpu": "h100-80gb", "accumulate": 4},
    {"reference": "same", "seq": 512, "batch": 2},
    {"attention": "eager", "seq": 640, "gpu": "rtx3060-12gb"},
    {"rollout-tokens": 128, "seq": 400, "reference": "cpu"},
)
JOBS = [{"model": model, **way} for model, way in product(MODELS, WAYS)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "vramcast", "serve", "--port", str(port), "--processes", "1"]
    nothing_kept = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | nothing_kept
    )
    assert server.stdout is not None
    server.stdout.readline()
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
            break
        except OSError:
            threading.Event().wait(0.1)
    yield f"http://127.0.0.1:{port}/"
    server.terminate()
    server.wait()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site") / "site"
    subprocess.run(
        [sys.executable, ROOT / "page" / "site.py", folder], check=True, capture_output=True
    )
    own = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    assert own < 1_000_000, "the page without Pyodide weighs less than 1 MB"
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What `--json` prints, with numbers as a browser reads them: 2.0 is 2."""
    return [as_read(json.dumps(answer(job))) for job in JOBS]


def answer(job: dict[str, object]) -> dict[str, object]:
    try:
        return forecast_json(vramcast.estimate(job_from(job)))
    except vramcast.errors.VramcastError as error:  # type: ignore[attr-defined]
        return {"error": str(error)}


def as_read(text: str) -> str:
    def number(digits: str) -> float | int:
        value = float(digits)
        return int(value) if value.is_integer() else value

    return json.dumps(json.loads(text, parse_float=number))


@pytest.mark.parametrize("engine", ["served", "static"])
def test_the_page_works(engine: str, request: pytest.FixtureRequest, expected: list[str]) -> None:
    address = request.getfixturevalue(engine)
    config = (ROOT / "src/vramcast/catalog/data/models/llama-3.2-1b.json").read_text("utf-8")
    done = subprocess.run(
        ["node", ROOT / "tests/page/browser.mjs", address, engine, MODULES],
        input=json.dumps({"jobs": JOBS, "config": config, "log": LOG, "recordings": RECORDINGS}),
        env=os.environ | {"CHROMIUM": str(CHROMIUM)},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["failures"] == []
    assert len(told["answers"]) == len(JOBS) == 50
    for job, there, here in zip(JOBS, told["answers"], expected, strict=True):
        assert as_read(json.dumps(there)) == here, job
