"""Hugging Face's cache without a network, and the Hub through the real client against a server on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import UnsupportedError
from vramcast.models.read.hub import find_cached
from vramcast.models.read.model import read_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# Two layers of q, k, v, o, gate, up, down and two norms; embedding, head and the last norm.
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 2 * 64
PARAMS = 2 * LAYER + 2 * 256 * 64 + 64
TENSORS = {
    f"model.layers.{layer}.{name}.weight": shape
    for layer in range(2)
    for name, shape in {
        "self_attn.q_proj": [64, 64],
        "self_attn.k_proj": [32, 64],
        "self_attn.v_proj": [32, 64],
        "self_attn.o_proj": [64, 64],
        "mlp.gate_proj": [96, 64],
        "mlp.up_proj": [96, 64],
        "mlp.down_proj": [64, 96],
        "input_layernorm": [64],
        "post_attention_layernorm": [64],
    }.items()
} | {"model.embed_tokens.weight": [256, 64], "lm_head.weight": [256, 64], "model.norm.weight": [64]}


def safetensors(tensors: dict[str, list[int]]) -> bytes:
    header, at = {}, 0
    for name, shape in tensors.items():
        nbytes = 2 * int(prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


# ---- the cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "MODELSCOPE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


def put(cache: Path, name: str, config: dict[str, Any], commit: str = COMMIT) -> Path:
    """As huggingface_hub lays it out: the snapshot's files point into `blobs`."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    blob = folder / "blobs" / commit
    blob.write_text(json.dumps(config))
    (snapshot / "config.json").symlink_to(os.path.relpath(blob, snapshot))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return snapshot


def count(text: str) -> int:
    return sum(param.numel for param in read_model(text).table() if param.tied_to is None)


def test_a_model_in_the_cache_is_found_by_its_id(cache: Path) -> None:
    snapshot = put(cache, "somebody/my-llama-3.1-8b-sft", CONFIG)
    source = read_model("somebody/my-llama-3.1-8b-sft")
    assert count("somebody/my-llama-3.1-8b-sft") == PARAMS
    assert any(str(snapshot) in note for note in source.notes)


def test_a_revision_is_a_branch_or_a_commit(cache: Path) -> None:
    put(cache, "somebody/x", CONFIG)
    other = "f" * 40
    put(cache, "somebody/x", {**CONFIG, "num_hidden_layers": 1}, other)
    assert count("somebody/x") == PARAMS - LAYER
    assert count(f"somebody/x@{COMMIT}") == PARAMS
    (cache / "models--somebody--x/refs/v1").write_text(COMMIT)
    assert count("somebody/x@v1") == PARAMS
    assert find_cached("somebody/x@v2") is None


def test_what_the_catalog_holds_is_the_same_on_every_machine(cache: Path) -> None:
    put(cache, "Qwen/Qwen3-0.6B", {**CONFIG, "model_type": "qwen3"})
    assert read_model("Qwen/Qwen3-0.6B").name == "qwen3-0.6b"
    # Another owner's, and a quantised copy, are read where they are.
    put(cache, "evil/Qwen3-0.6B", CONFIG)
    put(cache, "unsloth/Qwen3-0.6B-bnb-4bit", CONFIG)
    assert count("evil/Qwen3-0.6B") == count("unsloth/Qwen3-0.6B-bnb-4bit") == PARAMS


def test_weights_in_the_cache_confirm_the_config(cache: Path) -> None:
    snapshot = put(cache, "a/b", CONFIG)
    (snapshot / "model.safetensors").write_bytes(safetensors(TENSORS))
    assert read_model("a/b").warnings == ()
    (snapshot / "model.safetensors").write_bytes(safetensors({**TENSORS, "extra.weight": [3]}))
    assert "(+3)" in read_model("a/b").warnings[0]
    (snapshot / "model.safetensors").write_bytes(b"no header")  # a download that was cut off
    assert read_model("a/b").warnings == ()


def test_modelscope_keeps_plain_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "somebody" / "x-1___5b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert count("somebody/x-1.5b") == PARAMS


