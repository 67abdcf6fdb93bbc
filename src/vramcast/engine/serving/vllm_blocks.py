"""Blocks of vLLM's cache: pages of one layer, groups of layers, how many requests they hold.

All layers draw blocks from one pool. Where layers differ (sliding windows, states), those of one kind are cut into
groups of equal size, so that a block is as large for every group.

Example: Qwen3-8B, 36 full layers: a block of 16 tokens takes 36 × 16 × 8 × (128 + 128) × 2 B = 2.25 MiB; 10 GiB are
4,551 blocks, 72,816 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.engine.serving.cache import FULL, LATENT, SLIDING, STATE, CachedLayer, state_bytes
from vramcast.engine.serving.request import Request
from vramcast.engine.serving.vllm_defaults import TOKENS_BY_CONCURRENCY, Settings
from vramcast.units import round_up

BLOCK_TOKENS = 16
LATENT_BLOCK_TOKENS = 64  # FlashMLA
STATE_BLOCK_MULTIPLE = 16
HYBRID_FROM = (0, 9, 2)  # before, every layer was sized as full attention
SIMILAR = 1.5  # kv_cache_utils.py: groups of the larger size where it is less than so many times the smaller
STATES_OF_A_REQUEST = 2  # mamba_cache_mode align, the default with prefix caching
STATES_BEFORE_ALIGN = 1
ALIGN_FROM = (0, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Layers that can share a block table."""

    name: str
    window: int | None
    per_token: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The pool's layout on one rank."""

    block_tokens: int
    bytes_per_block: int  # all layers that share it
    groups: int
    blocks_per_request: int  # at the greatest length
    value_bytes: float
    padding_layers: int

    def count(self, available: int) -> int:
        return max(available, 0) // self.bytes_per_block

    def needed_bytes(self) -> int:
        """Of one request at the greatest length."""
        return self.blocks_per_request * self.bytes_per_block

    def concurrency(self, blocks: int) -> float:
        return blocks / self.blocks_per_request


def lay_out(
    request: Request,
    settings: Settings,
    layers: Sequence[CachedLayer],
    value_bytes: float,
    length: int,
) -> Blocks:
    """Blocks for requests of `length` tokens."""
    block_tokens, page = _page(request, layers, value_bytes)
    groups, group_size, padding = _groups(_as_grouped(request, layers, value_bytes))
    needed = sum(
        count * _blocks_of(kind, page, length, request, settings) for kind, count in groups.items()
    )
    return Blocks(
        block_tokens=block_tokens,
        bytes_per_block=page * group_size,
        groups=sum(groups.values()),
        blocks_per_request=needed,
        value_bytes=value_bytes,
        padding_layers=padding,
    )


def tokens_printed(blocks: Blocks, count: int, request: Request, length: int) -> int:
    """Since 0.21 the tokens are requests × their length; before, blocks of one group × its tokens."""
    if request.version >= TOKENS_BY_CONCURRENCY:
        return int(blocks.concurrency(count) * length)
    return count // blocks.groups * blocks.block_tokens


def longest_that_fits(
    request: Request,
    settings: Settings,
    layers: Sequence[CachedLayer],
    value_bytes: float,
    available: int,
) -> int:
    """The greatest length of which one request fits; one block is kept back."""
    low, high = 0, request.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        blocks = lay_out(request, settings, layers, value_bytes, middle)
        if blocks.needed_bytes() <= available - blocks.bytes_per_block:
            low = middle
        else:
            high = middle - 1
    return low


def _as_grouped(request: Request, layers: Sequence[CachedLayer], value_bytes: float) -> list[Kind]:
    """Kind of every layer; sliding ones count as full before they were told apart."""
    tells_apart = request.version >= HYBRID_FROM
    kinds = []
    for layer in layers:
        per_token = round(layer.values_per_token(request.tp) * value_bytes)
        is_full = layer.kind == SLIDING and not tells_apart
        name, window = (FULL, None) if is_full else (layer.kind, layer.window)
        kinds.append(Kind(name=name, window=window, per_token=per_token))
    return kinds


def _groups(kinds: Sequence[Kind]) -> tuple[dict[Kind, int], int, int]:
    """How many groups each kind makes, layers of a group, and layers that pad the last ones."""
    counts: dict[Kind, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    least, most = min(counts.values()), max(counts.values())
    size = most if most < SIMILAR * least else least
    groups = {kind: math.ceil(count / size) for kind, count in counts.items()}
    return groups, size, sum(groups.values()) * size - len(kinds)


def _page(request: Request, layers: Sequence[CachedLayer], value_bytes: float) -> tuple[int, int]:
    """Tokens of a block, and the bytes of it that one layer holds."""
    attending = [layer for layer in layers if layer.kind != STATE]
    states = [layer for layer in layers if layer.kind == STATE]
    tokens = BLOCK_TOKENS
    if any(layer.kind == LATENT for layer in attending):
        tokens = LATENT_BLOCK_TOKENS
    per_token = max(
        (round(layer.values_per_token(request.tp) * value_bytes) for layer in attending), default=0
    )
    if not states:
        return tokens, tokens * per_token
    state = max(
        state_bytes(layer, request.text, request.tp, request.dtype_bytes) for layer in states
    )
    if not per_token:
        return tokens, state
    tokens = round_up(-(-state // per_token), STATE_BLOCK_MULTIPLE)
    return tokens, tokens * per_token


def _blocks_of(kind: Kind, page: int, length: int, request: Request, settings: Settings) -> int:
    """Blocks that one group needs for one request (vllm/v1/kv_cache_interface.py max_memory_usage_bytes). Pages are
    as large for all layers, so that layers with smaller tokens have more of them in a block."""
    if kind.name == STATE:
        return STATES_OF_A_REQUEST if request.version >= ALIGN_FROM else STATES_BEFORE_ALIGN
    block_tokens = page // kind.per_token
    if kind.window is None:
        return -(-length // block_tokens)
    seen = min(kind.window - 1 + settings.batched_tokens, length)
    return -(-seen // block_tokens) + 1
