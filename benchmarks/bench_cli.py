"""How long the command line takes, cold: wall seconds of whole processes, beside a bare interpreter.

    python benchmarks/bench_cli.py

The best of several runs is shown, because a busy machine only ever adds time. The ratio to `python -c pass` travels
between machines better than the seconds do.
"""

from __future__ import annotations

import subprocess
import sys
import time

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


def best_s(arguments: tuple[str, ...]) -> float:
    return min(_once_s(arguments) for _ in range(RUNS))


def _once_s(arguments: tuple[str, ...]) -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")
    return time.perf_counter() - start


def main() -> int:
    bare_s = best_s(BARE)
    print(f"{'seconds':>8}  {'÷ bare':>6}  command")
    for arguments in COMMANDS:
        seconds = best_s(arguments)
        print(f"{seconds:8.3f}  {seconds / bare_s:6.1f}  python {' '.join(arguments)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
