"""Process groups that a script makes by itself, without torchrun: one process, or the first of those it would start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vramcast.cli import main
from vramcast.units import MiB
from vramcast.virtual import virtual_gpu


def test_a_group_of_one() -> None:
    with virtual_gpu("rtx4090"):
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", world_size=1, rank=0)
        model = DistributedDataParallel(nn.Linear(1024, 1024).cuda(), device_ids=[0])
        model(torch.randn(4, 1024, device="cuda")).sum().backward()
        loss = torch.ones((), device="cuda")
        dist.all_reduce(loss)
        assert dist.get_world_size() == 1
        assert torch.cuda.memory_allocated() >= 3 * 4 * MiB, (
            "weights, gradients and the reducer's bucket"
        )
    assert not dist.is_initialized()


def test_the_environment_says_which_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with virtual_gpu("rtx4090", count=8):
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (3, 8)


SPAWNING = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

def work(rank, world_size, width):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = DDP(torch.nn.Linear(width, width).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(2, width, device=rank)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(torch.cuda.device_count(), 1024), nprocs=torch.cuda.device_count(), join=True)
"""


def test_the_first_of_the_processes_a_script_starts_is_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "taken back after the test")
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    assert main(["trace", str(script), "--gpu", "rtx4090", "--gpus", "2"]) == 0
    said = capsys.readouterr().out
    assert "process 0 of 2 was run, the others were left out" in said
    assert "DDP's gradient buckets" in said
    spawn = mp.spawn
    with virtual_gpu("rtx4090"):
        assert mp.spawn is not spawn
    assert mp.spawn is spawn


def test_devices_by_number() -> None:
    with virtual_gpu("rtx4090", count=2):
        made = [
            torch.zeros(3, device=1), torch.empty_like(torch.ones(2), device=1), torch.ones(2).new_zeros(3, device=1),
            torch.tensor([1], device=1), torch.randperm(4, device=1),
        ]  # fmt: skip
        assert {tensor.device for tensor in made} == {torch.device("cuda", 1)}
    with pytest.raises(RuntimeError, match="accelerator"):
        torch.zeros(3, device=1)


STARTS_ITS_RANKS = """
import os, subprocess, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

if "LOCAL_RANK" not in os.environ:
    for rank in (1, 2):
        subprocess.Popen([sys.executable, sys.argv[0]], env={**os.environ, "LOCAL_RANK": str(rank)})
rank = int(os.environ.get("LOCAL_RANK", 0))
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
dist.init_process_group("nccl", rank=rank, world_size=3)
model = DDP(torch.nn.Linear(1024, 1024).to(rank), device_ids=[rank])
model(torch.zeros(2, 1024, device=rank)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print("rank", rank)
"""


def test_ranks_that_the_first_one_starts_are_left_out(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    script = tmp_path / "train.py"
    script.write_text(STARTS_ITS_RANKS)
    assert main(["trace", str(script), "--gpu", "rtx4090", "--gpus", "3"]) == 0
    shown = capfd.readouterr()
    assert "ran to its end after 1 optimizer step" in shown.out
    assert "a rank that the script starts as a program of its own was left out" in shown.out
    assert "rank 0" in shown.err
    assert "rank 1" not in shown.err


def test_remote_calls_are_refused_and_not_waited_for() -> None:
    from torch.distributed import rpc

    with virtual_gpu("rtx4090"), pytest.raises(RuntimeError, match="a trace has one process"):
        rpc.init_rpc("trainer", rank=0, world_size=2)
