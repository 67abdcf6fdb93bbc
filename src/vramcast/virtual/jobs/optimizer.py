"""The optimizer of a job: torch's own, or bitsandbytes' with 8-bit or paged states.

In come parameters and a Job, out comes an Optimizer. For paged states see `paged`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.job import Job
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
}
KNOWN = (*TORCH, *BITSANDBYTES)


def optimizer_of(
    params: list[Any], job: Job, how: str, embeddings: list[Any]
) -> torch.optim.Optimizer:
    if job.optimizer in BITSANDBYTES:
        return _of_bitsandbytes(params, job, embeddings)
    if job.optimizer == "adafactor":
        return torch.optim.Adafactor(params)
    chosen: dict[str, Any] = {"fused": {"fused": True}, "loop": {"foreach": False}}.get(how, {})
    momentum = {"momentum": 0.9} if job.optimizer == "sgd-momentum" else {}
    return TORCH[job.optimizer](params, lr=1e-5, **chosen, **momentum)


def _of_bitsandbytes(params: list[Any], job: Job, embeddings: list[Any]) -> torch.optim.Optimizer:
    library = bitsandbytes()
    optimizer: torch.optim.Optimizer = getattr(library.optim, BITSANDBYTES[job.optimizer])(
        params, lr=1e-5, **({} if job.optimizer == "paged-adamw" else {"block_wise": True})
    )
    optimizer.mng.initialize()  # one for the whole process: what an earlier job said goes
    if job.framework in ("hf", "trl"):  # the Trainer keeps embeddings at 32 bit
        optimizer.mng.override_config(embeddings, key_value_dict={"optim_bits": 32})
        optimizer.mng.register_parameters(optimizer.param_groups)
    return optimizer


def stepping(optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def step(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step
