"""A training-like process to be measured: a DataLoader over a parquet file, ids of exact size, no model.

Run as `python measured_loader.py '{"path": ..., "mode": ..., "workers": ..., "batches": [8], "seq": ...}'`, or under
torchrun, where the first rank looks at all of them. One loader after another goes over the same dataset, one for every
batch size. Prints for each what the family of processes holds in the last part of that many rows, over as many epochs
as it takes: what allocators give back and when comes and goes, so the middle one of five moments.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from dataclasses import asdict
from typing import Any

import pyarrow.parquet
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from vramcast.host.processes import HostUse, family_use
from vramcast.runtime import LowMemDataset, RowGroupSampler, return_large_blocks

KEPT = (pyarrow.parquet,)
RANKS = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))


class Ids:
    """Rows to `input_ids`, `attention_mask` and `labels` of one fixed length: their bytes are known exactly."""

    def __init__(self, seq: int) -> None:
        self.seq = seq

    def __call__(self, rows: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        ids = torch.zeros(len(rows), self.seq, dtype=torch.int64)
        for place, row in enumerate(rows):
            codes = torch.frombuffer(
                bytearray(row["prompt"].encode()[: self.seq]), dtype=torch.uint8
            )
            ids[place, : len(codes)] = codes
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.clone()}


def wait_for_queues(job: dict[str, Any], batch: int) -> None:
    """Until the workers have prepared what they may, or, should that never be, a minute."""
    batches = (
        job["workers"] * (job.get("prefetch") or 2) + 1 if job["workers"] else 0
    )  # and the one in use
    pages = -(-batch * job["seq"] * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
    deadline = time.monotonic() + 60
    while family_use().shm_bytes < batches * 3 * pages and time.monotonic() < deadline:
        time.sleep(0.2)


def looked_at(job: dict[str, Any], batch: int) -> HostUse:
    wait_for_queues(job, batch)
    if not RANKS:
        return family_use()
    dist.barrier()
    use = family_use(os.getppid())  # torchrun and all ranks
    dist.barrier()
    return use


def measured(job: dict[str, Any], data: LowMemDataset[Any], batch_size: int) -> HostUse:
    # A table is read all over, so that its workers soon have their copies of the objects around every row group.
    sampler = RowGroupSampler(
        data, batch_size=batch_size, shuffle="full" if data.mode == "table" else "groups"
    )
    method = job.get("method", "fork") if job["workers"] else None
    loader = DataLoader(
        data, batch_sampler=sampler, num_workers=job["workers"], collate_fn=Ids(job["seq"]),
        multiprocessing_context=method, prefetch_factor=job.get("prefetch"), pin_memory=job.get("pin_memory", False),
        worker_init_fn=return_large_blocks, persistent_workers=job["workers"] > 0,
    )  # fmt: skip
    weight = torch.ones(8, requires_grad=True)
    rows, stops = 0, [job["rows"] * part // 10 for part in range(6, 11)]
    found: list[HostUse] = []
    while len(found) < len(stops):
        batches = iter(loader)  # kept, so that what it has fetched ahead is there to be measured
        for batch in batches:
            (weight * batch["input_ids"][0, 0]).sum().backward()
            rows += len(batch["input_ids"])
            if rows >= stops[len(found)]:
                # without workers the next one is made while the loop still holds this one
                following = next(batches, batch) if not job["workers"] else None
                found.append(looked_at(job, batch_size))
                rows += 0 if following is None else len(following["input_ids"])
                if len(found) == len(stops):
                    break
    return sorted(found, key=lambda use: use.total_bytes)[len(found) // 2]


def main() -> None:
    job = json.loads(sys.argv[1])
    return_large_blocks()
    if RANKS:
        dist.init_process_group("gloo")
    if job.get("transformers"):
        from transformers import AutoTokenizer, T5ForConditionalGeneration  # noqa: F401
    data: LowMemDataset[Any] = LowMemDataset(
        job["path"], mode=job["mode"], budget_bytes=job["budget"], cache_dir=job.get("cache")
    )
    found = [measured(job, data, batch) for batch in job["batches"]]
    if not RANKS or dist.get_rank() == 0:
        print(json.dumps([asdict(use) for use in found]), flush=True)
    if RANKS:
        dist.barrier()
    os._exit(0)  # the workers are busy; nothing of theirs is wanted


if __name__ == "__main__":
    main()
