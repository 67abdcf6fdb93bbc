"""vramcast: what a training job will take, and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.report.diagnose_hook import explain_oom, install_excepthook

__all__ = ["explain_oom", "install_excepthook"]

# Public name → module, imported when first used: `import vramcast` stays instant.
_HOME = dict.fromkeys(("explain_oom", "install_excepthook"), "vramcast.report.diagnose_hook")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vramcast' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
