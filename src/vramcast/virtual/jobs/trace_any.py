"""The process in which a job of any model is traced: in comes JSON, out goes JSON. See `forecasting.tracer`."""

from __future__ import annotations

from typing import Any

from vramcast.errors import VramcastError
from vramcast.job import job_from
from vramcast.virtual.jobs.quiet import quiet


def trace_here(payload: dict[str, Any], session: object) -> dict[str, Any]:
    """`payload`: jobs, each with the model's config, the loop, the card. One that cannot be run has its error instead.
    Nothing is fetched and nothing is written."""
    with quiet():
        return {"answers": [_answer(each) for each in payload["jobs"]]}


def _answer(payload: dict[str, Any]) -> dict[str, Any]:
    try:
        return _trace(payload)
    except VramcastError as error:
        return {"error": str(error)}


def _trace(payload: dict[str, Any]) -> dict[str, Any]:
    from vramcast.models.read.config import Config
    from vramcast.virtual.accounting.export import trace_json
    from vramcast.virtual.jobs.any_model import run_any
    from vramcast.virtual.jobs.run import STEPS, Loop
    from vramcast.virtual.versions_beside import deciding_versions, explain_versions

    ran = run_any(
        job_from(payload["job"]),
        Loop(**payload["loop"]),
        Config(payload["config"], payload["where"]),
        payload["gpu"],
        keeps_sizes=True,
    )
    return {
        "trace": trace_json(ran.gpu, [], STEPS, "ended"),
        "kind": ran.kind,
        "params_total": ran.feed.params_total,
        "params_trainable": ran.feed.params_trained,
        "stored_as": ran.feed.stored_as,
        "inputs": {name: list(shape) for name, shape in ran.feed.shapes.items()},
        "has_own_loss": ran.feed.has_own_loss,
        "seq": ran.feed.seq,
        "left_out": ran.feed.left_out,
        "notes": [
            f"{text} ({times} times)" if times > 1 else text
            for text, times in ran.gpu.notes.items()
        ],
        "versions": explain_versions(deciding_versions()),
    }
