"""What every rank runs: started by torchrun, rank 1 has room for a few batches only. Each rank writes what it was told.

The kernel's limit on the size of files holds for one process, so the other rank has room.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from full_disk_job import Tiny, limited, said

from vramcast.runtime import ReferenceCache, ReferenceModel, precompute_reference

NUM_BATCHES = 60


def main(place: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Tiny().eval()
    torch.manual_seed(1 + rank)
    data = [{"input_ids": torch.randint(0, 64, (64, 8))} for _ in range(NUM_BATCHES)]
    precompute = lambda: precompute_reference(ReferenceModel(model), data, place / "cache")  # noqa: E731
    found = {}
    with limited(place, "limit", 64 * 1024 if rank == 1 else 2**30):
        found["full"] = said(precompute)
    found["with room"] = said(precompute)
    ReferenceCache(place / "cache", model=model).require(data)
    (place / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
