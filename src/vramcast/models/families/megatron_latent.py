"""Megatron-LM's latent attention (multi_latent_attention.py) and multi-token prediction (multi_token_prediction.py).

Down projections are computed whole on every tensor-parallel rank, over its share of the sequence; up projections are
column-parallel behind a norm of their own. A prediction layer has the embedding and the output layer once more in use,
and a loss of its own, which hangs on the stream that goes on to the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import Heads, attend
from vramcast.models.record.layers import split_heads
from vramcast.models.record.loss import vocab_parallel_loss
from vramcast.models.record.recompute import checkpoint_part, discard_outputs, offloadable
from vramcast.models.record.tape import Tape, Value

Norm = Callable[[str, Value], Value]
Unfused = Callable[[Value, Value, Value, Heads], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Widths of a latent attention; heads are this rank's."""

    heads: int
    q_rank: int | None
    kv_rank: int
    still: int
    turned: int
    value: int


def read_latent(c: Config, tp: int) -> Latent | None:
    if not c.model_type.startswith("deepseek"):
        return None
    num = c.dim("num_attention_heads", "a")
    rank = c.data.get("q_lora_rank", 1536)
    return Latent(
        heads=exact_division(num, tp, f"{c.where}: heads by tp"),
        kv_rank=c.dim("kv_lora_rank", "r_kv", default=512),
        q_rank=None if rank is None else int(c.dim("q_lora_rank", "r_q", default=1536)),
        still=c.dim("qk_nope_head_dim", "d_n", default=128),
        turned=c.dim("qk_rope_head_dim", "d_r", default=64),
        value=c.dim("v_head_dim", "d_v", default=128),
    )


def latent_attention(t: Tape, m: Latent, y: Value, norm: Norm, unfused: Unfused) -> Value:
    """y is the normed stream; the result is projected and scattered again."""
    h, again = int(y.shape[-1]), "mla_up_proj" in t.regime.recompute
    with t.scope("self_attention"):
        with offloadable(t, "qkv_linear"):
            low, kv, k_turned = _compressed(t, m, y)
            start = len(t.ops())
            q, k, v = _expanded(t, m, low, kv, k_turned, norm)
            if again:
                checkpoint_part(t, start, low, kv, k_turned)
        consumer = len(t.ops())
        heads = Heads(num=m.heads, num_kv=m.heads, width=m.still + m.turned, value_width=m.value)
        with offloadable(t, "core_attn"):
            out = (
                unfused(q, k, v, heads)
                if t.regime.attention == "eager"
                else attend(t, q, k, v, heads)
            )
            if "core_attn" in t.regime.recompute:
                checkpoint_part(t, consumer, q, k, v)
            if again:
                discard_outputs(t, consumer, q, k, v)
        with offloadable(t, "attn_proj"):
            return t.linear("linear_proj", out, h, label="attention projected")


def _compressed(t: Tape, m: Latent, y: Value) -> tuple[Value, Value, Value]:
    """What queries (or y itself), keys and values are expanded from, and the part of k that is rotated, gathered."""
    low = y if m.q_rank is None else _whole(t, "linear_q_down_proj", y, m.q_rank, "compressed q")
    both = _whole(t, "linear_kv_down_proj", y, m.kv_rank + m.turned, "compressed k, v")
    kv, k_turned = t.slice(both, m.kv_rank), t.slice(both, m.turned)
    if k_turned.sequence_sharded:
        full = (y.shape[0], y.shape[1] * t.regime.split.tp, m.turned)
        k_turned = t.copy(k_turned, full, "rotated part of k gathered")
        k_turned.sequence_sharded = False
    return low, kv, k_turned


def _whole(t: Tape, name: str, y: Value, out: int, label: str) -> Value:
    """A linear that every tensor-parallel rank computes for its share of the sequence (parallel_mode duplicated)."""
    return t.linear(name, y, out, label=label, kind="classifier")


def _expanded(
    t: Tape, m: Latent, low: Value, kv: Value, k_turned: Value, norm: Norm
) -> tuple[Value, Value, Value]:
    """Up projections, rotation of a part of each head, and contiguous q, k and v."""
    width = m.still + m.turned
    if m.q_rank is None:
        q = t.linear("linear_q_proj", low, m.heads * width, label="q")
    else:
        q = t.linear("linear_q_up_proj", norm("q_layernorm", low), m.heads * width, label="q")
    up = t.linear(
        "linear_kv_up_proj", norm("kv_layernorm", kv), m.heads * (m.still + m.value), label="k, v"
    )
    q, up = split_heads(t, q, m.heads), split_heads(t, up, m.heads)
    q_turned = t.op(
        "rope",
        (t.slice(q, m.turned),),
        (*q.shape[:-1], m.turned),
        q.dtype,
        label="rotated part of q",
    )
    q = t.op("copy", (t.slice(q, m.still), q_turned), q.shape, q.dtype, label="q")
    turned = t.op("rope", (k_turned,), k_turned.shape, k_turned.dtype, label="rotated part of k")
    shape = (*up.shape[:-1], width)
    k = t.op("copy", (t.slice(up, m.still), turned), shape, up.dtype, label="k")
    return q, k, t.copy(t.slice(up, m.value), label="v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a multi-token prediction layer needs of the model around it."""

    layer: Callable[[Value], Value]
    norm: Norm
    embed: Callable[[], Value]  # the tokens ahead, looked up once more
    logits: Callable[[Value], Value]


def predict_ahead(t: Tape, x: Value, p: Prediction, depth: int) -> Value:
    """`depth` layers, each with a loss on what it predicts; the stream leaves as it came."""
    state, stream = x, x
    for number in range(depth):
        with t.scope(f"mtp.layers.{number}"):
            both = _joined(t, p.norm("enorm", p.embed()), p.norm("hnorm", state))
            state = p.layer(_projected(t, both))
            normed = p.norm("final_layernorm", state)
        loss = vocab_parallel_loss(t, p.logits(normed))
        stream = t.op(
            "prediction loss",
            (stream, loss),
            x.shape,
            x.dtype,
            label="stream to the head",
            passes_grad=True,
        )
        stream.sequence_sharded = x.sequence_sharded
    return stream


def _joined(t: Tape, ahead: Value, state: Value) -> Value:
    shape = (*state.shape[:-1], 2 * state.shape[-1])
    return t.op("copy", (ahead, state), shape, state.dtype, label="embedding and state")


def _projected(t: Tape, both: Value) -> Value:
    """eh_proj is column-parallel; its result is gathered along the width and scattered along the sequence."""
    h, split = int(both.shape[-1]) // 2, t.regime.split
    y = t.linear("eh_proj", both, h // split.tp, label="projected")
    if split.tp == 1:
        return y
    y = t.copy(y, (*y.shape[:-1], h), "projected, gathered")
    if split.sequence_parallel:
        y = t.copy(y, (y.shape[0], y.shape[1] // split.tp, h), "projected, scattered")
        y.sequence_sharded = True
    return y
