"""Weights, gradients, optimizer states and master weights: what is allocated whatever the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vramcast.engine.lines.optimizers import KNOWN, is_paged, state_bytes
from vramcast.ledger import HOST, PHASES, STEP, Category, Entry, Origin
from vramcast.models.params import Params
from vramcast.models.record.tape import Param
from vramcast.setup import Setup
from vramcast.setup.precision import Recipe

ALWAYS = PHASES
AFTER_STEP = PHASES[PHASES.index(STEP) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The parameters of a job, split by what happens to them."""

    params: Params
    setup: Setup

    @property
    def recipe(self) -> Recipe:
        return self.setup.precision

    @property
    def trained(self) -> Params:
        return self.params.trained

    @property
    def gradient_bytes(self) -> int:
        return self.trained.total(lambda param: gradient_bytes(param, self.recipe))


def gradient_bytes(param: Param, recipe: Recipe) -> int:
    """In the parameter's dtype, unless the recipe accumulates gradients in another one."""
    follows = recipe.gradients == recipe.weights
    return param.numel * (param.dtype.nbytes if follows else recipe.gradients.nbytes)


def count(number: int) -> str:
    return f"{number:,}"


def weight_entries(states: States, place: str) -> Iterator[Entry]:
    """One entry for each way of storing weights: trained, frozen, quantised, by dtype."""
    groups: dict[tuple[str, str], list[tuple[Param, int]]] = {}
    for param, times in states.params.kinds:
        kind = "trained" if param.trainable else "frozen"
        if param.kind == "adapter":
            kind = "adapter"
        stored = param.dtype.name
        if param.stored_bytes is not None:
            stored = "fp8" if states.recipe.fp8_weights else states.setup.adapter.quantize
        groups.setdefault((kind, stored), []).append((param, times))
    for (kind, stored), params in groups.items():
        numel, nbytes = (
            sum(p.numel * times for p, times in params),
            sum(p.nbytes * times for p, times in params),
        )
        first = params[0][0]
        is_quantised = first.stored_bytes is not None
        bits = 8 if stored in ("int8", "fp8") else 4
        each = f", {bits}-bit with scales" if is_quantised else f" × {first.dtype.nbytes} B"
        yield Entry(
            category=Category.WEIGHTS,
            component=f"{kind}, {stored}",
            place=place,
            phases=ALWAYS,
            nbytes=nbytes,
            origin=Origin.FORMULA,
            formula=f"{count(numel)} parameters{each}",
            source=states.recipe.whose,
        )


def extra_weight_entries(states: States, place: str) -> Iterator[Entry]:
    """Master weights and fp8 caches."""
    recipe = states.recipe
    if recipe.master:
        numel = states.trained.total(lambda param: param.numel if param.dtype.nbytes < 4 else 0)
        if numel:
            yield Entry(
                category=Category.MASTER,
                component="fp32 master weights",
                place=place,
                phases=ALWAYS,
                nbytes=4 * numel,
                origin=Origin.FORMULA,
                formula=f"{count(numel)} parameters × 4 B",
                source=recipe.whose,
            )
    if recipe.fp8_cache:
        numel = states.params.total(lambda param: param.numel if param.kind == "linear" else 0)
        copies = 1 if recipe.fp8_weights else 2
        yield Entry(
            category=Category.COPIES,
            component="transposes of fp8 weights"
            if recipe.fp8_weights
            else "fp8 weights and their transposes",
            place=place,
            phases=ALWAYS[1:],
            nbytes=copies * numel,
            origin=Origin.FORMULA,
            formula=f"{count(numel)} linear parameters × {copies} B",
            source="Transformer Engine: weights cached in fp8 for forward and, transposed, for backward",
        )


def optimizer_entries(states: States, place: str) -> Iterator[Entry]:
    """States are allocated in the first step. Paged ones are in unified memory, which the driver may move to the
    host."""
    setup, optimizer = states.setup, KNOWN[states.setup.optimizer.name]
    item = states.recipe.states.nbytes if states.recipe.states else None
    kinds = [
        (is_paged(setup.optimizer, param), param, times) for param, times in states.trained.kinds
    ]
    for paged, where, note in ((False, place, ""), (True, HOST, ", paged")):
        params = [(param, times) for is_away, param, times in kinds if is_away == paged]
        nbytes = sum(state_bytes(param, setup, item) * times for param, times in params)
        numel = sum(param.numel * times for param, times in params)
        if nbytes:
            yield Entry(
                category=Category.OPTIMIZER,
                component=f"{setup.optimizer.name} {optimizer.states}{note}",
                place=where,
                phases=ALWAYS if optimizer.from_start else AFTER_STEP,
                nbytes=nbytes,
                origin=Origin.FORMULA,
                source=optimizer.source,
                formula=f"{count(numel)} parameters × {nbytes / numel:.4g} B",
            )


def ema_entries(states: States, place: str) -> Iterator[Entry]:
    if states.setup.companions.ema != "none":
        numel = states.trained.numel
        yield Entry(
            category=Category.COMPANION,
            component="averaged copy of the weights (EMA), fp32",
            place=HOST if states.setup.companions.ema == "cpu" else place,
            phases=ALWAYS,
            nbytes=4 * numel,
            origin=Origin.FORMULA,
            formula=f"{count(numel)} parameters × 4 B",
            source="torch.optim.swa_utils.AveragedModel",
        )


def state_entries(states: States, place: str) -> tuple[Entry, ...]:
    return (
        *weight_entries(states, place),
        *extra_weight_entries(states, place),
        *optimizer_entries(states, place),
        *ema_entries(states, place),
    )


def from_count(numel: int, setup: Setup) -> States:
    """States of a model when only its number of parameters is known."""
    recipe = setup.precision
    params = Params([Param(name="parameters", shape=(numel,), kind="linear", dtype=recipe.weights)])
    return States(params=params, setup=setup)


def unique(params: Iterable[Param]) -> Params:
    return Params(param for param in params if param.tied_to is None)
