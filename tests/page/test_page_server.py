"""`vramcast serve` against a hostile client: foreign hosts and origins, paths, bodies, files; and slow answers."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.errors import InputError, VramcastError
from vramcast.web.answers import ANSWERS, answer, command_of, python_of
from vramcast.web.given import Place, read_given
from vramcast.web.pool import Busy, Pool

CONFIG = (
    Path(__file__).parents[2] / "src/vramcast/catalog/data/models/llama-3.2-1b.json"
).read_text("utf-8")
Reply = tuple[int, dict[str, str], bytes]


class Server:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if data is not None else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if data is None else "POST"), path, data, given)
        reply = connection.getresponse()
        found = (reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        connection.close()
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that may be named, and beside it one that may not."""
    home = tmp_path_factory.mktemp("models")
    for name in ("open", "closed"):
        (home / name).mkdir()
        (home / name / "config.json").write_text(CONFIG, encoding="utf-8")
    (home / "open" / "link").symlink_to(home / "closed")
    return home


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    command = [
        sys.executable,
        "-m",
        "vramcast",
        "serve",
        str(folder / "open"),
        "--port",
        str(port),
        "--processes",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert str(port) in process.stdout.readline()
    for _ in range(100):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield Server(port)
    process.terminate()
    process.wait()


def test_an_estimate_is_what_the_command_prints(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, data = server.ask("/api/estimate", {"job": {"model": "gpt2", "gpu": "rtx4090"}})
    assert status == 200
    main(["estimate", "gpt2", "--gpu", "rtx4090", "--json"])
    assert data.decode() + "\n" == capsys.readouterr().out


def test_headers_are_strict(server: Server) -> None:
    status, headers, page = server.ask("/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert b"http://" not in page
    assert b"https://" not in page


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1.evil.example:8617", ""])
def test_foreign_hosts_are_refused(server: Server, host: str) -> None:
    assert server.ask("/", Host=host)[0] == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_foreign_origins_are_refused(server: Server, origin: str) -> None:
    assert server.ask("/api/estimate", {"job": {"model": "gpt2"}}, Origin=origin)[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/pool.py",
        "//etc/passwd",
        "/app.js/../../server.py",
        "/page/app.js",
    ],
)
def test_no_path_leads_to_the_disk(server: Server, path: str) -> None:
    assert server.ask(path)[0] == 404


@pytest.mark.parametrize("key", ["model", "critic-model", "lengths", "dataset"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "~/.ssh/id_rsa", "../config.json", "pyproject.toml", "./src"]
)
def test_no_key_reads_the_disk(server: Server, key: str, path: str) -> None:
    job = {"model": "gpt2", "critic": "same", key: path}
    status, _, data = server.ask("/api/estimate", {"job": job})
    assert status == 422
    assert b"root:" not in data


def test_named_folders_are_read_and_their_neighbours_are_not(server: Server, folder: Path) -> None:
    for path, wanted in (
        (folder / "open", 200),
        (folder / "closed", 422),
        (folder / "open" / "link", 422),
        (folder / "open" / ".." / "closed", 422),
    ):
        assert server.ask("/api/estimate", {"job": {"model": str(path)}})[0] == wanted


def test_a_dropped_config_is_read_and_its_place_is_not_told(server: Server) -> None:
    name = "../../evil/my model.json"
    status, _, data = server.ask("/api/explore", {"job": {"model": name}, "files": {name: CONFIG}})
    told = json.loads(data)
    assert status == 200
    assert told["forecast"]["model"]["params_total"] == 1_235_814_400
    assert told["forecast"]["job"]["model"] == name
    assert b"/tmp" not in data


def test_bodies_are_bounded(server: Server) -> None:
    assert server.ask("/api/diagnose", b" " * (11 << 20))[0] == 413
    files = {"a.json": "x" * (2 << 20)}
    assert server.ask("/api/estimate", {"job": {"model": "a.json"}, "files": files})[0] == 422


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"job": 1}',
        b'{"job": {}}',
        b'{"job": {"model": "gpt2", "batch": [1]}}',
        b'{"job": {"model": "gpt2", "batch": 1e99}}',
        b'{"job": {"model": "\\u0000"}}',
        b'{"job": {"model": "gpt2", "nonsense": 1}}',
        b'{"job": {"model": "gpt2"}, "lang": "xx"}',
        b'{"job": {"model": "gpt2"}, "more": 1}',
        b"\xff\xfe",
        b'{"job": {"model": ' + b"[" * 5000,
    ],
)
def test_mistakes_are_one_line(server: Server, body: bytes) -> None:
    status, _, data = server.ask(
        "/api/explore", body, method="POST", Content_Type="application/json"
    )
    assert status in (400, 422)
    assert "\n" not in json.loads(data)["error"]


