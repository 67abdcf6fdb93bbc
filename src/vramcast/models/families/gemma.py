"""Gemma 1, 2 and 3 as text models: (1 + weight) norms, scaled embeddings, norms after the branches, soft caps."""

from __future__ import annotations

from typing import Any

from vramcast.models.families.llama import Block, Frame, Shape, causal_lm, read_shape
from vramcast.models.read.config import Config
from vramcast.models.record.attention import Eager, attend, project_qkv
from vramcast.models.record.layers import gated_mlp, rms_norm, rope_both
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Tape, Value

# What the config classes of transformers put in where a key is absent; published configs rely on it.
GEMMA = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
}
GEMMA2 = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}
GEMMA3 = {**GEMMA2, "vocab_size": 262208}


def norm(t: Tape, name: str, x: Value) -> Value:
    return rms_norm(t, name, x, style="gemma")


def capped(c: Config, name: str, default: float | None) -> bool:
    """Whether soft capping is on; an explicit null turns it off."""
    return c.data.get(name, default) is not None


def framed(t: Tape, c: Config, *, final_cap: float | None, **changes: Any) -> Frame:
    def finished(logits: Value) -> Value:
        if not capped(c, "final_logit_softcapping", final_cap):
            return logits
        return t.scale(t.activation(t.scale(logits), "tanh", "capped logits"), "logits")

    return Frame(
        tied=True,
        norm=norm,
        embedded=lambda x: t.scale(x, "scaled embeddings"),
        finished=finished,
        **changes,
    )


def gemma(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Llama's order with Gemma's norms."""
    c = c.with_defaults(**GEMMA)
    shape, act = read_shape(c), c.word("hidden_act", "")
    act = "gelu_pytorch_tanh" if act == "gelu" else act  # a legacy value of the first release

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = attention(t, c, shape, norm(t, "input_layernorm", x), positions)
            x = t.add(x, y, "residual stream")
            y = norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, act)
            return t.add(x, y, "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, frame=framed(t, c, final_cap=None))


def gemma2(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Norms before and after each branch; scores and logits capped by tanh (so SDPA cannot run it)."""
    cap = capped(c, "attn_logit_softcapping", 50.0)
    frame = framed(t, c, final_cap=30.0)
    return sandwiched(t, c.with_defaults(**GEMMA2), sizes, frame, cap=cap)


def gemma3_text(t: Tape, c: Config, sizes: Sizes, **inside: Any) -> Program:
    """Gemma 2's layer with q/k norms instead of the cap on scores. `inside`: where it sits in a larger model."""
    frame = framed(t, c, final_cap=None, **inside)
    return sandwiched(t, c.with_defaults(**GEMMA3), sizes, frame, qk_norm=True)


def sandwiched(
    t: Tape, c: Config, sizes: Sizes, frame: Frame, *, cap: bool = False, qk_norm: bool = False
) -> Program:
    shape = read_shape(c)
    has_norms_after = c.model_type != "vaultgemma"

    def norm_after(name: str, y: Value) -> Value:
        return norm(t, name, y) if has_norms_after else y

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = norm(t, "input_layernorm", x)
            y = attention(t, c, shape, y, positions, cap=cap, qk_norm=qk_norm)
            x = t.add(x, norm_after("post_attention_layernorm", y), "residual stream")
            y = norm(t, "pre_feedforward_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, c.word("hidden_activation", ""))
            return t.add(x, norm_after("post_feedforward_layernorm", y), "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, frame=frame)


def attention(
    t: Tape,
    c: Config,
    shape: Shape,
    y: Value,
    positions: Value,
    *,
    cap: bool = False,
    qk_norm: bool = False,
) -> Value:
    bias = c.flag("attention_bias", False)
    with t.scope("self_attn"):
        q, k, v = project_qkv(t, y, shape.heads, bias=bias)
        if qk_norm:
            q, k = norm(t, "q_norm", q), norm(t, "k_norm", k)
        q, k = rope_both(t, q, k, positions)
        p = c.number("attention_dropout", 0.0)
        y = attend(t, q, k, v, shape.heads, dropout=p, eager=Eager(softcap=cap))
        return t.linear("o_proj", y, shape.h, bias=bias)


FAMILIES = {"gemma": gemma, "gemma2": gemma2, "vaultgemma": gemma2, "gemma3_text": gemma3_text}
