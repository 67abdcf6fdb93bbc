"""litgpt's own model code (litgpt/model.py, lora.py, utils.py): one decoder for every family it converts.

Differs from transformers where memory is concerned: one fused qkv projection, keys and values always repeated to all
heads, queries and keys joined anew behind rotary positions in fp32, an embedding that is never tied to the head (before
0.5.4), adapters on parts of the fused projection, and Fabric's fp32 copy of what the model returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.errors import UnsupportedError
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import Eager, Heads, attend, split_qkv
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import apply_gate, rms_norm, rope
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, I64, Tape, Value

TARGETS = (
    "query",
    "key",
    "value",
    "projection",
    "mlp",
    "head",
)  # where litgpt puts adapters: lora_query …

Norm = Callable[[Tape, str, Value], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """litgpt's Config, as far as memory is concerned."""

    h: Dim
    f: Dim
    heads: Heads
    rotary: int  # rope_n_elem
    act: str
    gated: bool  # LLaMAMLP or GemmaMLP against GptNeoxMLP
    norm: Norm
    bias: bool = False
    head_bias: bool = False
    parallel: bool = False
    shared_norm: bool = False
    post_norms: bool = False  # Gemma 2
    scaled: bool = False  # embeddings times sqrt(h): Gemma
    softcap: bool = False


def _layer_norm(t: Tape, name: str, x: Value) -> Value:
    return t.layer_norm(name, x)


LLAMA_LIKE = ("llama", "mistral", "phi3", "gemma", "gemma2", "qwen2", "qwen3")


def read_shape(c: Config) -> Shape:
    """A Hugging Face config as litgpt's."""
    h = c.dim("hidden_size", "h")
    num = c.dim("num_attention_heads", "a")
    kv = c.dim("num_key_value_heads", "g", default=int(num))
    width = c.dim(
        "head_dim", "d", default=int(exact_division(h, num, f"{c.where}: hidden_size by heads"))
    )
    heads = Heads(num=num, num_kv=kv, width=width)
    if c.model_type in LLAMA_LIKE:
        gemma = c.model_type.startswith("gemma")
        return Shape(
            h=h,
            f=c.dim("intermediate_size", "f"),
            heads=heads,
            rotary=int(width),
            act=c.word("hidden_act", "gelu_pytorch_tanh" if gemma else "silu", "hidden_activation"),
            gated=True,
            norm=rms_norm,
            scaled=gemma,
            post_norms=c.model_type == "gemma2",
            softcap=c.model_type == "gemma2",
        )
    if c.model_type == "falcon":
        one = Heads(num=num, num_kv=Dim(1, "g"), width=width)
        return Shape(
            h=h,
            f=c.dim("ffn_hidden_size", "f", default=4 * int(h)),
            heads=one,
            rotary=int(width),
            act="gelu",
            gated=False,
            norm=_layer_norm,
            parallel=True,
            shared_norm=True,
        )
    if c.model_type == "stablelm":
        part = c.number("partial_rotary_factor", 0.25)
        return Shape(
            h=h,
            f=c.dim("intermediate_size", "f"),
            heads=heads,
            rotary=int(int(width) * part),
            act="silu",
            gated=True,
            norm=_layer_norm,
        )
    if c.model_type in ("gpt_neox", "phi"):
        phi = c.model_type == "phi"
        part = c.number("partial_rotary_factor", c.number("rotary_pct", 0.5 if phi else 0.25))
        return Shape(
            h=h,
            f=c.dim("intermediate_size", "f"),
            heads=heads,
            rotary=int(int(width) * part),
            act="gelu",
            gated=False,
            norm=_layer_norm,
            bias=True,
            head_bias=phi,
            parallel=True,
            shared_norm=phi,
        )
    raise UnsupportedError(
        f"{c.where}: how litgpt runs model_type {c.model_type!r} is not described. "
        f"Known: {', '.join((*LLAMA_LIKE, 'falcon', 'gpt_neox', 'phi', 'stablelm'))}."
    )


def litgpt(t: Tape, c: Config, sizes: Sizes) -> Program:
    shape = read_shape(c)
    ids = t.input("input ids", (sizes.batch, sizes.seq), I64)
    vocab = c.dim("vocab_size", "V")
    with t.section("embedding", ids) as section, t.scope("transformer"):
        x = t.embed(t.embedding_weight("wte", vocab, shape.h), ids)
        section.outputs = (t.scale(x) if shape.scaled else x,)
        x = section.outputs[0]
    table = Value((sizes.seq, 2 * shape.rotary), F32, label="cos, sin")
    with t.scope("transformer"):
        x = t.layers(
            "h",
            ["block"] * c.dim("num_hidden_layers", "L"),
            lambda y, kind: _block(t, shape, y, table),
            x,
        )
    with t.section("head", x) as section:
        with t.scope("transformer"):
            x = shape.norm(t, "ln_f", x)
        logits = dense(t, "lm_head", x, vocab, target="head", bias=shape.head_bias, kind="head")
        section.outputs = (t.cast(logits, F32, "logits fp32"),)
    labels = t.input("labels", (sizes.batch, sizes.seq), I64)
    return Program(tape=t, output=section.outputs[0], labels=labels, loss="causal")


