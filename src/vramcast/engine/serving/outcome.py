"""What an engine's rules give back: lines of the bill, the answer about its cache, and remarks."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.engine.recording.record import DEVICE
from vramcast.engine.serving.request import NAMES, Request
from vramcast.engine.serving.weights import WeightLine
from vramcast.forecast import Served
from vramcast.ledger import LOAD, PROFILE, SERVE, Category, Entry, Level, Origin
from vramcast.units import GiB

PHASES_OF_SERVING = (LOAD, PROFILE, SERVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    entries: tuple[Entry, ...]
    served: Served
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def weight_entries(request: Request, lines: list[WeightLine], source: str) -> list[Entry]:
    return [
        Entry(
            category=Category.WEIGHTS,
            component=line.component,
            place=DEVICE,
            phases=PHASES_OF_SERVING,
            nbytes=line.nbytes,
            origin=Origin.FORMULA,
            formula=line.formula(request.tp),
            source=source,
        )
        for line in lines
    ]


def line(
    category: Category,
    component: str,
    nbytes: int,
    *,
    phases: tuple[str, ...] = PHASES_OF_SERVING,
    formula: str = "",
    source: str = "",
    level: Level = Level.ALLOCATED,
    origin: Origin = Origin.FORMULA,
    range_bytes: tuple[int, int] | None = None,
    place: str = DEVICE,
) -> Entry:
    return Entry(
        category=category,
        component=component,
        place=place,
        phases=phases,
        nbytes=nbytes,
        origin=origin,
        formula=formula,
        source=source,
        level=level,
        range_bytes=range_bytes,
    )


def gib(nbytes: float, digits: int = 2) -> str:
    """As engines print it."""
    return f"{nbytes / GiB:.{digits}f}"


def short_gib(nbytes: float) -> str:
    """As vLLM's format_gib prints it: rounded, without zeros at the end."""
    return str(round(nbytes / GiB, 2))


def stored_text(name: str, request: Request, cached: str) -> str:
    """The first assumption: whose rules, and which dtypes."""
    return f"{name} {version_text(request)}, {NAMES[request.dtype]} where weights are not quantised, cache in {cached}"


def version_text(request: Request) -> str:
    text = ".".join(map(str, request.version))
    return f"b{text}" if request.engine == "llama.cpp" else text
