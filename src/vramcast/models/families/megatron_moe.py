"""Megatron-LM's mixtures of experts: router, token dispatchers, experts and shared experts (core/transformer/moe).

In comes the normed stream of one tensor- and context-parallel rank, out comes its mixture. Rows are counted as if
experts were hit evenly, times the rank's load; with expert parallelism as many rows come as go. Probabilities are
applied inside the experts, so that rows on their way back are not kept. Not known: fp8 padding, router replay, paged
stashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

from vramcast.errors import InputError
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.dims import Number
from vramcast.models.record.recompute import checkpoint_part, discard_outputs, offloadable
from vramcast.models.record.tape import BOOL, F32, I64, Dtype, Tape, Value, promote

NUMBERS = ("num_local_experts", "num_experts", "n_routed_experts")
TOKENS_GATHERED = "tokens gathered"
CHOSEN = ("num_experts_per_tok", "moe_topk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """One layer's experts as this rank holds them."""

    num: int  # of the whole layer
    local: int  # on this rank
    k: int
    inner: int  # width within an expert, divided by expert-tp
    shared: int  # width of the shared experts, divided by tp; 0: none
    shared_gate: bool  # a sigmoid of each token weighs them
    gated: bool
    router: Dtype  # of the logits
    balanced: bool  # an auxiliary loss hangs on a second set of scores


def read_mixture(t: Tape, c: Config, *, gated: bool) -> Mixture | None:
    """None where the config has no experts."""
    if not any(c.data.get(name) for name in NUMBERS):
        return None
    split = t.regime.split
    num, k = (
        int(c.dim(NUMBERS[0], "E", *NUMBERS[1:])),
        int(c.dim(CHOSEN[0], "k", *CHOSEN[1:], default=2)),
    )
    if k > num:
        raise InputError(
            f"{c.where}: num_experts_per_tok {k} is more than the {num} experts there are"
        )
    width = c.dim(
        "moe_intermediate_size", "f", "intermediate_size", "n_inner", default=4 * int(_hidden(c))
    )
    count = c.dim("n_shared_experts", "n_s", default=0, least=0)
    shared = c.dim(
        "shared_expert_intermediate_size", "f_s", default=int(count) * int(width), least=0
    )
    raised = c.model_type.startswith("deepseek") or c.word("moe_router_dtype", "") == "fp32"
    return Mixture(
        num=num,
        local=exact_division(num, split.ep, f"{c.where}: experts by ep"),
        k=k,
        inner=exact_division(int(width), split.expert_tp, f"{c.where}: expert width by expert-tp"),
        shared=exact_division(int(shared), split.tp, f"{c.where}: shared expert width by tp"),
        shared_gate=c.model_type == "qwen2_moe",
        gated=gated,
        router=F32 if raised else t.regime.weights,
        balanced=c.number("router_aux_loss_coef", 1.0) > 0,
    )


def layer_kinds(c: Config, layers: int) -> list[str]:
    """`dense` or `moe` for each layer, as the family or Megatron's moe-layer-freq says."""
    if not any(c.data.get(name) for name in NUMBERS):
        return ["dense"] * layers
    given = c.data.get("moe_layer_freq")
    if isinstance(given, list):
        return _listed_kinds(c, given, layers)
    every = c.dim("moe_layer_freq", "n", "decoder_sparse_step", default=1)
    first = c.dim("first_k_dense_replace", "n", default=0, least=0)
    dense = c.numbers("mlp_only_layers")
    return ["dense" if i < first or i in dense or i % every else "moe" for i in range(layers)]


def _listed_kinds(c: Config, given: list[Any], layers: int) -> list[str]:
    """The kinds of a list with an entry for every layer."""
    if len(given) != layers:
        raise InputError(f"{c.where}: moe_layer_freq has {len(given)} entries for {layers} layers")
    return ["moe" if entry else "dense" for entry in given]


def mixture(t: Tape, m: Mixture, y: Value) -> Value:
    """The router, rows on their way to the experts and back, and the shared experts beside them."""
    start = len(t.ops())
    beside = _shared_experts(t, m, y) if m.shared else None
    rows = _flat(t, y)
    probabilities, chosen = _route(t, m, rows)
    out = {"alltoall": _all_to_all, "allgather": _all_gather, "flex": _flex}[t.regime.dispatch](
        t, m, rows, probabilities, chosen
    )
    out = _like(t.view(out, y.shape), y)
    if beside is not None:
        out = t.add(out, beside, "mixture and shared experts")
    if "moe" in t.regime.recompute:
        checkpoint_part(t, start, y)
    return out


def _hidden(c: Config) -> int:
    return c.dim("hidden_size", "h", "n_embd", "d_model")


