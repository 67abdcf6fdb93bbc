"""Whatever line starts a training run: launchers become one of the processes they start, threads are followed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.errors import VramcastError
from vramcast.units import MiB
from vramcast.virtual import VirtualGpu, virtual_gpu
from vramcast.virtual.endings import Ending, Run
from vramcast.virtual.launch import cards_asked_for, read_command
from vramcast.virtual.script import run_launch
from vramcast.virtual.torch_patches.launchers import NeedsCards

RANK = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
assert (dist.get_rank(), dist.get_world_size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
model = DDP(torch.nn.Linear(1024, 1024).cuda(local), device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.zeros(8, 1024, device=local)).sum().backward()
    optimizer.step()
print("seen", dist.get_rank(), dist.get_world_size(), sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name in ("rank.py", "pkg/train.py"):
        (tmp_path / name).write_text(RANK)
    return tmp_path


def launched(line: str, cards: int, rank: int | None = None) -> tuple[Run, VirtualGpu]:
    gpu = virtual_gpu("24GiB", count=cards, protect=False)
    return run_launch(read_command(line.split()), gpu, rank), gpu


@pytest.mark.parametrize(
    ("line", "cards", "rank", "seen"),
    [
        ("torchrun --nproc-per-node 4 rank.py --lr 1", 4, None, "seen 0 4 ['--lr', '1']"),
        ("torchrun --nnodes 2 --nproc_per_node=8 --rdzv-endpoint a:1 rank.py", 8, 9, "seen 9 16 []"),
        ("python -u -m torch.distributed.run --nproc-per-node gpu -m pkg.train x", 2, 1, "seen 1 2 ['x']"),
        ("A=1 env B=2 torchrun --standalone --nproc_per_node=2 rank.py", 2, None, "seen 0 2 []"),
        ("deepspeed --num_gpus 2 rank.py --deepspeed x", 2, 1, "seen 1 2 ['--local_rank=0', '--deepspeed', 'x']"),
        ("deepspeed --include localhost:0,3,5 --no_local_rank rank.py", 3, None, "seen 0 3 []"),
    ],
)  # fmt: skip
def test_a_launcher_becomes_one_of_its_processes(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    cards: int,
    rank: int | None,
    seen: str,
) -> None:
    run, gpu = launched(line, cards, rank)
    assert run.ending == Ending.DONE, run.error_text()
    assert run.steps == 2
    assert seen in capsys.readouterr().out
    place = gpu.places[(rank or 0) % cards]
    assert gpu.ledger().devices() == (place,)
    assert cards_asked_for(line.split()) in (cards, None)


def test_a_launcher_that_needs_more_cards_says_how_many(folder: Path) -> None:
    with pytest.raises(NeedsCards) as needs:
        launched("torchrun --nproc-per-node 4 rank.py", 1)
    assert needs.value.count == 4


ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
print("seen", accelerator.distributed_type, accelerator.num_processes, accelerator.mixed_precision)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.backward(model(torch.zeros(8, 256, device=accelerator.device)).float().sum())
optimizer.step()
"""
FSDP2 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1000}
mixed_precision: bf16
num_machines: 1
num_processes: 4
"""


def test_accelerate_launches_with_its_config(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text(ACCELERATED)
    (folder / "fsdp.yaml").write_text(FSDP2)
    line = "accelerate launch --config_file fsdp.yaml train.py"
    assert cards_asked_for(line.split()) == 4
    run, _ = launched(line, 4)
    assert run.ending == Ending.DONE, run.error_text()
    assert "seen DistributedType.FSDP 4 bf16" in capsys.readouterr().out
    run, _ = launched("accelerate launch --mixed_precision fp16 --num_processes 1 train.py", 1)
    assert run.ending == Ending.DONE, run.error_text()
    assert "seen DistributedType.NO 1 fp16" in capsys.readouterr().out


def test_a_program_that_starts_the_training_is_followed_into_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "start.py").write_text(
        "import os, subprocess, sys\n"
        "told = subprocess.run([sys.executable, '-c', 'print(7)'], stdout=subprocess.PIPE, text=True).stdout\n"
        "assert told == '7\\n', 'what is read is a program of its own'\n"
        "subprocess.run('torchrun --nproc_per_node 2 rank.py end'.split(), env=dict(os.environ), check=True)\n"
    )
    before = subprocess.Popen
    run, _ = launched("python start.py", 2)
    assert run.ending == Ending.DONE, run.error_text()
    assert "seen 0 2 ['end']" in capsys.readouterr().out
    assert subprocess.Popen is before


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("python missing.py", "no such script"),
        ("missing.py", "no such script"),
        ("fooctl train", "unknown command 'fooctl'"),
        ("run.sh", "is not Python"),
        ("python -c pass", "into a file"),
        ("A=1", "nothing to run"),
        ("python", "no script"),
    ],
)
def test_what_is_not_python_is_said(folder: Path, line: str, says: str) -> None:
    (folder / "run.sh").write_text("#!/bin/bash\npython rank.py\n")
    with pytest.raises(VramcastError, match=says):
        read_command(line.split())


THREADS = """
import sys, threading, torch
def train():
    weight = torch.nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(8):
        with torch.autocast("cuda", torch.bfloat16):
            loss = (torch.zeros(64, 1024, device="cuda") @ weight).float().sum()
        loss.backward()
        optimizer.step()
    {end}
