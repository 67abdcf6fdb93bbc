"""SGLang at start-up: a share of the card is for weights and cache together; nothing is profiled.

    cache = free after the weights − free before them × (1 − mem-fraction-static)

Where the share is not said, it follows from the card: what passes of the chunk's length and CUDA graphs are expected to
take stays free. Read in python/sglang/srt/server_args.py and mem_cache/ of v0.4.6 to v0.5.18.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.serving.cache import (
    SLIDING,
    STATE,
    CachedLayer,
    cache_shape,
    stage_layers,
    state_bytes,
)
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
from vramcast.engine.serving.weights import WeightLine, weight_lines
from vramcast.forecast import Served
from vramcast.ledger import SERVE, Category, Entry, Level, Origin
from vramcast.units import GiB, MiB

SOURCE = "sglang/srt/mem_cache/kv_cache_configurator.py _profile_available_bytes"
# server_args.py _handle_gpu_memory_settings: below so many GiB, tokens of a chunk and requests of the largest graph
# (with fewer than 4 ranks, with more).
CARDS = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (math.inf, 16384, 512, 512),
)
LEAST_CHUNK, RESERVE_MIB, MIB_PER_TOKEN = 2048, 512, 1.5
MIB_PER_GRAPH_ROW, LARGE_CARD_GIB, LARGE_RESERVE_MIB = 2, 60, 10 * 1024
MIB_PER_PREFILL_GRAPH, LATENT_PREFILL_MIB = 8, 1536
PREFILL_GRAPHS_FROM = (0, 5, 9)
FORMULA_FROM = (0, 5, 3)
# Before 0.4.9: by tensor-parallel ranks.
SHARE_BY_RANKS = {1: 0.88, 2: 0.87, 4: 0.85, 8: 0.81, 16: 0.79}
WINDOW_SHARE = 0.8  # swa_full_tokens_ratio
STATE_SHARE = 0.9 / 1.9  # mamba_full_memory_ratio 0.9 of the whole
STATES_PER_REQUEST = 3
NCCL_BYTES = round(0.8 * GiB)
LOADED_BYTES = (
    250 * MiB
)  # kernels and buffers that come with the weights: mem usage above their size in logs
ROW_BYTES = 4  # req_to_token: one int32 per position and running request


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    share: float
    chunk: int
    graph_rows: int
    before: int  # free before the weights
    rest: int  # of the share, for the cache
    value_bytes: float


def serve_sglang(request: Request) -> Outcome:
    stages = stage_layers(cache_shape(request.text).layers, request.pp)
    all_weights = weight_lines(request)
    found = [
        (_figures(request, weights), weights, layers)
        for weights, layers in zip(all_weights, stages, strict=True)
    ]
    figures, weights, layers = min(found, key=lambda one: _tokens(request, one[0], one[2]))
    tokens = _tokens(request, figures, layers)
    refusal = _refusal(request, figures, weights, tokens)
    return Outcome(
        entries=_entries(request, figures, weights, layers, refusal),
        served=_served(request, figures, weights, layers, tokens, refusal),
        assumptions=_assumptions(request, figures),
    )


def _figures(request: Request, weights: list[WeightLine]) -> Figures:
    job, gib_of_card = request.job, request.total_bytes / GiB
    _, chunk, few, many = next(card for card in CARDS if gib_of_card < card[0])
    chunk = job.max_num_batched_tokens or chunk
    rows = few if request.tp < 4 else many
    share = job.gpu_memory_utilization or _default_share(request, chunk, rows)
    context = sum(e.nbytes for e in context_entries(request.setup.versions, request.gpu, DEVICE))
    ranks = NCCL_BYTES if request.tp * request.pp > 1 else 0
    before = free_at_start(request, context + ranks)
    own = sum(one.nbytes for one in weights) + LOADED_BYTES
    return Figures(
        share=share,
        chunk=chunk,
        graph_rows=0 if job.enforce_eager else rows,
        before=before,
        rest=before - own - round(before * (1 - share)),
        value_bytes=cache_value_bytes(job.kv_cache_dtype, request.dtype),
    )


def _default_share(request: Request, chunk: int, rows: int) -> float:
    if request.version < (0, 4, 9):
        return SHARE_BY_RANKS[max(ranks for ranks in SHARE_BY_RANKS if ranks <= request.tp)]
    mib = request.total_bytes / MiB
    reserved = RESERVE_MIB + MIB_PER_TOKEN * max(chunk, LEAST_CHUNK)
    reserved += request.tp * request.pp / 8 * 1024
    if not request.job.enforce_eager:
        reserved += MIB_PER_GRAPH_ROW * rows
        if request.version >= PREFILL_GRAPHS_FROM:
            reserved += _prefill_graphs_mib(request, chunk)
    if mib > LARGE_CARD_GIB * 1024:
        reserved = max(reserved, LARGE_RESERVE_MIB)
    return round((mib - reserved) / mib, 3)


def _prefill_graphs_mib(request: Request, chunk: int) -> int:
    """Piecewise graphs of prefill, one per batch size."""
    if request.text.data.get("kv_lora_rank"):
        return LATENT_PREFILL_MIB
    return MIB_PER_PREFILL_GRAPH * len(_prefill_sizes(chunk))


def _prefill_sizes(largest: int) -> list[int]:
    """server_args.py _generate_prefill_cuda_graph_batch_sizes: denser below, sparser above."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for start, end, step in steps for size in range(start, end, step)]
    sizes += range(4608, largest + 1, 512)
    return [size for size in sizes if size <= largest]


