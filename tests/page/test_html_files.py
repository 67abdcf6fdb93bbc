"""`--html`, `--svg` and `--png` of every command: one file each, self-contained, bounded, harmless."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.cli.pictures import asks_for_pictures
from vramcast.traces import record as traces

MOST_BYTES = 1_000_000
COMMANDS = {
    "estimate": "estimate llama-3.1-8b --gpu rtx4090 --lora --seq 2048",
    "estimate, zh": "estimate gpt2 --gpu rtx4090 --lang zh",
    "estimate, many GPUs": "estimate llama-3.1-405b --gpus 1024 --gpu h100-80gb --tp 8",
    "estimate, a count": "estimate --params 7B --gpu rtx4090",
    "estimate, generate": "estimate gpt2 --task generate --gpu rtx4090",
    "plan": "plan gpt2 --gpu 4GiB --batch 8 --seq 1024",
    "plan, zh": "plan gpt2 --gpu 4GiB --batch 8 --seq 1024 --lang zh",
    "plan, fits": "plan gpt2 --gpu rtx4090",
    "compare": "compare 'gpt2 --batch 4' 'gpt2 --batch 8' --gpu rtx4090",
    "sweep": "sweep gpt2 --gpu rtx4090",
    "sweep, large": "sweep gpt2 --batch 1..200:1 --seq 8..1024:8",
    "host": "host --params 7B --ram 16GiB",
}


def scripts_of(page: str) -> tuple[list[str], dict[str, object]]:
    """What runs, and the data."""
    data = {
        name: json.loads(text)
        for name, text in re.findall(
            r'<script id="([\w-]+)" type="application/json">(.*?)</script>', page, re.DOTALL
        )
    }
    return re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL), data


def check_page(page: str) -> dict[str, object]:
    """Self-contained, and only the script that the policy names runs. Returns the data."""
    running, data = scripts_of(page)
    assert len(page.encode()) < MOST_BYTES
    assert page.count("<script") == len(running) + len(data)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    digests = [
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in running
    ]
    assert allowed == digests
    shown = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?:\ssrc|\shref)\s*=|@import|url\(|\son\w+\s*=", shown)
    return data


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_writes_one_file(words: str, tmp_path: Path) -> None:
    page, picture = tmp_path / "out.html", tmp_path / "out.svg"
    flags = ["--html", str(page)]
    has_picture = words.split()[0] in ("estimate", "plan", "compare")
    if has_picture:
        flags += ["--svg", str(picture)]
    assert main([*shlex.split(words), *flags]) in (0, 1)
    data = check_page(page.read_text(encoding="utf-8"))
    if has_picture:
        ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    if words.startswith("estimate") and "--params" not in words:
        assert {"timeline-words", "timeline-0"} == set(data)


def test_a_large_sweep_says_that_it_is_thinned_out(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    main([*shlex.split(COMMANDS["sweep, large"]), "--html", str(page)])
    text = page.read_text(encoding="utf-8")
    assert "2,560 of 25,600 shown" in text
    assert text.count("<td") == 2560


def test_a_log_is_diagnosed_into_a_file(tmp_path: Path) -> None:
    log, page = tmp_path / "train.log", tmp_path / "out.html"
    log.write_text(
        "<script>alert(1)</script>\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has "
        "a total capacity of 23.64 GiB of which 1.10 GiB is free.",
        encoding="utf-8",
    )
    assert main(["diagnose", str(log), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert check_page(text) == {}
    assert "<script" not in text
    assert "2.00 GiB" in text


def trace_file(path: Path, source: str) -> Path:
    entry = {
        "category": "weights", "component": "w", "place": "cuda:0", "phases": ["load"], "nbytes": 1024,
        "origin": "traced", "level": "allocated", "source": source, "range_bytes": None,
    }  # fmt: skip
    stream = {
        "labels": [["weights", "w", source, "aten::empty", "load"]],
        "bytes": [1000, 4 << 20], "label": [0, 0], "stream": [0, 0], "events": [0, 1, -2],
    }  # fmt: skip
    data = {
        "format": traces.FORMAT, "version": traces.VERSION, "command": ["train.py"], "card": "24GiB",
        "capacity_bytes": 24 << 30, "context_bytes": 0, "allocator": "", "steps": 1, "ending": "ran",
        "entries": [entry], "cards": {"cuda:0": stream},
    }  # fmt: skip
    traces.write(path, data)
    return path


def test_two_traces_are_shown_side_by_side_and_hostile_names_stay_text(tmp_path: Path) -> None:
    names = ["</script><img src=x onerror=alert(1)>", "train.py:3"]
    files = [str(trace_file(tmp_path / f"{n}.trace", name)) for n, name in enumerate(names)]
    page, picture = tmp_path / "out.html", tmp_path / "out.svg"
    assert main(["compare", *files, "--html", str(page), "--svg", str(picture)]) == 0
    text = page.read_text(encoding="utf-8")
    data = check_page(text)
    assert "<img" not in text
    first = data["timeline-0"]
    assert isinstance(first, dict)
    assert first["labels"][0][2] == names[0]
    assert first["peak"] == {"event": 1, "bytes": 1024 + (4 << 20), "phase": "load"}


@pytest.mark.slow
def test_a_traced_script_is_shown_over_time(tmp_path: Path) -> None:
    script, page, picture = tmp_path / "train.py", tmp_path / "out.html", tmp_path / "out.svg"
    script.write_text(
        "import torch\nnet = torch.nn.Linear(512, 512).cuda()\nopt = torch.optim.AdamW(net.parameters())\n"
        "for _ in range(2):\n    net(torch.rand(8, 512, device='cuda')).sum().backward()\n    opt.step()\n"
        "    opt.zero_grad()\n",
        encoding="utf-8",
    )
    words = ["trace", str(script), "--gpu", "rtx4090", "--html", str(page), "--svg", str(picture)]
    assert main(words) == 0
    data = check_page(page.read_text(encoding="utf-8"))
    first = data["timeline-0"]
    assert isinstance(first, dict)
    categories = {label[0] for label in first["labels"]}
    assert {"weights", "gradients", "optimizer states"} <= categories
    assert any("train.py:5" in label[2] for label in first["labels"])


def test_a_png_needs_a_library_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert main(["estimate", "gpt2", "--png", str(tmp_path / "out.png")]) == 2
    assert "pip install 'vramcast[png]'" in capsys.readouterr().err


def test_a_png_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    assert main(["estimate", "gpt2", "--png", str(tmp_path / "out.png")]) == 0
    data = (tmp_path / "out.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width = int.from_bytes(data[16:20], "big")
    assert width == 1800


@pytest.mark.parametrize(
    "words",
    [
        "plan gpt2 --gpu 4GiB --try batch=1 --html out.html",
        "trace a.py --gpu rtx4090 --scale b=--b --svg out.svg",
    ],
)
def test_what_has_no_picture_says_so(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert "leave out --" in capsys.readouterr().err


def test_no_picture_is_made_unasked() -> None:
    class Nothing:
        html = svg = png = None

    assert not asks_for_pictures(Nothing())  # type: ignore[arg-type]


def test_a_path_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["host", "--html", str(tmp_path / "no" / "out.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- reports of scripts and machines in Chinese

# What stays English: names, code, units, and what the user's own files are called.
NAMES = re.compile(
    r"CUDA|GPU|CPU|GiB|MiB|KiB|MB|GB|RTX|GeForce|torch|PSS|/dev/shm|cuBLAS|trace|vramcast|nvidia-smi|cuda|python|numpy|"
    r"pyarrow|transformers|accelerate|nvidia|net|weight|bias|exp_avg|exp_avg_sq|aten|_foreach|sqrt|batch|train|py|step"
)


def prose_of(page: str) -> list[str]:
    """Runs of three and more English words that a reader sees."""
    shown = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.DOTALL)
    shown = re.sub(r"<[^>]+>", " | ", shown)
    found = re.findall(r"[A-Za-z]{2,}(?:[ ,;]+[A-Za-z]{2,}){2,}", shown)
    return [words for words in found if len(NAMES.sub("", words).split()) > 2]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["trace", "snapshot", "host"])
def test_reports_of_scripts_and_machines_are_whole_in_chinese(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pickle

    script, dump, page = tmp_path / "train.py", tmp_path / "a.pickle", tmp_path / "out.html"
    script.write_text(
        "import torch\nnet = torch.nn.Linear(64, 64).cuda()\nopt = torch.optim.AdamW(net.parameters())\n"
        "for _ in range(2):\n    net(torch.rand(8, 64, device='cuda')).sum().backward()\n    opt.step()\n"
        "    opt.zero_grad()\n",
        encoding="utf-8",
    )
    event = {"action": "alloc", "addr": 1 << 30, "size": 1 << 20, "stream": 0, "time_us": 2}
    snapshot = {"segments": [], "device_traces": [[event]], "allocator_settings": {}}
    dump.write_bytes(pickle.dumps(snapshot, protocol=4))
    words = {
        "trace": ["trace", str(script), "--gpu", "rtx4090"],
        "snapshot": ["snapshot", str(dump), "--replay"],
        "host": ["host", "--params", "7B", "--ram", "16GiB", "--gpus", "2", "--workers", "2"],
    }[command]
    assert main([*words, "--lang", "zh", "--html", str(page)]) in (0, 1)
    text = page.read_text(encoding="utf-8")
    check_page(text)
    assert '<html lang="zh-CN">' in text
    assert prose_of(text) == []
    assert prose_of(capsys.readouterr().out) == []
