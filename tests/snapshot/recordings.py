"""Snapshot files of runs whose truth is known: the naive allocator runs a random program and is recorded."""

from __future__ import annotations

import pickle
import random
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naive_allocator import NaiveAllocator, NoMemory

MIB = 1 << 20


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


FRAMES = [
    [
        frame("/home/user/train.py", 10 + i, f"step_{i}"),
        frame("/home/user/train.py", 99, "<module>"),
    ]
    for i in range(9)
]


@dataclass(frozen=True)
class Recording:
    """What the recorder kept: the last `events`, and what was true before the first and after each of them."""

    allocator: NaiveAllocator
    events: list[dict[str, Any]]
    figures: list[tuple[int, int]]
    settings_text: str

    @property
    def peak_allocated(self) -> int:
        return max(allocated for allocated, _ in self.figures)

    @property
    def peak_reserved(self) -> int:
        return max(reserved for _, reserved in self.figures)

    def content(self) -> dict[str, Any]:
        return {
            "segments": self.allocator.segments(),
            "device_traces": [self.events],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": self.settings_text,
                "max_split_size": -1,
            },
        }

    def write(self, path: Path, protocol: int = 4) -> Path:
        path.write_bytes(pickle.dumps(self.content(), protocol))
        return path


def record(
    settings_text: str = "", *, seed: int, steps: int = 400, keep: int | None = None, capacity: int | None = None,
    streams: tuple[int, ...] = (0,), private: bool = False, delays: bool = False, **naive: Any,
) -> Recording:  # fmt: skip
    """A random program; `keep` is the size of the recorder's ring buffer."""
    rng = random.Random(seed)
    allocator = NaiveAllocator(**({} if capacity is None else {"capacity": capacity}), **naive)
    live, waiting = [], []
    for _ in range(steps):
        dice = rng.random()
        if live and dice < 0.45:
            piece = live.pop(rng.randrange(len(live)))
            wait = delays and rng.random() < 0.3
            allocator.free(piece, wait=wait)
            waiting += [piece] * wait
        elif waiting and dice < 0.55:
            allocator.complete(waiting.pop(0))
        elif dice > 0.99:
            allocator.empty_cache()
            waiting.clear()
        else:
            size = rng.choice(
                [100, 5000, 300_000, MIB, 3 * MIB, 7 * MIB, 15 * MIB, 33 * MIB]
            ) + rng.randrange(100_000)
            pool = (1, 0) if private and rng.random() < 0.2 else (0, 0)
            with suppress(NoMemory):
                live.append(allocator.malloc(size, rng.choice(streams), pool, rng.choice(FRAMES)))
            waiting = [piece for piece in waiting if piece.state == "waiting"]
    start = 0 if keep is None else max(0, len(allocator.events) - keep)
    return Recording(allocator, allocator.events[start:], allocator.figures[start:], settings_text)
