"""What the interpreter and its libraries hold before any work is done: measured figures, with versions.

In: names in the order of import. Out: private bytes (once per process) and mapped file bytes (shared by all processes
of the machine). The CPU figures were read with `vramcast.host.processes` after each import in one process; the CUDA
ones come from public reports, of which none tells private from shared, and carry the range those reports span.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.errors import unknown
from vramcast.ledger import Origin
from vramcast.units import KiB, MiB

BUILDS = ("cpu", "cuda")
_HERE = "measured on Linux x86-64, Python 3.11.7, one thread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What one import adds to a process that has made the imports before it."""

    name: str
    version: str
    private_bytes: int
    file_bytes: int
    origin: Origin = Origin.MEASURED
    source: str = _HERE
    range_bytes: tuple[int, int] | None = None  # of the private part

    @property
    def private_range_bytes(self) -> tuple[int, int]:
        return self.range_bytes or (self.private_bytes, self.private_bytes)


PYTHON = Library(name="python", version="3.11.7", private_bytes=6963 * KiB, file_bytes=6144 * KiB)
_IMPORTS = (
    Library(name="numpy", version="2.4.6", private_bytes=7270 * KiB, file_bytes=6451 * KiB),
    Library(name="pyarrow", version="26.0.1", private_bytes=8090 * KiB, file_bytes=27853 * KiB),
    Library(name="torch", version="2.13.0+cpu", private_bytes=133018 * KiB, file_bytes=60826 * KiB),
    Library(
        name="transformers", version="5.22.2", private_bytes=109158 * KiB, file_bytes=7782 * KiB
    ),
    Library(name="accelerate", version="1.15.0", private_bytes=2048 * KiB, file_bytes=0),
    Library(name="peft", version="0.21.2", private_bytes=6144 * KiB, file_bytes=307 * KiB),
    Library(
        name="bitsandbytes", version="0.49.2", private_bytes=43755 * KiB, file_bytes=2700 * KiB
    ),
    Library(name="datasets", version="5.2.0", private_bytes=38195 * KiB, file_bytes=16282 * KiB),
)
KNOWN = {library.name: library for library in _IMPORTS}

# torch's first backward, optimizer and DataLoader: kernels touched, autograd's thread, their arenas.
FIRST_STEP = Library(
    name="first step", version="torch 2.13.0+cpu", private_bytes=4 * MiB, file_bytes=11 * MiB
)

# pytorch#159432 (2.9, A100): PSS 500.74 MB with torch and torchvision imported, the GPU untouched.
# metatrain#1229 (GH200, 2026): 0.4 GiB per spawned worker.
CUDA_TORCH = Library(
    name="torch",
    version="CUDA build, 2.9",
    private_bytes=400 * MiB,
    file_bytes=0,
    origin=Origin.ASSUMED,
    source="pytorch#159432, metatrain#1229",
    range_bytes=(250 * MiB, 1000 * MiB),
)
# discuss.pytorch.org 124078: 410 MB before `.cuda()`, 1.95 GB after; pytorch#12873: 1.9 GB. Both before CUDA loaded its
# modules lazily (11.7), so this is the upper end for a newer one, where no public figure was found.
CUDA_CONTEXT = Library(
    name="cuda context, host side",
    version="CUDA < 11.7",
    private_bytes=1468 * MiB,
    file_bytes=0,
    origin=Origin.ASSUMED,
    source="discuss.pytorch.org 124078, pytorch#12873",
    range_bytes=(200 * MiB, 1800 * MiB),
)

# A worker process that has served a few hundred batches: pages that counting references has made private.
FORKED_WORKER_BYTES = 13 * MiB
FORKED_WORKER_RANGE = (11 * MiB, 17 * MiB)
# What a full garbage collection adds: it writes into every Python object that the parent made, and a forked worker gets
# a copy of their pages. Measured by `gc.collect()` in 1 to 4 workers; `LowMemDataset` freezes those objects instead.
COLLECTED_BYTES = {"torch": 37 * MiB, "transformers": 51 * MiB}
FRAGMENTED_WORKER_BYTES = 100 * MiB
SPAWN_TRACKER_BYTES = 8 * MiB  # multiprocessing's resource tracker, one per parent


def launcher(build: str) -> Library:
    """torchrun and the like: a process that imports torch, starts the ranks and waits.

    Its mapped files are those of the ranks. `accelerate launch` imports more: the upper end.
    """
    imported = libraries(("torch",), build)
    ranges = [library.private_range_bytes for library in imported]
    torch = imported[-1]
    return Library(
        name="launcher",
        version="torchrun",
        private_bytes=sum(library.private_bytes for library in imported),
        file_bytes=0,
        origin=torch.origin,
        source=f"{torch.source}; torchrun 147 MiB, accelerate launch 174 MiB with a CPU build",
        range_bytes=(
            sum(low for low, _ in ranges),
            sum(high for _, high in ranges) + 30 * MiB,
        ),
    )


def collected_bytes(names: tuple[str, ...]) -> int:
    """The most that a full garbage collection makes private in a forked worker; all of an import if not measured."""
    return sum(COLLECTED_BYTES.get(name, KNOWN[name].private_bytes) for name in names)


def libraries(names: tuple[str, ...], build: str) -> tuple[Library, ...]:
    """What a process that imports these holds, interpreter first, in the order of import."""
    if build not in BUILDS:
        raise unknown("torch build", build, BUILDS)
    for name in names:
        if name not in KNOWN:
            raise unknown(
                "library", name, KNOWN, "Measure others with vramcast.host.processes.family_use()."
            )
    imported = [library for library in _IMPORTS if library.name in {"numpy", *names}]
    if build == "cuda" and KNOWN["torch"] in imported:
        imported[imported.index(KNOWN["torch"])] = CUDA_TORCH
    return (PYTHON, *imported)
