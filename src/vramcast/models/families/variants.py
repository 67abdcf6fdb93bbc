"""Decoders that differ from Llama in a norm, a rotation, a bias or the form of the MLP.

Arcee, CWM, Ernie 4.5, EXAONE 4, Helium, Hunyuan (dense), HyperCLOVA X, Jais 2, Ministral 3, Nemotron, Seed-OSS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vramcast.errors import InputError
from vramcast.models.families.dense import (
    fp32_rope,
    in_fp32,
    paired_table,
    partly_rotated,
    rotary_share,
)
from vramcast.models.families.llama import Block, Frame, Shape, causal_lm, read_shape
from vramcast.models.read.config import Config
from vramcast.models.record.attention import attend, project_qkv
from vramcast.models.record.layers import gated_mlp, mlp, rms_norm, rope
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.sliding_windows import sliding_layers, window_of
from vramcast.models.record.tape import F32, Tape, Value

Norm = Callable[[Tape, str, Value], Value]
Change = Callable[[Value], Value]


def helium_norm(t: Tape, name: str, x: Value) -> Value:
    """RMSNorm whose weight is cast to fp32 with the input."""
    return rms_norm(t, name, x, style="upcast")


def layer_norm(t: Tape, name: str, x: Value) -> Value:
    return t.layer_norm(name, x)


def layer_norm_1p(t: Tape, name: str, x: Value) -> Value:
    """LayerNorm with weight + 1. Where CUDA's autocast is on, Nemotron casts to its dtype and turns it off around."""
    width = x.shape[-1]
    if t.regime.cuda:
        x = t.autocast(x)
    with t.scope(name):
        weight = t.param("weight", (width,), "norm")
        bias = t.param("bias", (width,), "norm")
        scaled = t.scale(weight, f"{name} weight + 1")
        if t.regime.cuda:
            scaled = t.autocast(scaled)
        dtype = F32 if t.regime.cuda else x.dtype
        statistics = Value((*x.shape[:-1], 2), dtype, label=f"{name} mean, rstd")
        saves = (x, statistics, scaled)
        return t.op("layer_norm", (x, scaled, bias), x.shape, x.dtype, saves=saves, label=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Where a family differs from Llama."""

    norm: Norm = rms_norm
    qk_norm: tuple[str, str] | None = None
    norm_after_rope: bool = False
    # halves, pairs (tables doubled in each layer), pairs in fp32, or a part of each head
    rotation: str = "halves"
    gate: bool = True
    norms_after: bool = False  # each branch is normed after, not before
    # Keys of the config: of q, k and v, of the output, of the MLP.
    biases: tuple[str, str, str] = ("attention_bias", "attention_bias", "mlp_bias")
    dropout: str = ""  # key of a dropout on both branches
    act: str = "silu"
    rotates_sliding_only: bool = False  # layers that do not slide are not rotated
    scales_q: bool = False  # rotated queries are multiplied by a factor of their position
    extra_norms: tuple[str, str] = ("", "")  # names of further norms after the branches
    scales: bool = False  # multipliers on embeddings, branches and logits, as Granite has them
    tied: bool = False


FORMS = {
    "arcee": Form(gate=False, act="relu2"),
    "cwm": Form(biases=("", "", "mlp_bias")),
    "ernie4_5": Form(rotation="pairs in fp32", biases=("use_bias",) * 3, tied=True),
    "exaone4": Form(
        qk_norm=("q_norm", "k_norm"),
        norms_after=True,
        biases=("", "", ""),
        rotates_sliding_only=True,
    ),
    "helium": Form(norm=helium_norm, rotation="pairs", biases=("attention_bias", "", "mlp_bias")),
    "hunyuan_v1_dense": Form(
        qk_norm=("query_layernorm", "key_layernorm"),
        norm_after_rope=True,
        biases=("attention_bias", "attention_bias", ""),
    ),
    "hyperclovax": Form(extra_norms=("post_norm1", "post_norm2"), scales=True),
    "jais2": Form(norm=layer_norm, gate=False, act="relu2"),
    "ministral3": Form(biases=("", "", ""), scales_q=True),
    "nemotron": Form(norm=layer_norm_1p, rotation="part", gate=False, act="relu2"),
    "seed_oss": Form(
        biases=("attention_bias", "attention_out_bias", "mlp_bias"), dropout="residual_dropout"
    ),
}
# Of the config classes, where a config.json may leave them out.
DEFAULTS: dict[str, dict[str, Any]] = {
    "seed_oss": {
        "attention_bias": True,
        "residual_dropout": 0.1,
        "attention_dropout": 0.1,
        "head_dim": 128,
        "num_key_value_heads": 8,
    },
    "ernie4_5": {"head_dim": 128, "num_key_value_heads": 2},
    "jais2": {"attention_bias": True, "mlp_bias": True},
    "ministral3": {"head_dim": 128, "num_key_value_heads": 8},
    "helium": {"head_dim": 128, "num_key_value_heads": 20},
}


def variant(t: Tape, c: Config, sizes: Sizes) -> Program:
    c = c.with_defaults(**DEFAULTS.get(c.model_type, {}))
    form, shape = _form(c), read_shape(c)
    if c.model_type == "helium" and shape.heads.num * shape.heads.width != shape.h:
        raise InputError(
            f"{c.where}: helium's num_attention_heads × head_dim must be its hidden_size"
        )
    layers = int(c.dim("num_hidden_layers", "L"))
    rotates = [True] * layers
    if form.rotates_sliding_only and window_of(c) is not None:
        rotates = sliding_layers(c, layers)

    def make_block(positions: Value) -> Block:
        def block(x: Value, rotates: bool) -> Value:
            def attention(y: Value) -> Value:
                return _attention(t, c, shape, form, y, positions, rotates=rotates)

            def feed_forward(y: Value) -> Value:
                return _mlp(t, c, shape, form, y)

            names = ("input_layernorm", "post_attention_layernorm", form.extra_norms[0])
            x = _add_branch(t, c, form, x, names, attention)
            names = ("post_attention_layernorm", "post_feedforward_layernorm", form.extra_norms[1])
            return _add_branch(t, c, form, x, names, feed_forward)

        return block

    def scale_as(label: str) -> Change:
        return lambda x: t.scale(x, label) if form.scales else x

    frame = Frame(
        norm=form.norm,
        tied=form.tied,
        embedded=scale_as("scaled embeddings"),
        finished=scale_as("logits"),
    )
    return causal_lm(t, c, sizes, make_block, kinds=rotates, frame=frame)


def _form(c: Config) -> Form:
    form = FORMS[c.model_type]
    return form if c.flag("use_post_norm", True) else replace(form, extra_norms=("", ""))


def _add_branch(
    t: Tape, c: Config, form: Form, x: Value, names: tuple[str, str, str], branch: Change
) -> Value:
    """`names` of norms: before the branch, or after it; perhaps one more after it."""
    before, after, extra = names
    y = branch(x if form.norms_after else form.norm(t, before, x))
    if form.dropout:
        y = t.dropout(y, c.number(form.dropout, 0.0))
    if form.norms_after:
        y = form.norm(t, after, y)
    if extra:
        y = form.norm(t, extra, y)
    return t.add(x, t.scale(y) if form.scales else y, "residual stream")


def _attention(
    t: Tape, c: Config, shape: Shape, form: Form, y: Value, positions: Value, *, rotates: bool
) -> Value:
    heads = shape.heads
    with t.scope("self_attn"):
        q, k, v = project_qkv(t, y, heads, bias=_bias(c, form.biases[0]))
        rotate = _make_rotation(t, c, form, int(heads.width), positions) if rotates else _keep
        if form.norm_after_rope:
            q, k = rotate(q), rotate(k)
        if form.qk_norm is not None:
            q, k = rms_norm(t, form.qk_norm[0], q), rms_norm(t, form.qk_norm[1], k)
        if not form.norm_after_rope:
            q, k = rotate(q), rotate(k)
        if form.scales_q:
            q = t.scale(q, q.label)
        dropout = 0.0 if c.model_type == "ernie4_5" else c.number("attention_dropout", 0.0)
        y = attend(t, q, k, v, heads, dropout=dropout, heads_first=form.rotation == "part")
        return t.linear("o_proj", y, shape.h, bias=_bias(c, form.biases[1]))


def _keep(x: Value) -> Value:
    return x


def _bias(c: Config, key: str) -> bool:
    return bool(key) and c.flag(key, False)


def _make_rotation(t: Tape, c: Config, form: Form, width: int, positions: Value) -> Change:
    if form.rotation == "pairs":
        table = paired_table(t, positions, width)
        return lambda x: rope(t, x, table)
    if form.rotation == "pairs in fp32":
        table = paired_table(t, in_fp32(positions), width)
        return lambda x: fp32_rope(t, x, table)
    if form.rotation == "part":
        rotated = int(width * rotary_share(c, 0.5))
        part = Value((*positions.shape[:-1], 2 * rotated), positions.dtype, label=positions.label)
        return lambda x: partly_rotated(t, x, part)
    return lambda x: rope(t, x, positions)


def _mlp(t: Tape, c: Config, shape: Shape, form: Form, y: Value) -> Value:
    act, bias = c.word("hidden_act", form.act), _bias(c, form.biases[2])
    with t.scope("mlp"):
        if form.gate:
            return gated_mlp(t, y, shape.f, act, bias=bias)
        return mlp(t, y, shape.f, act, ("up_proj", "down_proj"), bias=bias)


FAMILIES = dict.fromkeys(FORMS, variant)
