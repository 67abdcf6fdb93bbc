"""FSDP2 of a model made on meta, with shards in pinned host memory, clipping, and distributed checkpoints."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

WIDTH, LAYERS = 512, 4

dist.init_process_group("cpu:gloo,cuda:nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))
with torch.device("meta"):
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
options = {
    "mesh": mesh,
    "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "offload_policy": CPUOffloadPolicy(pin_memory=True),
}
for layer in model:
    fully_shard(layer, **options)
fully_shard(model, **options)
model.to_empty(device="cpu")
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(8, WIDTH, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
whole = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
weights, states = get_state_dict(model, optimizer)
dcp.save(
    {"model": weights, "optimizer": states},
    checkpoint_id=os.path.join(tempfile.gettempdir(), "not-written"),
)
dist.destroy_process_group()
