"""The static page's engine, as `page/site.py` packs it, in a fresh Python that sees nothing else of the package."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
from pathlib import Path

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


@pytest.mark.slow
def test_the_packed_engine_starts_and_answers(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("page_site", ROOT / "page" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    site.write_engine(tmp_path / "engine.tar.bz2")
    with tarfile.open(tmp_path / "engine.tar.bz2") as archive:
        archive.extractall(tmp_path / "engine", filter="data")
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
    ]
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, tmp_path / "engine"]
    done = subprocess.run(
        [*command, json.dumps(questions)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    package, loader, torch, asked = json.loads(done.stdout)
    assert Path(package).is_relative_to(tmp_path)
    assert Path(loader).is_relative_to(tmp_path)
    assert torch is False
    assert asked["estimate"]["verdict"]["fits"] is True
    assert asked["explore"]["html"]["verdict"]