@pytest.mark.parametrize(
    "name", ["../../etc", "a/../b", "a--b", "a/b@../../main", "models--a--b", ""]
)
def test_a_name_never_leads_out_of_the_cache(cache: Path, name: str) -> None:
    put(cache, "a/b", CONFIG)
    assert find_cached(name) is None


def test_without_a_cache_the_name_is_unknown(cache: Path) -> None:
    with pytest.raises(UnsupportedError, match="--hub"):
        read_model("nobody/nothing-known")


# ---- the Hub


class Server(ThreadingHTTPServer):
    """Answers as the Hub does, for the paths that the client asks. `asked` keeps what was sent."""

    files: dict[str, bytes]
    asked: list[tuple[str, str, int]]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        repo = "/".join(self.path.removeprefix("/api/models").strip("/").split("/")[:2])
        if repo == "org/missing":
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if repo == "org/gated":
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if repo == "org/slow" and self.command == "GET":
            time.sleep(20)
        name = self.path.partition("/resolve/main/")[2].partition("?")[0]
        data = self.server.files.get(f"{repo}/{name}")
        if data is None:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        etag = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        span = self.headers.get("Range", "")
        if span.startswith("bytes="):
            first, _, last = span.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1 if last else None]
            etag["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            return self.answer(206, part, etag)
        return self.answer(200, data, etag)

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        is_head = self.command == "HEAD"
        self.server.asked.append((self.command, self.path, 0 if is_head else len(data)))
        self.send_response(status)
        for key, value in {**headers, "X-Repo-Commit": COMMIT}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not is_head:
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[Server]:
    config = json.dumps(CONFIG).encode()
    weights = safetensors(TENSORS)
    server = Server(("127.0.0.1", 0), Handler)
    server.asked = []
    server.files = {
        "org/whole/config.json": config,
        "org/whole/model.safetensors": weights,
        "org/other/config.json": config,
        "org/other/model.safetensors": safetensors({**TENSORS, "extra.weight": [5]}),
        "org/bare/config.json": config,
        "org/slow/config.json": config,
        "org/cut/config.json": config,
        "org/cut/model.safetensors": struct.pack("<Q", 10**9) + b"{}",
        "org/nonsense/config.json": b"<html>sign in</html>",
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def ask(hub: Server, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it: the client reads HF_ENDPOINT when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(folder),
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", "vramcast", "params", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )


@pytest.mark.slow
def test_the_hub_is_asked_for_sizes_and_never_for_weights(hub: Server, tmp_path: Path) -> None:
    done = ask(hub, tmp_path, "org/whole", "--hub", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["params_total"] == PARAMS
    weights = 2 * PARAMS
    assert sum(nbytes for _, _, nbytes in hub.asked) < weights
    # What was fetched is in the cache: without --hub, and without the server's help, it is known.
    hub.asked.clear()
    again = ask(hub, tmp_path, "org/whole", "--json")
    assert json.loads(again.stdout)["model"]["params_total"] == PARAMS
    assert hub.asked == []


@pytest.mark.slow
def test_without_being_asked_no_connection_is_made(hub: Server, tmp_path: Path) -> None:
    done = ask(hub, tmp_path, "org/whole")
    assert done.returncode == 2
    assert "--hub" in done.stderr
    assert hub.asked == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/gated", "org/gated is gated: accept its conditions"),
        ("org/missing", "org/missing is not on the Hub, or is private"),
        ("org/slow", "org/slow did not come in time"),
        ("org/cut", "org/cut has a safetensors file that cannot be read"),
        ("org/nonsense", "not a readable JSON config"),
        ("org/x/y", "takes a model's id on the Hub"),
    ],
)
def test_what_goes_wrong_is_one_line(hub: Server, tmp_path: Path, name: str, said: str) -> None:
    done = ask(hub, tmp_path, name, "--hub")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.slow
def test_a_checkpoint_that_differs_is_said_and_one_without_safetensors_is_read(
    hub: Server, tmp_path: Path
) -> None:
    assert "(+5)" in ask(hub, tmp_path, "org/other", "--hub").stdout
    done = ask(hub, tmp_path, "org/bare", "--hub", "--json")
    assert json.loads(done.stdout)["model"]["params_total"] == PARAMS
