"""PEFT's adapters on a linear layer, one record for each kind: the tensors that it adds, and its forward.

As PEFT's code runs them (peft 0.21 tuners/*/layer.py, bnb.py). Example: LoRA of rank 2 on a linear layer of 4 → 3 with
x of shape (5, 4): A is (2, 4), B is (3, 2), and y + scale · B(A(dropout(x))) saves x for A (5 · 4 elements) and A's
output for B (5 · 2 elements); the frozen layer itself saves nothing of x.

LoHa and LoKr make a weight as large as the layer's own and multiply x by it: 3 · 4 elements more are saved. IA3 scales
the layer's output by a vector and saves the output. OFT and BOFT rotate x before the layer. What has no record here is
answered by a trace. Copies of whole modules are in `recorder`, virtual tokens in `virtual_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, prod

from vramcast.errors import InputError, UndescribedModelError
from vramcast.models.record.dims import Number
from vramcast.models.record.ops import Ops, saved_factors
from vramcast.models.record.regime import Lora
from vramcast.models.record.values import F32, Param, Value, promote

Shapes = dict[str, tuple[int, ...]]  # of an adapter's tensors, by the names behind the module's own
Base = Callable[[Value], Value]  # the frozen layer's product


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer that gets an adapter, and what it is called with."""

    x: Value
    weight: Value
    bias: Value | None
    out: int
    transposed: bool

    @property
    def width(self) -> int:
        width: int = self.x.shape[-1]
        return width


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a forward has at hand: the layer, its frozen product, and the adapter's own tensors."""

    at: Linear
    base: Base
    own: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of adapter. `shapes`: of what is trained; `kept`: of what is stored with it and never trained."""

    shapes: Callable[[Lora, Linear, str], Shapes]
    forward: Callable[[Ops, Adapter], Value]
    kept: Callable[[Lora, Linear], Shapes] = lambda lora, at: {}
    takes_conv1d: bool = True  # GPT-2's transposed linear layers


def adapt(t: Ops, at: Linear, base: Base) -> Value:
    """The output of the open scope's linear layer with the job's adapter on it."""
    kind = KINDS.get(t.lora.kind)
    if kind is None:
        raise UndescribedModelError(f"adapter {t.lora.kind} is described by no formula")
    if at.transposed and not kind.takes_conv1d:
        raise InputError(
            f"lora-targets: PEFT puts no {t.lora.kind} on {t.layer_path()}, which is a Conv1D: name nn.Linear modules"
        )
    shapes = kind.shapes(t.lora, at, t.layer_path())
    own = {name: t.adapter_param(name, shape) for name, shape in shapes.items()}
    for name, shape in kind.kept(t.lora, at).items():
        own[name] = t.declare(
            Param(name=t.path(name), shape=shape, kind="buffer", dtype=F32, trainable=False)
        )
    return kind.forward(t, Adapter(at, base, own))


# ---- LoRA and DoRA


def _lora_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    shapes: Shapes = {
        "lora_A.default.weight": (lora.rank, at.width),
        "lora_B.default.weight": (at.out, lora.rank),
    }
    if lora.dora:
        shapes["lora_magnitude_vector.default.weight"] = (at.out,)
    return shapes


def _lora(t: Ops, a: Adapter) -> Value:
    """Cast, dropout, A, B, scale, add."""
    lora, x = t.lora, a.at.x
    y = a.base(x)
    quantized = t.regime.quantized
    if quantized is not None and quantized.clones:
        y = t.copy(y, label=f"{y.label} cloned")
    keeps_dtype = quantized is not None and t.regime.autocast is not None
    adapter_input = x if keeps_dtype else t.cast(x, lora.dtype)
    dropped = t.dropout(adapter_input, lora.dropout, "lora dropout")
    low_rank = _multiply(t, a, "lora_A.default", dropped, lora.rank)
    delta = t.scale(_multiply(t, a, "lora_B.default", low_rank, a.at.out), "lora scaled")
    if lora.dora:
        delta = _scale_by_magnitude(t, a, y, delta)
    adapted = t.cast(t.add(y, delta, "adapted"), y.dtype)
    return t.hold(adapted, x, adapter_input)  # the module's argument, and what its code calls x


def _scale_by_magnitude(t: Ops, a: Adapter, y: Value, delta: Value) -> Value:
    """DoRA: both paths are scaled by a trained magnitude over the column norms; each product saves one more tensor."""
    magnitude = a.own["lora_magnitude_vector.default.weight"]
    return t.add(t.mul(y, magnitude, "dora base"), t.mul(delta, magnitude, "dora delta"))


def _multiply(t: Ops, a: Adapter, name: str, x: Value, out: int) -> Value:
    with t.scope(name):
        return t.multiply_weight(x, a.own[f"{name}.weight"], None, out, "weight")


# ---- AdaLoRA: low-rank factors with singular values between them


def _adalora_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    shapes: Shapes = {
        "lora_E.default": (lora.rank, 1),
        "lora_A.default": (lora.rank, at.width),
        "lora_B.default": (at.out, lora.rank),
    }
    return shapes | (RANKNUM if _trains_ranknum(lora, at) else {})


RANKNUM: Shapes = {"ranknum.default": (1,)}


def _trains_ranknum(lora: Lora, at: Linear) -> bool:
    """The number of ranks is no weight, but PEFT makes a new nn.Parameter of it where it raises adapters to fp32
    (tuners_utils.py cast_adapter_dtype), and that asks for a gradient."""
    return at.weight.dtype != F32 and lora.dtype == F32


def _adalora_kept(lora: Lora, at: Linear) -> Shapes:
    return {} if _trains_ranknum(lora, at) else RANKNUM


def _adalora(t: Ops, a: Adapter) -> Value:
    """y += dropout(x) @ (A · E)ᵀ @ Bᵀ · scaling / ranknum, the last a tensor in fp32."""
    x, own = a.at.x, a.own
    y = a.base(x)
    x32 = t.cast(x, t.lora.dtype)
    scaled = t.mul(own["lora_A.default"], own["lora_E.default"], "A·E")
    dropped = t.dropout(x32, t.lora.dropout, "lora dropout")
    low = t.matmul(dropped, scaled, (*x.shape[:-1], t.lora.rank), "lora_A")
    # A transposed parameter is a view, whose cast autocast does not keep.
    factor = _cast_for_product(t, own["lora_B.default"])
    delta = t.scale(t.matmul(low, factor, (*x.shape[:-1], a.at.out), "lora_B"), "lora scaled")
    ranks = t.scale(own["ranknum.default"], "ranknum")
    divided = t.op(
        "div",
        (delta, ranks),
        delta.shape,
        F32,
        saves=(delta, ranks) if ranks.requires_grad else (ranks,),
        label="lora divided by its rank",
        backward_temp_bytes=2 * prod(delta.shape) * F32.nbytes if ranks.requires_grad else 0,
    )
    return t.hold(t.add_in_place(y, divided, "adapted"), x, x32)


def _cast_for_product(t: Ops, weight: Value) -> Value:
    compute = t.regime.autocast
    if compute is None or compute == weight.dtype:
        return weight
    return t.op("to", (weight,), weight.shape, compute, label=f"{compute.name} copy")


# ---- VeRA: one pair of random matrices for all layers, scaled by vectors


def _vera_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    return {"vera_lambda_b.default": (at.out,), "vera_lambda_d.default": (lora.rank,)}


def _vera(t: Ops, a: Adapter) -> Value:
    """y + λ_b · B(λ_d · A(x)), with parts of the shared A and B as large as the layer."""
    x, out, rank = a.at.x, a.at.out, t.lora.rank
    y = a.base(x)
    x32 = t.cast(x, t.lora.dtype)
    low = t.multiply_weight(x32, _shared(t, "vera_A", (rank, a.at.width)), None, rank, "vera_A")
    low = t.mul(low, a.own["vera_lambda_d.default"], "λ_d · A(x)")
    wide = t.multiply_weight(low, _shared(t, "vera_B", (out, rank)), None, out, "vera_B")
    delta = t.mul(wide, a.own["vera_lambda_b.default"], "λ_b · B(…)")
    adapted = t.cast(t.add(y, delta, "adapted"), y.dtype)
    return t.hold(adapted, x, x32)


def _shared(t: Ops, name: str, shape: tuple[int, ...]) -> Value:
    """A part of a buffer as a product sees it: cast anew each time, since autocast keeps casts of what is trained."""
    buffer = Param(name=name, shape=shape, kind="buffer", dtype=F32, trainable=False)
    return _cast_for_product(t, Value(shape, F32, label=name, param=buffer))


def shared_buffers(params: list[Param], lora: Lora) -> list[Param]:
    """VeRA's two matrices, as large as the widest of all layers that read parts of them."""
    if lora.kind != "vera":
        return []
    ending = ".vera_lambda_b.default"
    outs = {p.name.removesuffix(ending): p.shape[0] for p in params if p.name.endswith(ending)}
    bases = {p.name.removesuffix(".base_layer.weight"): p for p in params}
    widest = max((bases[name].numel // out for name, out in outs.items()), default=0)
    shapes = {
        "vera_A.default": (lora.rank, widest),
        "vera_B.default": (max(outs.values(), default=0), lora.rank),
    }
    return [
        Param(name=name, shape=shape, kind="buffer", dtype=F32, trainable=False)
        for name, shape in shapes.items()
    ]


# ---- LoHa and LoKr: a weight as large as the layer's


def _loha_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    out, inner = (at.out, lora.rank), (lora.rank, at.width)
    return {
        "hada_w1_a.default": out,
        "hada_w1_b.default": inner,
        "hada_w2_a.default": out,
        "hada_w2_b.default": inner,
    }


def _loha(t: Ops, a: Adapter) -> Value:
    """(w1_a @ w1_b) · (w2_a @ w2_b) · scale, a Function that saves the four; its backward makes both products again,
    outside of autocast."""
    x, y = a.at.x, a.base(a.at.x)
    factors = tuple(t.autocast(factor) for factor in a.own.values())
    n = a.at.out * a.at.width
    dtype, stored = factors[0].dtype, t.lora.dtype.nbytes
    delta = t.op(
        "hada weight",
        factors,
        (a.at.out, a.at.width),
        dtype,
        label="loha weight",
        flops=4 * n * t.lora.rank,
        forward_temps=(n * dtype.nbytes,) * 2,
        forward_temp_bytes=2 * n * dtype.nbytes,
        backward_temps=(n * dtype.nbytes, *(n * stored,) * 3),
        backward_temp_bytes=n * (dtype.nbytes + 3 * stored),
    )
    return _add_product(t, a, y, x, delta)


def _lokr_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    (in_m, in_n), (out_l, out_k) = _factorise(int(at.width)), _factorise(int(at.out))
    shapes: Shapes = {"lokr_w1.default": (out_l, in_m)}
    if lora.rank < max(out_k, in_n) / 2:
        shapes |= {"lokr_w2_a.default": (out_k, lora.rank), "lokr_w2_b.default": (lora.rank, in_n)}
    else:
        shapes["lokr_w2.default"] = (out_k, in_n)
    return shapes


def _factorise(number: int) -> tuple[int, int]:
    """Two factors near the root, the smaller one first, as PEFT's search finds them."""
    small = next(factor for factor in range(isqrt(number), 0, -1) if number % factor == 0)
    return small, number // small


def _lokr(t: Ops, a: Adapter) -> Value:
    """The Kronecker product of w1 and w2, times a scale."""
    x, own = a.at.x, a.own
    y = a.base(x)
    w1 = own["lokr_w1.default"]
    w2 = own.get("lokr_w2.default")
    if w2 is None:
        left, right = own["lokr_w2_a.default"], own["lokr_w2_b.default"]
        w2 = t.matmul(left, right, (left.shape[0], right.shape[1]), "lokr_w2")
    shape, dtype = (a.at.out, a.at.width), promote(w1.dtype, w2.dtype)
    kron_bytes = prod(map(int, shape)) * dtype.nbytes
    kron = t.op(
        "kron",
        (w1, w2),
        shape,
        dtype,
        saves=(w1, w2),
        label="lokr weight",
        backward_temp_bytes=kron_bytes,
    )
    return _add_product(t, a, y, x, t.scale(kron, "lokr weight"))


def _add_product(t: Ops, a: Adapter, y: Value, x: Value, delta: Value) -> Value:
    adapter_input = t.cast(x, delta.dtype)
    change = t.multiply_weight(adapter_input, delta, None, a.at.out, "delta")
    adapted = t.cast(t.add(y, change, "adapted"), x.dtype)
    return t.hold(adapted, x)


# ---- IA3: vectors that scale what goes in or comes out


def _ia3_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    return {"ia3_l.default": (1, at.width) if lora.scales_input(name) else (at.out, 1)}


def _ia3(t: Ops, a: Adapter) -> Value:
    x, vector = a.at.x, t.scale(a.own["ia3_l.default"], "ia3")
    if t.lora.scales_input(t.layer_path()):
        x32 = t.cast(x, t.lora.dtype)
        scaled = t.cast(_scale_by_vector(t, x32, vector), x.dtype)
        return t.hold(a.base(scaled), x32, scaled)
    y = a.base(x)
    return t.hold(t.cast(_scale_by_vector(t, y, vector), y.dtype), x)


def _scale_by_vector(t: Ops, x: Value, vector: Value) -> Value:
    """x · vector: each is saved for the other; the vector's gradient is a sum over a tensor as large as x."""
    dtype = promote(x.dtype, vector.dtype)
    return t.op(
        "mul",
        (x, vector),
        x.shape,
        dtype,
        saves=(x, vector) if x.requires_grad else (x,),
        label="scaled by ia3",
        backward_temp_bytes=prod(x.shape) * dtype.nbytes,
    )


# ---- OFT: rotations of blocks of the input


def _oft_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    block = oft_block(lora.block, int(at.width))
    return {"oft_R.default.weight": (at.width // block, block * (block - 1) // 2)}


def oft_block(asked: int, width: int) -> int:
    """PEFT takes the nearest divisor of the width, the smaller one of two that are as near."""
    below = next((size for size in range(min(asked, width), 0, -1) if width % size == 0), 1)
    above = next((size for size in range(max(asked, 1), width + 1) if width % size == 0), below)
    return below if asked - below <= above - asked else above


def _oft(t: Ops, a: Adapter) -> Value:
    """x in blocks, each times the Cayley transform of a skew-symmetric matrix, made by a Neumann series of five
    terms."""
    x, weight = a.at.x, a.own["oft_R.default.weight"]
    blocks = weight.shape[0]
    block = a.at.width // blocks
    shape = (blocks, block, block)
    x32 = t.cast(x, t.lora.dtype)
    matrix = t.op("index put", (weight,), shape, weight.dtype, label="upper triangles")
    skew = t.op("sub", (matrix,), shape, weight.dtype, label="skew-symmetric")
    rotation = t.op("eye", (), shape, weight.dtype, label="rotation", requires_grad=False)
    rotation = t.add_in_place(rotation, skew)
    power = skew
    for _ in range(3):
        power = t.matmul(power, skew, shape, "power")
        rotation = t.add_in_place(rotation, power)
    rotated = t.matmul(x32, rotation, x.shape, "rotated in blocks")
    rotated = t.cast(t.copy(rotated, label="rotated"), x.dtype)
    return t.hold(a.base(rotated), x)


# ---- BOFT: one matrix over the whole input


def _boft_shapes(lora: Lora, at: Linear, name: str) -> Shapes:
    if at.width % lora.block:
        raise InputError(
            f"adapter-block {lora.block} must divide {at.width}, the width of {name}'s input: PEFT refuses it"
        )
    return {
        "boft_R.default": (1, at.width // lora.block, lora.block, lora.block),
        "boft_s.default": (at.out, 1),
    }


def _boft(t: Ops, a: Adapter) -> Value:
    """x @ (P · blocks · Pᵀ · 1), then the layer, scaled: matrices of the input's width squared, in x's dtype. P is kept
    in fp32 beside the weights, in every layer."""
    x, own = a.at.x, a.own
    blocks, square, dtype = own["boft_R.default"], (a.at.width, a.at.width), x.dtype
    eye = t.op("eye", (), square, dtype, label="eye", requires_grad=False)
    skew = t.scale(t.op("sub", (blocks,), blocks.shape, F32, label="skew-symmetric"), "half")
    left, right = t.scale(skew, "1 + skew"), t.scale(skew, "1 - skew")
    rotations = t.op(
        "linalg solve",
        (left, right),
        blocks.shape,
        F32,
        saves=(left,),
        saves_output=True,
        label="rotations",
    )
    diagonal = t.op("block diag", (rotations,), square, F32, label="block diagonal")
    mixing = t.cast(own["boft_P"], dtype) if dtype != F32 else own["boft_P"]
    diagonal = t.cast(diagonal, dtype)
    half = _product(t, diagonal, mixing, square, "blocks · Pᵀ")
    whole = _product(t, mixing, half, square, "P · blocks · Pᵀ")
    rotation = _product(t, whole, eye, square, "rotation")
    scale = t.scale(own["boft_s.default"], "boft scale")
    rotated = _product(t, x, rotation, x.shape, "rotated")
    y = a.base(rotated)
    bias = a.at.bias
    y = t.op("sub", (y,), y.shape, y.dtype, label="without bias") if bias is not None else y
    y = _scale_by_vector(t, y, scale)
    y = t.op("add", (y,), y.shape, y.dtype, label="with bias") if bias is not None else y
    return t.hold(t.cast(y, dtype), x, rotated, diagonal, whole, mixing, eye)


def _product(t: Ops, a: Value, b: Value, shape: tuple[Number, ...], label: str) -> Value:
    """Each factor is saved if the other one asks for a gradient."""
    return t.op(
        "bmm",
        (a, b),
        shape,
        promote(a.dtype, b.dtype),
        saves=saved_factors(a, b),
        label=label,
        flops=2 * prod(shape) * a.shape[-1],
    )


# kind → its record. Kinds of PEFT that are not here are answered by a trace.
KINDS = {
    "lora": Kind(shapes=_lora_shapes, forward=_lora),
    "adalora": Kind(
        shapes=_adalora_shapes,
        forward=_adalora,
        kept=_adalora_kept,
    ),
    "vera": Kind(shapes=_vera_shapes, forward=_vera),
    "loha": Kind(shapes=_loha_shapes, forward=_loha, takes_conv1d=False),
    "lokr": Kind(shapes=_lokr_shapes, forward=_lokr, takes_conv1d=False),
    "ia3": Kind(shapes=_ia3_shapes, forward=_ia3),
    "oft": Kind(shapes=_oft_shapes, forward=_oft, takes_conv1d=False),
    "boft": Kind(
        shapes=_boft_shapes,
        forward=_boft,
        kept=lambda lora, at: {"boft_P": (1, at.width, at.width)},
        takes_conv1d=False,
    ),
}
