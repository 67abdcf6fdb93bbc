"""The optimizer of a job: torch's own, or bitsandbytes' with 8-bit or paged states.

In come parameters and a Job, out comes an Optimizer. For paged states see `paged`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.job import Job
from vramcast.setup import resolve
from vramcast.virtual.jobs.model import bitsandbytes

TORCH: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "sgd-momentum": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}
BITSANDBYTES = {
    "adamw-8bit": "AdamW8bit",
    "paged-adamw": "PagedAdamW",
    "paged-adamw-8bit": "PagedAdamW8bit",
    "lion-8bit": "Lion8bit",
    "paged-lion": "PagedLion",
    "paged-lion-8bit": "PagedLion8bit",
    "ademamix": "AdEMAMix",
    "ademamix-8bit": "AdEMAMix8bit",
    "paged-ademamix": "PagedAdEMAMix",
    "paged-ademamix-8bit": "PagedAdEMAMix8bit",
}
BLOCK_WISE = ("adamw-8bit", "paged-adamw-8bit")  # those that can also do without blocks
KNOWN = (*TORCH, *BITSANDBYTES)


def optimizer_of(
    params: list[Any], job: Job, how: str, embeddings: list[Any]
) -> torch.optim.Optimizer:
    assert job.optimizer is not None, "the job is complete"
    if job.optimizer in BITSANDBYTES:
        return _of_bitsandbytes(params, job, embeddings)
    if job.optimizer == "adafactor":
        return torch.optim.Adafactor(params)
    chosen: dict[str, Any] = {"fused": {"fused": True}, "loop": {"foreach": False}}.get(how, {})
    momentum = {"momentum": 0.9} if job.optimizer == "sgd-momentum" else {}
    return TORCH[job.optimizer](params, lr=1e-5, **chosen, **momentum)


def _of_bitsandbytes(params: list[Any], job: Job, embeddings: list[Any]) -> torch.optim.Optimizer:
    library = bitsandbytes()
    assert job.optimizer is not None, "the job is complete"
    optimizer: torch.optim.Optimizer = getattr(library.optim, BITSANDBYTES[job.optimizer])(
        params, lr=1e-5, **({"block_wise": True} if job.optimizer in BLOCK_WISE else {})
    )
    optimizer.mng.initialize()  # one for the whole process: what an earlier job said goes
    if resolve(job).versions.framework in ("hf", "trl"):  # the Trainer keeps embeddings at 32 bit
        optimizer.mng.override_config(embeddings, key_value_dict={"optim_bits": 32})
        optimizer.mng.register_parameters(optimizer.param_groups)
    return optimizer


def stepping(optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def step(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step
