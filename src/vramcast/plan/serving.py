"""Advice for a serving engine: single changes that make it start or give it more cache, from cheap to dear.

Each is estimated in full; nothing is measured here. What changes a training job (checkpointing, optimizers) is no
advice for an engine, so these are a table of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from vramcast.engine import estimate
from vramcast.errors import VramcastError
from vramcast.forecast import Forecast, Served
from vramcast.job import Job, flag_of

SHOWN = 6
HIGHER_SHARE = 0.95
FEWER_REQUESTS, SMALLER_CHUNK = 64, 2048
MOST_CARDS = 8
SMALLEST_LENGTH = 256
WORTH = 1.02  # a change that adds less cache is not worth a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of flags, and what the engine makes of the card with it."""

    job: Job
    flag: str
    cost: str  # a key of report/words/serving.py COSTS
    served: Served


Found = tuple[str, dict[str, object], str]  # flag as it is typed, fields, cost


def serving_changes(forecast: Forecast) -> tuple[Change, ...]:
    """Those that make the engine start; where it starts already, those that hold more tokens."""
    job, served = forecast.job, forecast.served
    if job is None or served is None:
        return ()
    found = (_tried(job, *one) for one in _candidates(job, served))
    kept = [one for one in found if one is not None and _helps(one, served)]
    return tuple(kept[:SHOWN])


def _helps(change: Change, before: Served) -> bool:
    if not before.starts:
        return change.served.starts
    return change.served.starts and change.served.kv_tokens > WORTH * before.kv_tokens


def _tried(job: Job, flag: str, fields: dict[str, object], cost: str) -> Change | None:
    try:
        changed = replace(job, **fields)  # type: ignore[arg-type]
        forecast = estimate(changed, with_scaling=False)
    except VramcastError:
        return None  # the card or the engine does not have it
    served = forecast.served
    if served is None or forecast.verdict().fits is False:
        return None
    return Change(job=changed, flag=flag, cost=cost, served=served)


def _candidates(job: Job, served: Served) -> Iterator[Found]:
    by_engine: dict[str, Callable[[Job, Served], Iterator[Found]]] = {
        "vllm": _of_vllm,
        "sglang": _of_sglang,
        "tgi": _of_sglang,
        "llama.cpp": _of_llama_cpp,
    }
    yield from by_engine[served.engine](job, served)


def _of_vllm(job: Job, served: Served) -> Iterator[Found]:
    yield from _shorter(job, served, "--max-model-len")
    if (job.gpu_memory_utilization or 0) < HIGHER_SHARE:
        yield _set(job, "gpu_memory_utilization", HIGHER_SHARE, "share")
    if (job.max_num_seqs or FEWER_REQUESTS + 1) > FEWER_REQUESTS:
        yield _set(job, "max_num_seqs", FEWER_REQUESTS, "rows")
    if (job.max_num_batched_tokens or 0) > SMALLER_CHUNK:
        yield _set(job, "max_num_batched_tokens", SMALLER_CHUNK, "chunk")
    if not job.enforce_eager:
        yield "--enforce-eager", {"enforce_eager": True}, "graphs"
    yield from _of_cache_and_weights(job)


def _of_sglang(job: Job, served: Served) -> Iterator[Found]:
    if job.gpu_memory_utilization is None or job.gpu_memory_utilization < HIGHER_SHARE:
        flag = "--mem-fraction-static" if served.engine == "sglang" else "--cuda-memory-fraction"
        yield f"{flag} {HIGHER_SHARE}", {"gpu_memory_utilization": HIGHER_SHARE}, "share"
    yield from _of_cache_and_weights(job)


def _of_cache_and_weights(job: Job) -> Iterator[Found]:
    if job.kv_cache_dtype in (None, "auto"):
        yield _set(job, "kv_cache_dtype", "fp8", "cache")
    if job.quantize == "none":
        yield _set(job, "quantize", "fp8", "weights")
        yield _set(job, "quantize", "awq", "weights_more")
    count = 2 * job.tp
    while count <= MOST_CARDS:
        yield f"--tensor-parallel-size {count}", {"tp": count, "gpus": 1}, "cards"
        count *= 2


def _of_llama_cpp(job: Job, served: Served) -> Iterator[Found]:
    yield from _shorter(job, served, "--ctx-size")
    if job.kv_cache_dtype in (None, "auto", "f16"):
        fields: dict[str, object] = {"kv_cache_dtype": "q8_0", "attention": "flash"}
        yield "--cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on", fields, "cache"
    if job.gguf in (None, "f16", "bf16", "f32"):
        yield _set(job, "gguf", "q8_0", "weights")
    if job.gguf in (None, "f16", "bf16", "f32", "q8_0", "q6_k", "q5_k_m"):
        yield _set(job, "gguf", "q4_k_m", "weights_more")
    for layers in (48, 40, 32, 24, 16, 8):
        if job.gpu_layers is None or layers < job.gpu_layers:
            yield f"--n-gpu-layers {layers}", {"gpu_layers": layers}, "layers"


def _shorter(job: Job, served: Served, flag: str) -> Iterator[Found]:
    """The longest requests that fit, rounded down to what people type."""
    if served.starts or served.longest < SMALLEST_LENGTH:
        return
    step = 1024 if served.longest > 4096 else SMALLEST_LENGTH
    length = served.longest // step * step
    yield f"{flag} {length}", {"max_model_len": length}, "length"


def _set(job: Job, name: str, value: object, cost: str) -> Found:
    return f"--{flag_of(name)} {value}", {name: value}, cost
