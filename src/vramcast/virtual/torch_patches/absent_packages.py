"""Packages with kernels of their own that a script looks for and does without: the report says which path it took.

In come imports of the script's own files that fail, out come notes. Does not know packages that are there.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

from vramcast.virtual.accounting.source_lines import is_users
from vramcast.virtual.state import GpuState

_WITH_KERNELS = frozenset(
    [
        "apex",
        "causal_conv1d",
        "cut_cross_entropy",
        "deepspeed",
        "flash_attn",
        "flash_attn_3",
        "flash_attn_interface",
        "kernels",
        "liger_kernel",
        "mamba_ssm",
        "transformer_engine",
        "xformers",
    ]
)


def install(gpu: GpuState) -> None:
    finder = _Finder(gpu)
    sys.meta_path.append(finder)
    gpu.exit.callback(sys.meta_path.remove, finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Asked last, so what it is asked for nobody has found."""

    def __init__(self, gpu: GpuState) -> None:
        self._gpu = gpu

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _WITH_KERNELS and _is_asked_by_user():
            self._gpu.note_once(
                f"{name} is not installed: what the script does without it is counted"
            )
        return None


def _is_asked_by_user() -> bool:
    """Whether the import stands in a file of the user's own."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)
