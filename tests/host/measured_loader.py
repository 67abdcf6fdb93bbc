"""A training-like process to be measured: a DataLoader over a parquet file, ids of exact size, no model.

Run as `python measured_loader.py '{"path": ..., "mode": ..., "workers": ..., "batch": ..., "seq": ...}'`. Prints what
the family of processes holds in the last part of that many rows, over as many epochs as it takes: what allocators give
back and when comes and goes, by 14 MB where a table of 2 GB is held, so the middle one of five moments.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from dataclasses import asdict

import pyarrow.parquet
import torch
from torch.utils.data import DataLoader

from vramcast.host.processes import family_use
from vramcast.runtime import LowMemDataset, RowGroupSampler, return_large_blocks

KEPT = (pyarrow.parquet,)


class Ids:
    """Rows to `input_ids`, `attention_mask` and `labels` of one fixed length: their bytes are known exactly."""

    def __init__(self, seq: int) -> None:
        self.seq = seq

    def __call__(self, rows: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        ids = torch.zeros(len(rows), self.seq, dtype=torch.int64)
        for place, row in enumerate(rows):
            codes = torch.frombuffer(bytearray(row["prompt"].encode()[: self.seq]), dtype=torch.uint8)
            ids[place, : len(codes)] = codes
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.clone()}


def wait_for_queues(job: dict[str, int]) -> None:
    """Until the workers have prepared what they may, or, should that never be, a minute."""
    batches = job["workers"] * (job.get("prefetch") or 2) + 1 if job["workers"] else 0  # and the one in use
    pages = -(-job["batch"] * job["seq"] * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
    deadline = time.monotonic() + 60
    while family_use().shm_bytes < batches * 3 * pages and time.monotonic() < deadline:
        time.sleep(0.2)


def main() -> None:
    job = json.loads(sys.argv[1])
    return_large_blocks()
    if job.get("transformers"):
        from transformers import AutoTokenizer, T5ForConditionalGeneration  # noqa: F401
    data = LowMemDataset(job["path"], mode=job["mode"], budget_bytes=job["budget"], cache_dir=job.get("cache"))
    sampler = RowGroupSampler(data, batch_size=job["batch"])
    method = job.get("method", "fork") if job["workers"] else None
    loader = DataLoader(
        data, batch_sampler=sampler, num_workers=job["workers"], collate_fn=Ids(job["seq"]),
        multiprocessing_context=method, prefetch_factor=job.get("prefetch"),
        worker_init_fn=return_large_blocks, persistent_workers=job["workers"] > 0,
    )  # fmt: skip
    weight = torch.ones(8, requires_grad=True)
    rows, found, stops = 0, [], [job["rows"] * part // 10 for part in range(6, 11)]
    while len(found) < len(stops):
        batches = iter(loader)  # kept, so that what it has fetched ahead is there to be measured
        for batch in batches:
            (weight * batch["input_ids"][0, 0]).sum().backward()
            rows += len(batch["input_ids"])
            if rows >= stops[len(found)]:
                # without workers the next one is made while the loop still holds this one
                following = next(batches, batch) if not job["workers"] else None
                wait_for_queues(job)
                found.append(family_use())
                rows += 0 if following is None else len(following["input_ids"])
                if len(found) == len(stops):
                    break
    middle = sorted(found, key=lambda use: use.private_bytes + use.shm_bytes + use.file_bytes)[len(found) // 2]
    print(json.dumps(asdict(middle)), flush=True)
    os._exit(0)  # the workers are busy; nothing of theirs is wanted


if __name__ == "__main__":
    main()
