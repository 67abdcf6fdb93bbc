"""The building blocks that families share, as transformers writes them: norms, rotary positions, attention, MLPs.

Each is a few primitives of the Tape, so what is kept for backward follows from torch's own rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.errors import UnsupportedError
from vramcast.models.record.dims import Number, ceil_to
from vramcast.models.record.tape import F32, I64, Tape, Value, promote

MASK_ALIGNMENT = 16  # columns: aten/src/ATen/native/transformers/attention.cpp pad_bias


def rms_norm(t: Tape, name: str, x: Value, width: int | None = None, *, style: str = "llama") -> Value:
    """`llama`: fp32 inside, weight applied in the input's dtype. `gemma`: (1 + weight) applied in fp32. `fp32`: weight
    applied in fp32. `raised`: the weight is cast to fp32 first."""
    with t.scope(name):
        weight = t.param("weight", (width or x.shape[-1],), "norm")
        if "norm" in t.regime.fused:
            rstd = Value((*x.shape[:-1], 1), F32, label="rstd")
            return t.op("rms_norm", (x, weight), x.shape, x.dtype, saves=(x, rstd), label=name)
        x32 = t.cast(x, F32, f"{name} input fp32")
        # pow_backward: the mean's gradient spread out, the power, twice that, and their product
        variance = t.op(
            "pow mean", (x32,), (*x.shape[:-1], 1), F32, saves=(x32,), forward_temp_bytes=x32.nbytes,
            backward_temp_bytes=4 * x32.nbytes, backward_temps=(x32.nbytes,) * 4,
        )  # fmt: skip
        rstd = t.op("rsqrt", (variance,), variance.shape, F32, saves_output=True, label="rstd")
        normed = t.mul(x32, rstd, f"{name} normalised")
        if style == "gemma":
            return t.cast(t.mul(normed, t.cast(t.scale(weight), F32), name), x.dtype)
        if style == "fp32":
            return t.cast(t.mul(normed, weight, name), x.dtype)
        if style == "raised":
            return t.cast(t.mul(normed, t.cast(weight, F32), name), x.dtype)
        return t.holding(t.mul(t.cast(normed, x.dtype), weight, name), normed)  # `hidden_states`, until it returns


def rope(t: Tape, x: Value, table: Value, *, partial: bool = False) -> Value:
    """x·cos + rotate_half(x)·sin. Only the small tables are kept. `partial`: the parts are joined again."""
    if "rope" in t.regime.fused:
        return t.op("rope", (x,), x.shape, x.dtype, saves=(table,), label=x.label)
    a = t.mul(x, table, f"{x.label}·cos")
    b = t.mul(_rotated(t, x), table, f"{x.label}·sin")
    rotated = t.add(a, b, f"{x.label} with positions")
    return t.copy(rotated, label=rotated.label) if partial else rotated


def _rotated(t: Tape, x: Value) -> Value:
    """cat((-x2, x1)), whose backward negates one half and lays both out as wide as x."""
    half = x.nbytes // 2
    return t.op(
        "rotate half", (x,), x.shape, x.dtype, label="rotated half", forward_temp_bytes=half,
        backward_temp_bytes=half + x.nbytes, backward_temps=(half, x.nbytes),
    )  # fmt: skip


def ropes(t: Tape, q: Value, k: Value, table: Value, *, partial: bool = False) -> tuple[Value, Value]:
    """Both; what comes in is held by the caller's variables until both are done."""
    turned = rope(t, q, table, partial=partial), rope(t, k, table, partial=partial)
    t.holding(turned[1], q, k)
    return turned


