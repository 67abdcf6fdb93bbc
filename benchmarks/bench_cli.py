"""How long the command line takes, cold: seconds of whole processes, beside a bare interpreter.

    python benchmarks/bench_cli.py

The best of several runs is shown, because a busy machine only ever adds time; CPU seconds suffer less from neighbours
than wall seconds. The ratio to `python -c pass` travels between machines better than either.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass

RUNS = 7
BARE = ("-c", "pass")
COMMANDS = (
    BARE,
    ("-c", "import vramcast"),
    ("-m", "vramcast", "--help"),
    ("-m", "vramcast", "estimate", "--help"),
    ("-m", "vramcast", "gpus"),
    ("-m", "vramcast", "models"),
    ("-m", "vramcast", "params", "phi-3-mini"),
    ("-m", "vramcast", "params", "deepseek-v3"),
    ("-m", "vramcast", "estimate", "phi-3-mini", "--gpu", "a100-80gb"),
    ("-m", "vramcast", "estimate", "phi-3-mini", "--gpu", "a100-80gb", "--json"),
)


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    cpu_s: float
    wall_s: float


def best(arguments: tuple[str, ...]) -> Cost:
    return min(_once(arguments) for _ in range(RUNS))


def _once(arguments: tuple[str, ...]) -> Cost:
    before, start = _children_s(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        env={
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",
        },  # compiled code is kept, as it is for users
        stdout=subprocess.DEVNULL,
        check=False,
    )
    cost = Cost(_children_s() - before, time.perf_counter() - start)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")
    return cost


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    bare = best(BARE)
    print(f"{'wall s':>8}  {'cpu s':>8}  {'÷ bare':>6}  command")
    for arguments in COMMANDS:
        cost = best(arguments)
        ratio = cost.cpu_s / bare.cpu_s
        print(f"{cost.wall_s:8.3f}  {cost.cpu_s:8.3f}  {ratio:6.1f}  python {' '.join(arguments)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
