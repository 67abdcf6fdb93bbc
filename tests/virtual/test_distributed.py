"""One rank of a torchrun job on the fake process group: DDP's buckets, FSDP's shards, tensor parallelism."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from vramcast.errors import InputError
from vramcast.virtual import virtual_gpu

WIDTH, LAYERS = 512, 4
PARAMETER_BYTES = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)


def model_on(device: torch.device) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(device)


def states_after_two_steps(world_size: int, rank: int, wrap: str) -> int:
    """Bytes allocated between steps: weights, optimizer states and what the strategy keeps."""
    with virtual_gpu("a100-80gb", count=world_size, rank=rank):
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        model: nn.Module = model_on(device)
        if wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
        elif wrap == "fsdp1":
            model = FullyShardedDataParallel(
                model,
                auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
                device_id=torch.cuda.current_device(),
            )
        elif wrap == "tensor":
            mesh = init_device_mesh("cuda", (world_size,))
            plan = {
                str(index): (ColwiseParallel(), RowwiseParallel())[index % 2]
                for index in range(LAYERS)
            }
            parallelize_module(model, mesh, plan)
        else:
            for layer in model.children():
                fully_shard(layer)
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(8, WIDTH, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return int(torch.cuda.memory_allocated(device)) - 2 * (2 * 4096 + 8 * 16) * 1024


@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_fsdp2_shards_weights_and_states(world_size: int) -> None:
    kept = states_after_two_steps(world_size, world_size - 1, "fsdp2")
    expected = 3 * PARAMETER_BYTES // world_size
    assert expected <= kept <= 1.1 * expected + (64 << 10)


@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_fsdp1_shards_flat_parameters(world_size: int) -> None:
    kept = states_after_two_steps(world_size, 0, "fsdp1")
    expected = 3 * PARAMETER_BYTES // world_size
    assert expected <= kept <= 1.1 * expected + (64 << 10)


@pytest.mark.parametrize("world_size", [2, 8])
def test_tensor_parallelism_divides_every_matrix(world_size: int) -> None:
    kept = states_after_two_steps(world_size, 1, "tensor")
    expected = (
        3 * 4 * LAYERS * WIDTH * WIDTH // world_size
    )  # the biases of row-wise layers stay whole
    assert expected <= kept <= 1.02 * expected + (128 << 10)


def test_ddp_keeps_a_copy_of_the_gradients_in_buckets() -> None:
    kept = states_after_two_steps(8, 0, "ddp")
    assert kept == pytest.approx(4 * PARAMETER_BYTES, rel=0.02)


def test_the_environment_and_the_group_are_gone_afterwards() -> None:
    before = dict(os.environ)
    with virtual_gpu("a100-80gb", count=16, rank=9):
        assert os.environ["LOCAL_RANK"] == "1"
        dist.init_process_group("nccl")
    assert dict(os.environ) == before
    assert not dist.is_initialized()
    with pytest.raises(InputError, match="rank 4 is not one of"):
        virtual_gpu("a100-80gb", count=4, rank=4)
