"""Triton on a virtual GPU: kernels are launched and compute nothing.

A Triton kernel writes into tensors that its caller made; it allocates nothing itself. So a launch does nothing here,
and code that brings such kernels (TRL's loss, Liger, a script's own) is followed op by op around them. Where Triton is
loaded already, its launches are replaced. Elsewhere `import triton` finds a stand-in: `jit` gives kernels, whatever
kernels are written in (`triton.language`) is a name without meaning. torch itself goes on as without Triton.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import torch
import torch.utils._triton as torch_helpers

from vramcast.patches import Patches
from vramcast.virtual.accounting.storages import is_meta
from vramcast.virtual.kernels.op_schemas import tensors_in
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches.inplace import make_unknown

PACKAGE = "triton"
VERSION = "3.7.0"  # what torch 2.13 asks for
LAUNCHING = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
)


class Kernel:
    """A jitted function: `kernel[grid](…)` launches it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        functools.update_wrapper(cast("Callable[..., Any]", self), function)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.run

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Compute nothing."""


class CudaKernel:
    """What torch.cuda._compile_kernel gives for a kernel written in CUDA's C++: `kernel(grid, block, args)`."""

    def __init__(self, launch: Callable[..., None]) -> None:
        self._launch = launch

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._launch(self, *args, **kwargs)

    def set_shared_memory_config(self, size: int) -> None:
        """Shared memory is on the chip."""


class Name:
    """Something of which only kernels make use; so is whatever it gives."""

    def __getattr__(self, name: str) -> Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Name:
        return self

    def __getitem__(self, key: Any) -> Name:
        return self


class StandIn(ModuleType):
    """A module of the stand-in: every name that is asked for is there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any = type(name, (), {}) if name[0].isupper() else Name()
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives stand-ins for triton and all its modules."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == PACKAGE:
            vars(module).update(_host_functions(), __version__=VERSION)


def _host_functions() -> dict[str, Any]:
    """What is called outside of kernels, and so must be right."""
    return {
        "jit": jit,
        "autotune": _leave_as_it_is,
        "heuristics": _leave_as_it_is,
        "Config": Name(),
        "cdiv": lambda a, b: -(-a // b),
        "next_power_of_2": lambda n: 1 << max(n - 1, 0).bit_length(),
    }


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`@triton.jit`, with or without options."""
    return Kernel if function is None else Kernel(function)


def _leave_as_it_is(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """A decorator that tunes how a kernel is launched."""
    return lambda kernel: kernel


def install(gpu: GpuState, patches: Patches) -> None:
    """For as long as the virtual GPU lasts."""
    for helper in (torch_helpers.has_triton_package, torch_helpers.has_triton):
        helper()  # it remembers its answer: torch has no compiler for this device
    launch = _launch(gpu)
    patches.set(Kernel, "run", launch)
    if hasattr(torch.cuda, "_compile_kernel"):  # since torch 2.9
        patches.set(torch.cuda, "_compile_kernel", lambda *args, **kwargs: CudaKernel(launch))
    if PACKAGE in sys.modules:
        _replace_launches(launch, patches)
        return
    finder = Finder()
    sys.meta_path.insert(0, finder)
    gpu.exit.callback(_remove, finder)
    _tell_trl(patches)


def _launch(gpu: GpuState) -> Callable[..., None]:
    """Whatever numbers a kernel is given, it may have written others into them."""

    def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
        for tensor in tensors_in(args, kwargs):
            if tensor.is_floating_point() and not is_meta(tensor):
                make_unknown(gpu, tensor)

    return run


def _replace_launches(launch: Callable[..., None], patches: Patches) -> None:
    for module, name in LAUNCHING:
        if module in sys.modules:
            patches.set(getattr(sys.modules[module], name), "run", launch)


def _remove(finder: Finder) -> None:
    sys.meta_path.remove(finder)
    for name, module in list(sys.modules.items()):
        if isinstance(module, StandIn):
            del sys.modules[name]


@contextmanager
def hidden() -> Iterator[None]:
    """For modules of torch that are imported meanwhile, there is no stand-in."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, Finder)]
    modules = {name: module for name, module in sys.modules.items() if isinstance(module, StandIn)}
    for finder in finders:
        sys.meta_path.remove(finder)
    for name in modules:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.meta_path[:0] = finders
        sys.modules.update(modules)


def _tell_trl(patches: Patches) -> None:
    """TRL, if it was imported before, has noted that there is no Triton and made no kernels."""
    tiles = sys.modules.get("trl.kernels.chunked_logprob")
    if tiles is None or vars(tiles).get("_TRITON_AVAILABLE", True):
        return
    patches.set(tiles, "_TRITON_AVAILABLE", True)
    patches.set(tiles, PACKAGE, importlib.import_module(PACKAGE))
    for name in ("_forward_kernel", "_backward_kernel"):
        patches.set(tiles, name, Kernel(getattr(tiles, name)))
    entropy = importlib.import_module("trl.kernels.logprob_entropy")
    name = "selective_log_softmax_and_entropy"
    patches.set(sys.modules["trl.kernels"], name, getattr(entropy, name))
    if "trl.trainer.utils" in sys.modules:
        utils = sys.modules["trl.trainer.utils"]
        patches.set(utils, "_fused_logprob_entropy", getattr(entropy, name))
