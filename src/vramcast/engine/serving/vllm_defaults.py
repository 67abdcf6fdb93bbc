"""What vLLM decides where nothing is said, by version: share of the card, tokens of a pass, requests, graphs.

Read in vllm/engine/arg_utils.py, vllm/config/*.py and vllm/v1/worker/*.py at the tags v0.6.0 to v0.28.0rc2.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.engine.serving.request import Request
from vramcast.units import GiB

V1_FROM = (0, 8)  # the V1 engine is the default
V1_ON_OLDER_CARDS = (0, 10)  # before, cards below compute capability 8.0 fall back to V0
LARGE_CARD, LARGEST_CARD = 70 * GiB, 160 * GiB
NCCL_BEFORE_SNAPSHOT = (0, 11)  # the first snapshot is taken after NCCL's start
GRAPHS_IN_BUDGET = (0, 20)
TRITON_TOP_P = (0, 17)  # top-k and top-p without sorting the vocabulary
FULL_GRAPHS = (0, 11)  # FULL_AND_PIECEWISE instead of PIECEWISE
SPARSER_SIZES = (0, 12)  # steps of 16 above 256, at most twice the requests
TOKENS_BY_CONCURRENCY = (0, 21)
V2_RUNNER_FROM = (0, 26)  # for dense models; its profile's sampler makes no copies of the logits
V2_RUNNER_EARLY = (0, 24)
V2_EARLY_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen2MoeForCausalLM",
    "GraniteMoeForCausalLM",
    "DeepseekV2ForCausalLM",
)
V2_EXPERT_ARCHITECTURES = (
    "DeepseekV2ForCausalLM",
    "GraniteMoeForCausalLM",
    "Qwen2MoeForCausalLM",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that decides the sizes, as said or by default."""

    share: float
    batched_tokens: int
    requests: int
    capture_sizes: tuple[int, ...]
    has_full_graphs: bool
    graphs_in_budget: bool
    is_v1: bool
    runner: int  # 1 or 2
    said: tuple[str, ...]  # what was given


def settings_of(request: Request) -> Settings:
    job, version = request.job, request.version
    requests = job.max_num_seqs or _default_requests(request)
    tokens = job.max_num_batched_tokens or _default_tokens(request)
    is_v1 = uses_v1(request)
    requests = min(requests, tokens)
    sizes = () if job.enforce_eager else _capture_sizes(request, requests, tokens)
    names = ("gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    return Settings(
        share=job.gpu_memory_utilization or (0.92 if version >= GRAPHS_IN_BUDGET else 0.9),
        batched_tokens=tokens,
        requests=requests,
        capture_sizes=sizes,
        has_full_graphs=version >= FULL_GRAPHS,
        graphs_in_budget=version >= GRAPHS_IN_BUDGET,
        is_v1=is_v1,
        runner=_runner(request),
        said=tuple(name for name in names if getattr(job, name) is not None),
    )


def uses_v1(request: Request) -> bool:
    """vllm/engine/arg_utils.py _is_v1_supported_oracle."""
    capability = request.gpu.compute_capability if request.gpu else None
    is_old = capability is not None and capability < (8, 0)
    return request.version >= (V1_ON_OLDER_CARDS if is_old else V1_FROM)


def _is_large(request: Request) -> bool:
    """vllm/engine/arg_utils.py get_batch_defaults: H100, H200, MI300X; the A100 is left out since 0.9.2."""
    if request.total_bytes < LARGE_CARD:
        return False
    is_a100 = request.gpu is not None and "a100" in request.gpu.name.lower()
    return not (is_a100 and request.version >= (0, 9, 2))


def _default_requests(request: Request) -> int:
    if not uses_v1(request):
        return 256
    if request.version < (0, 8, 3):
        return 1024
    return 1024 if _is_large(request) else 256


def _default_tokens(request: Request) -> int:
    """The server's; the offline LLM class takes twice to four times as many."""
    if not uses_v1(request):
        return _default_tokens_of_v0(request)
    if request.version >= (0, 28) and request.total_bytes >= LARGEST_CARD:
        return 16384
    return 8192 if _is_large(request) else 2048


def _default_tokens_of_v0(request: Request) -> int:
    """One prompt of the greatest length in one pass; chunks of prefill above 32k."""
    length = request.max_model_len
    if length > 32768:
        return 2048 if request.version >= (0, 6, 6) else 512
    return max(length, 2048)


def _capture_sizes(request: Request, requests: int, tokens: int) -> tuple[int, ...]:
    version = request.version
    if not uses_v1(request):
        return tuple(size for size in (1, 2, 4, *range(8, 257, 8)) if size <= max(requests, 1))
    if version < SPARSER_SIZES:
        largest = min(512, tokens)
        return tuple(size for size in (1, 2, 4, *range(8, 513, 8)) if size <= largest)
    largest = min(2 * requests, 512, tokens)
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    return tuple(size for size in sizes if size <= largest)


def _runner(request: Request) -> int:
    """vllm/config/vllm.py use_v2_model_runner."""
    if request.version < V2_RUNNER_EARLY:
        return 1
    architecture = request.config.architecture
    if request.version < V2_RUNNER_FROM:
        return 2 if architecture in V2_EARLY_ARCHITECTURES else 1
    data = request.text.data
    has_experts = any(
        data.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )
    is_hybrid = "linear_attention" in (data.get("layer_types") or ()) or data.get("mamba_d_state")
    if architecture in V2_EXPERT_ARCHITECTURES:
        return 2
    return 1 if has_experts or is_hybrid else 2
