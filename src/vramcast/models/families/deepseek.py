"""DeepSeek V2 and V3: latent attention (MLA), dense first layers, then routed and shared experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vramcast.models.families.llama import Block, causal_lm
from vramcast.models.families.moe import moe_block, read_experts, routed
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import Heads, attend
from vramcast.models.record.layers import gated_mlp, rms_norm, rope, split, split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.routers import Experts, Routing, group_softmax_router, sigmoid_router
from vramcast.models.record.tape import Tape, Value

V2 = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 512,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1407,
}
V3 = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
}


def deepseek(t: Tape, c: Config, sizes: Sizes) -> Program:
    third = c.model_type == "deepseek_v3"
    rank = c.data.get("q_lora_rank", 1536)  # an explicit null means no compression of queries
    c = c.with_defaults(**(V3 if third else V2))
    act = c.word("hidden_act", "silu")
    e = read_experts(
        c, c.dim("moe_intermediate_size", "f_e"), act, "n_routed_experts", "num_experts"
    )
    route = router(t, c, e, third=third)
    layers = c.dim("num_hidden_layers", "L")
    num_dense = c.dim("first_k_dense_replace", "n", least=0)
    kinds = ["dense" if index < num_dense else "sparse" for index in range(layers)]
    shared_width = e.inner * c.dim("n_shared_experts", "n_s")
    bias = not third and c.flag("mlp_bias", False)

    def dense(x: Value) -> Value:
        return gated_mlp(t, x, c.dim("intermediate_size", "f"), act, bias=bias)

    def sparse(x: Value) -> Value:
        y = routed(t, x, e, route)
        with t.scope("shared_experts"):
            return t.add(
                y, gated_mlp(t, x, shared_width, act, bias=bias), "mixture and shared experts"
            )

    def make_block(positions: Value) -> Block:
        attention = partial(latent_attention, t, c, positions, compressed=rank is not None)

        def block(x: Value, kind: str) -> Value:
            return moe_block(t, attention, sparse if kind == "sparse" else dense)(x)

        return block

    c_of_rope = c.with_defaults(head_dim=int(c.dim("qk_rope_head_dim", "d_r")))
    return causal_lm(t, c_of_rope, sizes, make_block, kinds=kinds)


def router(t: Tape, c: Config, e: Experts, *, third: bool) -> Callable[[Value], Routing]:
    if third:
        exact_division(e.num, c.dim("n_group", "n_g"), f"{c.where}: n_routed_experts by n_group")
        return lambda rows: sigmoid_router(
            t, "gate", rows, e, normalised=c.flag("norm_topk_prob", True)
        )
    grouped = c.word("topk_method", "greedy") == "group_limited_greedy"
    if grouped:
        exact_division(e.num, c.dim("n_group", "n_g"), f"{c.where}: n_routed_experts by n_group")
    return lambda rows: group_softmax_router(t, "gate", rows, e, grouped=grouped)


def latent_attention(t: Tape, c: Config, positions: Value, y: Value, *, compressed: bool) -> Value:
    """Keys and values are expanded from one compressed row per token; only a part of each head is rotated."""
    heads, bias = c.dim("num_attention_heads", "a"), c.flag("attention_bias", False)
    nope_width = c.dim("qk_nope_head_dim", "d_n")
    rope_width = c.dim("qk_rope_head_dim", "d_r")
    value_width = c.dim("v_head_dim", "d_v")
    rank = c.dim("kv_lora_rank", "r_kv")
    width = nope_width + rope_width
    q = project_queries(t, c, y, heads * width, bias=bias, compressed=compressed)
    q_nope, q_rope = split(t, split_heads(t, q, heads), (nope_width, rope_width))
    both = t.linear("kv_a_proj_with_mqa", y, rank + rope_width, bias=bias, label="compressed k, v")
    kv, k_rope = split(t, both, (rank, rope_width))
    kv = rms_norm(t, "kv_a_layernorm", kv)
    kv = t.linear("kv_b_proj", kv, heads * (nope_width + value_width), label="k, v")
    k_nope, v = split(t, split_heads(t, kv, heads), (nope_width, value_width))
    q = joined(t, q_nope, rope(t, q_rope, positions), "q")
    k = joined(t, k_nope, rope(t, k_rope, positions), "k")
    shape = Heads(num=heads, num_kv=heads, width=width, value_width=value_width)
    y = attend(t, q, k, v, shape, dropout=c.number("attention_dropout", 0.0), heads_first=True)
    return t.linear("o_proj", y, c.dim("hidden_size", "h"), bias=bias)


def project_queries(
    t: Tape, c: Config, y: Value, out: int, *, bias: bool, compressed: bool
) -> Value:
    if not compressed:
        return t.linear("q_proj", y, out, label="q")
    rank = c.dim("q_lora_rank", "r_q", default=1536)
    low = t.linear("q_a_proj", y, rank, bias=bias, label="compressed q")
    return t.linear("q_b_proj", rms_norm(t, "q_a_layernorm", low), out, label="q")


def joined(t: Tape, still: Value, turned: Value, label: str) -> Value:
    shape = (*still.shape[:-1], still.shape[-1] + turned.shape[-1])
    return t.op("copy", (still, turned), shape, still.dtype, label=label)


FAMILIES = {"deepseek_v2": deepseek, "deepseek_v3": deepseek}
