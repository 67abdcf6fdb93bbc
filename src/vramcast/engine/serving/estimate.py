"""A serving engine's answer as a Forecast. Start reading here.

request → rules of the engine (vllm, sglang, tgi, llama_cpp) → Outcome → Ledger
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramcast.engine.bill import Bill, Remarks
from vramcast.engine.no_effect import needless_without_training
from vramcast.engine.serving.llama_cpp import serve_llama_cpp
from vramcast.engine.serving.outcome import PHASES_OF_SERVING, Outcome
from vramcast.engine.serving.request import Request, resolve_request, warnings_of
from vramcast.engine.serving.sglang import serve_sglang
from vramcast.engine.serving.tgi import serve_tgi
from vramcast.engine.serving.vllm import serve_vllm
from vramcast.forecast import Forecast, ModelSummary
from vramcast.job import Job

ENGINES: dict[str, Callable[[Request], Outcome]] = {
    "vllm": serve_vllm,
    "sglang": serve_sglang,
    "tgi": serve_tgi,
    "llama.cpp": serve_llama_cpp,
}


def estimate_serving(job: Job) -> Forecast:
    """What the engine does with the card, and what it prints at start-up."""
    said, job = job, over_all_gpus(job)
    request = resolve_request(job)
    outcome = ENGINES[request.engine](request)
    split = (f"tensor-parallel over {job.tp} GPUs (not given)",) if job != said else ()
    bill = Bill(
        job=job,
        gpu=request.gpu,
        model=_summary(request),
        entries=outcome.entries,
        phases=PHASES_OF_SERVING,
        remarks=Remarks(
            assumptions=(*split, *outcome.assumptions),
            warnings=(
                *warnings_of(request),
                *outcome.warnings,
                *needless_without_training(said),
            ),
            notes=outcome.notes,
        ),
        served=outcome.served,
    )
    return bill.forecast()


def over_all_gpus(job: Job) -> Job:
    """Several cards and no word of how they share the model: each layer is cut over all of them."""
    says_split = job.tp > 1 or job.pp > 1
    if job.engine == "llama.cpp" or says_split:
        return job
    return replace(job, tp=job.gpus)


def _summary(request: Request) -> ModelSummary:
    if request.gguf is not None:
        count = sum(tensor.numel for tensor in request.gguf.tensors)
    else:
        count = sum(int(p.numel) for p in request.source.table() if p.tied_to is None)
    return ModelSummary(
        name=request.source.name,
        params_total=count,
        params_trainable=count,
        family=request.config.model_type,
        num_layers=request.layers,
    )
