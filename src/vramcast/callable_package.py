"""A package that can be called: `vramcast.plan(…)` is a function, and `vramcast.plan.search` a module of it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str) -> None:
    """A call goes to the function of the same name in `vramcast.api`, found when it is made."""
    name = package.rpartition(".")[2]

    class CallablePackage(ModuleType):
        def __call__(self, *given: Any, **options: Any) -> Any:
            return getattr(import_module("vramcast.api"), name)(*given, **options)

    sys.modules[package].__class__ = CallablePackage
