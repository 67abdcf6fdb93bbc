"""Collectives as DeepSpeed-like launchers use them: objects, gloo groups, the store, asynchronous reductions."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("nccl", timeout=timedelta(minutes=10))
control = dist.new_group(backend="gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

settings = [{"run": "abc", "seed": 3}] if rank == 0 else [None]
dist.broadcast_object_list(settings, src=0)
seen: list[object] = [None] * world_size
dist.all_gather_object(seen, {"rank": rank})
assert None not in seen
everything = [None] * world_size if rank == 0 else None
dist.gather_object({"rank": rank}, everything, dst=0)
mine = [None]
dist.scatter_object_list(
    mine, [f"shard {n}" for n in range(world_size)] if rank == 0 else None, src=0
)
assert rank != 0 or mine == ["shard 0"]
dist.monitored_barrier(control)
control.monitored_barrier()
dist.barrier(group=control)
dist.barrier(device_ids=[torch.cuda.current_device()])
dist.distributed_c10d._get_default_store().set("key", "value")

values = torch.ones(1024, device="cuda")
dist.all_gather([torch.empty_like(values) for _ in range(world_size)], values)
dist.all_gather_into_tensor(torch.empty(1024 * world_size, device="cuda"), values)
dist.reduce_scatter_tensor(
    torch.empty(16, device="cuda"), torch.ones(16 * world_size, device="cuda")
)
dist.all_reduce(values, async_op=True).wait()
host = torch.tensor([rank])
dist.all_reduce(host, group=control)

model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(8, 512, device="cuda")).sum().backward()
optimizer.step()
dist.destroy_process_group()
