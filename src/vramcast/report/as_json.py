"""A Forecast as the documented JSON (docs/schema.json). Unknown is null, never zero."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from vramcast.catalog.gpus import Gpu
from vramcast.forecast import Answer, Forecast, Served, Verdict
from vramcast.job import job_values
from vramcast.ledger import Entry, Ledger

SCHEMA = "vramcast/1"


def forecast_json(forecast: Forecast, place: str | None = None) -> dict[str, Any]:
    model = forecast.model
    return {
        "schema": SCHEMA,
        "model": None
        if model is None
        else {
            "name": model.name,
            "family": model.family,
            "params_total": model.params_total,
            "params_trainable": model.params_trainable,
            "num_layers": model.num_layers,
        },
        "job": None if forecast.job is None else job_values(forecast.job),
        "gpu": None if forecast.gpu is None else gpu_json(forecast.gpu),
        "verdict": verdict_json(forecast.verdict(place)),
        "phases": phases_json(forecast.ledger),
        "entries": [entry_json(entry) for entry in forecast.ledger.entries],
        "host": host_json(forecast.ledger),
        "assumptions": list(forecast.assumptions),
        "warnings": list(forecast.warnings),
        "ranks": [
            {"name": rank.name, "ranks": rank.ranks, "allocated_bytes": rank.allocated_bytes}
            for rank in forecast.ranks
        ],
        "nodes": forecast.nodes,
        "notes": list(forecast.notes),
        "not_understood": list(forecast.not_understood),
        "scaling": None if forecast.scaling is None else dataclasses.asdict(forecast.scaling),
        **({} if forecast.served is None else {"served": served_json(forecast.served)}),
    }


def served_json(served: Served) -> dict[str, Any]:
    """A serving engine's cache, and what it prints at start-up."""
    found = dataclasses.asdict(served)
    return found | {"refusal": served.refusal or None}


def json_text(data: Any) -> str:
    """As commands print it, and servers send it."""
    return json.dumps(data, indent=1, ensure_ascii=False)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "answer": answer_json(verdict.answer),
        "fits": verdict.fits,
        "peak_phase": verdict.peak.phase,
        "peak_place": verdict.peak.place,
        "allocated_bytes": verdict.allocated_bytes,
        "reserved_bytes": verdict.reserved_bytes,
        "process_bytes": verdict.process_bytes,
        "capacity_bytes": verdict.capacity_bytes,
        "headroom_bytes": verdict.headroom_bytes,
        "range_bytes": None if verdict.range_bytes is None else list(verdict.range_bytes),
        "safe_bytes": verdict.safe_bytes,
        "spread": None if verdict.spread is None else dataclasses.asdict(verdict.spread),
        "num_not_understood": verdict.num_not_understood,
    }


def answer_json(answer: Answer | None) -> str | None:
    return None if answer is None else str(answer)


def gpu_json(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "capacity_bytes": gpu.total_bytes,
        "source": gpu.total_source,
        "compute_capability": None
        if gpu.compute_capability is None
        else list(gpu.compute_capability),
    }


def phases_json(ledger: Ledger) -> list[dict[str, Any]]:
    moments = (
        ledger.moment(phase, place) for place in ledger.devices() for phase in ledger.phases(place)
    )
    return [
        {
            "phase": moment.phase,
            "place": moment.place,
            "allocated_bytes": moment.allocated_bytes,
            "reserved_bytes": moment.reserved_bytes,
            "process_bytes": moment.process_bytes,
        }
        for moment in moments
    ]


def entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "category": str(entry.category),
        "component": entry.component,
        "place": entry.place,
        "phases": list(entry.phases),
        "bytes": entry.nbytes,
        "origin": str(entry.origin),
        "formula": entry.formula,
        "source": entry.source,
        "level": str(entry.level),
        "needed_by": entry.needed_by,
        "range_bytes": None if entry.range_bytes is None else list(entry.range_bytes),
    }


def host_json(ledger: Ledger) -> dict[str, Any] | None:
    """The host's side of the bill: peaks of the places that are not a GPU; null when the ledger has no host lines."""
    places = [place for place in ledger.places() if not place.startswith("cuda")]
    if not places:
        return None
    return {
        place: {"peak_phase": ledger.peak(place).phase, "bytes": ledger.peak(place).process_bytes}
        for place in places
    }
