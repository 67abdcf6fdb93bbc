"""What the monitor costs: the same training steps with and without it, interleaved, and its calls on their own.

    python benchmarks/bench_monitor.py [--steps 200]

Steps are run in short alternating blocks, so that a machine that slows down slows both. The share is the monitor's
own time per step (three phases and end_step, with the slow readings at their default interval) over the time of a
step.
"""

import argparse
import statistics
import time

import torch
from torch import nn

from vramcast.runtime import MemoryMonitor


def make_step(width: int, rows: int):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(rows, width)

    def step(monitor: MemoryMonitor | None) -> None:
        mark = monitor.mark if monitor else lambda name: None
        mark("forward")
        loss = model(x).pow(2).mean()
        mark("backward")
        loss.backward()
        mark("step")
        optimizer.step()
        optimizer.zero_grad()
        if monitor:
            monitor.end_step()

    return step


def timed(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def own_time_s(monitor: MemoryMonitor, steps: int) -> float:
    def calls() -> None:
        for name in ("forward", "backward", "step"):
            monitor.mark(name)
        monitor.end_step()

    return sum(timed(calls) for _ in range(steps)) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=512)
    args = parser.parse_args()
    step = make_step(args.width, args.rows)
    with MemoryMonitor() as monitor:
        for _ in range(5):
            step(monitor)
        without, watched = [], []
        for _ in range(args.steps // 10):
            without += [timed(lambda: step(None)) for _ in range(10)]
            watched += [timed(lambda: step(monitor)) for _ in range(10)]
        own_s = own_time_s(monitor, 2000)
    plain_s = statistics.median(without)
    print(f"step without monitor   {plain_s * 1e3:8.3f} ms (median of {len(without)})")
    print(f"step with monitor      {statistics.median(watched) * 1e3:8.3f} ms")
    print(
        f"the monitor's own time {own_s * 1e3:8.3f} ms per step = {own_s / plain_s:.2%} of a step"
    )


if __name__ == "__main__":
    main()
