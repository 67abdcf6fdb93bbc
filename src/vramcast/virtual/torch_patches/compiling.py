"""torch.compile and Module.compile: what they are given runs as a compiled region.

In comes a module or a function, out comes the same one, counted with what its compiled code keeps. Does not know
backends other than Inductor: with another one ("eager", "aot_eager"), ops are counted as they run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule

from vramcast.patches import Patches
from vramcast.virtual.accounting.source_lines import is_users
from vramcast.virtual.compiled.region import Region
from vramcast.virtual.state import GpuState

_OTHER_BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs")
_NOT_A_GRAPH = (torch.optim.Optimizer,)
OPTIMIZER_NOTE = "torch.compile of an optimizer's step is left out: its eager ops are counted"


def install(gpu: GpuState, patches: Patches) -> None:
    patches.set(torch, "compile", _compile(gpu))
    patches.set(torch.nn.Module, "compile", _compile_module(gpu))
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    patches.set(torch._dynamo, "reset", lambda: None)


def _compile(gpu: GpuState) -> Any:
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            if _is_decorating_a_library():
                return lambda function: function
            return lambda function: compile(function, **options)
        if options.get("disable") or options.get("backend", "inductor") in _OTHER_BACKENDS:
            return model
        if isinstance(model, torch.nn.Module):
            return CompiledModule(model, lambda module: _compiled_call(gpu, module, module))
        owner = getattr(model, "__self__", None)
        if isinstance(owner, _NOT_A_GRAPH):
            gpu.note_once(OPTIMIZER_NOTE)
            return model
        if _is_decorating_a_library() or not callable(model):
            return model
        region = Region(gpu, model, _modules_of(model))
        return functools.wraps(model)(lambda *args, **kwargs: region(*args, **kwargs))

    return compile


class CompiledModule(OptimizedModule):  # type: ignore[misc]
    """What torch.compile gives for a module: the module itself stays as it was."""

    def _initialize(self) -> None:
        self.forward = self.dynamo_ctx(self._orig_mod)


def _compile_module(gpu: GpuState) -> Any:
    def compile_module(module: torch.nn.Module, *args: Any, **options: Any) -> None:
        if options.get("backend", "inductor") not in _OTHER_BACKENDS:
            module._compiled_call_impl = _compiled_call(gpu, module, module._call_impl)

    return compile_module


def _compiled_call(gpu: GpuState, module: torch.nn.Module, call: Callable[..., Any]) -> Any:
    """`call` with the module's forward compiled; its hooks stay outside: FSDP gathers weights in them."""
    region = Region(gpu, module.forward, (module,))

    def run(*args: Any, **kwargs: Any) -> Any:
        before = vars(module).get("forward")
        module.forward = region
        try:
            return call(*args, **kwargs)
        finally:
            if before is None:
                vars(module).pop("forward", None)
            else:
                module.forward = before

    return run


def _modules_of(function: Any) -> tuple[torch.nn.Module, ...]:
    """The modules that a function calls: its own, those of its closure, and globals that it names."""
    found: list[Any] = [getattr(function, "__self__", None)]
    code = getattr(function, "__code__", None)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue  # not filled yet
    if code is not None:
        names = getattr(function, "__globals__", {})
        found += [names.get(name) for name in code.co_names]
    modules = [item for item in found if isinstance(item, torch.nn.Module)]
    return tuple(dict.fromkeys(modules))


def _is_decorating_a_library() -> bool:
    """`@torch.compile` on a function of an installed package, while it is imported: the script compiles nothing."""
    caller = sys._getframe(2).f_code
    return caller.co_name == "<module>" and not is_users(caller.co_filename)