def test_every_question_is_described(server: Server) -> None:
    described = json.loads(server.ask("/openapi.json")[2])["paths"]
    assert set(described) == {"/api/file", *(f"/api/{name}" for name in ANSWERS)}


def test_a_slow_answer_ends_and_the_next_one_comes(tmp_path: Path) -> None:
    async def asked() -> None:
        pool = Pool(Place(folder=tmp_path), count=1, seconds=0.001)
        with pytest.raises(Busy, match="no answer within"):
            await pool.ask("estimate", {"job": {"model": "gpt2"}})
        pool.close()
        pool = Pool(Place(folder=tmp_path), count=1)
        first, again = await asyncio.gather(
            *(pool.ask("estimate", {"job": {"model": "gpt2"}}) for _ in range(2))
        )
        assert first is again
        with pytest.raises(VramcastError, match="no-such-model"):
            await pool.ask("estimate", {"job": {"model": "no-such-model"}})
        pool.close()

    asyncio.run(asked())


# ---- questions, without a server


def test_changes_apply_and_do_what_they_say(tmp_path: Path) -> None:
    place = Place(folder=tmp_path)
    job: dict[str, Any] = {"model": "gpt2", "gpu": "24GiB", "batch": 8, "seq": 1024}
    before = answer("explore", {"job": job}, place)["forecast"]["verdict"]["process_bytes"]
    found = answer("changes", {"job": job}, place)
    assert not found["more"]
    assert len(found["changes"]) > 3
    for change in found["changes"][:3]:
        after = {
            **job,
            **{name: value for name, value in change["set"].items() if value is not None},
        }
        peak = answer("estimate", {"job": after}, place)["verdict"]["process_bytes"]
        assert peak == change["peak_bytes"] == before - change["frees_bytes"]


def test_long_work_is_done_in_pieces(tmp_path: Path) -> None:
    place, job = Place(folder=tmp_path), {"model": "gpt2", "gpu": "rtx4090", "seq": 256}
    some = answer("growth", {"job": job, "count": 2}, place)
    assert some["more"]
    assert [point["at"] for point in some["points"]] == [256, 512]
    points = {
        point["at"]: point["bytes"] for point in answer("growth", {"job": job}, place)["points"]
    }
    longer = answer("estimate", {"job": {**job, "seq": 512}}, place)
    assert points[512] == longer["verdict"]["process_bytes"]
    assert answer("cards", {"job": job, "count": 1}, place)["more"]


def test_a_job_in_other_words_is_the_same_job(tmp_path: Path) -> None:
    place = Place(folder=tmp_path)
    job = {
        "model": "gpt2",
        "gpu": "rtx4090",
        "qlora": True,
        "lora-targets": ["c_attn"],
        "pin-memory": False,
    }
    given = read_given({"job": job}, place)
    assert command_of(given.said).startswith(
        "vramcast estimate gpt2 --gpu rtx4090 --qlora --lora-targets c_attn"
    )
    scope: dict[str, Any] = {}
    exec(python_of(given.job).replace("print(", "str("), scope)
    assert (
        scope["forecast"].job == read_given({"job": job}, place).job or scope["forecast"].verdict()
    )
    read = answer(
        "read",
        {"name": "job.yaml", "text": answer("explore", {"job": job}, place)["copies"]["yaml"]},
        place,
    )
    assert read["kind"] == "job"
    assert read_given({"job": read["job"]}, place).job == given.job


def test_what_is_dropped_is_told_apart(tmp_path: Path) -> None:
    place = Place(folder=tmp_path)
    kinds = {"config.json": CONFIG, "train.log": "step 1", "job.yml": "model: gpt2"}
    found = {
        name: answer("read", {"name": name, "text": text}, place)["kind"]
        for name, text in kinds.items()
    }
    assert found == {"config.json": "model", "train.log": "log", "job.yml": "job"}
    with pytest.raises(InputError, match=r"bad\.yaml:1"):
        answer("read", {"name": "bad.yaml", "text": "nonsense: 1"}, place)


def test_a_frameworks_configuration_is_read_and_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    text = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: lora\nlora_rank: 32\n"
        f"cutoff_len: 3000\nper_device_train_batch_size: 2\nbf16: true\ndeepspeed: {tmp_path / 'secret.json'}\n"
    )
    place = Place(folder=tmp_path / "own")
    read = answer("read", {"name": "train.yaml", "text": text}, place)
    assert read["kind"] == "job"
    assert {"batch": 2, "lora-rank": 32, "seq": 3000}.items() <= read["job"].items()
    assert "zero" not in str(read["job"].get("strategy"))
    told = answer("estimate", {"job": read["job"]}, place)
    assert told["job"]["lora-rank"] == 32
