"""Weights, gradients, optimizer states and master weights: the part of the bill that simply lies there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vramcast.formulas.optimizers import KNOWN, is_paged, state_bytes
from vramcast.formulas.recipe import RECIPES, Recipe
from vramcast.job import Job
from vramcast.ledger import HOST, PHASES, STEP, Category, Entry, Origin
from vramcast.models.tape import Param

ALWAYS = PHASES
AFTER_STEP = PHASES[PHASES.index(STEP) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The parameters of a job, split by what happens to them."""

    params: tuple[Param, ...]
    job: Job

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.job.precision]

    @property
    def trained(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if param.trainable)

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient_bytes(param, self.recipe) for param in self.trained)


def gradient_bytes(param: Param, recipe: Recipe) -> int:
    """Like the parameter, unless the recipe accumulates in another dtype."""
    follows = recipe.gradients == recipe.weights
    return param.numel * (param.dtype.nbytes if follows else recipe.gradients.nbytes)


def count(number: int) -> str:
    return f"{number:,}"


def weight_entries(states: States, place: str) -> Iterator[Entry]:
    """One line per way of storing: trained, frozen, quantised, by dtype."""
    groups: dict[tuple[str, str], list[Param]] = {}
    for param in states.params:
        kind = "trained" if param.trainable else "frozen"
        if param.kind == "adapter":
            kind = "adapter"
        stored = states.job.quantize if param.stored_bytes is not None else param.dtype.name
        groups.setdefault((kind, stored), []).append(param)
    for (kind, stored), params in groups.items():
        numel, nbytes = sum(p.numel for p in params), sum(p.nbytes for p in params)
        each = "as stored" if params[0].stored_bytes is not None else f"{params[0].dtype.nbytes} B"
        yield Entry(
            category=Category.WEIGHTS, component=f"{kind}, {stored}", place=place, phases=ALWAYS, nbytes=nbytes,
            origin=Origin.FORMULA, formula=f"{count(numel)} parameters × {each}", source=states.recipe.whose,
        )  # fmt: skip


def extra_weight_entries(states: States, place: str) -> Iterator[Entry]:
    """Master weights and fp8 caches."""
    recipe = states.recipe
    if recipe.master:
        numel = sum(param.numel for param in states.trained if param.dtype.nbytes < 4)
        if numel:
            yield Entry(
                category=Category.MASTER, component="fp32 master weights", place=place, phases=ALWAYS,
                nbytes=4 * numel, origin=Origin.FORMULA, formula=f"{count(numel)} parameters × 4 B",
                source=recipe.whose,
            )  # fmt: skip
    if recipe.fp8_cache:
        numel = sum(param.numel for param in states.params if param.kind == "linear")
        yield Entry(
            category=Category.COPIES, component="fp8 weights and their transposes", place=place, phases=ALWAYS[1:],
            nbytes=2 * numel, origin=Origin.FORMULA, formula=f"{count(numel)} linear parameters × 2 B",
            source="Transformer Engine: weights cached in fp8 for forward and, transposed, for backward",
        )  # fmt: skip


def optimizer_entries(states: States, place: str) -> Iterator[Entry]:
    """The states appear in the first step. Paged ones live in unified memory, which the driver may move to the host."""
    job, optimizer = states.job, KNOWN[states.job.optimizer]
    item = states.recipe.states.nbytes if states.recipe.states else None
    here = [param for param in states.trained if not is_paged(job, param)]
    away = [param for param in states.trained if is_paged(job, param)]
    for params, where, note in ((here, place, ""), (away, HOST, ", paged")):
        nbytes, numel = sum(state_bytes(param, job, item) for param in params), sum(param.numel for param in params)
        if nbytes:
            yield Entry(
                category=Category.OPTIMIZER, component=f"{job.optimizer} {optimizer.states}{note}", place=where,
                phases=ALWAYS if optimizer.from_start else AFTER_STEP, nbytes=nbytes, origin=Origin.FORMULA,
                source=optimizer.source, formula=f"{count(numel)} parameters × {nbytes / numel:.4g} B",
            )  # fmt: skip


def ema_entries(states: States, place: str) -> Iterator[Entry]:
    if states.job.ema != "none":
        numel = sum(param.numel for param in states.trained)
        yield Entry(
            category=Category.COMPANION, component="averaged copy of the weights (EMA), fp32",
            place=HOST if states.job.ema == "cpu" else place, phases=ALWAYS, nbytes=4 * numel, origin=Origin.FORMULA,
            formula=f"{count(numel)} parameters × 4 B", source="torch.optim.swa_utils.AveragedModel",
        )  # fmt: skip


def state_entries(states: States, place: str) -> tuple[Entry, ...]:
    return (
        *weight_entries(states, place), *extra_weight_entries(states, place), *optimizer_entries(states, place),
        *ema_entries(states, place),
    )  # fmt: skip


def from_count(numel: int, job: Job) -> States:
    """States of a model of which only the number of parameters is known."""
    recipe = RECIPES[job.precision]
    return States(params=(Param(name="parameters", shape=(numel,), kind="linear", dtype=recipe.weights),), job=job)


def unique(params: Iterable[Param]) -> tuple[Param, ...]:
    return tuple(param for param in params if param.tied_to is None)
