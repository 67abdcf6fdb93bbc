"""What a job holds whatever its batch is: weights, gradients, optimizer states.

In: a Job, be it only a number of parameters. Out: bytes on the fullest device.
"""

from __future__ import annotations

from dataclasses import replace

from vramcast.engine import DEVICE, STORED, estimate
from vramcast.job import Job
from vramcast.ledger import Category
from vramcast.setup import complete, resolve

AT_REST = (
    Category.WEIGHTS,
    Category.GRADIENTS,
    Category.OPTIMIZER,
    Category.MASTER,
    Category.COPIES,
)
# What a count of parameters does not tell: which layers are adapted or quantised. Their weights are a lower bound.
FROZEN = ("int8", "nf4", "nf4-double")
SHORTEST = 16  # tokens: activations are left out, so any length will do


def states_bytes(job: Job) -> int:
    """At the moment when most of them are allocated. Raises a VramcastError if the engine cannot price the job."""
    if job.params is not None and (job.has_adapters or job.quantize in FROZEN):
        return _frozen_weights_bytes(job.params, job)
    short = replace(job, batch=1, seq=SHORTEST) if job.model is not None else job
    ledger = estimate(complete(short)).ledger
    return max(
        sum(entry.nbytes for entry in ledger.alive(phase, DEVICE) if entry.category in AT_REST)
        for phase in ledger.phases(DEVICE)
    )


def _frozen_weights_bytes(params: int, job: Job) -> int:
    """Weights that adapters leave as they are, without the adapters."""
    if job.quantize in FROZEN:
        return STORED[job.quantize](params)
    return params * resolve(job).precision.weights.nbytes
