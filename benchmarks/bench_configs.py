"""What reading a framework's files adds to an answer: `estimate --from FILES` beside the same job said by flags.

    python benchmarks/bench_configs.py

Both are cold processes, in turns, and the best of several runs is shown, because a busy machine only ever adds time.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = 5
ALLOWED_S = 0.2
EXAMPLES = (
    ("llama-factory.yaml",),
    ("axolotl.yaml",),
    ("trl.yaml", "accelerate.yaml", "deepspeed.json"),
    ("ms-swift.sh",),
    ("openrlhf.sh",),
    ("unsloth_train.py",),
    ("model_config.yaml",),
)


def main() -> int:
    print(f"{'flags s':>8}  {'files s':>8}  {'more s':>7}  {'ratio':>5}  files")
    worst = 0.0
    for names in EXAMPLES:
        files = [str(ROOT / "docs/configs" / name) for name in names]
        flags = _flags_of(files)
        pairs = [(_cpu_s(flags), _cpu_s(["--from", *files])) for _ in range(RUNS)]
        by_flags, by_files = (min(column) for column in zip(*pairs, strict=True))
        worst = max(worst, by_files - by_flags)
        more, ratio = by_files - by_flags, by_files / by_flags
        print(f"{by_flags:8.3f}  {by_files:8.3f}  {more:7.3f}  {ratio:5.2f}  {' '.join(names)}")
    return 0 if worst <= ALLOWED_S else 1


def _flags_of(files: list[str]) -> list[str]:
    """The job that `vramcast job` understands, as a job file with the model as an argument."""
    printed = _run(["job", "--from", *files, "--json"])
    job = {key: value for key, value in json.loads(printed)["job"].items() if value is not None}
    flags = [str(job.pop("model"))]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        json.dump({key: value for key, value in job.items() if value != []}, file)
    return [*flags, "--job", file.name]


def _run(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "vramcast", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def _cpu_s(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(["estimate", *arguments, "--gpu", "rtx4090"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
