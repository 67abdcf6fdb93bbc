"""Odd inputs for every reader, until the time is up: `python tests/fuzz/fuzz_readers.py --minutes 20`.

A normal answer or one line of error is what should come. Anything else, more than ten seconds or more than a GiB is a
finding: it is made smaller and stored in tests/fuzz/corpus/<reader>/, where test_corpus.py holds what was mended.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent))

from targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
MOST_SECONDS = 10
MOST_BYTES = 2**30
TURN_SECONDS = 20.0  # of one reader before the next one's turn
SMALLER_TRIES = 300


class TooLong(BaseException):
    """Not an Exception: no reader may take it for a mistake in its input."""


def signature(error: BaseException) -> str:
    """What went wrong and where, for short."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "vramcast" in frame.filename
    ]
    place = f"{Path(frames[-1].filename).stem}-{frames[-1].name}" if frames else "nowhere"
    return f"{type(error).__name__}-{place}".replace("<", "").replace(">", "")


def outcome(target: Target, folder: Path, data: bytes) -> str:
    """Empty when all is well."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(
        signal.ITIMER_PROF, MOST_SECONDS
    )  # of processor time: others may use the machine
    try:
        target.run(folder, data)
    except (Exception, TooLong) as error:
        return signature(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return "TooMuchMemory" if grown > MOST_BYTES // 2 else ""


def smaller(data: bytes, fails_alike: Callable[[bytes], bool]) -> bytes:
    """Pieces are left out for as long as it fails in the same way."""
    piece, tries = max(len(data) // 2, 1), 0
    while piece and tries < SMALLER_TRIES:
        at = 0
        while at < len(data) and tries < SMALLER_TRIES:
            tries += 1
            less = data[:at] + data[at + piece :]
            if fails_alike(less):
                data = less
            else:
                at += piece
        piece //= 2
    return data


def work(name: str, seed: int, beat: mmap.mmap, current: Path, seen: Path) -> None:
    """One reader's turn, in a process of its own."""
    signal.signal(signal.SIGPROF, _stop)
    limit = _size_bytes() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    target, rng, end = TARGETS[name], random.Random(seed), time.monotonic() + TURN_SECONDS
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            data = target.make(rng)
            current.write_bytes(data)
            number += 1
            beat[:8] = struct.pack("<Q", number)
            found = outcome(target, Path(folder), data)
            if found and _is_new(seen / f"{name}-{found}"):
                if not found.startswith(("TooLong", "TooMuch")):
                    data = smaller(
                        data, lambda less, found=found: outcome(target, Path(folder), less) == found
                    )
                _store(name, found, data)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _size_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _is_new(mark: Path) -> bool:
    """Once per run: the same failure has many inputs."""
    if mark.exists():
        return False
    mark.touch()
    return True


def _store(name: str, found: str, data: bytes) -> None:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found}-{hashlib.sha256(data).hexdigest()[:8]}"
    path.write_bytes(data)
    print(f"finding: {path.relative_to(CORPUS.parent)} ({len(data)} bytes)", flush=True)


def _warm_up(target: Target) -> None:
    """Seeds are made and modules imported once, not in every turn; and a seed must be answered."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for seed in target.seeds()[:3]:
            target.run(Path(folder), target.write(seed, rng))


def turn(name: str, seed: int, seen: Path) -> tuple[int, float]:
    """Runs one turn; how many inputs, and the seconds of processor time they took."""
    beat = mmap.mmap(-1, 8)
    with tempfile.TemporaryDirectory() as folder:
        current = Path(folder) / "current"
        child = os.fork()
        if child == 0:
            try:
                work(name, seed, beat, current, seen)
                os._exit(0)
            except BaseException:
                traceback.print_exc(limit=-4)
                os._exit(1)
        status, usage = _watched(child, beat)
        if status not in (0, 256):
            _store(
                name,
                "Hang" if os.WTERMSIG(status) == signal.SIGKILL else f"Died-{status}",
                current.read_bytes(),
            )
    return struct.unpack("<Q", beat[:8])[0], usage.ru_utime + usage.ru_stime


def _watched(child: int, beat: mmap.mmap) -> tuple[int, resource.struct_rusage]:
    """Waits; a child that neither goes on nor hears its own clock is ended."""
    last, since = beat[:8], time.monotonic()
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return status, usage
        if beat[:8] != last:
            last, since = beat[:8], time.monotonic()
        elif time.monotonic() - since > SMALLER_TRIES * MOST_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="of processor time, shared by the readers"
    )
    parser.add_argument("--only", nargs="+", choices=sorted(TARGETS), default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.sched_setaffinity(
        0, {min(os.sched_getaffinity(0))}
    )  # one core: `plan` starts no second process
    counts, used = dict.fromkeys(args.only, 0), dict.fromkeys(args.only, 0.0)
    sys.modules["torch"] = None  # type: ignore[assignment]  # to build a model that no family describes takes too long
    for target in args.only:
        _warm_up(TARGETS[target])
    with tempfile.TemporaryDirectory() as seen, contextlib.suppress(KeyboardInterrupt):
        while sum(used.values()) < 60 * args.minutes:
            name = min(args.only, key=lambda name: used[name])
            number, seconds = turn(name, args.seed, Path(seen))
            args.seed += 1
            counts[name] += number
            used[name] += max(seconds, 0.1)
    for name in args.only:
        print(f"{name:<20} {counts[name]:>9,} inputs {used[name] / 60:6.2f} CPU minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
