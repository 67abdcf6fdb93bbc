"""torchtitan's own model code (torchtitan/models/llama3/model, parallelize.py): one decoder for Llama and Qwen3.

Differs from transformers where memory is concerned: rotary positions as complex numbers in fp32, keys and values
repeated to all heads, and a selective checkpointing that saves every second matrix product, attention outputs and
reduce-scatter results.
"""

from __future__ import annotations

from vramcast.errors import UnsupportedError
from vramcast.models.families.llama import read_shape
from vramcast.models.read.config import Config
from vramcast.models.record.attention import Heads, attend
from vramcast.models.record.dims import Dim
from vramcast.models.record.layers import apply_gate, rms_norm, split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, I64, Tape, Value

KNOWN = ("llama", "qwen3")
KEPT = ("flash attention", "efficient attention", "cudnn attention", "reduce scatter")


def torchtitan(t: Tape, c: Config, sizes: Sizes) -> Program:
    if c.model_type not in KNOWN:
        raise UnsupportedError(
            f"{c.where}: how torchtitan runs model_type {c.model_type!r} is not described. Known: {', '.join(KNOWN)}. "
            "With --framework plain it is recorded as transformers runs it."
        )
    shape, vocab = read_shape(c), c.dim("vocab_size", "V")
    ids = t.input("input ids", (sizes.batch, sizes.seq), I64)
    with t.section("embedding", ids) as section:
        x = t.embed(t.embedding_weight("tok_embeddings", vocab, shape.h), ids)
        section.outputs = (x,)
    kinds = ["block"] * c.dim("num_hidden_layers", "L")
    qk_norm = c.model_type == "qwen3"
    x = t.layers(
        "layers",
        kinds,
        lambda y, kind: _block(t, y, shape.heads, shape.h, shape.f, qk_norm=qk_norm),
        x,
    )
    with t.section("head", x) as section:
        x = rms_norm(t, "norm", x)
        logits = t.linear("output", x, vocab, label="logits", kind="head")
        if t.regime.upcasts_logits == "model":
            logits = t.cast(logits, F32, "logits fp32")
        section.outputs = (logits,)
    labels = t.input("labels", (sizes.batch, sizes.seq), I64)
    return Program(tape=t, output=section.outputs[0], labels=labels, loss="causal")


def _block(t: Tape, x: Value, heads: Heads, h: Dim, f: Dim, *, qk_norm: bool) -> Value:
    y = rms_norm(t, "attention_norm", x)
    with t.scope("attention"):
        q = split_heads(t, t.linear("wq", y, heads.num * heads.width, label="q"), heads.num)
        k = split_heads(t, t.linear("wk", y, heads.num_kv * heads.width, label="k"), heads.num_kv)
        v = split_heads(t, t.linear("wv", y, heads.num_kv * heads.width, label="v"), heads.num_kv)
        if qk_norm:
            q, k = rms_norm(t, "q_norm", q), rms_norm(t, "k_norm", k)
        q, k = _turned(t, q), _turned(t, k)
        if heads.groups > 1:
            full = (*k.shape[:2], heads.num, heads.width)
            k, v = t.copy(k, full, "k repeated"), t.copy(v, full, "v repeated")
        y = attend(t, q, k, v, Heads(num=heads.num, num_kv=heads.num, width=heads.width))
        y = t.linear("wo", y, h)
    x = t.add(x, y, "residual stream")
    y = rms_norm(t, "ffn_norm", x)
    with t.scope("feed_forward"):
        gate = t.linear("w1", y, f, label="gate")
        up = t.linear("w3", y, f, label="up")
        y = t.linear("w2", apply_gate(t, gate, up, "silu"), h, label="mlp output")
    _mark_saved_by_selective(t)
    return t.add(x, y, "residual stream")


def _turned(t: Tape, x: Value) -> Value:
    """apply_rotary_emb: a complex product in fp32; only the table is saved."""
    label = f"{x.label} turned"
    rotated = t.op("complex mul", (t.cast(x, F32),), x.shape, F32, label=label)
    return t.cast(rotated, x.dtype, label)


def _mark_saved_by_selective(t: Tape) -> None:
    """_get_custom_policy: the first, third … mm of a block is saved, the second, fourth … is not. Compiled, a result
    that no backward formula needs is not saved either (torch/_functorch/partitioners.py): the last one's, which is only
    added to the stream."""
    products = [op for op in t.ops() if op.name == "linear"]
    for op in t.ops():
        op.saved_by_selective = op.name in KEPT
    is_compiled = t.regime.compiled != "none"
    for op in products[0::2]:
        is_dropped = is_compiled and op is products[-1]
        op.saved_by_selective = not is_dropped
