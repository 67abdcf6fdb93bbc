"""Run every benchmark and write docs/performance.md: what each printed, with the date and the versions.

python benchmarks/report.py [NAME ...]     all benchmarks, or only those whose file name contains a NAME
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
PAGE = HERE.parent / "docs" / "performance.md"
PACKAGES = ("vramcast", "torch", "transformers", "numpy", "pyarrow", "datasets")


def main(names: list[str]) -> int:
    files = [path for path in sorted(HERE.glob("bench_*.py")) if not names or any(name in path.name for name in names)]
    parts = [_heading()]
    for path in files:
        print(f"== {path.name}", flush=True)
        done = subprocess.run(
            [sys.executable, str(path)], cwd=HERE.parent, env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
        print(done.stdout, flush=True)
        if done.returncode:
            print(f"{path.name} failed", file=sys.stderr)
            return 1
        parts.append(f"## {_title(path)}\n\n`python benchmarks/{path.name}`\n\n```\n{done.stdout.rstrip()}\n```\n")
    if not names:
        PAGE.write_text("\n".join(parts), encoding="utf-8")
    return 0


def _heading() -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return (
        "# Performance\n\nWritten by `make bench`; not edited by hand. Figures are ratios or times of one run on one "
        "machine, side by side.\n\n"
        f"{datetime.date.today().isoformat()}, Python {platform.python_version()}, {os.cpu_count()} cores, {versions}\n"
    )


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
