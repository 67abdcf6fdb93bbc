"""Attention as transformers and SDPA run it: eager, math, or a fused kernel (flash, memory-efficient, cuDNN).

Shapes: q is [b, s, n, d]; k and v are [b, s_k, n_kv, d] with n_kv ≤ n (grouped heads); the result is [b, s, n·d_v].
What differs is which tensors exist. With b = 1, s = 1,024, n = n_kv = 32, d = 128 in bf16, where q, k, v and the output
have 1 · 1,024 · 32 · 128 · 2 bytes = 8.4 MB each:

    eager   scores and weights, [b, n, s, s]: 67 MB in bf16 and 134 MB in fp32, several of each saved for backward
    math    the same, all of them in fp32
    flash   q, k, v, the output and one fp32 number for each row and head (logsumexp, 0.13 MB); never the scores

Knows which kernel SDPA chooses; does not know positions (see `layers.rope`).
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.errors import UnsupportedError
from vramcast.models.record.dims import Number, ceil_to
from vramcast.models.record.layers import split, split_heads
from vramcast.models.record.tape import F32, I64, Tape, Value, promote

KERNELS = ("eager", "math", "efficient", "flash", "cudnn")
MASK_ALIGNMENT = 16  # columns: aten/src/ATen/native/transformers/attention.cpp pad_bias
EFFICIENT_ALIGNMENT = 32  # rows of logsumexp of the memory-efficient kernel
FLASH_ALIGNMENT = 128  # rows in flash-attention's backward
FLASH_WIDTH_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The shape of an attention: query heads, key/value heads, widths."""

    num: int
    num_kv: int
    width: int
    value_width: int | None = None

    @property
    def groups(self) -> int:
        """Query heads that share one key/value head."""
        return int(self.num) // int(self.num_kv)

    @property
    def values_differ_in_width(self) -> bool:
        return self.value_width is not None and int(self.value_width) != int(self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """How a family writes its eager attention. `qk_fp32`: q and k are cast to fp32 first, with "autocast" still on
    around the product or with "no autocast"."""

    softcap: bool = False
    sinks: bool = False
    scaled: bool = True
    upcast: bool = True  # softmax in fp32
    recast: bool = True  # its result cast back to v's dtype
    qk_fp32: str = ""
    mask: bool = True  # a mask is added, in the dtype of the embeddings
    floored: bool = False  # torch.max(scores, the least number) behind the mask
    holds_product: bool = False  # a variable has q·kᵀ without the mask until attention returns
    holds_scores: bool = False  # a variable has the scores, mask added, until attention returns


USUAL = Eager()


def attend(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    heads: Heads,
    *,
    dropout: float = 0.0,
    bias: Value | None = None,
    eager: Eager = USUAL,
    heads_first: bool = False,
    kernel: str | None = None,
    masked: bool = False,
) -> Value:
    """softmax(q·kᵀ)·v.

    `heads_first`: q is laid out in memory as [b, n, s, d] (a concatenation made it so). Flash kernels lay their output
    out like q, so then the result has to be copied to [b, s, n·d_v]. `kernel`: the only one the family has. `masked`:
    the family always passes a mask, which flash kernels do not take.
    """
    p = dropout if t.regime.training else 0.0
    masked = masked or t.layer_mask != "none"
    k, v = update_kv_cache(t, k, v)
    kernel = _choose_kernel(t, kernel or t.regime.attention, heads, p, bias, masked=masked)
    shape = (*q.shape[:2], heads.num * (heads.value_width or heads.width))
    if kernel == "eager":
        out = _attend_eager(t, q, k, v, heads, p, bias, eager)
        return t.copy(out, shape, "attention output")
    if not _sdpa_repeats_heads(t, heads, bias, masked=masked):
        k, v = _repeat_kv(t, k, v, heads)
    out = _call_sdpa(t, q, k, v, heads, p, bias, kernel, masked=masked)
    is_laid_out_as_shape = kernel == "efficient" or (kernel != "math" and not heads_first)
    if is_laid_out_as_shape:
        return t.view(out, shape)
    return t.copy(out, shape, "attention output")


def _call_sdpa(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    heads: Heads,
    p: float,
    bias: Value | None,
    kernel: str,
    *,
    masked: bool,
) -> Value:
    """torch's scaled_dot_product_attention, which autocast runs in its dtype."""
    q, k, v = t.autocast(q), t.autocast(k), t.autocast(v)
    if bias is not None:
        bias = t.autocast(bias)
    if kernel == "math":
        return _attend_math(t, q, k, v, heads, p, bias)
    return _attend_fused(t, q, k, v, heads, kernel, bias, masked=masked)


def update_kv_cache(t: Tape, k: Value, v: Value) -> tuple[Value, Value]:
    """Keys and values as past_key_values.update() returns them. The empty tensor for values has the keys' dtype
    (cache_utils.py, DynamicLayer.lazy_initialization)."""
    cached_k, cached_v = t.update_kv_cache(k), t.update_kv_cache(v, k.dtype)
    if cached_v.storage.is_cache and cached_k.storage is not k.storage:
        t.hold(cached_v, k)  # `key_states`, until update() has returned both
    return cached_k, cached_v


# ---- projections


def project_qkv(t: Tape, y: Value, heads: Heads, *, bias: bool) -> tuple[Value, Value, Value]:
    """q_proj, k_proj and v_proj, seen by head."""
    q = t.linear("q_proj", y, heads.num * heads.width, bias=bias, label="q")
    k = t.linear("k_proj", y, heads.num_kv * heads.width, bias=bias, label="k")
    v = t.linear("v_proj", y, heads.num_kv * heads.width, bias=bias, label="v")
    return split_qkv(t, q, k, v, heads)


def project_fused_qkv(
    t: Tape, name: str, y: Value, heads: Heads, *, bias: bool
) -> tuple[Value, Value, Value]:
    """One matrix for q, k and v, whose columns are then split and seen by head."""
    q_width, kv_width = heads.num * heads.width, heads.num_kv * heads.width
    qkv = t.linear(name, y, q_width + 2 * kv_width, bias=bias, label="qkv")
    q, k, v = split(t, qkv, (q_width, kv_width, kv_width))
    return split_qkv(t, q, k, v, heads)


def split_qkv(t: Tape, q: Value, k: Value, v: Value, heads: Heads) -> tuple[Value, Value, Value]:
    """[b, s, n·d] seen as [b, s, n, d]."""
    q = split_heads(t, q, heads.num)
    k = split_heads(t, k, heads.num_kv)
    v = split_heads(t, v, heads.num_kv)
    return q, k, v


# ---- which kernel runs


def _choose_kernel(
    t: Tape, asked: str, heads: Heads, p: float, bias: Value | None, *, masked: bool
) -> str:
    """The asked kernel, or SDPA's choice where it cannot run (sdp_utils.cpp)."""
    if asked not in KERNELS:
        raise UnsupportedError(
            f"attention kernel {asked!r} has no model. Known: {', '.join(KERNELS)}."
        )
    choose = _choose_on_cuda if t.regime.cuda else _choose_on_cpu
    chosen = choose(asked, heads, p, bias, masked=masked)
    if chosen == "efficient" and _sdpa_repeats_heads(t, heads, bias, masked=masked):
        return "math"  # all that remains for grouped heads without flash: fp32, and cards before Ampere
    return chosen


def _choose_on_cuda(asked: str, heads: Heads, p: float, bias: Value | None, *, masked: bool) -> str:
    flash_cannot = masked or bias is not None or heads.values_differ_in_width
    return "efficient" if asked == "flash" and flash_cannot else asked


def _choose_on_cpu(asked: str, heads: Heads, p: float, bias: Value | None, *, masked: bool) -> str:
    """The CPU's flash kernel takes masks, but no dropout, no mask that learns, and only values as wide as keys."""
    if asked == "eager":
        return asked
    mask_learns = bias is not None and bias.requires_grad
    return "math" if p or mask_learns or heads.values_differ_in_width else asked


def _sdpa_repeats_heads(t: Tape, heads: Heads, bias: Value | None, *, masked: bool) -> bool:
    """Does transformers leave it to SDPA to repeat grouped heads? Not with a mask."""
    if masked or t.regime.mask or bias is not None:
        return False
    return heads.groups > 1 and t.regime.gqa_in_kernel


def _repeat_kv(t: Tape, k: Value, v: Value, heads: Heads) -> tuple[Value, Value]:
    """transformers' repeat_kv: one copy of k and of v for every query head. A single head is repeated as a view, which
    reshape leaves alone; fused kernels take it."""
    if heads.groups == 1:
        return k, v
    if int(heads.num_kv) == 1 and t.regime.code == "transformers":
        return _expand_head(t, k, heads), _expand_head(t, v, heads)
    return _copy_heads(t, k, v, heads)


def _expand_head(t: Tape, x: Value, heads: Heads) -> Value:
    """A view that products copy: matmul makes one axis of samples and heads. With one sample they take it."""
    b, s = x.shape[:2]
    x = t.expand(x, (b, s, heads.num, x.shape[-1]))
    x.is_slice = x.is_slice or t.has_several_samples(b)
    return x


def _copy_heads(t: Tape, k: Value, v: Value, heads: Heads) -> tuple[Value, Value]:
    b, s = k.shape[:2]
    k = t.copy(k, (b, s, heads.num, k.shape[-1]), "k repeated")
    v = t.copy(v, (b, s, heads.num, v.shape[-1]), "v repeated")
    return k, v


def _scores_shape(q: Value, k: Value, heads: Heads) -> tuple[Number, ...]:
    return (q.shape[0], heads.num, q.shape[1], k.shape[1])


# ---- eager


def _attend_eager(
    t: Tape, q: Value, k: Value, v: Value, heads: Heads, p: float, bias: Value | None, form: Eager
) -> Value:
    k, v = _repeat_kv(t, k, v, heads)
    stream_dtype = v.dtype
    if form.qk_fp32:
        q, k = t.cast(q, F32), t.cast(k, F32)
    lowered = form.qk_fp32 != "no autocast"
    q, k = _make_contiguous(t, q, lowered=lowered), _make_contiguous(t, k, lowered=lowered)
    v = _make_contiguous(t, v, lowered=True)
    product, scores = _eager_scores(t, q, k, heads, bias, form)
    if form.sinks:
        weights = t.dropout(_softmax_with_sink(t, scores), p, "attention dropout")
        weights = t.cast(weights, stream_dtype)
    else:
        weights = t.softmax(scores, F32 if form.upcast else None, "attention weights")
        if form.recast:
            weights = t.cast(weights, stream_dtype)
        t.hold(weights, scores)  # `attn_weights = softmax(attn_weights, …)`, perhaps with `.to(…)`
        weights = t.dropout(weights, p, "attention dropout")
    if bias is None:  # T5's attention returns its bias instead
        t.hold_in_layer(weights)  # `hidden_states, _ = self.self_attn(…)`
    b, s = q.shape[:2]
    y = t.matmul(weights, v, (b, heads.num, s, v.shape[-1]), "attention output")
    held = (product,) if form.holds_product else ()
    return t.hold(y, *held, *((scores,) if form.holds_scores else ()))


def _make_contiguous(t: Tape, x: Value, *, lowered: bool = False) -> Value:
    """matmul flattens its operands, which copies those that are not contiguous. `lowered`: by autocast, before that."""
    if not x.is_slice:
        return x
    x = t.autocast(x) if lowered else x
    return t.copy(x) if x.is_slice else x


def _eager_scores(
    t: Tape, q: Value, k: Value, heads: Heads, bias: Value | None, form: Eager
) -> tuple[Value, Value]:
    """q·kᵀ, and the same scaled, capped, with bias and mask added, as far as the family does so."""
    shape = _scores_shape(q, k, heads)
    multiply = t.matmul_no_autocast if form.qk_fp32 == "no autocast" else t.matmul
    product = scores = multiply(q, k, shape, "scores")
    if form.scaled:
        scores = t.scale(scores, "scaled scores")
    if form.softcap:
        scores = t.scale(t.activation(t.scale(scores), "tanh", "capped scores"))
    if bias is not None:
        dtype = promote(scores.dtype, bias.dtype)
        scores = t.op("add", (scores, bias), shape, dtype, label="scores + bias")
    if form.mask or t.regime.mask:
        dtype = promote(scores.dtype, t.regime.weights)
        same_dtype = dtype == scores.dtype
        scores = t.op("add", (scores,), shape, dtype, label="masked scores", passes_grad=same_dtype)
    if form.floored:
        scores = t.op(
            "maximum", (scores,), shape, scores.dtype, saves=(scores,), label="floored scores"
        )
    return product, scores


def _softmax_with_sink(t: Tape, scores: Value) -> Value:
    """Softmax over the scores and one learned sink, without the sink's column. The mask has the stream's dtype, which
    autocast leaves at fp32, so that is what the scores become."""
    num_keys = scores.shape[-1]
    wide = (*scores.shape[:-1], num_keys + 1)
    dtype = F32 if t.regime.autocast else scores.dtype
    scores = t.op("copy", (scores,), wide, dtype, label="scores with sink")
    places = Value((*wide[:-1], 1), I64, label="places of the maxima")
    largest = t.op("max", (scores,), places.shape, dtype, saves=(places,))
    shifted = t.op("sub", (scores, largest), wide, dtype, label="shifted scores")
    return t.slice(t.softmax(shifted, dtype, "attention weights"), wide[-1] - 1)


# ---- math


def _attend_math(
    t: Tape, q: Value, k: Value, v: Value, heads: Heads, p: float, bias: Value | None
) -> Value:
    """aten::_scaled_dot_product_attention_math: 16-bit inputs are cast to fp32 first."""
    stream_dtype = q.dtype
    given = (q, k, v)
    if int(k.shape[2]) != int(heads.num):
        k, v = _copy_heads(t, k, v, heads)  # repeat_interleave copies a single head too
    q, k, v = t.cast(q, F32), t.cast(k, F32), t.cast(v, F32)
    v = _make_contiguous(t, v)
    shape = _scores_shape(q, k, heads)
    scaled_q, scaled_k = t.scale(q, "scaled q"), t.scale(k, "scaled k")
    scores = t.matmul_no_autocast(scaled_q, scaled_k, shape, "scores")
    scores = t.scale(scores, "masked scores")
    if bias is not None:
        scores = t.op("add", (scores, bias), shape, F32, label="scores + bias")
    weights = t.op("softmax", (scores,), shape, F32, saves_output=True, label="attention weights")
    weights = t.dropout(weights, p, "attention dropout")
    b, s = q.shape[:2]
    out = t.matmul_no_autocast(weights, v, (b, heads.num, s, v.shape[-1]), "attention output")
    return t.hold(t.cast(out, stream_dtype), *given)  # by variables of the caller


# ---- fused kernels


def _attend_fused(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    heads: Heads,
    kernel: str,
    bias: Value | None,
    *,
    masked: bool,
) -> Value:
    """q, k, v, the output and the row statistics are saved; never the scores."""
    b, s = q.shape[:2]
    is_cuda_efficient = kernel == "efficient" and t.regime.cuda
    rows = ceil_to(s, EFFICIENT_ALIGNMENT) if is_cuda_efficient else s
    logsumexp = Value((b, heads.num, rows), F32, label="logsumexp")
    saves = [q, k, v, logsumexp]
    inputs = [q, k, v]
    if bias is not None:
        saves.append(bias)
        inputs.append(bias)
    else:
        saves += _masks_of_call(t, q, k, kernel, masked=masked)
    exchanged_bytes = _context_parallel_bytes(t, q, k, v)
    backward_temps = (
        *_fused_backward_temps(t, q, k, heads, kernel),
        _bias_gradient_bytes(q, k, heads, bias) + 2 * exchanged_bytes,
    )
    flops = 4 * b * heads.num * s * k.shape[1] * heads.width
    out = t.op(
        f"{kernel} attention",
        tuple(inputs),
        (b, s, heads.num, v.shape[-1]),
        q.dtype,
        saves=tuple(saves),
        saves_output=True,
        label="attention output",
        flops=flops * t.regime.split.cp,
        forward_temp_bytes=exchanged_bytes,
        backward_temp_bytes=sum(backward_temps),
        backward_temps=backward_temps,
    )
    if t.regime.split.cp_style == "ulysses":
        return t.copy(out, label="attention output")
    return out


def _masks_of_call(t: Tape, q: Value, k: Value, kernel: str, *, masked: bool) -> list[Value]:
    """The additive mask that is made for this call alone and saved: from a boolean one, or from one whose rows are not
    aligned."""
    takes_masks = kernel == "efficient" or not t.regime.cuda
    if not takes_masks or not (masked or t.regime.mask):
        return []
    (b, s), num_keys = q.shape[:2], k.shape[1]
    aligned = ceil_to(num_keys, MASK_ALIGNMENT) if t.regime.cuda else num_keys
    is_aligned = not isinstance(aligned, int) or aligned == num_keys
    if is_aligned and _shares_mask(t):
        return []
    return [Value((b, 1, s, aligned), q.dtype, label="additive mask")]


def _shares_mask(t: Tape) -> bool:
    """Do all layers read one additive mask?"""
    regime = t.regime
    shares_padding = regime.mask and not regime.boolean_masks and not regime.autocast
    return t.layer_mask == "shared" or shares_padding


def _bias_gradient_bytes(q: Value, k: Value, heads: Heads, bias: Value | None) -> Number:
    """The gradient of a bias that learns is made for every sample, then summed over the batch."""
    if bias is None or not bias.requires_grad:
        return 0
    b, s = q.shape[:2]
    return b * heads.num * s * k.shape[1] * q.dtype.nbytes


def _context_parallel_bytes(t: Tape, q: Value, k: Value, v: Value) -> Number:
    """What context-parallel attention holds in addition to its own share: the neighbours' keys and values (two of them
    in a ring, all of them gathered), and fp32 partial results; Ulysses exchanges heads for tokens instead."""
    split = t.regime.split
    if split.cp == 1:
        return 0
    if split.cp_style == "ulysses":
        return q.nbytes
    kv_bytes = k.nbytes + v.nbytes
    num_shares = 2 if split.cp_style == "ring" else split.cp
    partial_bytes = 2 * q.nbytes // q.dtype.nbytes * F32.nbytes
    return kv_bytes * num_shares + partial_bytes


def _fused_backward_temps(
    t: Tape, q: Value, k: Value, heads: Heads, kernel: str
) -> tuple[Number, ...]:
    """flash-attention 2, flash_api.cpp mha_bwd: row sums, an fp32 dq, and per-head dk and dv for grouped heads."""
    b, s = q.shape[:2]
    rows = ceil_to(s, FLASH_ALIGNMENT)
    row_sums = F32.nbytes * b * heads.num * rows
    if kernel != "flash" or not t.regime.cuda:
        return (row_sums,)
    dq_fp32 = F32.nbytes * b * rows * heads.num * ceil_to(heads.width, FLASH_WIDTH_ALIGNMENT)
    per_head = 0
    if int(k.shape[2]) != int(heads.num):
        per_head = b * k.shape[1] * heads.num * heads.width * q.dtype.nbytes
    return (row_sums, dq_fp32, per_head, per_head)
