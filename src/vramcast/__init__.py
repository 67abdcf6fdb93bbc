"""vramcast: what a training job will take, and why.

    >>> import vramcast
    >>> forecast = vramcast.estimate("qwen2.5-3b", precision="bf16-true", gpu="rtx4090")
    >>> forecast.verdict().fits
    False

`estimate`, `plan`, `fit`, `sweep` and `diagnose` take a model's name and the words of the command line's flags.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.api import diagnose, estimate, fit, plan, sweep
    from vramcast.cli.oom_hook import explain_oom, install_excepthook
    from vramcast.forecast import Forecast, Verdict
    from vramcast.job import Job
    from vramcast.ledger import Entry, Ledger
    from vramcast.models.read.model import read_model
    from vramcast.models.read.module import read_module
    from vramcast.virtual.gpu import virtual_gpu
    from vramcast.virtual.step import trace_step

__all__ = [
    "Entry",
    "Forecast",
    "Job",
    "Ledger",
    "Verdict",
    "diagnose",
    "estimate",
    "explain_oom",
    "fit",
    "install_excepthook",
    "plan",
    "read_model",
    "read_module",
    "sweep",
    "trace_step",
    "virtual_gpu",
]

# Public name → module, imported when first used: `import vramcast` stays instant.
_HOME = {
    "Entry": "vramcast.ledger",
    "Ledger": "vramcast.ledger",
    "Job": "vramcast.job",
    "Forecast": "vramcast.forecast",
    "Verdict": "vramcast.forecast",
    "estimate": "vramcast.api",
    "fit": "vramcast.api",
    "sweep": "vramcast.api",
    "plan": "vramcast",  # both are packages that can be called
    "diagnose": "vramcast",
    "read_model": "vramcast.models.read.model",
    "read_module": "vramcast.models.read.module",
    "explain_oom": "vramcast.cli.oom_hook",
    "install_excepthook": "vramcast.cli.oom_hook",
    "trace_step": "vramcast.virtual.step",
    "virtual_gpu": "vramcast.virtual.gpu",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vramcast' has no attribute {name!r}")
    if _HOME[name] == __name__:
        return import_module(f"vramcast.{name}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
