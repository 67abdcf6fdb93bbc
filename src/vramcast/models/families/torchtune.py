"""torchtune's own model code (torchtune/modules: attention, position_embeddings, rms_norm, peft/lora) for Llama's line.

Differs from transformers where memory is concerned: keys and values are always repeated to all heads, rotary positions
are applied in fp32, norms run on an fp32 copy, logits leave the model in fp32 unless the loss is chunked, and adapters
have the model's dtype.
"""

from __future__ import annotations

from vramcast.errors import UnsupportedError
from vramcast.models.families.llama import Shape, read_shape
from vramcast.models.read.config import Config
from vramcast.models.record.attention import Heads, attend
from vramcast.models.record.layers import apply_gate, rms_norm, split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, I64, Tape, Value

# lora_attn_modules and apply_lora_to_…
TARGETS = ("q_proj", "k_proj", "v_proj", "output_proj", "mlp", "output")
KNOWN = ("llama", "mistral", "qwen2")


def torchtune(t: Tape, c: Config, sizes: Sizes) -> Program:
    if c.model_type not in KNOWN:
        raise UnsupportedError(
            f"{c.where}: how torchtune runs model_type {c.model_type!r} is not described. Known: {', '.join(KNOWN)}."
        )
    shape, ids = read_shape(c), t.input("input ids", (sizes.batch, sizes.seq), I64)
    vocab = c.dim("vocab_size", "V")
    with t.section("embedding", ids) as section:
        table = t.embedding_weight("tok_embeddings", vocab, shape.h)
        section.outputs = (t.embed(table, ids),)
    cache = Value((sizes.seq, shape.heads.width), F32, label="cos, sin")
    bias = c.model_type == "qwen2"
    layers = ["layer"] * c.dim("num_hidden_layers", "L")
    x = t.layers(
        "layers", layers, lambda y, kind: _layer(t, shape, y, cache, bias=bias), section.outputs[0]
    )
    with t.section("head", x) as section:
        x = rms_norm(t, "norm", x, style="fp32")
        weight = table if c.flag("tie_word_embeddings", False) else None
        logits = dense(t, "output", x, vocab, bias=False, kind="head", weight=weight)
        section.outputs = (logits if t.regime.chunked_loss else t.cast(logits, F32, "logits fp32"),)
    labels = t.input("labels", (sizes.batch, sizes.seq), I64)
    return Program(tape=t, output=section.outputs[0], labels=labels, loss="causal")


def _layer(t: Tape, shape: Shape, x: Value, cache: Value, *, bias: bool) -> Value:
    y = _attention(t, shape, rms_norm(t, "sa_norm", x, style="fp32"), cache, bias=bias)
    x = t.add(y, x, "residual stream")
    y = rms_norm(t, "mlp_norm", x, style="fp32")
    with t.scope("mlp"):
        gate = dense(t, "w1", y, shape.f, target="mlp", bias=False)
        up = dense(t, "w3", y, shape.f, target="mlp", bias=False)
        y = dense(t, "w2", apply_gate(t, gate, up, shape.act), shape.h, target="mlp", bias=False)
    return t.add(x, y, "residual stream")


def _attention(t: Tape, shape: Shape, x: Value, cache: Value, *, bias: bool) -> Value:
    heads = shape.heads
    with t.scope("attn"):
        q = split_heads(t, dense(t, "q_proj", x, heads.num * heads.width, bias=bias), heads.num)
        q = _positions(t, q, cache)
        kv_width = heads.num_kv * heads.width
        k = split_heads(t, dense(t, "k_proj", x, kv_width, bias=bias), heads.num_kv)
        v = split_heads(t, dense(t, "v_proj", x, kv_width, bias=bias), heads.num_kv)
        k = _positions(t, k, cache)
        if heads.groups > 1:
            full = (*q.shape[:2], heads.num, heads.width)
            k, v = t.copy(k, full, "k repeated"), t.copy(v, full, "v repeated")
        y = attend(t, q, k, v, Heads(num=heads.num, num_kv=heads.num, width=heads.width))
        return dense(t, "output_proj", y, shape.h, bias=False)


def _positions(t: Tape, x: Value, cache: Value) -> Value:
    """Pairs rotated in fp32: two halves of products and sums, stacked, back to x's dtype. Only the cache is saved."""
    x32 = t.cast(x, F32)
    rotated = t.op(
        "rotate", (x32,), x.shape, F32, saves=(cache,), label=x.label, forward_temp_bytes=x32.nbytes
    )
    return t.cast(t.copy(rotated), x.dtype, f"{x.label} with positions")


def dense(
    t: Tape,
    name: str,
    x: Value,
    out: int,
    *,
    bias: bool,
    target: str = "",
    kind: str = "linear",
    weight: Value | None = None,
) -> Value:
    """LoRALinear: the frozen product, plus B(A(dropout(x))) scaled."""
    with t.scope(name):
        y = t.linear("", x, out, bias=bias, label=name, kind=kind, adapted=False, weight=weight)
        lora = t.regime.lora
        if lora is None or not lora.matches(target or name, kind):
            return y
        dropped = t.dropout(x, lora.dropout, "lora dropout")
        low = t.adapter_linear("lora_a.weight", dropped, lora.rank)
        delta = t.scale(t.adapter_linear("lora_b.weight", low, out), "lora scaled")
        return t.add(y, delta, "adapted")
