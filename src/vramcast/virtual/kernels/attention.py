"""Which attention kernel CUDA would run, and the very op for it, so that what autograd saves is exact.

In come the arguments of `scaled_dot_product_attention` or `flex_attention` and the compute capability of the card, out
comes the output. The order and the conditions are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (flash,
efficient, math). With CPU kernels the rules of aten/src/ATen/native/transformers/sdp_utils_cpp.cpp hold. Does not know
cuDNN's attention, which newer cards may prefer: it keeps the same tensors as flash.
"""

from __future__ import annotations

import math
from typing import Any

import torch

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_MAX_HEAD = 256
_FLASH_MAX_TRAINED_HEAD = 192  # with gradients, on cards of these capabilities
_WITHOUT_LARGE_HEAD_BACKWARD = ((8, 6), (8, 9), (12, 0), (12, 1))


def cuda_attention(capability: tuple[int, int]) -> Any:
    """`scaled_dot_product_attention` as a card of this compute capability runs it."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if takes_flash(query, key, value, attn_mask, capability, enable_gqa):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        mask = _as_bias(attn_mask, query.dtype)
        if takes_efficient(query, key, value, capability, dropout_p):
            return _efficient(query, key, value, mask, dropout_p, is_causal, scale)
        return _math(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)

    return attention


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    **more: Any,
) -> Any:
    """The compiled kernel saves what flash saves: q, k, v, the output and one fp32 number per row."""
    out, lse = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, False, False, scale=scale
    )[:2]
    return (out, lse) if return_lse else out


def cpu_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    mask = _as_bias(attn_mask, query.dtype)
    if not _takes_flash_on_cpu(query, key, value, mask, dropout_p):
        return _math(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    result: torch.Tensor = flash(
        query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
    )[0]
    return result


def _takes_flash_on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
) -> bool:
    if dropout_p != 0.0 or not torch._C._get_flash_sdp_enabled():
        return False
    if mask is not None and mask.requires_grad:
        return False
    same_head = query.size(-1) == key.size(-1) == value.size(-1)
    return bool(query.dim() == key.dim() == value.dim() == 4 and same_head)


def takes_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    capability: tuple[int, int],
    enable_gqa: bool,
) -> bool:
    if not torch._C._get_flash_sdp_enabled() or capability < (8, 0) or mask is not None:
        return False
    if query.dtype not in _HALF or not _same_dtype(query, key, value):
        return False
    if not _heads_suit_flash(query, key, value, enable_gqa):
        return False
    if _trains(query, key, value) and capability in _WITHOUT_LARGE_HEAD_BACKWARD:
        return bool(query.size(-1) <= _FLASH_MAX_TRAINED_HEAD)
    return bool(query.size(-1) <= _FLASH_MAX_HEAD)


def _heads_suit_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> bool:
    """Heads of one size, and as many of each kind unless groups of queries may share keys."""
    if not _four_dimensional(query, key, value):
        return False
    same_number = query.size(1) == key.size(1) == value.size(1)
    if not same_number and not enable_gqa:
        return False
    return bool(query.size(-1) == key.size(-1) == value.size(-1))


def takes_efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    capability: tuple[int, int],
    dropout_p: float,
) -> bool:
    if not torch._C._get_mem_efficient_sdp_enabled() or capability < (5, 0):
        return False
    allowed = [torch.float16, torch.float32]
    if capability >= (8, 0):
        allowed.append(torch.bfloat16)
    if query.dtype not in allowed or not _same_dtype(query, key, value):
        return False
    if not _four_dimensional(query, key, value):
        return False
    same_batch_and_heads = query.shape[:2] == key.shape[:2] == value.shape[:2]
    if not same_batch_and_heads or query.size(-1) != key.size(-1):
        return False
    alignment = _gemm_alignment(query.dtype, capability)
    return bool(query.size(-1) % alignment == 0 and value.size(-1) % alignment == 0)


def _gemm_alignment(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    """minimum_gemm_alignment of sdp_utils.cpp: tensor cores want 128 bits (64 before sm_80)."""
    if capability >= (8, 0):
        return 8 if dtype in _HALF else 4
    if capability >= (7, 0) and dtype in _HALF:
        return 4
    return 1


def _same_dtype(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    return bool(query.dtype == key.dtype == value.dtype)


def _trains(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _four_dimensional(*tensors: torch.Tensor) -> bool:
    return all(tensor.dim() == 4 and 0 not in tensor.shape for tensor in tensors)


def _as_bias(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """convert_boolean_attn_mask: a boolean mask becomes a float one of the same shape."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -math.inf)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    head = query.size(-1)
    scale = head**-0.5 if scale is None else scale
    if head % 8:  # the kernel wants a multiple of 8, so copies are padded
        padding = (0, 8 - head % 8)
        query = torch.nn.functional.pad(query, padding)
        key = torch.nn.functional.pad(key, padding)
        value = torch.nn.functional.pad(value, padding)
    out: torch.Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out if out.size(-1) == head else out[..., :head]


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    if mask is not None:
        mask = _align_bias(mask, query, key)
    trains = _trains(query, key, value)
    out: torch.Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, trains, dropout_p, is_causal, scale=scale
    )[0]
    return out


def _align_bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """preprocess_mask: the last dimension is padded to a multiple of 16 by a copy, then all is expanded."""
    length = mask.size(-1)
    if length % 16:
        mask = torch.nn.functional.pad(mask, (0, 16 - length % 16))[..., :length]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    out: torch.Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return out
