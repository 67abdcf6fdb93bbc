"""TGI at start-up: a warm-up batch of the longest prefill is run, and nine tenths of what is then free become blocks.

    blocks = floor(free within the share × 0.9 / bytes of a block) + those of the warm-up batch

Read in server/text_generation_server/models/flash_causal_lm.py warmup of v3.3.7, the last release.
"""

from __future__ import annotations

from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.serving.cache import cache_shape
from vramcast.engine.serving.formats import cache_value_bytes
from vramcast.engine.serving.outcome import (
    Outcome,
    gib,
    line,
    stored_text,
    version_text,
    weight_entries,
)
from vramcast.engine.serving.request import NAMES, Request, free_at_start
from vramcast.engine.serving.vllm_profile import forward_bytes
from vramcast.engine.serving.weights import weight_lines
from vramcast.errors import UnsupportedError
from vramcast.forecast import Served
from vramcast.ledger import PROFILE, SERVE, Category, Origin
from vramcast.units import GiB, MiB

SOURCE = "text_generation_server/models/flash_causal_lm.py warmup"
WIGGLE_ROOM = 0.9
PREFILL_TOKENS = (
    4096  # launcher default of max-batch-prefill-tokens where the card does not say more
)
GRAPHS_BYTES = 256 * MiB


def serve_tgi(request: Request) -> Outcome:
    if request.pp > 1:
        raise UnsupportedError("tgi divides a model over tp alone: leave out pp")
    job, length = request.job, request.max_model_len
    weights = weight_lines(request)[0]
    own = sum(one.nbytes for one in weights)
    shape = cache_shape(request.text)
    value_bytes = cache_value_bytes(job.kv_cache_dtype, request.dtype)
    per_token = round(shape.values_per_token(request.tp) * value_bytes)
    tokens = job.max_num_batched_tokens or PREFILL_TOKENS
    share = job.gpu_memory_utilization or 1.0
    contexts = list(context_entries(request.setup.versions, request.gpu, DEVICE))
    before = free_at_start(request, sum(entry.nbytes for entry in contexts))
    passing = forward_bytes(request, tokens, is_eager=True)
    warm = tokens * per_token
    free = before - own - passing - warm - round((1 - share) * request.total_bytes)
    blocks = max(int(free * WIGGLE_ROOM) // per_token, 0) + tokens
    refusal = ""
    if free <= 0:
        advice = "You need to decrease `--max-batch-prefill-tokens`"
        refusal = f"Not enough memory to handle {tokens} prefill tokens. {advice}"
    held = blocks * per_token if not refusal else warm
    slack = round(0.2 * passing + 0.3 * GiB)
    spread = slack // per_token
    served = Served(
        engine="tgi",
        version=version_text(request),
        starts=not refusal,
        refusal=refusal,
        budget_bytes=round(before * share),
        needed_bytes=own + passing + warm,
        kv_bytes=held,
        kv_range_bytes=(max(held - slack, 1), held + slack),
        kv_tokens=blocks,
        kv_tokens_range=(max(blocks - spread, 0), blocks + spread),
        kv_token_bytes=per_token,
        max_model_len=length,
        concurrency=blocks / length,
        longest=min(blocks, length),
        weights_bytes=own,
        lines=(refusal,) if refusal else (f"KV-cache blocks: {blocks}, size: 1",),
    )
    entries = (
        *weight_entries(request, weights, "the checkpoint, divided as TGI's layers are"),
        line(
            Category.ACTIVATIONS,
            "a pass over the longest prefill",
            passing,
            phases=(PROFILE, SERVE),
            formula=f"{tokens:,} tokens",
            source=SOURCE,
        ),
        line(
            Category.CACHE,
            "keys and values",
            held,
            phases=(SERVE,),
            formula=f"{shape.describe()} × {value_bytes:g} B",
            source=SOURCE,
        ),
        line(
            Category.WORKSPACE,
            "CUDA graphs",
            0 if job.enforce_eager else GRAPHS_BYTES,
            phases=(SERVE,),
            origin=Origin.ASSUMED,
            source="captured in the tenth that is left free",
            range_bytes=None if job.enforce_eager else (GRAPHS_BYTES // 4, 4 * GRAPHS_BYTES),
        ),
        *contexts,
    )
    texts = [f"max-model-len {length:,} (not given)"] if job.max_model_len is None else []
    if job.max_num_batched_tokens is None:
        texts.append(f"max-batch-prefill-tokens {tokens:,} (not given)")
    cached = job.kv_cache_dtype or NAMES[request.dtype]
    first = stored_text("TGI", request, cached)
    notes = (f"weights and a pass take {gib(own + passing)} GiB",) if refusal else ()
    return Outcome(entries=entries, served=served, assumptions=(first, *texts), notes=notes)
