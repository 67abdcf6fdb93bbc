"""The building blocks that families share, as transformers writes them: norms, rotary positions, MLPs.

Each is a few ops of the Tape, so that what is saved for backward follows from torch's own rules. A gated MLP of
h = 4 → f = 8 → 4 on 10 rows in bf16, say, saves its input once (10 · 4 · 2 = 80 bytes) and four tensors of 10 · 8 · 2 =
160 bytes: gate, activated gate, up, and their product. Attention is in `attention`, experts in `experts`.
"""

from __future__ import annotations

from vramcast.models.record.dims import Number
from vramcast.models.record.tape import F32, Tape, Value

# ---- norms


def rms_norm(
    t: Tape, name: str, x: Value, width: int | None = None, *, style: str = "llama"
) -> Value:
    """`llama`: fp32 inside, weight applied in the input's dtype. `gemma`: (1 + weight) applied in fp32. `fp32`: weight
    applied in fp32. `upcast`: the weight is cast to fp32 first."""
    with t.scope(name):
        weight = t.param("weight", (width or x.shape[-1],), "norm")
        if "norm" in t.regime.fused:
            rstd = Value((*x.shape[:-1], 1), F32, label="rstd")
            return t.op("rms_norm", (x, weight), x.shape, x.dtype, saves=(x, rstd), label=name)
        normed = _normalise(t, name, x)
        if style == "llama":
            scaled = t.mul(t.cast(normed, x.dtype), weight, name)
            return t.hold(scaled, normed)  # `hidden_states`, until it returns
        if style == "gemma":
            weight = t.cast(t.scale(weight), F32)
        elif style == "upcast":
            weight = t.cast(weight, F32)
        return t.cast(t.mul(normed, weight, name), x.dtype)


def _normalise(t: Tape, name: str, x: Value) -> Value:
    """x / √mean(x²) in fp32."""
    x32 = t.cast(x, F32, f"{name} input fp32")
    # pow_backward: the mean's gradient spread out, the power, twice that, and their product
    variance = t.op(
        "pow mean",
        (x32,),
        (*x.shape[:-1], 1),
        F32,
        saves=(x32,),
        forward_temp_bytes=x32.nbytes,
        backward_temp_bytes=4 * x32.nbytes,
        backward_temps=(x32.nbytes,) * 4,
    )
    rstd = t.op("rsqrt", (variance,), variance.shape, F32, saves_output=True, label="rstd")
    return t.mul(x32, rstd, f"{name} normalised")


# ---- rotary positions


def rope_table(x: Value, b: Number, s: Number, width: int) -> Value:
    """cos and sin, made once per forward and cast to the dtype of the residual stream x."""
    return Value((b, s, 2 * width), x.dtype, label="cos, sin")


def rope(t: Tape, x: Value, table: Value, *, partial: bool = False) -> Value:
    """x·cos + rotate_half(x)·sin. Only the small tables are saved. `partial`: only a part of each head is rotated and
    then concatenated with the rest."""
    if "rope" in t.regime.fused:
        return t.op("rope", (x,), x.shape, x.dtype, saves=(table,), label=x.label)
    with_cos = t.mul(x, table, f"{x.label}·cos")
    with_sin = t.mul(_rotate_half(t, x), table, f"{x.label}·sin")
    rotated = t.add(with_cos, with_sin, f"{x.label} with positions")
    return t.copy(rotated, label=rotated.label) if partial else rotated


def _rotate_half(t: Tape, x: Value) -> Value:
    """cat((-x2, x1)); its backward negates one half and pads both to the width of x."""
    half = x.nbytes // 2
    return t.op(
        "rotate half",
        (x,),
        x.shape,
        x.dtype,
        label="rotated half",
        forward_temp_bytes=half,
        backward_temp_bytes=half + x.nbytes,
        backward_temps=(half, x.nbytes),
    )


def rope_both(
    t: Tape, q: Value, k: Value, table: Value, *, partial: bool = False
) -> tuple[Value, Value]:
    """Rotate q and k; the caller's variables hold both as they were until both are done."""
    rotated_q = rope(t, q, table, partial=partial)
    rotated_k = rope(t, k, table, partial=partial)
    t.hold(rotated_k, q, k)
    return rotated_q, rotated_k


# ---- MLPs. Each is a module: nn.Module._call_impl holds its argument until it returns.


def gated_mlp(
    t: Tape,
    x: Value,
    inner: int,
    act: str,
    *,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    bias: bool = False,
) -> Value:
    """down(act(gate(x)) · up(x)): four tensors of the inner width are saved."""
    gate_name, up_name, down_name = names
    gate = t.linear(gate_name, x, inner, bias=bias, label="gate")
    if "mlp" in t.regime.fused:
        up = t.linear(up_name, x, inner, bias=bias, label="up")
        product = apply_gate(t, gate, up, act)
    else:
        activated = t.activation(gate, act)  # before up(x), as Python evaluates the expression
        up = t.linear(up_name, x, inner, bias=bias, label="up")
        product = t.mul(activated, up, "gated")
    down = t.linear(down_name, product, x.shape[-1], bias=bias, label="mlp output")
    return t.hold(down, x)


def fused_gated_mlp(
    t: Tape, x: Value, inner: int, act: str, names: tuple[str, str], *, bias: bool = False
) -> Value:
    """The same with gate and up in one matrix, whose columns are then split."""
    gate_up_name, down_name = names
    gate_and_up = t.linear(gate_up_name, x, 2 * inner, bias=bias, label="gate and up")
    gate, up = split(t, gate_and_up, (inner, inner))
    product = apply_gate(t, gate, up, act)
    return t.linear(down_name, product, x.shape[-1], bias=bias, label="mlp output")


def apply_gate(t: Tape, gate: Value, up: Value, act: str) -> Value:
    """act(gate) · up"""
    if "mlp" not in t.regime.fused:
        return t.mul(t.activation(gate, act), up, "gated")
    # Liger's LigerSiLUMulFunction.backward writes both gradients over what it saved.
    return t.op(
        "fused gate",
        (gate, up),
        up.shape,
        up.dtype,
        saves=(gate, up),
        label="gated",
        grad_in_place_of_saved=True,
    )


def mlp(
    t: Tape,
    x: Value,
    inner: int,
    act: str,
    names: tuple[str, str],
    *,
    bias: bool = True,
    transposed: bool = False,
) -> Value:
    """out(act(in(x)))"""
    in_name, out_name = names
    hidden = t.linear(in_name, x, inner, bias=bias, transposed=transposed, label="mlp hidden")
    activated = t.activation(hidden, act)
    out = t.linear(
        out_name, activated, x.shape[-1], bias=bias, transposed=transposed, label="mlp output"
    )
    return t.hold(out, x)


# ---- views


def split(t: Tape, x: Value, sizes: tuple[int, ...]) -> tuple[Value, ...]:
    """torch.split or chunk along the last axis: views forward, one concatenation backward."""
    return tuple(t.slice(x, size) for size in sizes)


def split_heads(t: Tape, x: Value, num: int) -> Value:
    """[b, s, n·d] seen as [b, s, n, d]."""
    return t.view(x, (*x.shape[:-1], num, x.shape[-1] // num))
