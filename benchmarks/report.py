"""Run benchmarks and write docs/performance.md: what each printed, each with its date and the versions.

python benchmarks/report.py [NAME ...]     all benchmarks, or only those whose file name contains a NAME: the others
                                           keep their part of the page
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADING = (
    "# Performance\n\nWritten by `make bench`; not edited by hand. Figures are ratios or times of one run on one "
    "machine, side by side. Pages of their own: `benchmarks/dataset.md`, `host.md` and `host-kinds.md`.\n"
)
PAGE = HERE.parent / "docs" / "performance.md"
OWN_PAGE = (
    "bench_dataset.py",
    "bench_host.py",
    "bench_host_kinds.py",
)  # dataset.md, host.md, host-kinds.md
PACKAGES = ("vramcast", "torch", "transformers", "numpy", "pyarrow", "datasets")


def main(names: list[str]) -> int:
    every = sorted(HERE.glob("bench_*.py"))
    known = [path for path in every if path.name not in OWN_PAGE]
    parts = _written([_title(path) for path in every])
    for path in (path for path in known if not names or any(name in path.name for name in names)):
        print(f"== {path.name}", flush=True)
        done = subprocess.run(
            [sys.executable, str(path)], cwd=HERE.parent, env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
        print(done.stdout, flush=True)
        if done.returncode:
            print(f"{path.name} failed", file=sys.stderr)
            return 1
        shown = f"`python benchmarks/{path.name}`, {_when()}\n\n```\n{done.stdout.rstrip()}\n```\n"
        parts[_title(path)] = f"## {_title(path)}\n\n{shown}"
    found = [parts[title] for title in map(_title, known) if title in parts]
    PAGE.write_text("\n".join([HEADING, *found]), encoding="utf-8")
    return 0


def _written(titles: list[str]) -> dict[str, str]:
    """What the page has of each benchmark; what they print may have headings of its own."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    starts = {title: text.find(f"\n## {title}\n") + 1 for title in titles}
    ends = sorted((*(start for start in starts.values() if start), len(text)))
    return {
        title: f"{text[start : next(end for end in ends if end > start)].rstrip()}\n"
        for title, start in starts.items()
        if start
    }


def _when() -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    today = datetime.date.today().isoformat()
    return f"{today}, Python {platform.python_version()}, {os.cpu_count()} cores, {versions}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _title(path: Path) -> str:
    first = path.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0]
    return first.rstrip(".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
