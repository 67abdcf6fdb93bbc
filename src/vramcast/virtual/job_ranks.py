"""One rank of a job on many GPUs: torch's process group, DDP or FSDP2 around the model as people wrap it.

In comes a model on the host, out comes the same one divided, on this rank's card. Does not know ZeRO, FSDP1, tensor,
pipeline, context and expert parallelism: those are traced from the user's own script.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from vramcast.job import Job
from vramcast.virtual.job_model import pack_on_host


def join() -> torch.device:
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def divided(model: Any, job: Job, device: torch.device, compute: torch.dtype | None, blocks: set[str]) -> Any:
    """`compute`: what FSDP2 gathers in, where weights are stored in another dtype."""
    if job.strategy in (None, "ddp"):
        return torch.nn.parallel.DistributedDataParallel(
            model.to(device), device_ids=[device.index], gradient_as_bucket_view=job.bucket_view
        )
    if job.quantize != "none":
        pack_on_host(model, device)
    offload = CPUOffloadPolicy(pin_memory=True) if job.offload in ("params", "all") else OffloadPolicy()
    options: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute), "offload_policy": offload,
        "reshard_after_forward": job.reshard,
    }  # fmt: skip
    for module in list(model.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, **options)
    fully_shard(model, mp_policy=options["mp_policy"], offload_policy=offload)
    return model
