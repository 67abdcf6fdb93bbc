"""One rank of a job on many GPUs: torch's process group, DDP, FSDP1 or FSDP2 around the model as people wrap it, and
torch's `parallelize_module` inside where a job says tp.

In comes a model on the host, out comes the same one divided, on this rank's card. Tensor parallelism is what the
formulas describe: transformers' own plan for the layers, the vocabulary of embedding and head, logits gathered, norms
whole. Does not know ZeRO, DDP over tensor-parallel groups, pipeline, context and expert parallelism: those are
traced from the user's own script.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.setup import resolve
from vramcast.virtual.jobs.model import pack_on_host

STYLES = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
}  # transformers' words, torch's classes


def join() -> torch.device:
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def divided(
    model: Any, job: Job, device: torch.device, compute: torch.dtype | None, blocks: set[str]
) -> Any:
    """`compute`: what FSDP2 gathers in, where weights are stored in another dtype."""
    tensor = _Tensor(model, job) if job.tp > 1 else None
    if job.strategy == "fsdp2":
        return _sharded(model, job, device, compute, blocks, tensor)
    if job.strategy == "fsdp1":
        return _flattened(model, job, device, compute, blocks)
    if tensor is not None:
        tensor.divide(model)
        return model.to(device)
    return torch.nn.parallel.DistributedDataParallel(
        model.to(device), device_ids=[device.index], gradient_as_bucket_view=job.bucket_view
    )


def _sharded(
    model: Any,
    job: Job,
    device: torch.device,
    compute: torch.dtype | None,
    blocks: set[str],
    tensor: _Tensor | None,
) -> Any:
    """Each block is divided over tp right before it is sharded, so that never more than one lies on the card whole."""
    if job.quantize != "none":
        pack_on_host(model, device)
    offload = (
        CPUOffloadPolicy(pin_memory=True) if job.offload in ("params", "all") else OffloadPolicy()
    )
    shared: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute),
        "offload_policy": offload,
    }
    if tensor is not None:
        shared["mesh"] = tensor.mesh["dp"]
    for name, module in list(model.named_modules()):
        if type(module).__name__ in blocks:
            if tensor is not None:
                tensor.divide(module, name)
            fully_shard(module, **shared, reshard_after_forward=job.reshard)
    if tensor is not None:
        tensor.divide(model)
    if resolve(job).versions.carves_ends:
        _carve_ends(model, shared)
    fully_shard(model, **shared)
    return model


def _carve_ends(model: Any, shared: dict[str, Any]) -> None:
    """Units that accelerate makes of an untied embedding, and of last norm and head, which stay gathered."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is not None and head.weight is embedding.weight:
        return
    fully_shard(embedding, **shared)
    base = getattr(model, model.base_model_prefix)
    norms = [module for module in base.children() if "Norm" in type(module).__name__]
    tail = [module for module in (*norms[-1:], head) if module is not None]
    if tail:
        fully_shard(tail, **shared, reshard_after_forward=False)


def _flattened(
    model: Any, job: Job, device: torch.device, compute: torch.dtype | None, blocks: set[str]
) -> Any:
    """FSDP1: one flat vector per block, and one for the rest."""
    kinds = {type(module) for module in model.modules() if type(module).__name__ in blocks}
    mixed = (
        MixedPrecision(param_dtype=compute, reduce_dtype=compute) if compute is not None else None
    )
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy(kinds),
        device_id=device,
        mixed_precision=mixed,
        cpu_offload=CPUOffload(offload_params=True) if job.offload in ("params", "all") else None,
    )


def reducing(model: Any, job: Job, *, last: bool) -> contextlib.AbstractContextManager[None]:
    """Trainers put the reduction of gradients off to the last micro-batch (accelerate's and Lightning's no_sync)."""
    if resolve(job).versions.framework == "plain" or job.accumulate == 1 or job.gpus == 1:
        return contextlib.nullcontext()
    if job.strategy == "fsdp2":
        model.set_requires_gradient_sync(last)
    found: contextlib.AbstractContextManager[None] = (
        contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()
    )
    return found


def alike(params: list[Any]) -> list[dict[str, list[Any]]]:
    """Groups of an optimizer: its foreach and fused steps take no tensors of different meshes at once."""
    groups: dict[Any, list[Any]] = {}
    for param in params:
        groups.setdefault(param.device_mesh if isinstance(param, DTensor) else None, []).append(
            param
        )
    return [{"params": group} for group in groups.values()]


def _planned_style(plan: dict[str, str], name: str) -> ParallelStyle | None:
    """The style of the first pattern that matches the name."""
    for pattern, style in plan.items():
        if fnmatch.fnmatchcase(name, pattern):
            return STYLES[style]()
    return None


class _Tensor:
    """How a model's modules are divided over the tensor-parallel ranks of a mesh."""

    def __init__(self, model: Any, job: Job) -> None:
        self.mesh: DeviceMesh = init_device_mesh(
            "cuda", (job.gpus // job.tp, job.tp), mesh_dim_names=("dp", "tp")
        )
        self.head, self.fused = model.get_output_embeddings(), job.loss == "fused"
        self.styles = dict(self._styles(model))
        self._check(model, job)

    def _check(self, model: Any, job: Job) -> None:
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        if heads % job.tp:
            raise UnsupportedError(
                f"tp {job.tp} with {heads} key/value heads cannot be traced from a job: DTensor divides heads evenly"
            )
        if config.tie_word_embeddings:
            raise UnsupportedError(
                "tp with tied embeddings cannot be traced from a job: trace your own script"
            )

    def _styles(self, model: Any) -> Iterator[tuple[str, ParallelStyle]]:
        """By name, how each module that is divided is divided."""
        plan = self._plan(model)
        embedding = model.get_input_embeddings()
        for name, module in model.named_modules():
            inner = name.removeprefix(f"{model.base_model_prefix}.")
            planned = _planned_style(plan, inner)
            if planned is not None:
                yield name, planned
            elif module is embedding:
                yield name, RowwiseParallel(input_layouts=Replicate())
            elif module is self.head and not self.fused:
                yield name, ColwiseParallel(output_layouts=Replicate())

    def _plan(self, model: Any) -> dict[str, str]:
        """transformers' plan names layers below the base model; other words than these two have no style in torch."""
        plan: dict[str, str] = model.config.base_model_tp_plan or {}
        if not plan or not set(plan.values()) <= set(STYLES) or self.head is None:
            raise UnsupportedError(
                f"tp of {model.config.model_type} cannot be traced from a job: transformers' plan for it is "
                f"{', '.join(sorted(set(plan.values()))) or 'none'}; known: {', '.join(STYLES)}"
            )
        return plan

    def divide(self, module: Any, name: str = "") -> None:
        """What is below `module`, called `name` in the model, and is not divided yet."""
        prefix = f"{name}." if name else ""
        inside = [full for full in self.styles if full.startswith(prefix)]
        parallelize_module(
            module,
            self.mesh["tp"],
            {full.removeprefix(prefix): self.styles.pop(full) for full in inside},
        )
        if (
            not name and self.fused
        ):  # no product of its own: the loss reads this rank's rows of the weight
            weight = self.head.weight
            self.head.weight = torch.nn.Parameter(
                distribute_tensor(weight, self.mesh["tp"], [Shard(0)]),
                requires_grad=weight.requires_grad,
            )
