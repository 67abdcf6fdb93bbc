"""Observed points, their line and what it predicts, beside what the engine says about the same job."""

from __future__ import annotations

from typing import Any

from vramcast.engine.prices.observed_line import Fit
from vramcast.units import format_gib_and_gb


def render_text(fit: Fit, predicted: Fit | None, capacity_bytes: int | None) -> str:
    points = ", ".join(f"{batch}: {nbytes / 1e9:g} GB" for batch, nbytes in fit.points)
    lines = [
        f"observed   {_line(fit)}   largest residual {fit.residual_bytes / 1e9:.2f} GB over {len(fit.points)} points"
        f" ({points})"
    ]
    if capacity_bytes is not None:
        lines.append(f"           largest batch by this line: {fit.largest_batch(capacity_bytes)}")
    if predicted is not None:
        lines.append(f"predicted  {_line(predicted)}   (allocated, first length of the table)")
    return "\n".join(lines)


def _line(fit: Fit) -> str:
    return f"{fit.per_sample_bytes / 1e9:.4f} GB per sample + {format_gib_and_gb(fit.fixed_bytes)}"


def fit_json(fit: Fit, capacity_bytes: int | None) -> dict[str, Any]:
    return {
        "points": [{"batch": batch, "bytes": nbytes} for batch, nbytes in fit.points],
        "per_sample_bytes": fit.per_sample_bytes,
        "fixed_bytes": fit.fixed_bytes,
        "residual_bytes": fit.residual_bytes,
        "largest_batch_that_fits": None if capacity_bytes is None else fit.largest_batch(capacity_bytes),
    }
