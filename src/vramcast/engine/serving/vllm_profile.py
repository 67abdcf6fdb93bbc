"""vLLM's profiling run: one pass over all tokens that may be batched, then the sampler over all requests at once.

The engine keeps free what this run took at its peak, so two things compete:

    forward   tokens × (gate and up, their product, the residual and what goes on) × bytes
    sampler   requests × vocabulary × bytes: logits, their fp32 copy, and what top-k and top-p make of them

Example: Llama 3.1 8B, 8,192 tokens in bf16: 8,192 × (3 × 14,336 + 4,096) × 2 B = 0.72 GiB. 256 requests over 128,256
words, sorted: 256 × 128,256 × 38 B = 1.16 GiB, which is the larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.engine.serving.request import Request
from vramcast.engine.serving.vllm_defaults import TRITON_TOP_P, Settings

# aten/src/ATen/native/cuda/SortStable.cu: rows below which all are sorted as one.
ROWS_SORTED_TOGETHER = 128
LOGITS, FLOAT, INDEX = 2, 4, 8
# segmented_sort_pairs: indices to start from (8), cub's second buffers for keys and values (4 + 8)
SORTED_BY_ROW = FLOAT + INDEX + INDEX + FLOAT + INDEX
# segmented_sort_pairs_by_full_sort: two arrays of index and row (8 + 8), keys (4), cub's buffers (4 + 8)
SORTED_TOGETHER = FLOAT + INDEX + 2 * INDEX + FLOAT + FLOAT + INDEX


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The peak of the profiling run on one rank, above the weights."""

    nbytes: int
    formula: str
    source: str
    low: int
    high: int


def profile_run(request: Request, settings: Settings) -> Profile:
    forward, forward_text = _forward(request, settings)
    sampler, sampler_text = _sampler(request, settings)
    images = _images(request)
    if images > forward and images > sampler:
        forward, forward_text = images, "vision encoder at its largest inputs"
    is_sampler = sampler > forward
    nbytes = max(forward, sampler)
    source = (
        "vllm/v1/worker/gpu_model_runner.py profile_run, aten/src/ATen/native/cuda/SortStable.cu"
        if is_sampler
        else "vllm/v1/worker/gpu_model_runner.py profile_run: one pass without cache"
    )
    widest = max(nbytes, round(1.25 * forward), _widest_sampler(request, settings))
    return Profile(
        nbytes=nbytes,
        formula=sampler_text if is_sampler else forward_text,
        source=source,
        low=round(0.8 * nbytes),
        high=widest,
    )


def forward_bytes(request: Request, tokens: int, *, is_eager: bool) -> int:
    """What a pass over so many tokens takes at its widest."""
    held = 3 if is_eager else 1
    return tokens * (_inner_width(request)[0] + held * request.hidden) * request.dtype_bytes


def _forward(request: Request, settings: Settings) -> tuple[int, str]:
    """The MLP of a layer, and what its caller holds: compiled code frees its inputs, eager code does not.

    Eager (V0 before 0.8, --enforce-eager): gate and up (2i), their product (i), residual, the layer's input and the
    attention's output (3h). Compiled: 3i and one residual.
    """
    tokens, h = settings.batched_tokens, request.hidden
    is_eager = request.job.enforce_eager or not settings.is_v1
    held = 3 if is_eager else 1
    _, text = _inner_width(request)
    nbytes = forward_bytes(request, tokens, is_eager=is_eager)
    return nbytes, f"{tokens:,} tokens × ({text} + {held} × {h:,}) × {request.dtype_bytes} B"


def _inner_width(request: Request) -> tuple[int, str]:
    """Values per token that a layer's widest part makes, on one rank."""
    c, tp = request.text, request.tp
    dense = _int(c.data, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
    dense = dense or 4 * request.hidden
    experts = _int(c.data, "num_experts", "num_local_experts", "n_routed_experts")
    if not experts:
        return 3 * dense // tp, f"3 × {dense // tp:,}"
    # fused_moe.py: gate-and-up and the output share one buffer, the product has its own
    chosen = _int(c.data, "num_experts_per_tok", "experts_per_token", "num_experts_per_token") or 2
    inner = (_int(c.data, "moe_intermediate_size") or dense) // max(tp, request.job.ep)
    wide = chosen * (max(2 * inner, request.hidden) + inner)
    return wide, f"{chosen} experts × (max(2 × {inner:,}, {request.hidden:,}) + {inner:,})"


def _sampler(request: Request, settings: Settings) -> tuple[int, str]:
    """Logits of every request's last position; hidden states of all tokens are still held."""
    rows, vocabulary = settings.requests, request.vocabulary
    each = _sampler_bytes(request, settings, rows)
    held = settings.batched_tokens * request.hidden * request.dtype_bytes
    text = (
        f"{rows:,} requests × {vocabulary:,} words × {each} B + {settings.batched_tokens:,} tokens × "
        f"{request.hidden:,} × {request.dtype_bytes} B"
    )
    return rows * vocabulary * each + held, text


def _sampler_bytes(request: Request, settings: Settings, rows: int) -> int:
    if settings.runner == 2:
        return (
            LOGITS  # vllm/v1/worker/gpu/model_runner.py _dummy_sampler_run: neither top-k nor top-p
        )
    logits = LOGITS + FLOAT
    if request.version >= TRITON_TOP_P:
        return logits + 2 * FLOAT  # probabilities, exponential noise
    return logits + (SORTED_TOGETHER if rows < ROWS_SORTED_TOGETHER else SORTED_BY_ROW)


def _widest_sampler(request: Request, settings: Settings) -> int:
    """With other kernels installed (FlashInfer) the sampler takes less; up to what sorting takes."""
    rows = settings.requests
    each = _sampler_bytes(request, settings, rows) if settings.runner == 1 else LOGITS + 2 * FLOAT
    return rows * request.vocabulary * each


def _images(request: Request) -> int:
    """The vision tower's pass over the largest image: its widest layer for all patches."""
    vision = request.config.sub("vision_config").data
    if not vision:
        return 0
    size, patch = _int(vision, "image_size"), _int(vision, "patch_size") or 14
    patches = (size // patch) ** 2 if size else 16384
    inner = _int(vision, "intermediate_size") or 4 * (_int(vision, "hidden_size") or 1024)
    hidden = _int(vision, "hidden_size") or 1024
    return patches * (2 * inner + 4 * hidden) * request.dtype_bytes


def _int(data: Mapping[str, object], *names: str) -> int | None:
    found = (data.get(name) for name in names)
    return next(
        (v for v in found if isinstance(v, int) and not isinstance(v, bool) and v > 0), None
    )
