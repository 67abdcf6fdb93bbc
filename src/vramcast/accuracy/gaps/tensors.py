"""What both sides are put into before they are compared: tensors alive at a moment, with where they came from."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A model computes its loss inside forward, where a trace counts it; the formulas have a phase of its own.
ONE_PHASE = {
    "loss": "forward",
    "next loss": "next forward",
}
COMPARED = (
    "load",
    "forward",
    "backward",
    "step",
    "next forward",
    "next backward",
    "next step",
)
# Compared as a whole: the formulas know no single tensors of these.
AS_TOTALS = (
    "weights",
    "gradients",
    "optimizer states",
    "master weights",
    "inputs",
    "library workspaces",
    "rounding",
    "step temporaries",
    "held outputs",
)
_PARTS = (
    ("head and loss", r"vocabulary|lm_head|embed_out|\bhead\b|logits|\bloss|log_softmax|log-prob|nll|labels|score\b"),
    ("attention", r"attn|attention|[qkvo]_proj|rotary|rope|sdpa|query|key|value|\b[qkv]\b|kv cache|logsumexp|position"),
    ("norm", r"norm|\bln_|rstd|mean"),
    ("mlp", r"mlp|ffn|feed|c_fc|gate|\bup\b|down|expert|router|\bfc\d|\bwi|\bwo\b|DenseReluDense|activated|4h"),
    ("embedding", r"emb|wte|wpe"),
    ("residual", r"residual|layer|\bh\b|block"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Some tensors that are alike; `nbytes` is what one asked the allocator for."""

    group: str  # one of AS_TOTALS, or "pass": what forward, loss and backward make
    name: str  # traced: module and op; formula: the label
    nbytes: int
    count: int = 1
    dtype: str = ""  # traced tensors only, as the shape
    shape: tuple[int, ...] = ()
    made_in: str = ""

    @property
    def total(self) -> int:
        return self.nbytes * self.count

    @property
    def part(self) -> str:
        return part_of(self.name)


def part_of(name: str) -> str:
    return next((part for part, words in _PARTS if re.search(words, name, re.IGNORECASE)), "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A phase's peak on one side."""

    allocated_bytes: int
    tensors: tuple[Tensor, ...]
