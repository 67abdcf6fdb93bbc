"""How fast plans are: candidates priced per second in the table's core, and whole commands from start to answer.

The core adds what moves (by moment, micro-batch and length) and what lies there (by moment and optimizer) and takes the
largest; recording and folding the regimes comes before it and is timed with the commands.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

import numpy

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.prices.peaks import MOMENTS, Recording
from vramcast.job import Job
from vramcast.models.read.model import read_model
from vramcast.models.record.program import Sizes
from vramcast.setup import resolve

BATCHES, SEQS, OPTIMIZERS = 256, 128, ("adamw", "sgd", "adafactor", "adamw-8bit", "lion")
WANTED_PER_S, WANTED_S = 1_000_000, 1.0
INNER = "layers.2[567].mlp.up_proj,layers.2[567].mlp.down_proj"
PPO = "--reference same --reward same --critic same --rollout-tokens 512"
COMMANDS = (
    "qwen2.5-7b --gpu rtx4090 --seq 4096",
    "llama-3.1-8b --gpu a100-80gb --seq 4096",
    "phi-3-mini --gpu a100-80gb --batch 4 --seq 1024 --reference same --reference-dtype fp32",
    "flan-t5-xl --gpu 16GiB --seq 512",
    "t5-3b --gpu 16GiB --seq 512 --batch 4",
    "llama-3.1-8b --gpu rtx4090 --gpus 2 --seq 2048",
    "mixtral-8x7b --gpu a100-40gb --gpus 8 --seq 2048",
    "llama-3.1-70b --gpu h100-80gb --gpus 8 --seq 4096",
    f"llama-3.2-3b --gpu a100-40gb --batch 4 --seq 1024 {PPO}",
    "phi-3-mini --gpu a100-80gb --batch 4 --seq 1024 --attention eager --framework lightning --reference same",
    "llama-3.1-70b --gpu h100-80gb --gpus 8 --seq 4096 --strategy zero3 --framework deepspeed",
    "qwen2-vl-2b --gpu rtx4090 --seq 2048 --images 1 --batch 2",
    "flan-t5-xl --gpu 16GiB --seq 512 --batch 4",
    "qwen2.5-32b --gpu a100-80gb --gpus 8 --seq 4096 --strategy zero2",
    "llama-3.1-405b --gpu rtx4090 --gpus 8 --seq 2048",
    "gemma-3-27b --gpu 24GiB --seq 4096 --lora-rank 16 --quantize nf4 --framework hf",
    "internlm2.5-7b --gpu rtx4090 --seq 4096 --mean-seq 900",
    f"qwen2-vl-7b --gpu rtx4090 --second-gpu --seq 420 --images 1 --precision bf16-true --edit {INNER}",
)


def candidates_per_s() -> float:
    """One regime with all micro-batches, lengths and optimizers, the recording included."""
    job = Job(model="qwen2.5-7b", gpu="rtx4090", checkpointing="full")
    config = read_model("qwen2.5-7b").config
    assert config is not None
    started = time.process_time()
    b, s = numpy.meshgrid(
        numpy.arange(1, BATCHES + 1), 64 * numpy.arange(1, SEQS + 1), indexing="ij"
    )
    recording = Recording(
        resolve(job), config, find_gpu("rtx4090"), Sizes(batch=b, seq=s, target_seq=s)
    )
    passes, others = recording.passes(resolve(job)), recording.others(resolve(job))
    moving = {
        phase: numpy.broadcast_to(passes[phase] + others[phase], b.shape)
        for phase in MOMENTS
        if phase in passes
    }
    fitting = 0
    for optimizer in OPTIMIZERS:
        persistent = recording.persistent(
            resolve(
                Job(model="qwen2.5-7b", gpu="rtx4090", checkpointing="full", optimizer=optimizer)
            )
        )
        peak = numpy.zeros(b.shape, numpy.int64)
        for phase, grid in moving.items():
            numpy.maximum(peak, grid + persistent[phase], out=peak)
        fitting += int((peak <= 24 * 2**30).sum())
    return len(OPTIMIZERS) * b.size / (time.process_time() - started)


def command_s(words: str) -> tuple[float, int]:
    """Seconds from the start of `vramcast plan` to its answer, the best of three, since neighbours only ever add; and
    how many plans that was. With bytecode as an installed package has it, whatever the environment says: compiling it
    takes a tenth of a second."""
    return min(_once(words) for _ in range(3))


def _once(words: str) -> tuple[float, int]:
    before = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "vramcast", "plan", *words.split(), "--json"], stdout=subprocess.PIPE, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
    )  # fmt: skip
    took, found = time.perf_counter() - before, json.loads(done.stdout)
    return took, len(found["plans"])


def main() -> None:
    rate = max(candidates_per_s() for _ in range(3))
    print(
        f"{rate / 1e6:.1f} million candidates per second, {rate / WANTED_PER_S:.1f} of what is wanted\n"
    )
    print(f"{'s':>6}  {'plans':>5}  vramcast plan")
    seconds = []
    for words in COMMANDS:
        taken, plans = command_s(words)
        seconds.append(taken)
        print(f"{taken:6.2f}  {plans:>5}  {words}", flush=True)
    middle = statistics.median(seconds)
    print(f"{middle:6.2f}  median, {middle / WANTED_S:.2f} of what is wanted")


if __name__ == "__main__":
    main()
