"""How fast all legal topologies of a cluster are priced: 405B on 1,024 GPUs, in processor time.

tp × pp × cp × recomputation × micro-batch, each with the allocated bytes of its fullest stage.
"""

from __future__ import annotations

import time

from vramcast.engine.parallel.divisions import search_divisions
from vramcast.job import Job, Precision

WANTED_S = 2.0


def main() -> None:
    job = Job(
        model="llama-3.1-405b",
        gpus=1024,
        strategy="zero1",
        precision=Precision.BF16_MASTER,
        seq=8192,
        gpu="h100-80gb",
    )
    times = []
    for _ in range(3):
        started = time.process_time()
        found = search_divisions(job)
        times.append(time.process_time() - started)
    fitting = sum(candidate.fits is True for candidate in found)
    print(f"{len(found):,} topologies of llama-3.1-405b on 1,024 GPUs, {fitting:,} of which fit")
    print(f"{min(times):.2f} s of one core (asked: under {WANTED_S} s)")


if __name__ == "__main__":
    main()
