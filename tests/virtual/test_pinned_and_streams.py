"""Page-locked host memory is billed in powers of two; blocks another stream used come back late."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from vramcast.virtual import virtual_gpu

MiB = 1 << 20


def pinned_peak_bytes(gpu: object) -> int:
    ledger = gpu.ledger()  # type: ignore[attr-defined]
    return ledger.peak("pinned").reserved_bytes if "pinned" in ledger.places() else 0


def test_pinned_memory_is_rounded_to_a_power_of_two_and_kept() -> None:
    with virtual_gpu("rtx3060") as gpu:
        kept = torch.empty(5 * MiB, dtype=torch.uint8, pin_memory=True)
        assert kept.is_pinned()
        passing = torch.ones(3 * MiB, dtype=torch.uint8).pin_memory()
        assert passing.is_pinned()
        assert passing.sum() == 3 * MiB, "a pinned copy keeps its values"
        del passing
        again = torch.ones(4 * MiB, dtype=torch.uint8).pin_memory()
        torch.cuda.synchronize()
        assert again.cuda().shape == (4 * MiB,)
    assert pinned_peak_bytes(gpu) == (8 + 4) * MiB  # 5 → 8; 3 → 4, given out again


def test_a_pinning_loader_bills_its_batches() -> None:
    data = TensorDataset(torch.zeros(64, 3000))
    with virtual_gpu("rtx3060") as gpu:
        for (batch,) in DataLoader(data, batch_size=32, pin_memory=True):
            assert batch.is_pinned()
            batch.cuda(non_blocking=True)
    assert pinned_peak_bytes(gpu) in (
        512 * 1024,
        2 * 512 * 1024,
    )  # 32·3000·4 = 384,000 → 524,288, one or two batches


def test_host_tensors_are_not_pinned_by_themselves() -> None:
    with virtual_gpu("rtx3060") as gpu:
        assert not torch.ones(8).is_pinned()
    assert pinned_peak_bytes(gpu) == 0


def reserved_after(synchronize: bool) -> int:
    with virtual_gpu("rtx3060"):
        side = torch.cuda.Stream()
        for _ in range(3):
            block = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
            block.record_stream(side)
            del block
            if synchronize:
                side.synchronize()
        return int(torch.cuda.memory_reserved())


def test_a_recorded_block_comes_back_only_after_a_wait() -> None:
    assert reserved_after(synchronize=True) == 64 * MiB
    assert reserved_after(synchronize=False) == 3 * 64 * MiB