def rope_table(x: Value, b: Number, s: Number, width: int) -> Value:
    """cos and sin, made once per forward and cast to the dtype of the stream x."""
    return Value((b, s, 2 * width), x.dtype, label="cos, sin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The shape of an attention: query heads, key/value heads, widths."""

    num: int
    num_kv: int
    width: int
    value_width: int | None = None

    @property
    def groups(self) -> int:
        return int(self.num) // int(self.num_kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """How a family writes its eager attention. `qk_fp32`: q and k are raised to fp32 first, with "autocast" still on
    around the product or with "no autocast"."""

    softcap: bool = False
    sinks: bool = False
    scaled: bool = True
    upcast: bool = True  # softmax in fp32
    recast: bool = True  # its result brought back to v's dtype
    qk_fp32: str = ""
    mask: bool = True  # a mask is added, in the dtype of the embeddings


USUAL = Eager()


def attend(
    t: Tape, q: Value, k: Value, v: Value, heads: Heads, *, dropout: float = 0.0, bias: Value | None = None,
    eager: Eager = USUAL, heads_first: bool = False, kernel: str | None = None, masked: bool = False,
) -> Value:  # fmt: skip
    """softmax(q·kᵀ)·v. q is [b, s, n, d], k and v are [b, s_k, n_kv, d]; the result is [b, s, n·d_v].

    `heads_first`: q lies in memory as [b, n, s, d] (a concatenation put it there). Flash kernels lay their output out
    like q, so then the result has to be copied to [b, s, n·d_v]. `kernel`: the only one the family has. `masked`: the
    family always passes a mask, which flash kernels do not take.
    """
    p = dropout if t.regime.training else 0.0
    masked = masked or t.mask != "none"
    before, k, v = k, t.into_cache(k), t.into_cache(v)
    if v.storage.is_cache and k.storage is not before.storage:
        t.holding(v, before)  # `key_states`, until update() has returned both
    uneven = heads.value_width is not None and int(heads.value_width) != int(heads.width)
    kernel = _kernel(t, kernel or t.regime.attention, p, masked=masked, uneven=uneven, bias=bias)
    if kernel == "efficient" and _grouped(t, heads, masked=masked or bias is not None):
        kernel = "math"  # which is what remains for grouped heads without flash: fp32, and cards before Ampere
    shape = (*q.shape[:2], heads.num * (heads.value_width or heads.width))
    if kernel == "eager":
        return t.copy(_eager(t, q, k, v, heads, p, bias, eager), shape, "attention output")
    k, v = _repeated(t, k, v, heads, masked=masked or bias is not None)
    q, k, v = t.autocasted(q), t.autocasted(k), t.autocasted(v)
    bias = None if bias is None else t.autocasted(bias)
    if kernel == "math":
        return t.copy(_math(t, q, k, v, heads, p, bias), shape, "attention output")
    out = _fused(t, q, k, v, heads, kernel, bias, masked=masked)
    return t.copy(out, shape, "attention output") if heads_first and kernel != "efficient" else t.view(out, shape)


def _kernel(t: Tape, asked: str, p: float, *, masked: bool, uneven: bool, bias: Value | None) -> str:
    """The kernel that will run: SDPA's choice where the asked one cannot (sdp_utils.cpp)."""
    if asked not in ("eager", "math", "flash", "efficient", "cudnn"):
        raise UnsupportedError(f"attention kernel {asked!r} has no model. Known: eager, math, efficient, flash, cudnn.")
    if not t.regime.cuda:
        # The CPU's flash kernel takes masks, but no dropout, no mask that learns, and only values as wide as keys.
        learns = bias is not None and bias.requires_grad
        return "math" if (p or uneven or learns) and asked != "eager" else asked
    return "efficient" if (masked or uneven or bias is not None) and asked == "flash" else asked


def _repeated(t: Tape, k: Value, v: Value, heads: Heads, *, masked: bool) -> tuple[Value, Value]:
    """transformers' repeat_kv, unless the kernel takes grouped heads."""
    if heads.groups == 1 or _grouped(t, heads, masked=masked):
        return k, v
    full = (*k.shape[:2], heads.num)
    return t.copy(k, (*full, k.shape[-1]), "k repeated"), t.copy(v, (*full, v.shape[-1]), "v repeated")


def _grouped(t: Tape, heads: Heads, *, masked: bool) -> bool:
    """Does transformers leave it to SDPA to repeat grouped heads? Not with a mask."""
    return heads.groups > 1 and t.regime.gqa_in_kernel and not masked and not t.regime.mask


def _scores_shape(q: Value, k: Value, heads: Heads) -> tuple[Number, ...]:
    return (q.shape[0], heads.num, q.shape[1], k.shape[1])


def _eager(
    t: Tape, q: Value, k: Value, v: Value, heads: Heads, p: float, bias: Value | None, form: Eager
) -> Value:  # fmt: skip
    if heads.groups > 1:
        full = (*k.shape[:2], heads.num)
        k, v = t.copy(k, (*full, k.shape[-1]), "k repeated"), t.copy(v, (*full, v.shape[-1]), "v repeated")
    stream = v.dtype
    if form.qk_fp32:
        q, k = t.cast(q, F32), t.cast(k, F32)
    q, k, v = (t.copy(x) if x.is_slice else x for x in (q, k, v))  # matmul flattens what is not contiguous
    shape = _scores_shape(q, k, heads)
    multiply = t.matmul_plain if form.qk_fp32 == "no autocast" else t.matmul
    scores = multiply(q, k, shape, "scores")
    scores = t.scale(scores, "scaled scores") if form.scaled else scores
    if form.softcap:
        scores = t.scale(t.activation(t.scale(scores), "tanh", "capped scores"))
    if bias is not None:
        scores = t.op("add", (scores, bias), shape, promote(scores.dtype, bias.dtype), label="scores + bias")
    if form.mask or t.regime.mask:
        dtype = promote(scores.dtype, t.regime.weights)
        same = dtype == scores.dtype
        scores = t.op("add", (scores,), shape, dtype, label="masked scores", passes_grad=same)
    if form.sinks:
        weights = t.cast(t.dropout(_sunk(t, scores), p, "attention dropout"), stream)
    else:
        weights = t.softmax(scores, F32 if form.upcast else None, "attention weights")
        if form.recast:
            weights = t.cast(weights, stream)
            t.holding(weights, scores)  # `attn_weights = softmax(attn_weights, …).to(…)`
        weights = t.dropout(weights, p, "attention dropout")
    if bias is None:  # T5's attention hands its bias on instead
        t.hold_in_layer(weights)  # `hidden_states, _ = self.self_attn(…)`
    return t.matmul(weights, v, (q.shape[0], heads.num, q.shape[1], v.shape[-1]), "attention output")


def _sunk(t: Tape, scores: Value) -> Value:
    """Softmax over the scores and one learned sink, without the sink's column. The mask has the stream's dtype, which
    autocast leaves at fp32, so that is what the scores become."""
    wide = (*scores.shape[:-1], scores.shape[-1] + 1)
    dtype = F32 if t.regime.autocast else scores.dtype
    scores = t.op("copy", (scores,), wide, dtype, label="scores with sink")
    places = Value((*wide[:-1], 1), I64, label="places of the maxima")
    largest = t.op("max", (scores,), places.shape, dtype, saves=(places,))
    shifted = t.op("sub", (scores, largest), wide, dtype, label="shifted scores")
    return t.slice(t.softmax(shifted, dtype, "attention weights"), wide[-1] - 1)


def _math(t: Tape, q: Value, k: Value, v: Value, heads: Heads, p: float, bias: Value | None) -> Value:
    """aten::_scaled_dot_product_attention_math: 16-bit inputs are raised to fp32 first."""
    stream, given = q.dtype, (q, k, v)
    full = (*k.shape[:2], heads.num)
    if heads.groups > 1 and int(k.shape[2]) != int(heads.num):
        k, v = t.copy(k, (*full, k.shape[-1]), "k repeated"), t.copy(v, (*full, v.shape[-1]), "v repeated")
    q, k, v = (t.cast(x, F32) for x in (q, k, v))
    v = t.copy(v) if v.is_slice else v  # matmul flattens what is not contiguous
    shape = _scores_shape(q, k, heads)
    scores = t.matmul_plain(t.scale(q, "scaled q"), t.scale(k, "scaled k"), shape, "scores")
    scores = t.scale(scores, "masked scores")
    if bias is not None:
        scores = t.op("add", (scores, bias), shape, F32, label="scores + bias")
    weights = t.op("softmax", (scores,), shape, F32, saves_output=True, label="attention weights")
    weights = t.dropout(weights, p, "attention dropout")
    out = t.matmul_plain(weights, v, (q.shape[0], heads.num, q.shape[1], v.shape[-1]), "attention output")
    return t.holding(t.cast(out, stream), *given)  # by variables of the caller


def _fused(
    t: Tape, q: Value, k: Value, v: Value, heads: Heads, kernel: str, bias: Value | None, *, masked: bool = False
) -> Value:
    """q, k, v, the output and the row statistics are kept; never the scores."""
    b, s = q.shape[:2]
    rows = ceil_to(s, 32) if kernel == "efficient" and t.regime.cuda else s
    lse = Value((b, heads.num, rows), F32, label="logsumexp")
    saves = [q, k, v, lse]
    if bias is not None:
        saves.append(bias)
    if bias is None and (masked or t.regime.mask) and (kernel == "efficient" or not t.regime.cuda):
        saves.extend(_own_mask(t, q, k))
    flops = 4 * b * heads.num * s * k.shape[1] * heads.width
    inputs = (q, k, v) if bias is None else (q, k, v, bias)
    # The gradient of a bias that learns is made for every sample, then summed over the batch.
    bias_gradient = b * heads.num * s * k.shape[1] * q.dtype.nbytes if bias is not None and bias.requires_grad else 0
    temps = (*_fused_backward_temps(t, q, k, heads, kernel), bias_gradient + 2 * _seam_bytes(t, q, k, v))
    out = t.op(
        f"{kernel} attention", inputs, (b, s, heads.num, v.shape[-1]), q.dtype, saves=tuple(saves), saves_output=True,
        label="attention output", flops=flops * t.regime.split.cp, forward_temp_bytes=_seam_bytes(t, q, k, v),
        backward_temp_bytes=sum(temps), backward_temps=temps,
    )  # fmt: skip
    return t.copy(out, label="attention output") if t.regime.split.cp_style == "ulysses" else out


def _own_mask(t: Tape, q: Value, k: Value) -> Iterator[Value]:
    """The additive mask that is made for this call alone: of a boolean one, or of one whose rows are not aligned."""
    (b, s), keys = q.shape[:2], k.shape[1]
    aligned = ceil_to(keys, MASK_ALIGNMENT) if t.regime.cuda else keys
    shared = t.mask == "shared" or (t.regime.mask and not t.regime.boolean_masks and not t.regime.autocast)
    if not shared or (isinstance(aligned, int) and aligned != keys):
        yield Value((b, 1, s, aligned), q.dtype, label="additive mask")


def _seam_bytes(t: Tape, q: Value, k: Value, v: Value) -> Number:
    """What context-parallel attention holds beside its own share: the neighbours' keys and values (two of them in a
    ring, all of them gathered), and fp32 partial results; Ulysses exchanges heads for tokens instead."""
    split = t.regime.split
    if split.cp == 1:
        return 0
    kv = k.nbytes + v.nbytes
    if split.cp_style == "ulysses":
        return q.nbytes
    partial = 2 * q.nbytes // q.dtype.nbytes * F32.nbytes
    return kv * (2 if split.cp_style == "ring" else split.cp) + partial


def _fused_backward_temps(t: Tape, q: Value, k: Value, heads: Heads, kernel: str) -> tuple[Number, ...]:
    """flash-attention 2, flash_api.cpp mha_bwd: row sums, an fp32 dq, and per-head dk and dv for GQA."""
    b, s = q.shape[:2]
    row_sums = 4 * b * heads.num * ceil_to(s, 128)
    if kernel != "flash" or not t.regime.cuda:
        return (row_sums,)
    dq_accum = 4 * b * ceil_to(s, 128) * heads.num * ceil_to(heads.width, 32)
    grouped = int(k.shape[2]) != int(heads.num)
    expanded = b * k.shape[1] * heads.num * heads.width * q.dtype.nbytes if grouped else 0
    return (row_sums, dq_accum, expanded, expanded)


def gated_mlp(
    t: Tape, x: Value, inner: int, act: str, *, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    bias: bool = False,
) -> Value:  # fmt: skip
    """down(act(gate(x)) · up(x)): four wide tensors are kept. A module: nn.Module._call_impl holds its argument until
    it returns."""
    gate = t.linear(names[0], x, inner, bias=bias, label="gate")
    if "mlp" in t.regime.fused:
        both = gated(t, gate, t.linear(names[1], x, inner, bias=bias, label="up"), act)
    else:
        activated = t.activation(gate, act)
        both = t.mul(activated, t.linear(names[1], x, inner, bias=bias, label="up"), "gated")
    return t.holding(t.linear(names[2], both, x.shape[-1], bias=bias, label="mlp output"), x)


def gated(t: Tape, gate: Value, up: Value, act: str) -> Value:
    if "mlp" in t.regime.fused:
        # Liger's LigerSiLUMulFunction.backward writes both gradients over what it saved.
        return t.op(
            "fused gate", (gate, up), up.shape, up.dtype, saves=(gate, up), label="gated", grad_in_place_of_saved=True
        )
    return t.mul(t.activation(gate, act), up, "gated")


def mlp(
    t: Tape, x: Value, inner: int, act: str, names: tuple[str, str], *, bias: bool = True, transposed: bool = False
) -> Value:
    """out(act(in(x))), a module as well."""
    wide = t.linear(names[0], x, inner, bias=bias, transposed=transposed, label="mlp hidden")
    out = t.linear(names[1], t.activation(wide, act), x.shape[-1], bias=bias, transposed=transposed, label="mlp output")
    return t.holding(out, x)


def split(t: Tape, x: Value, sizes: tuple[int, ...]) -> tuple[Value, ...]:
    """torch.split or chunk along the last axis: views forward, one concatenation backward."""
    return tuple(t.slice(x, size) for size in sizes)


def by_head(t: Tape, x: Value, num: int) -> Value:
    """[b, s, n·d] seen as [b, s, n, d]."""
    return t.view(x, (*x.shape[:-1], num, x.shape[-1] // num))