def _block(t: Tape, shape: Shape, x: Value, table: Value) -> Value:
    normed = shape.norm(t, "norm_1", x)
    attended = _attention(t, shape, normed, table)
    if shape.post_norms:
        attended = shape.norm(t, "post_attention_norm", attended)
    if shape.parallel:
        normed = normed if shape.shared_norm else shape.norm(t, "norm_2", x)
        return t.add(t.add(_mlp(t, shape, normed), attended, "branches"), x, "residual stream")
    x = t.add(attended, x, "residual stream")
    y = _mlp(t, shape, shape.norm(t, "norm_2", x))
    if shape.post_norms:
        y = shape.norm(t, "post_mlp_norm", y)
    return t.add(y, x, "residual stream")


def _attention(t: Tape, shape: Shape, x: Value, table: Value) -> Value:
    heads = shape.heads
    with t.scope("attn"):
        widths = [heads.num * heads.width, heads.num_kv * heads.width, heads.num_kv * heads.width]
        qkv = _fused_qkv(t, x, widths, bias=shape.bias)
        q, k, v = (t.slice(qkv, width) for width in widths)
        q, k, v = split_qkv(t, q, k, v, heads)
        full = (*q.shape[:2], heads.num, heads.width)
        if int(heads.num_kv) == 1:  # with one group, expand and reshape are views
            k, v = t.view(k, full), t.view(v, full)
        elif heads.groups > 1:
            q = t.copy(q, full, "q")
            k = t.copy(k, full, "k repeated")
            v = t.copy(v, full, "v repeated")
        q, k = _positions(t, q, table, shape.rotary), _positions(t, k, table, shape.rotary)
        repeated = Heads(num=heads.num, num_kv=heads.num, width=heads.width)
        kernel = "eager" if shape.softcap else None
        eager = Eager(softcap=shape.softcap)
        y = attend(t, q, k, v, repeated, eager=eager, heads_first=True, kernel=kernel)
        return dense(t, "proj", y, shape.h, target="projection", bias=shape.bias)


def _positions(t: Tape, x: Value, table: Value, rotary: int) -> Value:
    """apply_rope on the first `rotary` columns in fp32, back to x's dtype, concatenated with the rest."""
    rotated = t.cast(rope(t, t.slice(x, rotary), table), x.dtype)
    return t.op("cat", (rotated, x), x.shape, x.dtype, label=f"{x.label} with positions")


def _mlp(t: Tape, shape: Shape, x: Value) -> Value:
    with t.scope("mlp"):
        if shape.gated:
            gate = dense(t, "fc_1", x, shape.f, target="mlp", bias=shape.bias)
            up = dense(t, "fc_2", x, shape.f, target="mlp", bias=shape.bias)
            inner = apply_gate(t, gate, up, shape.act)
        else:
            hidden = dense(t, "fc", x, shape.f, target="mlp", bias=shape.bias)
            inner = t.activation(hidden, shape.act)
        return dense(t, "proj", inner, shape.h, target="mlp", bias=shape.bias)


def dense(
    t: Tape, name: str, x: Value, out: int, *, target: str, bias: bool, kind: str = "linear"
) -> Value:
    """LoRALinear: the frozen product, plus dropout(x)·Aᵀ·Bᵀ scaled. `target` is litgpt's name of the module."""
    lora = t.regime.lora
    with t.scope(name):
        inner = "linear" if lora else ""
        y = t.linear(inner, x, out, bias=bias, label=name, kind=kind, adapted=False)
        if lora is None or not lora.matches(target, kind):
            return y
        dropped = t.dropout(x, lora.dropout, "lora dropout")
        low = t.adapter_linear("lora_A", dropped, lora.rank)
        delta = t.scale(t.adapter_linear("lora_B", low, out), "lora scaled")
        return t.add(y, delta, "adapted")


def _fused_qkv(t: Tape, x: Value, widths: list[int], *, bias: bool) -> Value:
    """LoRAQKVLinear: one A for the enabled parts, a grouped 1×1 convolution for B, padded with zeros to the whole."""
    lora, out = t.regime.lora, sum(widths)
    with t.scope("attn"):
        y = t.linear("linear" if lora else "", x, out, bias=bias, label="qkv", adapted=False)
        if lora is None:
            return y
        named = zip(("query", "key", "value"), widths, strict=True)
        parts = [width for name, width in named if lora.matches(name, "linear")]
        if not parts:
            return y
        dropped = t.dropout(x, lora.dropout, "lora dropout")
        low = t.adapter_linear("lora_A", dropped, lora.rank * len(parts))
        part = t.slice(low, lora.rank)
        wide = t.adapter_linear("lora_B", part, sum(parts))
        if len(parts) < 3:  # index_copy keeps its source
            wide = t.op(
                "index_copy", (wide,), y.shape, wide.dtype, saves=(wide,), label="zero-padded"
            )
        return t.add(y, t.scale(wide, "lora scaled"), "adapted")
