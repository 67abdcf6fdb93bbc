"""How long plans of random jobs take.

python benchmarks/bench_plan_random.py [SEED]

Jobs are drawn from every model of the catalog, cards of 8 to 80 GB, 1 to 64 GPUs and most options, sensible together
or not; those that the engine refuses are drawn again.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOBS, WANTED_S, SHOWN = 200, 1.0, 5
CARDS = "rtx3060 rtx4080 rtx4090 rtx5090 t4 v100-32gb a10 l4 a100-40gb a100-80gb h100-80gb 8GiB 12GiB 48GiB"
LENGTHS = ("128", "512", "1024", "2048", "4096", "8192")
# Those of the frozen answers: the same jobs whatever the catalog gains.
MODELS = (Path(__file__).parents[1] / "tests" / "frozen" / "models.txt").read_text().split()
COUNTS = (1,) * 6 + (2, 4, 8, 16, 64)
# With which probability, and one of which.
OFTEN = {
    "--batch": (0.6, "1 2 4 8 16"),
    "--accumulate": (0.2, "2 4 8"),
    "--precision": (0.5, "fp32 bf16-true bf16-mixed fp16-mixed bf16-master"),
    "--attention": (0.25, "eager sdpa flash math"),
    "--checkpointing": (0.2, "full selective every-2"),
    "--lora-rank": (0.2, "16"),
    "--reference": (0.2, "same cpu"),
    "--teacher": (0.05, "same"),
    "--optimizer": (0.1, "sgd adafactor adamw-8bit lion muon"),
}
ALONE = {
    "--framework": (0.5, "plain hf lightning accelerate trl torchtune"),
    "--mean-seq": (0.15, "100 400 900"),
    "--longest-seq": (0.1, "4096"),
    "--quantize": (0.1, "nf4"),
}
TOGETHER = {
    "--framework": (1.0, "plain hf torchtune deepspeed megatron torchtitan"),
    "--strategy": (0.7, "ddp fsdp1 fsdp2 zero1 zero2 zero3"),
    "--tp": (0.2, "2 4"),
    "--pp": (0.15, "2"),
}
PPO = "--reward same --critic same --rollout-tokens 512"


@dataclass(frozen=True, slots=True)
class Answered:
    seconds: float
    words: str
    found: dict[str, Any]

    @property
    def plans(self) -> int:
        return len(self.found["plans"])


def random_job(draw: random.Random) -> str:
    count = draw.choice(COUNTS)
    words = [
        draw.choice(MODELS),
        "--gpu",
        draw.choice(CARDS.split()),
        "--seq",
        draw.choice(("128", "1024", "4096")),
    ]
    words += ["--gpus", str(count)] if count > 1 else []
    for flag, (often, values) in {**OFTEN, **(TOGETHER if count > 1 else ALONE)}.items():
        words += [flag, draw.choice(values.split())] if draw.random() < often else []
    words += ["--evaluate"] if draw.random() < 0.1 else []
    words += PPO.split() if draw.random() < 0.06 else []
    return " ".join(words)


def answered(words: str) -> Answered | None:
    """None: the engine does not model such a job."""
    before = time.perf_counter()
    command = [sys.executable, "-m", "vramcast", "plan", *words.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - before
    if done.returncode == 2:
        assert done.stderr.startswith("vramcast:"), done.stderr
        return None
    return Answered(took, words, json.loads(done.stdout))


def main(seed: int) -> None:
    draw = random.Random(seed)
    runs: list[Answered] = []
    while len(runs) < JOBS:
        run = answered(random_job(draw))
        runs += [run] if run is not None else []
    runs.sort(key=lambda run: run.seconds)
    above = sum(run.seconds > WANTED_S for run in runs)
    middle, ninth = runs[len(runs) // 2].seconds, runs[len(runs) * 9 // 10].seconds
    print(
        f"seed {seed}: {JOBS} jobs, {above} above {WANTED_S:g} s; median {middle:.2f} s, 90 % below {ninth:.2f} s\n"
    )
    for run in runs[-SHOWN:]:
        print(f"{run.seconds:6.2f}  {run.plans} plans  {run.words}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