threads = [threading.Thread(target=train) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def scripted(
    folder: Path, source: str, cards: int = 1, steps: int | None = None
) -> tuple[Run, VirtualGpu]:
    (folder / "own.py").write_text(source)
    gpu = virtual_gpu("24GiB", count=cards, protect=False, steps=steps)
    return run_launch(read_command(["own.py"]), gpu), gpu


def test_threads_are_followed(folder: Path) -> None:
    run, gpu = scripted(folder, THREADS.format(end="pass"))
    assert (run.ending, run.lost, run.steps) == (Ending.DONE, (), 8)
    peak = gpu.ledger().peak("cuda:0").allocated_bytes
    assert 3 * 8 * MiB <= peak < 3 * 12 * MiB + 17 * MiB, (
        "three weights and gradients, and cuBLAS's workspaces"
    )
    run, _ = scripted(folder, THREADS.format(end="raise ValueError('in a thread')"))
    assert not run.is_decided
    assert "in a thread" in run.lost[0]
    run, _ = scripted(folder, THREADS.format(end="pass"), steps=2)
    assert run.ending == Ending.STOPPED


PROCESSES = """
import os, torch, torch.multiprocessing as mp, torch.distributed as dist
def work(rank, queue):
    if {ranks}:
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="12355")
        dist.init_process_group("nccl", rank=rank, world_size=2)
    torch.zeros(1 << 20, device="cuda")
    queue.put(rank)
if __name__ == "__main__":
    queue = mp.Queue()
    processes = [mp.Process(target=work, args=(rank, queue)) for rank in range(2)]
    [process.start() for process in processes]
    assert queue.get() == 0
    [process.join() for process in processes]
    assert [process.exitcode for process in processes] == [0, 0]
"""


def test_of_processes_that_are_ranks_the_first_is_run(folder: Path) -> None:
    run, gpu = scripted(folder, PROCESSES.format(ranks=True), cards=2)
    assert (run.ending, run.lost) == (Ending.DONE, ()), run.error_text()
    assert any("the others are ranks like it" in note for note in gpu.notes)
    run, _ = scripted(folder, PROCESSES.format(ranks=False))
    assert "may use the same card" in run.lost[0]


def test_a_forked_process_that_uses_the_card_is_lost(folder: Path) -> None:
    forking = (
        "import os, torch\nx = torch.zeros(9, device='cuda')\n"
        "if os.fork() == 0:\n    {use}\n    os._exit(0)\nos.wait()\n"
    )
    run, _ = scripted(folder, forking.format(use="torch.zeros(9, device='cuda')"))
    assert run.lost == ("a process that the script forked used a GPU",)
    run, _ = scripted(folder, forking.format(use="torch.zeros(9)"))
    assert run.lost == ()


@pytest.mark.parametrize("update", ["p.data.add_(p.grad, alpha=-0.1)", "p.sub_(0.1 * p.grad)"])
def test_steps_without_an_optimizer_count(folder: Path, update: str) -> None:
    run, _ = scripted(
        folder,
        "import torch\nmodel = torch.nn.Linear(8, 8).cuda()\n"
        "for _ in range(10):\n"
        "    model.zero_grad()\n    model(torch.zeros(2, 8, device='cuda')).sum().backward()\n"
        f"    with torch.no_grad():\n        for p in model.parameters(): {update}\n",
        steps=3,
    )
    assert (run.ending, run.steps) == (Ending.STOPPED, 3)


@pytest.mark.slow
def test_the_command_line_takes_the_whole_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            ["trace", "--gpu", "24GiB", "--", "torchrun", "--nproc-per-node", "4", "rank.py", "--x"]
        )
        == 0
    )
    assert "rank 0 of the 4 that the launcher starts was run" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["trace", "rank.py", "--gpu", "24GiB", "--epochs", "1"])
    assert "come after --" in capsys.readouterr().err
