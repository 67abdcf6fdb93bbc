"""Write the static page: python page/site.py OUT. Its files, the engine as an archive, Pyodide from node_modules.

The folder works from any static host and offline. The archive is the package without what needs torch or a
command line, and PyYAML's Python files, which Pyodide does not bring.
"""

from __future__ import annotations

import ast
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "vramcast"
PAGE = PACKAGE / "web" / "page"
PYODIDE = HERE / "node_modules" / "pyodide"
NEEDED = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
LEFT_OUT = ("virtual", "sandbox", "runtime", "accuracy", "cli")
# Reports of commands that the page has not.
LEFT_OUT_REPORTS = ("accuracy", "gaps", "trace", "host", "sweep", "params", "divisions")
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)


def main(out: Path) -> None:
    if not PYODIDE.is_dir():
        sys.exit(f"{PYODIDE} is missing: run `make site`, which installs it from the npm registry")
    shutil.rmtree(out, ignore_errors=True)
    (out / "pyodide").mkdir(parents=True)
    for path in PAGE.iterdir():
        shutil.copy(path, out / path.name)
    for name in ("style.css", "timeline_model.js", "timeline_chart.js"):
        shutil.copy(PACKAGE / "report" / name, out / name)
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}')
    (out / "index.html").write_text(page, encoding="utf-8")
    settings = {"engine": "browser", "pyodide": "./pyodide/", "packages": ["engine.tar.bz2"]}
    (out / "engine.json").write_text(json.dumps(settings), encoding="utf-8")
    write_engine(out / "engine.tar.bz2")
    for name in NEEDED:
        shutil.copy(PYODIDE / name, out / "pyodide" / name)
    own = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    python = sum(path.stat().st_size for path in (out / "pyodide").iterdir())
    print(f"{out}: {own:,} B, and {python:,} B of Pyodide. Any static host serves it.")


def write_engine(path: Path) -> None:
    """As one stream, which takes half of what the files take one by one."""
    with tarfile.open(path, "w:bz2", compresslevel=9) as archive:
        for name, source in sorted(engine_files()):
            data = source.read_bytes()
            data = without_prose(data) if source.suffix == ".py" else data
            entry = tarfile.TarInfo(name)
            entry.size = len(data)  # no times, no owners: equal sources give equal bytes
            archive.addfile(entry, io.BytesIO(data))


def without_prose(source: bytes) -> bytes:
    """Without comments and docstrings, which a browser need not load."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                first.value.value = ""
    return ast.unparse(tree).encode()


def engine_files() -> Iterator[tuple[str, Path]]:
    for path in PACKAGE.rglob("*"):
        part = path.relative_to(PACKAGE).parts[0]
        if part == "report" and path.name.startswith(LEFT_OUT_REPORTS):
            continue
        if (
            path.is_file()
            and "__pycache__" not in path.parts
            and part not in LEFT_OUT
            and PAGE not in path.parents
            and not path.name.endswith((".js", ".html"))  # of reports that are written to files
        ):
            yield path.relative_to(PACKAGE.parent).as_posix(), path
    for path in Path(yaml.__file__).parent.glob("*.py"):
        yield f"yaml/{path.name}", path


if __name__ == "__main__":
    main(Path(sys.argv[1]))
