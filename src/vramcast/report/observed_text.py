"""Observed points, the line through them and what it predicts, compared with the engine's line for the same job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramcast.report.table import align
from vramcast.report.words import say
from vramcast.report.words.tables import SWEEP
from vramcast.units import format_gib_and_gb

if TYPE_CHECKING:
    from vramcast.plan.observed_line import Fit


def render_text(
    fit: Fit, predicted: Fit | None, capacity_bytes: int | None, lang: str = "en"
) -> str:
    rows = [(say(SWEEP, "observed", lang), f"{_line(fit, lang)}   {_points(fit, lang)}")]
    if capacity_bytes is not None:
        batch = fit.largest_batch(capacity_bytes)
        rows.append(("", say(SWEEP, "by_line", lang, batch=batch)))
    if predicted is not None:
        text = f"{_line(predicted, lang)}   {say(SWEEP, 'of_table', lang)}"
        rows.append((say(SWEEP, "predicted", lang), text))
    return "\n".join(align(rows, "ll", indent=0))


def _line(fit: Fit, lang: str) -> str:
    per_sample = f"{fit.per_sample_bytes / 1e9:.4f}"
    return say(SWEEP, "line", lang, per_sample=per_sample, fixed=format_gib_and_gb(fit.fixed_bytes))


def _points(fit: Fit, lang: str) -> str:
    points = ", ".join(f"{batch}: {nbytes / 1e9:g} GB" for batch, nbytes in fit.points)
    residual = f"{fit.residual_bytes / 1e9:.2f}"
    return say(SWEEP, "points", lang, residual=residual, count=len(fit.points), points=points)


def fit_json(fit: Fit, capacity_bytes: int | None) -> dict[str, Any]:
    largest = None if capacity_bytes is None else fit.largest_batch(capacity_bytes)
    return {
        "points": [{"batch": batch, "bytes": nbytes} for batch, nbytes in fit.points],
        "per_sample_bytes": fit.per_sample_bytes,
        "fixed_bytes": fit.fixed_bytes,
        "residual_bytes": fit.residual_bytes,
        "largest_batch_that_fits": largest,
    }
