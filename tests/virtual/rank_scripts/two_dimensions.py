"""Tensor parallelism with DTensor inside FSDP2 over a 2-D mesh, sequence-parallel norms, checkpointing, loss_parallel.

The process group is made by init_device_mesh, as torchtitan's scripts leave it to.
"""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

WIDTH, VOCABULARY, TP = 256, 4000, 4

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh(
    "cuda", (int(os.environ["WORLD_SIZE"]) // TP, TP), mesh_dim_names=("dp", "tp")
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        batch, seq, _ = y.shape
        q, k, v = (
            part(y).view(batch, seq, -1, 32).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        mixed = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(batch, seq, -1)
        )
        x = x + self.o(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.ModuleList(Block() for _ in range(2)),
        )
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = Net().cuda()
columns, rows = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
ends = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    ),
}
parallelize_module(model, mesh["tp"], ends)
for index, block in enumerate(model.blocks):
    plan = {"norm": SequenceParallel(), "norm2": SequenceParallel(), "o": rows, "down": rows}
    parallelize_module(block, mesh["tp"], {**plan, **dict.fromkeys(("q", "k", "v", "up"), columns)})
    model.blocks[index] = checkpoint_wrapper(block)
    fully_shard(model.blocks[index], mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    ids = torch.randint(0, VOCABULARY, (2, 64), device="cuda")
    with loss_parallel():
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