def _flat(t: Tape, y: Value) -> Value:
    """[b, s, h] as rows of this rank, wherever the sequence is split."""
    flat = t.view(y, (y.shape[0] * y.shape[1], y.shape[-1]))
    flat.sequence_sharded = False
    return flat


def _like(out: Value, y: Value) -> Value:
    out.sequence_sharded = y.sequence_sharded
    return out


# ---- router


def _route(t: Tape, m: Mixture, x: Value) -> tuple[Value, Value]:
    """router.py and moe_utils.topk_routing_with_score_function: dense probabilities and a map, [tokens, experts]."""
    shape, k = (x.shape[0], m.num), (x.shape[0], m.k)
    with t.scope("router"):
        weight = t.param("weight", (m.num, int(x.shape[-1])), "router")
        logits = t.op(
            "router gating", (x, weight), shape, m.router, saves=(x,), label="router logits"
        )
    scores = t.op("router scores", (logits,), shape, F32, saves_output=True, label="router scores")
    index = Value(k, I64, label="chosen experts")
    weights = t.op("topk", (scores,), k, F32, saves=(index,), label="routing weights")
    dense = t.op(
        "scatter", (weights,), shape, m.router, saves=(index,), label="routing probabilities"
    )
    if m.balanced:
        again = t.op(
            "router scores",
            (logits,),
            shape,
            F32,
            saves_output=True,
            label="scores of the auxiliary loss",
        )
        dense = t.op(
            "auxiliary loss", (dense, again), shape, m.router, label="routing probabilities"
        )
    return dense, Value(shape, BOOL, label="routing map")


# ---- dispatchers


