"""Differences of many jobs → mechanisms: what is missing, extra or of another size in the same way again and again.

A difference becomes a signature: numbers of layers are folded, sizes become letters (b batch, s tokens, h hidden, …).
Signatures of the same kind and part that occur in exactly the same cells are one mechanism. Its weight is the mean over
all cells of its share in the cell's traced peak, signs apart.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.accuracy.gaps.compare import Difference
from vramcast.accuracy.gaps.draw import GapJob

LEAST_SHARE = 1e-5  # of a cell's peak: smaller differences are not sorted
WRAPPERS = (
    "default",
    "base_layer",
    "base_model",
    "model",
)  # modules that say nothing about a tensor
ROOT = re.compile(r"[A-Z]\w*(?:For|Model|Layer|Block)\w*(?:#\*)?$")  # a class: the model itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One job under one version: both peaks, and the differences in the phase that decides the error."""

    job: GapJob
    version: str
    phase: str
    traced_bytes: int  # peak over all phases
    formula_bytes: int
    phases: dict[str, tuple[int, int]]  # phase → traced, formula
    differences: tuple[Difference, ...]
    versions: dict[str, str]

    @property
    def error(self) -> float:
        """Formula over trace, minus one: positive is an over-prediction."""
        return self.formula_bytes / self.traced_bytes - 1

    @property
    def id(self) -> tuple[int, str]:
        return self.job.number, self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    kind: str
    phase: str
    group: str
    part: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    kind: str
    phase: str
    group: str
    part: str
    names: tuple[str, ...]  # largest first
    weight: float  # mean over all cells of |bytes| ÷ traced peak
    shares: dict[tuple[int, str], float]  # cell → bytes ÷ traced peak, with sign

    @property
    def worst(self) -> tuple[int, str]:
        return max(self.shares, key=lambda cell: (abs(self.shares[cell]), cell))


def signature(difference: Difference, cell: Cell) -> Signature:
    return Signature(
        kind=difference.kind,
        phase=cell.phase.removeprefix("next "),
        group=difference.group,
        part=difference.part,
        name=_name(difference, cell.job),
    )


def _name(difference: Difference, job: GapJob) -> str:
    names = " | ".join(_tail(name) for name in difference.name.split(" | "))
    if difference.kind == "total":
        return f"{names}, {'too much' if difference.nbytes > 0 else 'too little'}"
    if not difference.shape:
        return names
    return f"{names} {difference.dtype} {symbolic(difference.shape, job)}"


def _tail(name: str) -> str:
    """The innermost module and the op: `LlamaForCausalLM.model.layers.*.mlp aten::mul` → `mlp aten::mul`."""
    where, *rest = name.split(" ", 1)
    is_module = "." in where or ROOT.match(where)
    if ":" in where or not is_module:
        return name
    parts = [part for part in where.split(".") if part not in WRAPPERS]
    inner = parts[-1] if parts and not ROOT.match(parts[-1]) else "model"
    return " ".join(["layer" if inner == "*" else inner, *rest])


def symbolic(shape: Sequence[int], job: GapJob) -> str:
    """Sizes as letters where they are the job's or the model's."""
    letters = letters_of(job)
    return f"({', '.join(letters.get(size, str(size)) for size in shape)})"


def letters_of(job: GapJob) -> dict[int, str]:
    """Where two sizes are the same number, the later of the list names it."""
    config = job.config
    hidden = _first(config, "hidden_size", "n_embd", "d_model")
    heads = _first(config, "num_attention_heads", "n_head", "num_heads")
    width = _first(config, "intermediate_size", "ffn_dim", "d_ff") or 4 * hidden
    seq, batch = job.seq or 0, job.batch
    named = {
        batch * heads: "b·n",
        batch: "b",
        _first(config, "num_key_value_heads"): "k",
        heads: "n",
        _first(config, "head_dim", "d_kv") or hidden // heads: "d",
        job.lora_rank or 0: "r",
        2 * width: "2f",
        width: "f",
        hidden: "h",
        job.target_seq or 0: "t",
        seq: "s",
        batch * seq: "b·s",
        batch * (seq - 1): "b·(s−1)",
        seq - 1: "s−1",
        job.vocabulary: "v",
    }
    return {size: letter for size, letter in named.items() if size > 1}


def _first(config: dict[str, Any], *names: str) -> int:
    """The first of the keys that the config has; 0 without any."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def mechanisms(cells: Sequence[Cell]) -> list[Mechanism]:
    """Largest weight first."""
    shares: dict[Signature, dict[tuple[int, str], float]] = defaultdict(lambda: defaultdict(float))
    for cell in cells:
        for difference in cell.differences:
            share = difference.nbytes / cell.traced_bytes
            if abs(share) >= LEAST_SHARE:
                shares[signature(difference, cell)][cell.id] += share
    merged: dict[tuple[object, ...], list[Signature]] = defaultdict(list)
    for each, by_cell in shares.items():
        merged[each.kind, each.phase, each.group, each.part, frozenset(by_cell)].append(each)
    found = [_mechanism(same, shares, len(cells)) for same in merged.values()]
    return sorted(found, key=lambda each: (-each.weight, each.names))


def _mechanism(
    same: Iterable[Signature],
    shares: dict[Signature, dict[tuple[int, str], float]],
    cells: int,
) -> Mechanism:
    ordered = sorted(same, key=lambda each: (-sum(map(abs, shares[each].values())), each.name))
    total: dict[tuple[int, str], float] = defaultdict(float)
    for each in ordered:
        for cell, share in shares[each].items():
            total[cell] += share
    first = ordered[0]
    return Mechanism(
        kind=first.kind,
        phase=first.phase,
        group=first.group,
        part=first.part,
        names=tuple(each.name for each in ordered),
        weight=sum(map(abs, total.values())) / cells,
        shares=dict(total),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Errors of some cells."""

    cells: int
    median: float  # of |error|, as the next
    ninth_decile: float
    worst: float  # with sign
    within_one_percent: int


def spread(cells: Sequence[Cell]) -> Spread | None:
    if not cells:
        return None
    sizes = sorted(abs(cell.error) for cell in cells)
    return Spread(
        cells=len(cells),
        median=_quantile(sizes, 0.5),
        ninth_decile=_quantile(sizes, 0.9),
        worst=max((cell.error for cell in cells), key=abs),
        within_one_percent=sum(size <= 0.01 for size in sizes),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def normal_version(version: str) -> str:
    """4.57.6 → 4.57, as `--transformers-version` takes it."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version