# ---- pools


def _tokens(request: Request, figures: Figures, layers: tuple[CachedLayer, ...]) -> int:
    """Tokens of the pool of full layers."""
    full, sliding = _per_token(request, figures, layers)
    rest = figures.rest
    if any(layer.kind == STATE for layer in layers):
        rest = round(rest * (1 - STATE_SHARE))
    per_token = full + WINDOW_SHARE * sliding if full else sliding
    return max(int(rest / per_token), 0) if per_token else 0


def _per_token(
    request: Request, figures: Figures, layers: tuple[CachedLayer, ...]
) -> tuple[float, float]:
    """Bytes of a token in layers that keep all, and in those with a window."""

    def of(wanted: bool) -> float:
        chosen = (one for one in layers if (one.kind == SLIDING) == wanted and one.kind != STATE)
        return sum(one.values_per_token(request.tp) for one in chosen) * figures.value_bytes

    return of(False), of(True)


def _refusal(request: Request, figures: Figures, weights: list[WeightLine], tokens: int) -> str:
    own = sum(one.nbytes for one in weights)
    if own > figures.before:
        return f"CUDA out of memory while the weights are loaded: {gib(own)} GiB on {gib(figures.before)} GiB"
    if figures.rest <= 0:
        least = math.ceil((own + LOADED_BYTES) / figures.before * 1000) / 1000
        return (
            f"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={figures.share:g}. Raise "
            f"--mem-fraction-static above {least:.3f}."
        )
    if tokens <= 0:
        return "Not enough memory. Please try to increase --mem-fraction-static."
    return ""


def _served(
    request: Request,
    figures: Figures,
    weights: list[WeightLine],
    layers: tuple[CachedLayer, ...],
    tokens: int,
    refusal: str,
) -> Served:
    full, sliding = _per_token(request, figures, layers)
    length = request.max_model_len
    own = sum(one.nbytes for one in weights)
    slack = round(0.3 * GiB)
    per_token = full + WINDOW_SHARE * sliding if full else sliding
    spread = round(slack / per_token) if per_token else 0
    held = round(tokens * per_token)
    share_bytes = round(figures.before * figures.share)
    return Served(
        engine="sglang",
        version=version_text(request),
        starts=not refusal,
        refusal=refusal,
        budget_bytes=share_bytes,
        needed_bytes=own + LOADED_BYTES + round(per_token),
        kv_bytes=max(held, 0),
        kv_range_bytes=(max(held - slack, 1), held + slack),
        kv_tokens=tokens,
        kv_tokens_range=(max(tokens - spread, 0), tokens + spread),
        kv_token_bytes=round(full + sliding),
        max_model_len=length,
        concurrency=tokens / length,
        longest=min(tokens, length),
        weights_bytes=own,
        lines=_lines(request, figures, own, tokens, full, sliding, refusal),
    )


def _lines(
    request: Request,
    figures: Figures,
    own: int,
    tokens: int,
    full: float,
    sliding: float,
    refusal: str,
) -> tuple[str, ...]:
    free = figures.before - own - LOADED_BYTES
    first = f"Load weight end. avail mem={gib(free)} GB, mem usage={gib(own + LOADED_BYTES)} GB."
    if refusal:
        return (first, refusal)
    per_token = full if full else sliding
    if request.text.data.get("kv_lora_rank"):
        pool = f"KV Cache is allocated. #tokens: {tokens}, KV size: {gib(tokens * per_token)} GB"
    else:
        half = gib(tokens * per_token / 2)
        pool = f"KV Cache is allocated. #tokens: {tokens}, K size: {half} GB, V size: {half} GB"
    lines = [first, pool]
    if full and sliding:
        lines.append(f"SWA pool: #tokens: {round(WINDOW_SHARE * tokens)}")
    length = request.max_model_len
    lines.append(
        f"max_total_num_tokens={tokens}, chunked_prefill_size={figures.chunk}, context_len={length}"
    )
    return tuple(lines)