def _all_to_all(t: Tape, m: Mixture, x: Value, probabilities: Value, chosen: Value) -> Value:
    """MoEAlltoAllTokenDispatcher: permuted, sent, gathered over expert-tp, sorted by expert; and back."""
    split, sent = t.regime.split, x.shape[0] * m.k
    rows, p = _permuted(t, x, probabilities, chosen, sent)
    count = received(t, sent)
    if split.ep > 1:
        rows, p = _moved(t, rows, p, count, "rows received")
    if split.expert_tp > 1:
        count = count * split.expert_tp
        rows, p = _moved(t, rows, p, count, "rows gathered over expert-tp")
    if m.local > 1:
        rows, p = _moved(t, rows, p, count, "rows by expert")
    out = _run_experts(t, m, rows, p)
    if m.local > 1:
        out = t.copy(out, label="rows as received")
    if split.expert_tp > 1:
        out = _reduced(t, out, m.router, (count // split.expert_tp, x.shape[-1]))
    if split.ep > 1:
        out = t.copy(out, (sent, x.shape[-1]), "rows returned")
    return _put_back(t, out, x.shape, chosen)


def _all_gather(t: Tape, m: Mixture, x: Value, probabilities: Value, chosen: Value) -> Value:
    """MoEAllGatherTokenDispatcher: every rank of ep × expert-tp sees all tokens and takes those of its experts."""
    split = t.regime.split
    ranks = split.ep * split.expert_tp
    tokens = x.shape[0] * ranks
    everything, probs = x, probabilities
    if ranks > 1:
        everything = t.copy(x, (tokens, x.shape[-1]), TOKENS_GATHERED)
        probs = t.copy(probabilities, (tokens, m.num), "probabilities gathered")
    mine = Value((tokens, m.local), BOOL, label="map of local experts")
    probs = t.copy(probs, (tokens, m.local), "probabilities of local experts")
    count = received(t, x.shape[0] * split.expert_tp * m.k)
    rows, p = _permuted(t, everything, probs, mine, count)
    out = _put_back(t, _run_experts(t, m, rows, p), everything.shape, mine)
    return _reduced(t, out, m.router, x.shape) if ranks > 1 else out


def _flex(t: Tape, m: Mixture, x: Value, probabilities: Value, chosen: Value) -> Value:
    """MoEFlexTokenDispatcher (DeepEP): a token goes once to each rank that holds an expert of its choice, and is
    permuted there."""
    split = t.regime.split
    ranks = split.ep * split.expert_tp
    hit = 1000 - 1000 * comb(m.num - m.local, m.k) // comb(
        m.num, m.k
    )  # of 1000 tokens, evenly drawn
    arrived = received(t, x.shape[0] * ranks * hit // 1000) if ranks > 1 else x.shape[0]
    tokens, probs = x, probabilities
    if ranks > 1:
        tokens, probs = _moved(t, x, probabilities, arrived, "tokens received")
    mine = Value((arrived, m.local), BOOL, label="map of local experts")
    rows, p = _permuted(t, tokens, probs, mine, received(t, x.shape[0] * split.expert_tp * m.k))
    out = _put_back(t, _run_experts(t, m, rows, p), tokens.shape, mine)
    return t.copy(out, x.shape, "tokens combined") if ranks > 1 else out


def received(t: Tape, rows: Number) -> Number:
    """An even share comes, or more on the fullest rank."""
    load = t.regime.split.expert_load
    return rows if load == 100 else rows * load // 100


def _permuted(
    t: Tape, x: Value, probabilities: Value, chosen: Value, count: Number
) -> tuple[Value, Value]:
    order = Value((count,), I64, label="token of each row")
    rows = t.op("index", (x,), (count, x.shape[-1]), x.dtype, saves=(order,), label="routed rows")
    return rows, t.op(
        "masked_select",
        (probabilities,),
        (count, 1),
        probabilities.dtype,
        saves=(chosen,),
        label="row probabilities",
    )


def _moved(t: Tape, rows: Value, p: Value, count: Number, label: str) -> tuple[Value, Value]:
    """Rows and their probabilities to a new place."""
    return t.copy(rows, (count, rows.shape[-1]), label), t.copy(
        p, (count, *p.shape[1:]), "row probabilities"
    )


def _reduced(t: Tape, out: Value, router: Dtype, shape: tuple[Number, ...]) -> Value:
    """A reduce-scatter in the dtype of the probabilities."""
    dtype = out.dtype
    return t.cast(t.copy(t.cast(out, router), shape, "rows reduced"), dtype)


def _put_back(t: Tape, out: Value, shape: tuple[Number, ...], chosen: Value) -> Value:
    """moe_utils.unpermute: scatter_add keeps where rows go, the deterministic index_add the rows as well."""
    order = Value(out.shape[:1], I64, label="order back")
    saves = (order, chosen, out) if t.regime.deterministic else (order, chosen)
    return t.op("scatter_add", (out,), shape, out.dtype, saves=saves, label="mixture")


# ---- experts


def _run_experts(t: Tape, m: Mixture, rows: Value, p: Value) -> Value:
    """TEGroupedMLP, or SequentialMLP laid end to end: fc1, an activation that applies the probabilities, fc2."""
    h, wide = int(rows.shape[-1]), 2 * m.inner if m.gated else m.inner
    with t.scope("experts"):
        with offloadable(t, "expert_fc1"):
            y = _product(t, "linear_fc1", rows, m.local, (wide, h))
        with offloadable(t, "moe_act"):
            start, before = len(t.ops()), y
            y = _weighted(t, m, y, p)
            if "moe_act" in t.regime.recompute:
                checkpoint_part(t, start, before, p)
        consumer = len(t.ops())
        out = _product(t, "linear_fc2", y, m.local, (h, m.inner))
        if "moe_act" in t.regime.recompute:
            discard_outputs(t, consumer, y)
        if t.regime.experts == "loop" and m.local > 1:
            out = t.copy(out, label="expert outputs joined")
        return out


def _product(t: Tape, name: str, x: Value, experts: int, size: tuple[int, int]) -> Value:
    with t.scope(name):
        weight = t.param("weight", (experts, *size), "experts")
        shape = (x.shape[0], size[0])
        flops = 2 * x.shape[0] * size[0] * size[1]
        return t.op("linear", (x, weight), shape, x.dtype, saves=(x,), label=name, flops=flops)


def _weighted(t: Tape, m: Mixture, wide: Value, p: Value) -> Value:
    """WeightedSwiGLUFunction keeps its inputs; without a gate activation and product are apart."""
    shape = (wide.shape[0], m.inner)
    if m.gated:
        return t.op(
            "weighted swiglu", (wide, p), shape, wide.dtype, saves=(wide, p), label="activated rows"
        )
    y = t.op("gelu", (wide,), shape, wide.dtype, saves=(wide,), label="activated rows")
    dtype = promote(wide.dtype, p.dtype)
    return t.cast(
        t.op("mul", (y, p), shape, dtype, saves=(y, p), label="weighted rows"), wide.dtype
    )


def _shared_experts(t: Tape, m: Mixture, y: Value) -> Value:
    """SharedExpertMLP: an MLP over all tokens, divided over tp."""
    start = len(t.ops())
    with t.scope("shared_experts"):
        wide = t.linear(
            "linear_fc1", y, 2 * m.shared if m.gated else m.shared, label="shared expert hidden"
        )
        inner = (*wide.shape[:-1], m.shared)
        act = t.op("fused activation", (wide,), inner, wide.dtype, saves=(wide,), label="activated")
        out = t.linear("linear_fc2", act, y.shape[-1], label="shared expert output")
        if m.shared_gate:
            gate = t.linear("gate", y, 1, label="shared expert gate", kind="router")
            out = _like(
                t.mul(out, t.activation(gate, "sigmoid"), "shared expert output, weighed"), y
            )
    if "shared_experts" in t.regime.recompute:
        checkpoint_part(t, start, y)
    return out
