"""Job → Forecast by whoever can: the formulas where they describe the model, else the virtual GPU.

Here is the one place of that choice. Commands, the Python API and the planner import from here; the engine knows
formulas alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramcast.forecasting.estimate import estimate, find_undescribed, warnings_about

if TYPE_CHECKING:
    from vramcast.forecasting.by_trace import estimate_all, traced_timeline
    from vramcast.forecasting.grid import sweep

__all__ = [
    "estimate",
    "estimate_all",
    "find_undescribed",
    "sweep",
    "traced_timeline",
    "warnings_about",
]
_HOME = {
    "estimate_all": "by_trace",
    "sweep": "grid",
    "traced_timeline": "by_trace",
}  # imported on first use


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