def _entries(
    request: Request,
    figures: Figures,
    weights: list[WeightLine],
    layers: tuple[CachedLayer, ...],
    refusal: str,
) -> tuple[Entry, ...]:
    states = [layer for layer in layers if layer.kind == STATE]
    held = max(figures.rest, 0)
    state = round(held * STATE_SHARE) if states else 0
    each = sum(
        state_bytes(layer, request.text, request.tp, request.dtype_bytes) for layer in states
    )
    graphs = 2 * figures.graph_rows * MiB
    rows = request.job.max_num_seqs or figures.graph_rows or 32
    return (
        *weight_entries(request, weights, "the checkpoint, divided as SGLang's layers are"),
        line(
            Category.WORKSPACE,
            "kernels and buffers that come with the weights",
            LOADED_BYTES,
            origin=Origin.ASSUMED,
            source="mem usage above the size of the weights in SGLang's logs",
            range_bytes=(0, 4 * LOADED_BYTES),
        ),
        line(
            Category.CACHE,
            "keys and values",
            held - state,
            phases=(SERVE,),
            formula=f"{cache_shape(request.text).describe()} × {figures.value_bytes:g} B",
            source=SOURCE,
        ),
        line(
            Category.CACHE,
            "states of running requests",
            state,
            phases=(SERVE,),
            formula=f"{each:,} B per request, {STATES_PER_REQUEST} slots each" if each else "",
            source="mamba_full_memory_ratio 0.9",
        ),
        line(
            Category.INPUT,
            "positions of running requests",
            rows * request.max_model_len * ROW_BYTES,
            phases=(SERVE,),
            formula=f"{rows:,} requests × {request.max_model_len:,} × {ROW_BYTES} B",
            source="sglang/srt/mem_cache/memory_pool.py ReqToTokenPool",
        ),
        line(
            Category.WORKSPACE,
            "CUDA graphs",
            graphs,
            phases=(SERVE,),
            formula=f"{figures.graph_rows} rows × 2 MiB",
            source="server_args.py reserve_for_graph_mb",
            origin=Origin.ASSUMED,
            range_bytes=(graphs // 2, 2 * graphs),
        ),
        line(
            Category.ACTIVATIONS,
            "a chunk of prefill",
            round(MIB_PER_TOKEN * figures.chunk * MiB / 4),
            phases=(SERVE,),
            formula=f"{figures.chunk:,} tokens, of 1.5 MiB each that are left free for them a quarter",
            source="server_args.py: 1.5 MiB per token are reserved, whatever the model",
            origin=Origin.ASSUMED,
            range_bytes=(0, round(MIB_PER_TOKEN * figures.chunk * MiB)),
        ),
        *_communication(request),
        *context_entries(request.setup.versions, request.gpu, DEVICE),
    )


def _communication(request: Request) -> tuple[Entry, ...]:
    if request.tp * request.pp == 1:
        return ()
    one = line(
        Category.COMMUNICATION,
        "NCCL and custom all-reduce",
        NCCL_BYTES,
        origin=Origin.ASSUMED,
        level=Level.PROCESS,
        source="0.8 to 1.0 GiB in vLLM's logs with 2 to 4 ranks",
        range_bytes=(NCCL_BYTES // 2, 2 * NCCL_BYTES),
    )
    return (one,)


def _assumptions(request: Request, figures: Figures) -> tuple[str, ...]:
    job = request.job
    decided = {
        "mem-fraction-static": (job.gpu_memory_utilization, f"{figures.share:g}"),
        "max-model-len": (job.max_model_len, f"{request.max_model_len:,}"),
        "chunked-prefill-size": (job.max_num_batched_tokens, f"{figures.chunk:,}"),
    }
    cached = job.kv_cache_dtype or NAMES[request.dtype]
    texts = [
        f"{name} {value} (not given)" for name, (said, value) in decided.items() if said is None
    ]
    return (
        stored_text("SGLang", request, cached),
        *texts,
    )
