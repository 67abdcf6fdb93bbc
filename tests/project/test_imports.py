"""Imports point one way, torch stays where it belongs, and the light paths stay light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "vramcast"
FILES = sorted(SRC.rglob("*.py"))

# A module imports modules of lower layers, and of its own package.
LAYER = {
    "errors": 0, "patches": 0, "callable_package": 0, "units": 1, "everyday_words": 1, "files": 2, "ledger": 2,
    "sample_lengths": 3, "sandbox": 3, "job": 4,
    "jobfile": 5, "catalog": 5, "allocator": 5, "host": 5,
    "runtime": 6, "models": 6, "snapshot": 6, "traces": 6, "forecast": 7, "timelines": 7, "setup": 7,
    "configs": 8,
    "engine": 8, "virtual": 9,
    "forecasting": 10,
    "accuracy": 11, "plan": 11,
    "diagnose": 12,
    "report": 13, "api": 13,
    "web": 14,
    "cli": 15,
    "__init__": 16, "__main__": 16,
}  # fmt: skip
# The vocabulary, and `host`, which needs nothing else: a training job does not pay for the planner.
RUNTIME_MAY_IMPORT = {"errors", "units", "ledger", "job", "host", "runtime"}
# Upward, inside a function, with the reason beside it in the code.
LAZY_EXCEPTIONS = {("models/read/model.py", "virtual"), ("everyday_words.py", "catalog")}
HEAVY = ("torch", "transformers", "peft", "accelerate")
MAY_IMPORT_TORCH = {"virtual", "runtime"}


def imports(tree: ast.AST, *, lazy: bool) -> Iterator[str]:
    """The names of imported modules; those inside functions only if asked for."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, lazy=lazy)


def package_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def targets(path: Path, *, lazy: bool) -> Iterator[str]:
    """Our own packages that a file imports."""
    for name in imports(ast.parse(path.read_text(encoding="utf-8")), lazy=lazy):
        if name.startswith("vramcast."):
            yield name.split(".")[1]


def test_every_package_has_a_layer() -> None:
    unplaced = sorted({package_of(path) for path in FILES}.difference(LAYER))
    assert unplaced == [], "give it a place in LAYER"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_down(path: Path) -> None:
    here, name = package_of(path), path.relative_to(SRC).as_posix()
    for target in targets(path, lazy=True):
        allowed = target == here or LAYER[target] < LAYER[here] or (name, target) in LAZY_EXCEPTIONS
        assert allowed, f"{name} imports {target}"
        assert here != "runtime" or target in RUNTIME_MAY_IMPORT, f"{name} imports {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_only_the_virtual_gpu_and_the_runtime_import_torch(path: Path) -> None:
    named = {
        name.partition(".")[0]
        for name in imports(ast.parse(path.read_text(encoding="utf-8")), lazy=True)
    }
    assert package_of(path) in MAY_IMPORT_TORCH or not named.intersection(HEAVY)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_only_the_command_line_prints(path: Path) -> None:
    # The runtime is a guest in a training job, and its monitor may be asked to print.
    if package_of(path) in ("cli", "runtime", "__main__"):
        return
    calls = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    )
    assert [call.lineno for call in calls if ast.unparse(call.func) in PRINTING] == []


PRINTING = ("print", "sys.stdout.write", "sys.stderr.write")
# Packages that compute: reports take their records (classes), never their functions or constants.
COMPUTING = ("engine", "plan", "virtual", "sandbox")


@pytest.mark.parametrize(
    "path", sorted((SRC / "report").rglob("*.py")), ids=lambda path: str(path.relative_to(SRC))
)
def test_reports_compute_nothing(path: Path) -> None:
    functions = [f"{module}.{name}" for module, name in imported_names(path) if not _is_class(name)]
    assert functions == [], "compute it in cli, plan, diagnose or engine, and pass a record"


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """What a file takes from packages that compute: module and name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if _computes(alias.name))
        elif isinstance(node, ast.ImportFrom) and _computes(node.module or ""):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _computes(module: str) -> bool:
    top, _, inner = module.partition(".")
    return top == "vramcast" and inner.partition(".")[0] in COMPUTING


def _is_class(name: str) -> bool:
    return name[:1].isupper() and not name.isupper()


LIGHT = {
    "import vramcast": "import vramcast",
    "--help": "from vramcast.cli import main; main(['--help'])",
    "params": "from vramcast.cli import main; main(['params', 'phi-3-mini'])",
    "gpus": "from vramcast.cli import main; main(['gpus'])",
    "estimate": "from vramcast.cli import main; main(['estimate', 'phi-3-mini', '--gpu', 'a100-80gb'])",
    "estimate --json": "from vramcast.cli import main; main(['estimate', 'phi-3-mini', '--gpu', 'rtx4090', '--json'])",
}
TOO_HEAVY = (*HEAVY, "numpy", "pandas", "pyarrow", "fastapi", "starlette", "uvicorn", "plotly")


@pytest.mark.parametrize("code", LIGHT.values(), ids=LIGHT.keys())
def test_the_light_paths_load_nothing_heavy(code: str) -> None:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert loaded.intersection(TOO_HEAVY) == set()
    assert "vramcast" in loaded


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by bare name; two of one name hide each other."""
    names = [
        path.name for path in (SRC.parents[1] / "tests").rglob("*.py") if path.name != "conftest.py"
    ]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
