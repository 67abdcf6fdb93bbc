"""Formula against trace: a seeded grid of random jobs under several transformers, sorted by mechanism.

python benchmarks/gaps/run.py --seed 1 --jobs 40     the grid; `make gaps SEED=1 JOBS=40` is the same
python benchmarks/gaps/run.py --seed 1 --only 7      one job of it in full
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from vramcast.accuracy.gaps.draw import draw, draw_job
from vramcast.accuracy.gaps.run import run_grid
from vramcast.accuracy.gaps.trace_side import INSTALLED, Places
from vramcast.report.gaps import GapsReport, cell_text, gaps_json, gaps_page, gaps_text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "gaps.md"
WORKED_ON = HERE / "seeds_worked_on.txt"
VERSIONS = ("4.40.2", "4.46.3", "4.51.3", "4.57.6", INSTALLED)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=40, help="how many jobs are drawn (default 40)")
    parser.add_argument(
        "--only", type=int, default=None, metavar="N", help="job N of the seed, in full"
    )
    parser.add_argument(
        "--versions",
        default=",".join(VERSIONS),
        help=f"of transformers, with a list in environments/, or {INSTALLED} (default: all)",
    )
    parser.add_argument("--workers", type=int, default=1, help="traces at a time (default 1)")
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="take kept traces of the same jobs and libraries; the virtual GPU must be the same",
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="libraries and answers")
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    parser.add_argument("--write", action="store_true", help="write docs/gaps.md")
    return parser.parse_args(given)


def main(args: argparse.Namespace) -> int:
    one = args.only is not None
    jobs = [draw_job(args.seed, args.only)] if one else draw(args.seed, args.jobs)
    versions = tuple(args.versions.split(","))
    places = Places(
        scripts=HERE,
        environments=args.build.resolve() / "environments",
        jobs=args.build.resolve() / "gaps",
    )
    grid = run_grid(
        jobs,
        versions,
        places,
        workers=args.workers,
        reuse=args.reuse,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    report = GapsReport(
        seed=args.seed,
        jobs=len(jobs),
        grid=grid,
        versions=versions,
        written=_written(),
        worked_on=_seeds_worked_on(),
    )
    if args.json:
        print(json.dumps(gaps_json(report), indent=1))
    elif one:
        print("\n\n".join(cell_text(cell) for cell in grid.cells))
    else:
        print(gaps_text(report))
    if args.write and not one:
        PAGE.write_text(gaps_page(report), encoding="utf-8")
    return 0 if grid.cells else 1


def _seeds_worked_on() -> tuple[int, ...]:
    lines = WORKED_ON.read_text(encoding="utf-8").splitlines()
    return tuple(int(line) for line in lines if not line.startswith("#"))


def _written() -> str:
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    packages = ", ".join(f"{name} {version(name)}" for name in ("vramcast", "torch"))
    return f"{today}, Python {platform.python_version()}, {packages}"


if __name__ == "__main__":
    sys.exit(main(arguments()))
