"""docs/defaults.md: what each framework does where nothing is said, and the dtypes behind each precision word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramcast.setup.precision import RECIPES, Recipe
from vramcast.setup.profile import Profile, Since
from vramcast.setup.profiles import PROFILES
from vramcast.setup.tasks import TASKS

ROLES = ("precision", "weights", "gradients", "master", "states", "computing", "whose")
HABITS = (
    "framework", "read", "trains", "adapters", "loads", "precision", "optimizer", "checkpointing", "loss",
    "outputs held", "many GPUs", "source",
)  # fmt: skip


def defaults_page() -> str:
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# Defaults",
        "",
        "Written by `make docs` from `setup/profiles.py` and `setup/precision.py`.",
        "",
    )
    yield from ("## Precision words by role", "")
    yield "Each role can be said by itself: `--weights-dtype`, `--frozen-dtype`, `--lora-dtype` (adapters),"
    yield "`--grad-dtype`, `--master-dtype`, `--state-dtype`. A precision word is a short form of these."
    yield ""
    yield from _table(ROLES, map(_roles, RECIPES.values()))
    yield from ("", "## Frameworks", "")
    yield "What `--framework` decides where the job says nothing. A value behind a version holds from then on."
    yield ""
    yield from _table(HABITS, (_habits(name, profile) for name, profile in PROFILES.items()))
    yield from ("", "## Tasks", "")
    rows = (
        (f"`{name}`", task.rows, task.head or "as the checkpoint has it", task.source)
        for name, task in TASKS.items()
    )
    yield from _table(("task", "rows per sample", "head", "source"), rows)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def _roles(recipe: Recipe) -> tuple[str, ...]:
    compute = recipe.autocast or recipe.weights
    return (
        f"`{recipe.name}`",
        recipe.weights.name,
        recipe.gradients.name,
        "fp32" if recipe.master else "none",
        (recipe.states or recipe.weights).name,
        "fp8" if recipe.fp8_cache else compute.name + (" by autocast" if recipe.autocast else ""),
        recipe.whose,
    )


def _habits(name: str, profile: Profile) -> tuple[str, ...]:
    targets = ", ".join(profile.lora_targets)
    return (
        f"`{name}`",
        f"{profile.version}, {profile.read}",
        profile.tuning,
        f"rank {profile.lora_rank} on {targets}",
        _said(profile.loads),
        str(profile.precision or "as the weights"),
        f"{profile.optimizer}, {_said(profile.optimizer_impl)}",
        _said(profile.checkpointing),
        _said(profile.loss),
        _said(profile.keeps_outputs),
        ", ".join(profile.strategies),
        "; ".join((profile.source, *profile.sources.values())),
    )


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Since):
        return str(value)
    changes = (
        f"{value.library} {'.'.join(map(str, version))}: {_said(then)}"
        for version, then in value.changes
    )
    return "; ".join((_said(value.before), *changes))
