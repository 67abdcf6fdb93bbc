"""What the protection of files costs a trace: the same script without it, in a namespace, and behind the guard.

    python benchmarks/bench_protection.py [ROUNDS]

Processor seconds of the whole command and its processes, one kind after the other in every round, so that a busy or
slow machine weighs on all three; the table has the median of the rounds' ratios.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = {
    "nanoGPT style, 2 steps": ["train_gpt.py", "--gpu", "rtx4090", "--steps", "2"],
    "transformers Trainer, 2 steps and a checkpoint": [
        "train_trainer.py",
        "--gpu",
        "rtx4090",
        "--steps",
        "2",
    ],
}
KINDS = {
    "none": ["--no-protect"],
    "namespace": ["--protect", "namespace"],
    "guard": ["--protect", "guard"],
}


def processor_seconds(words: list[str], folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(script: str, options: list[str], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, flags in KINDS.items():
            with tempfile.TemporaryDirectory() as folder:
                words = [
                    sys.executable,
                    "-m",
                    "vramcast",
                    "trace",
                    str(EXAMPLES / script),
                    *options,
                    *flags,
                    "--json",
                ]
                seconds[kind].append(processor_seconds(words, folder))
    return seconds


def main(rounds: int) -> None:
    print(f"{'script':<48} {'none':>8} {'namespace':>18} {'guard':>18}")
    for name, (script, *options) in SCRIPTS.items():
        seconds = measure(script, options, rounds)
        plain = statistics.median(seconds["none"])
        cells = [f"{plain:>6.2f} s"]
        for kind in ("namespace", "guard"):
            ratios = [
                mine / none for mine, none in zip(seconds[kind], seconds["none"], strict=True)
            ]
            cells.append(
                f"{statistics.median(seconds[kind]):>8.2f} s × {statistics.median(ratios):.3f}"
            )
        print(f"{name:<48} {cells[0]:>8} {cells[1]:>18} {cells[2]:>18}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
