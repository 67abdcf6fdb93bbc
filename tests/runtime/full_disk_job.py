"""Writes to a place that gets full, then to the same place with room again. Prints what was said and left as JSON.

The place is either a small file system with a file that fills it (remove the file and there is room), or any folder
under a limit on the size of files, which the kernel answers with an error in the middle of a write.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from vramcast.errors import VramcastError
from vramcast.runtime import (
    LowMemDataset,
    ReferenceCache,
    ReferenceModel,
    precompute_reference,
    rewrite_row_groups,
)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 64)

    def forward(self, input_ids):
        return self.embed(input_ids)


@contextmanager
def limited(place: Path, way: str, room_bytes: int):
    """So much room and no more."""
    if way == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, resource.RLIM_INFINITY))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    kept = filler.stat().st_size - room_bytes
    with filler.open("rb+") as file:
        file.truncate(max(0, kept))
    yield
    filler.unlink()


def said(action):
    try:
        action()
    except VramcastError as error:
        return str(error)
    return None


def main(place: Path, way: str, source: Path) -> None:
    torch.manual_seed(0)
    model = Tiny().eval()
    data = [{"input_ids": torch.randint(0, 64, (64, 8))} for _ in range(60)]
    precompute = lambda: precompute_reference(ReferenceModel(model), data, place / "cache")  # noqa: E731
    rewrite = lambda: rewrite_row_groups(source, place / "small.parquet", group_bytes=50_000)  # noqa: E731
    found = {}
    with limited(place, way, 0):
        found["no room to begin"] = said(precompute)
        found["left by the beginning"] = names(place)
    with limited(place, way, 64 * 1024):
        found["precompute"] = said(precompute)
        found["left by precompute"] = names(place)
        found["samples kept"] = len(ReferenceCache(place / "cache", model=model))
        found["not all"] = said(lambda: ReferenceCache(place / "cache", model=model).require(data))
        found["rewrite"] = said(rewrite)
        found["left by rewrite"] = names(place)
        found["map"] = said(
            lambda: LowMemDataset(source, mode="mmap", cache_dir=place / "arrow")[0]
        )
        found["left by map"] = names(place)
    computed = []
    model.register_forward_hook(lambda *_: computed.append(1))
    found["with room"] = [said(precompute), said(rewrite)]
    found["forwards with room"] = len(computed)
    ReferenceCache(place / "cache", model=model).require(data)
    found["rows"] = pq.read_table(place / "small.parquet").num_rows
    print(json.dumps(found))


def names(place: Path) -> list[str]:
    files = (path for path in place.rglob("*") if path.is_file())
    return sorted(path.name for path in files if path.name != "filler" and path.suffix != ".lock")


def write_source(path: Path) -> None:
    numbers = torch.rand(40_000, dtype=torch.float64).numpy()  # random: does not compress
    pq.write_table(pa.table({"number": numbers}), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
