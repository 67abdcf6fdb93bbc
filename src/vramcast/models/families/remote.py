"""Llama-like decoders whose code is stored with their weights on the Hub: InternLM 1-3, Baichuan, ChatGLM 2-3, Qwen 1.

Names are those of the published checkpoints. What is saved follows from the same building blocks as Llama; only the
parameter tables can be checked without that code.
"""

from __future__ import annotations

from typing import Any

from vramcast.models.families.dense import paired_table, partly_rotated
from vramcast.models.families.llama import Block, Frame, causal_lm, read_shape
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import attend, project_fused_qkv, project_qkv
from vramcast.models.record.layers import (
    apply_gate,
    fused_gated_mlp,
    gated_mlp,
    rms_norm,
    rope,
    split,
    split_heads,
)
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, Tape, Value


def internlm(t: Tape, c: Config, sizes: Sizes) -> Program:
    """InternLM 1 and 3: Llama's names; version 3 tells biases of q, k, v from the others."""
    shape, third = read_shape(c), c.model_type == "internlm3"
    bias = c.flag("bias", not third)
    qkv_bias = c.flag("qkv_bias", False) if third else bias

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "input_layernorm", x)
            with t.scope("self_attn"):
                q, k, v = project_qkv(t, y, shape.heads, bias=qkv_bias)
                y = attend(t, rope(t, q, positions), rope(t, k, positions), v, shape.heads)
                y = t.linear("o_proj", y, shape.h, bias=bias)
            x = t.add(x, y, "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, shape.act, bias=bias and third)
            return t.add(x, y, "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block)


def internlm2(t: Tape, c: Config, sizes: Sizes) -> Program:
    """q, k and v from one matrix, group by group."""
    shape = read_shape(c)
    heads, bias = shape.heads, c.flag("bias", False)

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "attention_norm", x)
            with t.scope("attention"):
                q, k, v = project_fused_qkv(t, "wqkv", y, heads, bias=bias)
                y = attend(t, rope(t, q, positions), rope(t, k, positions), v, heads)
                y = t.linear("wo", y, shape.h, bias=bias)
            x = t.add(x, y, "residual stream")
            y = rms_norm(t, "ffn_norm", x)
            with t.scope("feed_forward"):
                y = gated_mlp(t, y, shape.f, shape.act, names=("w1", "w3", "w2"))
            return t.add(x, y, "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block, frame=Frame(table="tok_embeddings", head="output"))


def baichuan(t: Tape, c: Config, sizes: Sizes) -> Program:
    """7B rotates; 13B (its config gives model_max_length alone) biases scores by distance, which takes a mask."""
    shape = read_shape(c)
    has_max_length = c.data.get("model_max_length") is not None
    alibi = has_max_length and c.data.get("max_position_embeddings") is None

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "input_layernorm", x)
            with t.scope("self_attn"):
                q, k, v = project_fused_qkv(t, "W_pack", y, shape.heads, bias=False)
                if not alibi:
                    q, k = rope(t, q, positions), rope(t, k, positions)
                y = attend(t, q, k, v, shape.heads, masked=alibi)
                y = t.linear("o_proj", y, shape.h)
            x = t.add(x, y, "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                y = gated_mlp(t, y, shape.f, shape.act)
            return t.add(x, y, "residual stream")

        return block

    return causal_lm(t, c, sizes, make_block)


def chatglm(t: Tape, c: Config, sizes: Sizes) -> Program:
    """ChatGLM 2 and 3 and GLM-4-9B in their own code."""
    c = chatglm_config(c)
    h, f, heads = c.dim("hidden_size", "h"), c.dim("intermediate_size", "f"), read_shape(c).heads
    linear_bias = c.flag("add_bias_linear", False)
    qkv_bias = linear_bias or c.flag("add_qkv_bias", False)
    p = c.number("hidden_dropout", 0.0)

    def make_block(positions: Value) -> Block:
        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "input_layernorm", x)
            with t.scope("self_attention"):
                q, k, v = project_fused_qkv(t, "query_key_value", y, heads, bias=qkv_bias)
                table = paired_table(t, positions, int(heads.width) // 2)
                q, k = partly_rotated(t, q, table), partly_rotated(t, k, table)
                y = attend(
                    t, q, k, v, heads, dropout=c.number("attention_dropout", 0.0), heads_first=True
                )
                y = t.linear("dense", y, h, bias=linear_bias)
            x = t.add(x, t.dropout(y, p), "residual stream")
            y = rms_norm(t, "post_attention_layernorm", x)
            with t.scope("mlp"):
                names = ("dense_h_to_4h", "dense_4h_to_h")
                y = fused_gated_mlp(t, y, f, "silu", names, bias=linear_bias)
            return t.add(x, t.dropout(y, p), "residual stream")

        return block

    frame = Frame(
        prefix="transformer",
        table="embedding.word_embeddings",
        layers="encoder.layers",
        last_norm="encoder.final_layernorm",
        head="transformer.output_layer",
    )
    return causal_lm(t, c, sizes, make_block, frame=frame)


def chatglm_config(c: Config) -> Config:
    """Its keys under the names that others use."""
    heads = c.dim("num_attention_heads", "a")
    groups = heads
    if c.flag("multi_query_attention", False):
        groups = c.dim("multi_query_group_num", "g", default=1)
    h = c.dim("hidden_size", "h")
    width = exact_division(h, heads, f"{c.where}: hidden_size by num_attention_heads")
    names = {
        "vocab_size": ("padded_vocab_size", "V"),
        "num_hidden_layers": ("num_layers", "L"),
        "intermediate_size": ("ffn_hidden_size", "f"),
    }
    renamed = {ours: int(c.dim(theirs, text, ours)) for ours, (theirs, text) in names.items()}
    head_dim = int(c.dim("kv_channels", "d", default=int(width)))
    # Its configs name the bare ChatGLMModel; what people load is the class with the head.
    fixed = {
        "num_key_value_heads": int(groups),
        "head_dim": head_dim,
        "architectures": ["ChatGLMForCausalLM"],
    }
    return Config({**c.data, **renamed, **fixed}, c.where)


def qwen(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Qwen 1: one biased matrix for q, k and v, rotary positions in fp32, half of intermediate_size per branch."""
    shape = read_shape(c)
    heads, inner = shape.heads, exact_division(shape.f, 2, f"{c.where}: intermediate_size by 2")

    def make_block(positions: Value) -> Block:
        table = Value(positions.shape, F32, label=positions.label)

        def turned(x: Value) -> Value:
            return t.cast(t.copy(rope(t, t.cast(x, F32), table)), x.dtype)

        def block(x: Value, kind: Any) -> Value:
            y = rms_norm(t, "ln_1", x)
            with t.scope("attn"):
                qkv = t.linear("c_attn", y, 3 * shape.h, bias=True, label="qkv")
                q, k, v = (
                    split_heads(t, part, heads.num)
                    for part in split(t, qkv, (shape.h, shape.h, shape.h))
                )
                y = t.linear("c_proj", attend(t, turned(q), turned(k), v, heads), shape.h)
            x = t.add(x, y, "residual stream")
            y = rms_norm(t, "ln_2", x)
            with t.scope("mlp"):
                up = t.linear("w1", y, inner, label="up")
                gate = t.linear("w2", y, inner, label="gate")
                y = t.linear("c_proj", apply_gate(t, gate, up, "silu"), shape.h, label="mlp output")
            return t.add(x, y, "residual stream")

        return block

    frame = Frame(prefix="transformer", table="wte", layers="h", last_norm="ln_f")
    return causal_lm(t, c, sizes, make_block, frame=frame)


FAMILIES = {
    "qwen": qwen,
    "internlm": internlm,
    "internlm2": internlm2,
    "internlm3": internlm,
    "baichuan": baichuan,
    "chatglm": chatglm,
}
