"""The static page's engine, as `page/site.py` packs it, in a fresh Python that sees nothing else of the package."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# The imports and the call of src/vramcast/web/page/worker.js.
PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from vramcast.report.as_json import json_text
from vramcast.web.answers import answer
from vramcast.web.given import Place
import vramcast, yaml
place = Place(folder=Path("/dropped"))
asked = {}
for question, request in json.loads(sys.argv[2]):
    asked[question] = json.loads(json_text(answer(question, request, place)))
print(json.dumps([vramcast.__file__, yaml.__file__, "torch" in sys.modules, asked]))
"""


def _packed(tmp_path: Path) -> Path:
    spec = importlib.util.spec_from_file_location("page_site", ROOT / "page" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    site.write_engine(tmp_path / "engine.tar.bz2")
    with tarfile.open(tmp_path / "engine.tar.bz2") as archive:
        archive.extractall(tmp_path / "engine", filter="data")
    return tmp_path / "engine"


def _asked(engine: Path, questions: list[tuple[str, Any]]) -> dict[str, Any]:
    """Answers of a Python that has neither torch nor anything else but what is packed."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, engine, json.dumps(questions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    package, loader, torch, asked = json.loads(done.stdout)
    assert Path(package).is_relative_to(engine)
    assert Path(loader).is_relative_to(engine)
    assert torch is False
    return dict(asked)


@pytest.mark.slow
def test_the_packed_engine_starts_and_answers(tmp_path: Path) -> None:
    request = {"job": {"model": "gpt2", "gpu": "rtx4090"}}
    questions = [
        ("catalog", {}),
        ("estimate", request),
        ("explore", request),
        ("changes", request | {"skip": 0, "count": 1}),
        ("growth", request | {"axis": "batch", "count": 1}),
        ("cards", request | {"count": 1}),
        ("timeline", request),
        ("diagnose", {"text": "nothing"}),
        (
            "effects",
            {"job": {"model": "gpt2", "workers": 4, "gpus-per-node": 4, "optimizer": "adamw"}},
        ),
    ]
    asked = _asked(_packed(tmp_path), questions)
    assert asked["estimate"]["verdict"]["fits"] is True
    assert asked["explore"]["html"]["verdict"]
    assert asked["effects"]["same"] == {"gpus-per-node": "nothing", "optimizer": "default"}


@pytest.mark.slow
def test_a_model_of_which_only_a_count_is_known_is_no_fp32_file(tmp_path: Path) -> None:
    """Where no torch is, llama.cpp's file was billed as one fp32 vector: twice of what it is, and without a word."""
    engine = _packed(tmp_path)
    job = {"model": "mamba-370m", "gpu": "rtx4090", "engine": "llama.cpp"}
    asked = _asked(engine, [("explore", {"job": job})])["explore"]
    params = asked["forecast"]["model"]["params_total"]
    (buffer,) = [e["bytes"] for e in asked["forecast"]["entries"] if e["category"] == "weights"]
    assert 2 * params <= buffer < 2.01 * params  # the checkpoint's 16 bit
    assert "only how many parameters" in asked["forecast"]["warnings"][0]
    assert "vramcast estimate mamba-370m" in asked["missing"]["command"]
