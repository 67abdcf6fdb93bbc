"""A job of generate() run for real on the virtual GPU, for models that no formula describes: in comes JSON, out goes
JSON. See `forecasting.by_generation`.

Decoding is not run token by token. Two calls tell what all of it takes, since a pass needs what the cache holds and
nothing of how it came about:

    prefill   generate() of one token from the whole prompt
    decode    generate() from a prompt as long as prompt and answer but for the last tokens, measured after its first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from vramcast.errors import UnsupportedError, VramcastError
from vramcast.job import Job, job_from
from vramcast.models.read.config import Config
from vramcast.virtual.accounting.cards import Lifting
from vramcast.virtual.gpu import virtual_gpu
from vramcast.virtual.jobs.adapters import DTYPES
from vramcast.virtual.jobs.classes import missing_package
from vramcast.virtual.jobs.model import frozen_model
from vramcast.virtual.jobs.quiet import quiet

LAST_PASSES = 3  # tokens that are really decoded at the end
PLAIN_TOKEN = 3  # no padding, no end, no picture
CACHES = {"static": "static", "offloaded": "offloaded", "quantized": "quantized"}


def trace_here(payload: dict[str, Any], session: object) -> dict[str, Any]:
    """`payload`: the job, the model's config, the dtype, the card. What cannot be run has its error instead."""
    try:
        with quiet():
            return _trace(payload)
    except VramcastError as error:
        return {"error": str(error)}


def _trace(payload: Mapping[str, Any]) -> dict[str, Any]:
    job = job_from(dict(payload["job"]))
    config = Config(payload["config"], payload["where"])
    prompt, new = int(payload["prompt"]), int(payload["new"])
    found: dict[str, Any] = {}
    try:
        with (
            virtual_gpu(payload["gpu"], protect=False, lifts_limit=Lifting.ALWAYS),
            torch.no_grad(),
        ):
            found = _run(job, config, payload["dtype"], prompt, new)
    except VramcastError:
        raise
    except Exception as error:  # other people's code
        raise _not_run(config, error) from error
    return found


def _run(job: Job, config: Config, dtype: str, prompt: int, new: int) -> dict[str, Any]:
    model = frozen_model(config, job, DTYPES[dtype]).to("cuda")
    if not model.can_generate():
        raise UnsupportedError(f"{config.where}: {type(model).__name__} does not generate")
    found: dict[str, Any] = {
        "kind": type(model).__name__,
        "params_total": sum(p.numel() for p in model.parameters()),
        "weight_bytes": _held(model.parameters()),
        "buffer_bytes": _held(model.buffers()),
    }
    found["prefill"] = _measure(model, job, prompt, 1)
    passes = min(LAST_PASSES, new)
    if new > 1:
        found["decode"] = _measure(model, job, prompt + new - passes, passes)
    else:
        found["decode"] = found["prefill"]
    return found


def _measure(model: Any, job: Job, prompt: int, new: int) -> dict[str, int]:
    """The peak of the last pass, and what its cache holds. Of several passes the first is not counted."""
    ids = torch.full((job.batch, prompt), PLAIN_TOKEN, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        num_beams=job.beams,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        stopping_criteria=[_after_the_first(new)],
        **_cache_of(job),
    )
    cache = _held(_tensors(getattr(answer, "past_key_values", None), set()))
    cache = cache or _held(_tensors(getattr(answer, "cache_params", None), set()))
    return {**_numbers(), "cache_bytes": cache}


def _cache_of(job: Job) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if job.kv_cache in CACHES:
        said["cache_implementation"] = CACHES[job.kv_cache]
    if job.kv_cache == "static":
        said["disable_compile"] = True
    if job.prefill_chunk is not None:
        said["prefill_chunk_size"] = job.prefill_chunk
    return said


def _after_the_first(new: int) -> Any:
    """Asked after every token; the peak of the pass over the prompt is forgotten."""
    seen = 0

    def stops(input_ids: Any, scores: Any, **_: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 1 and new > 1:
            torch.cuda.reset_peak_memory_stats()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    return stops


def _numbers() -> dict[str, int]:
    return {
        "allocated": int(torch.cuda.memory_allocated()),
        "peak": int(torch.cuda.max_memory_allocated()),
        "reserved": int(torch.cuda.max_memory_reserved()),
    }


def _held(tensors: Any) -> int:
    """Bytes of the storages on the card, each once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """All tensors on the card that a cache holds, whatever it is made of."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda:
            yield value
        return
    if id(value) in seen or isinstance(value, (str, bytes, int, float, torch.dtype, torch.device)):
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inside = list(vars(value).values())
    for each in inside:
        yield from _tensors(each, seen)


def _not_run(config: Config, error: Exception) -> UnsupportedError:
    missing = missing_package(error)
    if missing:
        return UnsupportedError(
            f"{config.where}: transformers needs {missing} to run it: pip install {missing}"
        )
    line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return UnsupportedError(
        f"{config.where}: generate() of {config.architecture or config.model_type} cannot be run from a job ({line}): "
        "run your own script with vramcast trace"
    )
