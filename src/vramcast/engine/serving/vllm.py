"""vLLM at start-up: the weights are loaded, a trial pass is run, and the rest of its share becomes the cache.

    budget   = share × the whole card (not of what is free)
    cache    = budget − weights − outside of torch − peak of the trial pass − CUDA graphs (since 0.20)

Every rank does this for itself; all take the smallest number of blocks. Read at the tags v0.6.0 to v0.28.0rc2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.serving.cache import CachedLayer, cache_shape, stage_layers
from vramcast.engine.serving.formats import cache_value_bytes
from vramcast.engine.serving.outcome import (
    Outcome,
    gib,
    line,
    short_gib,
    stored_text,
    version_text,
    weight_entries,
)
from vramcast.engine.serving.quantisation import has_quantised_cache
from vramcast.engine.serving.request import NAMES, Request, free_at_start
from vramcast.engine.serving.vllm_blocks import Blocks, lay_out, longest_that_fits, tokens_printed
from vramcast.engine.serving.vllm_defaults import (
    NCCL_BEFORE_SNAPSHOT,
    Settings,
    settings_of,
)
from vramcast.engine.serving.vllm_profile import Profile, profile_run
from vramcast.engine.serving.weights import WeightLine, weight_lines
from vramcast.forecast import Served
from vramcast.ledger import PROFILE, SERVE, Category, Entry, Level, Origin
from vramcast.units import GiB, MiB

SOURCE = "vllm/v1/worker/gpu_worker.py determine_available_memory"
# Outside of torch's allocator after the trial pass, as vLLM's own logs print it: 0.26 and 0.35 GiB (0.6), 0.01 (T4) and
# 0.05 to 0.13 (one card, 0.7 to 0.12), 0.26 (0.20 and later, where buffers that stay are counted too).
OUTSIDE_OLDER, OUTSIDE_NEWER = round(0.3 * GiB), round(0.26 * GiB)
OUTSIDE_ONE_CARD = round(0.09 * GiB)
MEASURES_WELL_FROM = (0, 7)
OUTSIDE_RANGE = (round(0.01 * GiB), round(0.5 * GiB))
COUNTS_BUFFERS_FROM = (0, 20)
# NCCL's buffers and those of the custom all-reduce: 0.8 to 1.0 GiB in logs with 2 to 4 ranks.
OUTSIDE_RANKS = round(0.8 * GiB)
# A graph piece of one layer: 67 sizes × 33 pieces took 0.67 GiB (Llama 8B, 0.10.2). A whole graph of a layer: 35 sizes
# of 32 layers took 0.2 to 0.3 GiB (V0).
PIECE_BYTES, WHOLE_BYTES = round(0.31 * MiB), round(0.25 * MiB)
FIRST_CAPTURE_BYTES = 128 * MiB  # kernels and workspaces that the first capture loads
V2_GRAPHS = 0.35  # of that: 0.23 GiB of Llama 8B with 51 + 51 sizes
CHECKS_FREE_FROM = (0, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One pipeline stage's ranks, which are alike."""

    weights: list[WeightLine]
    layers: tuple[CachedLayer, ...]
    available: int  # for the cache
    blocks: Blocks

    @property
    def weights_bytes(self) -> int:
        return sum(line.nbytes for line in self.weights)

    @property
    def num_blocks(self) -> int:
        return self.blocks.count(self.available)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the sizes follow from, the same on all ranks."""

    settings: Settings
    profile: Profile
    budget: int
    outside: int
    graphs: int
    value_bytes: float
    length: int

    @property
    def graphs_in_budget(self) -> int:
        """The second model runner estimates none."""
        counted = self.settings.graphs_in_budget and self.settings.runner == 1
        return self.graphs if counted else 0

    @property
    def fixed(self) -> int:
        """What is neither weights nor cache."""
        return self.outside + self.profile.nbytes + self.graphs_in_budget


def serve_vllm(request: Request) -> Outcome:
    settings = settings_of(request)
    said = request.job.kv_cache_dtype
    if said is None and has_quantised_cache(request.config):
        said = "fp8"
    figures = Figures(
        settings=settings,
        profile=profile_run(request, settings),
        budget=math.ceil(request.total_bytes * settings.share),
        outside=_outside_bytes(request),
        graphs=_graph_bytes(request, settings),
        value_bytes=cache_value_bytes(said, request.dtype),
        length=request.max_model_len,
    )
    ranks = _ranks(request, figures)
    rank = min(ranks, key=lambda one: one.num_blocks)
    refusal = _refusal(request, figures, rank)
    entries = _entries(request, figures, rank, refusal)
    return Outcome(
        entries=entries,
        served=_served(request, figures, rank, refusal),
        assumptions=_assumptions(request, figures, rank),
        notes=_notes(request, figures, rank),
    )


def _ranks(request: Request, figures: Figures) -> list[Rank]:
    stages = stage_layers(cache_shape(request.text).layers, request.pp)
    found = []
    for weights, layers in zip(weight_lines(request), stages, strict=True):
        own = sum(line.nbytes for line in weights)
        blocks = lay_out(request, figures.settings, layers, figures.value_bytes, figures.length)
        available = figures.budget - own - figures.fixed
        found.append(Rank(weights=weights, layers=layers, available=available, blocks=blocks))
    return found


def _outside_bytes(request: Request) -> int:
    one = OUTSIDE_NEWER if request.version >= COUNTS_BUFFERS_FROM else OUTSIDE_ONE_CARD
    if request.version < MEASURES_WELL_FROM:
        one = OUTSIDE_OLDER
    return one if request.tp * request.pp == 1 else one + OUTSIDE_RANKS


def _graph_bytes(request: Request, settings: Settings) -> int:
    sizes, layers = len(settings.capture_sizes), request.layers // request.pp
    if not sizes:
        return 0
    if not settings.is_v1:
        return FIRST_CAPTURE_BYTES + sizes * layers * WHOLE_BYTES
    pieces = sizes * (layers + 1) * PIECE_BYTES
    whole = 0
    if settings.has_full_graphs:
        decoding = sum(size <= settings.requests for size in settings.capture_sizes)
        whole = decoding * layers * WHOLE_BYTES
    share = V2_GRAPHS if settings.runner == 2 else 1.0
    return round(share * (FIRST_CAPTURE_BYTES + pieces + whole))


# ---- does it start?


def _refusal(request: Request, figures: Figures, rank: Rank) -> str:
    """The error that the engine stops with, in its words; empty where it starts."""
    share, length = figures.settings.share, figures.length
    context = sum(e.nbytes for e in context_entries(request.setup.versions, request.gpu, DEVICE))
    taken = context
    if request.tp * request.pp > 1 and request.version >= NCCL_BEFORE_SNAPSHOT:
        taken += OUTSIDE_RANKS
    free = free_at_start(request, taken)
    is_checked = request.version >= CHECKS_FREE_FROM
    if is_checked and free < figures.budget:
        return (
            f"Free memory on device cuda:0 ({short_gib(free)}/{short_gib(request.total_bytes)} GiB) on startup is less "
            f"than desired GPU memory utilization ({share:g}, {short_gib(figures.budget)} GiB). Decrease GPU memory "
            "utilization or reduce GPU memory used by other processes."
        )
    if rank.weights_bytes > free:
        return f"CUDA out of memory while the weights are loaded: {gib(rank.weights_bytes)} GiB on {gib(free)} GiB"
    if rank.available <= 0:
        return (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
            "engine."
        )
    if not figures.settings.is_v1:
        return _refusal_of_v0(figures, rank, length)
    if rank.blocks.needed_bytes() > rank.available - rank.blocks.bytes_per_block:
        return _too_long(request, figures, rank)
    return ""


def _refusal_of_v0(figures: Figures, rank: Rank, length: int) -> str:
    holds = rank.num_blocks * rank.blocks.block_tokens
    if length <= holds:
        return ""
    return (
        f"The model's max seq len ({length}) is larger than the maximum number of tokens that can be stored in KV "
        f"cache ({holds}). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing "
        "the engine."
    )


def _too_long(request: Request, figures: Figures, rank: Rank) -> str:
    longest = _longest(request, figures, rank)
    advice = ""
    if longest > 0:
        advice = f"Based on the available memory, the estimated maximum model length is {longest}. "
    return (
        f"To serve at least one request with the model's max seq len ({figures.length}), "
        f"({short_gib(rank.blocks.needed_bytes())} GiB KV cache is needed, which is larger than the available KV cache "
        f"memory ({short_gib(rank.available)} GiB). {advice}Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine."
    )


def _longest(request: Request, figures: Figures, rank: Rank) -> int:
    return longest_that_fits(
        request, figures.settings, rank.layers, figures.value_bytes, rank.available
    )


# ---- the answer


def _served(request: Request, figures: Figures, rank: Rank, refusal: str) -> Served:
    count, blocks = rank.num_blocks, rank.blocks
    tokens = tokens_printed(blocks, count, request, figures.length)
    low, high = _available_range(figures, rank)
    counts = (blocks.count(low), blocks.count(high))
    needed = rank.weights_bytes + figures.fixed + blocks.needed_bytes()
    per_token = sum(
        round(layer.values_per_token(request.tp) * figures.value_bytes) for layer in rank.layers
    )
    fits_low = low - blocks.bytes_per_block >= blocks.needed_bytes()
    return Served(
        engine="vllm",
        version=version_text(request),
        starts=not refusal,
        refusal=refusal,
        budget_bytes=figures.budget,
        needed_bytes=needed,
        kv_bytes=max(rank.available, 0),
        kv_range_bytes=(max(low, 0) if fits_low else 0, max(high, 0)),
        kv_tokens=tokens,
        kv_tokens_range=(
            tokens_printed(blocks, counts[0], request, figures.length),
            tokens_printed(blocks, counts[1], request, figures.length),
        ),
        kv_token_bytes=per_token,
        max_model_len=figures.length,
        concurrency=blocks.concurrency(count),
        longest=_longest(request, figures, rank),
        weights_bytes=rank.weights_bytes,
        lines=_lines(request, figures, rank, tokens, refusal),
    )


def _available_range(figures: Figures, rank: Rank) -> tuple[int, int]:
    """The errors of the trial pass, of what is outside of torch and of the graphs are independent."""
    below_outside, above_outside = OUTSIDE_RANGE
    parts = [
        (figures.profile.nbytes, figures.profile.low, figures.profile.high),
        (figures.outside, min(below_outside, figures.outside), figures.outside + above_outside),
    ]
    if figures.graphs_in_budget:
        parts.append((figures.graphs, figures.graphs // 2, 2 * figures.graphs))
    less = math.hypot(*(high - value for value, _, high in parts))
    more = math.hypot(*(value - low for value, low, _ in parts))
    return rank.available - round(less), rank.available + round(more)


def _lines(
    request: Request, figures: Figures, rank: Rank, tokens: int, refusal: str
) -> tuple[str, ...]:
    if not figures.settings.is_v1:
        return _lines_of_v0(request, figures, rank)
    lines = [f"Model loading took {gib(rank.weights_bytes, 4)} GiB memory"]
    lines.append(f"Available KV cache memory: {short_gib(rank.available)} GiB")
    if refusal:
        return (*lines, f"ValueError: {refusal}")
    concurrency = rank.blocks.concurrency(rank.num_blocks)
    lines.append(f"GPU KV cache size: {tokens:,} tokens")
    lines.append(
        f"Maximum concurrency for {figures.length:,} tokens per request: {concurrency:.2f}x"
    )
    if figures.graphs:
        lines.append(f"Graph capturing finished in … secs, took {gib(figures.graphs)} GiB")
    return tuple(lines)


def _lines_of_v0(request: Request, figures: Figures, rank: Rank) -> tuple[str, ...]:
    total, share = request.total_bytes, figures.settings.share
    concurrency = rank.num_blocks * rank.blocks.block_tokens / figures.length
    return (
        f"the current vLLM instance can use total_gpu_memory ({gib(total)}GiB) x gpu_memory_utilization ({share:.2f}) "
        f"= {gib(total * share)}GiB",
        f"model weights take {gib(rank.weights_bytes)}GiB; non_torch_memory takes {gib(figures.outside)}GiB; PyTorch "
        f"activation peak memory takes {gib(figures.profile.nbytes)}GiB; the rest of the memory reserved for KV Cache "
        f"is {gib(rank.available)}GiB.",
        f"# GPU blocks: {rank.num_blocks}",
        f"Maximum concurrency for {figures.length} tokens per request: {concurrency:.2f}x",
    )


def _entries(request: Request, figures: Figures, rank: Rank, refusal: str) -> tuple[Entry, ...]:
    profile, cache = figures.profile, max(rank.available, 0)
    held = rank.blocks.needed_bytes() if refusal else cache
    shape = cache_shape(request.text).describe()
    return (
        *weight_entries(request, rank.weights, "the checkpoint, divided as vLLM's layers are"),
        line(
            Category.ACTIVATIONS,
            "peak of the profiling run",
            profile.nbytes,
            phases=(PROFILE, SERVE),
            formula=profile.formula,
            source=profile.source,
        ),
        line(
            Category.CACHE,
            "one request of max-model-len" if refusal else "keys and values",
            held,
            phases=(SERVE,),
            formula=f"{shape} × {figures.value_bytes:g} B",
            source=SOURCE,
        ),
        line(
            Category.WORKSPACE,
            "CUDA graphs",
            figures.graphs,
            phases=(SERVE,),
            formula=f"{len(figures.settings.capture_sizes)} batch sizes",
            source="Graph capturing finished … in vLLM's logs",
            origin=Origin.ASSUMED,
            level=Level.PROCESS,
            range_bytes=(figures.graphs // 2, 2 * figures.graphs),
        ),
        line(
            Category.COMMUNICATION if request.tp * request.pp > 1 else Category.WORKSPACE,
            "outside of torch's allocator",
            figures.outside,
            source="non_torch_memory in vLLM's logs",
            origin=Origin.ASSUMED,
            level=Level.PROCESS,
        ),
        *context_entries(request.setup.versions, request.gpu, DEVICE),
    )


def _assumptions(request: Request, figures: Figures, rank: Rank) -> tuple[str, ...]:
    settings, job = figures.settings, request.job
    decided = {
        "gpu-memory-utilization": (job.gpu_memory_utilization, f"{settings.share:g}"),
        "max-model-len": (job.max_model_len, f"{figures.length:,}"),
        "max-num-seqs": (job.max_num_seqs, f"{settings.requests:,}"),
        "max-num-batched-tokens": (job.max_num_batched_tokens, f"{settings.batched_tokens:,}"),
    }
    texts = [
        f"{name} {value} (not given)" for name, (said, value) in decided.items() if said is None
    ]
    cached = "fp8" if figures.value_bytes == 1 else NAMES.get(request.dtype, request.dtype)
    cached = job.kv_cache_dtype or cached
    return (
        stored_text("vLLM", request, cached),
        *texts,
    )


def _notes(request: Request, figures: Figures, rank: Rank) -> tuple[str, ...]:
    if rank.blocks.padding_layers:
        layers = rank.blocks.padding_layers
        return (f"layers of different kinds share one pool: {layers} padding layers are added",)
    return ()
