"""What the allocator model and the snapshot reader cost: events per second, and memory for large files.

    python benchmarks/bench_allocator.py [--snapshot-events 200000]

Seconds are CPU seconds, best of three, because a busy machine only ever adds time. The snapshot is written the way
torch writes one: protocol 4, call stacks of 20 to 70 shared frames. 1,500,000 events make a file of 230 MiB.
"""

from __future__ import annotations

import argparse
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vramcast.allocator import Allocator, AllocatorSettings, Block
from vramcast.units import KiB, MiB

SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8")
READ = (
    "import sys, time\n"
    "from vramcast.snapshot.analysis import analyse\n"
    "from vramcast.snapshot.reader import read_snapshot\n"
    "start = time.process_time(); snapshot = read_snapshot(sys.argv[1]); read = time.process_time() - start\n"
    "analysis = analyse(snapshot, 0, with_replay=True); total = time.process_time() - start\n"
    "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
    "print(read, total - read, peak, analysis.replay.same_address, analysis.replay.allocations)\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--snapshot-events",
        type=int,
        default=200_000,
        help="events of the snapshot that is made and read",
    )
    arguments = parser.parse_args()
    for live in (500, 5_000, 50_000):
        steps = program(1_000_000, live)
        for text in SETTINGS if live == 500 else SETTINGS[:1]:
            print(
                f"1,000,000 events, about {live:>6,} live blocks: {best(steps, text):5.2f} s  {text or 'defaults'}",
                flush=True,
            )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        write_snapshot(path, arguments.snapshot_events)
        print(read_report(path, arguments.snapshot_events))


def program(events: int, live_target: int) -> list[int]:
    """Positive: a request; negative: free the live block of that number."""
    rng = random.Random(0)
    sizes = [
        rng.choice([512, 4 * KiB, 64 * KiB, MiB, 3 * MiB, 8 * MiB, 40 * MiB])
        + rng.randrange(100_000)
        for _ in range(2000)
    ]
    steps, live = [], 0
    for _ in range(events):
        if live and (live > live_target or rng.random() < 0.48):
            steps.append(-1 - rng.randrange(live))
            live -= 1
        else:
            steps.append(rng.choice(sizes))
            live += 1
    return steps


def best(steps: list[int], text: str) -> float:
    return min(once(steps, text) for _ in range(3))


def once(steps: list[int], text: str) -> float:
    allocator = Allocator(settings=AllocatorSettings.parse(text))
    live: list[Block] = []
    start = time.process_time()
    for step in steps:
        if step >= 0:
            live.append(allocator.malloc(step))
        else:
            index = -1 - step
            live[index], live[-1] = live[-1], live[index]
            allocator.free(live.pop())
    return time.process_time() - start


def write_snapshot(path: Path, events: int) -> None:
    rng = random.Random(0)
    frames = [
        {"filename": f"/lib/torch/nn/module_{i % 40}.py", "line": i, "name": f"function_{i}"}
        for i in range(3000)
    ]
    stacks = [[rng.choice(frames) for _ in range(rng.randrange(20, 70))] for _ in range(1500)]
    allocator, trace, live = Allocator(), [], []
    for step in program(events // 2, 1500):
        if len(trace) >= events:
            break
        segments_before = allocator.segments.num_device_alloc
        if step >= 0:
            live.append(allocator.malloc(step))
            block = live[-1]
            if allocator.segments.num_device_alloc != segments_before:
                head = block  # a new segment starts with the block that it was taken for
                size = allocator.segments.segment_size(allocator.rounded(step))
                trace.append(event("segment_alloc", head.address, size, []))
            trace.append(event("alloc", block.address, step, list(rng.choice(stacks))))
        else:
            index = -1 - step
            live[index], live[-1] = live[-1], live[index]
            block, stack = live.pop(), list(rng.choice(stacks))
            trace += [
                event(f"free_{half}", block.address, block.requested, stack)
                for half in ("requested", "completed")
            ]
            allocator.free(block)
    content = {
        "segments": segments(allocator, live),
        "device_traces": [trace],
        "allocator_settings": {},
    }
    with path.open("wb") as file:
        pickle.dump(content, file, protocol=4)


def event(action: str, address: int, size: int, frames: list[Any]) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": 1_700_000_000_000_000,
        "frames": frames,
    }


def segments(allocator: Allocator, live: list[Block]) -> list[dict[str, Any]]:
    free = [
        block
        for pair in allocator.segments.pools.values()
        for pool in pair
        for block in pool.free_blocks()
    ]
    return [segment(block) for block in (*free, *live) if block.prev is None]


def segment(head: Block) -> dict[str, Any]:
    blocks, block = [], head
    while block is not None:
        state = "active_allocated" if block.state else "inactive"
        blocks.append(
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": state,
            }
        )
        block = block.next  # type: ignore[assignment]
    return {
        "device": 0, "address": head.address, "total_size": sum(each["size"] for each in blocks), "stream": 0,
        "segment_type": "small" if head.pool.is_small else "large", "blocks": blocks,
    }  # fmt: skip


def read_report(path: Path, events: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
    )
    read_s, rest_s, peak_kib, same, allocations = (float(word) for word in done.stdout.split())
    return (
        f"snapshot of {path.stat().st_size / MiB:,.0f} MiB, {events:,} events: read in {read_s:.1f} s, analysed and "
        f"replayed in {rest_s:.1f} s, peak memory {peak_kib / 1024:,.0f} MiB, "
        f"{same:,.0f} of {allocations:,.0f} addresses the same"
    )


if __name__ == "__main__":
    main()
