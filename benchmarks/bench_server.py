"""`vramcast serve` with many requests in flight: errors, growth of memory, and how long an estimate takes.

    python benchmarks/bench_server.py                 # half a minute
    python benchmarks/bench_server.py --minutes 10    # the whole

Every client asks again as soon as it is answered, so that `--clients` requests are in flight at any time. The mixes
differ in how many jobs the server has not seen before:

    same       one job, again and again
    5 %        of a hundred jobs that were asked before, one in twenty new
    50 %       one in two new
    different  every job new

Beside each mix another process asks the engine itself, without a server, for the same kind of jobs on the same busy
machine: "×" is a time of the server's divided by the median of these. What is new has to be computed, and clients that
never pause soon all wait for new jobs: with C of them on P processes C/P jobs stand in line before each, whoever
serves. "line ×" says so; no server can be faster. Memory is that of the server's own process, and of those that answer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MODELS = ("gpt2", "qwen3-8b", "llama-3.1-8b", "phi-3-mini")
NEW = {
    "same": 0.0,
    "5 %": 0.05,
    "50 %": 0.5,
    "different": 1.0,
}  # share of jobs that were not asked before
KNOWN = 100  # jobs that were
SEED = 7

ENGINE = """
import json, sys, time
from vramcast.forecasting import estimate
from vramcast.job import job_from
from vramcast.report.as_json import forecast_json, json_text
for line in sys.stdin:
    job = job_from(json.loads(line))
    began = time.perf_counter()
    json_text(forecast_json(estimate(job)))
    print(time.perf_counter() - began, flush=True)
"""

Job = dict[str, object]


@dataclass
class Measured:
    """Of one mix."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    resident: list[tuple[int, int]] = field(default_factory=list)  # server, answering processes


def new_jobs() -> Iterator[Job]:
    """Jobs on one card that differ from each other."""
    chosen = random.Random(SEED)
    for number in itertools.count():
        yield {
            "model": MODELS[number % len(MODELS)],
            "gpu": "h100-80gb",
            "tuning": "lora",
            "batch": chosen.randint(1, 8),
            "seq": 128 + number // len(MODELS) % 800,
            "lora-rank": 4 + number // (len(MODELS) * 800) % 60,
        }


def asked_jobs(share: float, new: Iterator[Job], known: list[Job]) -> Iterator[Job]:
    chosen = random.Random(SEED)
    while True:
        if share == 0.0:
            yield known[0]
        else:
            yield next(new) if chosen.random() < share else chosen.choice(known)


# ---- the server


def start_server(processes: int) -> tuple[subprocess.Popen[str], int]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    command = [sys.executable, "-m", "vramcast", "serve"]
    server = subprocess.Popen(
        [*command, "--port", str(port), "--processes", str(processes)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    server.stdout.readline()
    while True:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return server, port
        time.sleep(0.1)


def resident_bytes(root: int) -> tuple[int, int]:
    """Of a process, and of all below it."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(name))
    own, below, waiting = 0, 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += parents.get(process, [])
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except OSError:
            continue
        size = pages * os.sysconf("SC_PAGE_SIZE")
        own, below = (size, below) if process == root else (own, below + size)
    return own, below


async def client(port: int, jobs: Iterator[Job], until: float, measured: Measured) -> None:
    """One after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        body = json.dumps({"job": next(jobs)}).encode()
        head = (
            f"POST /api/estimate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(
            int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")
        )
        answer = await reader.readexactly(length)
        measured.seconds.append(time.perf_counter() - began)
        if " 200 " not in lines[0]:
            measured.errors.append(f"{lines[0]} {answer[:200]!r}")
    writer.close()


async def watch(server: int, until: float, measured: Measured) -> None:
    while time.perf_counter() < until:
        measured.resident.append(resident_bytes(server))
        await asyncio.sleep(1)


async def ask_engine(jobs: Iterator[Job], until: float, measured: Measured) -> None:
    """The engine itself, once a second, in a process of its own."""
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENGINE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert engine.stdin is not None
    assert engine.stdout is not None
    for number in itertools.count():
        if time.perf_counter() >= until and measured.engine:
            break
        engine.stdin.write(json.dumps(next(jobs)).encode() + b"\n")
        took = float(await engine.stdout.readline())
        if number >= len(MODELS):  # the first of every model reads its files
            measured.engine.append(took)
            await asyncio.sleep(1)
    engine.stdin.close()
    await engine.wait()


async def run_mix(
    port: int,
    server: int,
    share: float,
    known: list[Job],
    new: Iterator[Job],
    args: argparse.Namespace,
) -> Measured:
    measured = Measured()
    until = time.perf_counter() + 60 * args.minutes / len(NEW)
    jobs = asked_jobs(share, new, known)
    alone = iter(itertools.cycle(known[:1] if share == 0.0 else known))
    await asyncio.gather(
        watch(server, until, measured),
        ask_engine(alone, until, measured),
        *(client(port, jobs, until, measured) for _ in range(args.clients)),
    )
    return measured


# ---- what is told


def row(name: str, found: Measured, args: argparse.Namespace) -> str:
    median, p95 = (
        statistics.median(found.seconds),
        sorted(found.seconds)[int(0.95 * len(found.seconds))],
    )
    engine = statistics.median(found.engine)
    line = f"{args.clients / args.processes:.0f}" if NEW[name] else "–"
    return (
        f"{name:>10} {len(found.seconds):8,} {len(found.errors):7} {1e3 * engine:7.1f} {1e3 * median:7.1f} "
        f"{1e3 * p95:8.1f} {median / engine:7.2f} {p95 / engine:7.2f} {line:>7}   {_memory(found.resident)}"
    )


def _memory(resident: list[tuple[int, int]]) -> str:
    """The largest of each quarter of the time: server + answering processes."""
    quarter = max(1, len(resident) // 4)
    parts = [resident[start : start + quarter] for start in range(0, 4 * quarter, quarter)]
    return "  ".join(
        f"{max(own for own, _ in part) >> 20}+{max(below for _, below in part) >> 20}"
        for part in parts
        if part
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0.5, help="in all, over the four mixes")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    args = parser.parse_args()
    server, port = start_server(args.processes)
    new = new_jobs()
    known = [next(new) for _ in range(KNOWN)]
    print(
        f"{args.clients} in flight, {args.processes} answering processes, {os.cpu_count()} cores, "
        f"{args.minutes:g} minutes"
    )
    print(
        f"{'new jobs':>10} {'answers':>8} {'errors':>7} {'engine':>7} {'p50 ms':>7} {'p95 ms':>8} {'p50 ×':>7} "
        f"{'p95 ×':>7} {'line ×':>7}   MiB by quarter"
    )
    try:
        warm = Measured()  # fills caches of answers that the mixes call known
        asked = iter(known)
        for job in asked:
            await client(port, itertools.repeat(job), time.perf_counter() + 1e-9, warm)
        for name, share in NEW.items():
            found = await run_mix(port, server.pid, share, known, new, args)
            print(row(name, found, args), flush=True)
            for error in found.errors[:3]:
                print(f"           {error}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    asyncio.run(main())
