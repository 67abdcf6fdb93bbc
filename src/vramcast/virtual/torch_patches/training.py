"""The parts of torch that training scripts call: backward, optimizers, data loaders, losses, compile.

In come their calls, out go the phases they begin and end, and notes on what runs otherwise than on a GPU: eager instead
of compiled, batches made in this process. Does not know training loops: frameworks call the same functions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import optimizer as optimizers

from vramcast.patches import Patches
from vramcast.virtual.kernels import attention
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches import (
    bitsandbytes_library,
    checkpoints,
    leaves,
    paged_memory,
    torchscript,
)


class StepsDone(BaseException):
    """Raised inside the script after the last step asked for; not an Exception, so that scripts do not catch it."""


def install(gpu: GpuState, patches: Patches) -> None:
    _install_backward(gpu, patches)
    _install_optimizers(gpu, patches)
    _install_loader(gpu, patches)
    torchscript.install(checkpoints.install(gpu, patches), patches)
    _install_fake_mode(gpu, patches)
    _install_losses(gpu, patches)
    bitsandbytes_library.install(gpu)
    patches.set(flex_module, "flex_attention", _flex(gpu))
    patches.set(torch, "compile", _uncompiled(gpu))
    patches.set(torch.backends.mha, "get_fastpath_enabled", lambda: _no_fast_path(gpu))
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    patches.set(torch._dynamo, "reset", lambda: None)
    patches.set(torch.nn.Module, "compile", lambda module, *args, **kwargs: gpu.note(_COMPILE_NOTE))


def _flex(gpu: GpuState) -> Any:
    def flex_attention(*args: Any, **kwargs: Any) -> Any:
        gpu.note("flex_attention is counted as its compiled kernel, which keeps no scores")
        return attention.flex_attention(*args, **kwargs)

    return flex_attention


def _no_fast_path(gpu: GpuState) -> bool:
    """Asked in every forward of torch's own attention and encoder layers; only evaluation would have taken it."""
    asking = sys._getframe(2).f_locals.get("self")
    if not getattr(asking, "training", True) and not torch.is_grad_enabled():
        gpu.note_once(_FAST_PATH_NOTE)
    return False


_FAST_PATH_NOTE = (
    "nn.TransformerEncoder's fast path of evaluation is left out: its layers are counted op by op"
)
_COMPILE_NOTE = "torch.compile is ignored: the eager ops are counted"


def _uncompiled(gpu: GpuState) -> Any:
    def compile(model: Any = None, **kwargs: Any) -> Any:
        gpu.note(_COMPILE_NOTE)
        return model if model is not None else lambda function: function

    return compile


def _install_backward(gpu: GpuState, patches: Patches) -> None:
    run = torch.autograd._engine_run_backward

    def run_backward(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients given by the script drop their values: autograd wants them on the output's true device."""
        gradients = tuple(leaves.given_gradient(gpu, gradient) for gradient in gradients)
        gpu.phases.begin_backward()
        try:
            return run(outputs, gradients, *args, **kwargs)
        finally:
            gpu.phases.end_backward()

    patches.set(torch.autograd, "_engine_run_backward", run_backward)


def _install_losses(gpu: GpuState, patches: Patches) -> None:
    true_ctc = torch.ctc_loss

    def ctc_loss(log_probs: Any, targets: Any, *lengths_and_more: Any, **kwargs: Any) -> Any:
        """CUDA copies the lengths to the device; under a dispatch mode torch leaves that out."""
        on_device = [
            value.to(log_probs.device) if isinstance(value, torch.Tensor) else value
            for value in lengths_and_more
        ]
        return true_ctc(log_probs, targets, *on_device, **kwargs)

    patches.set(torch, "ctc_loss", ctc_loss)


def _install_optimizers(gpu: GpuState, patches: Patches) -> None:
    def begin(optimizer: Any, args: Any, kwargs: Any) -> None:
        gpu.optimizers[optimizer] = None
        paged_memory.install_if_imported(gpu, patches)
        gpu.phases.begin_step()

    def end(optimizer: Any, args: Any, kwargs: Any) -> None:
        gpu.phases.end_step(optimizer)
        if gpu.step_limit is not None and gpu.phases.steps >= gpu.step_limit:
            raise StepsDone

    gpu.exit.callback(optimizers.register_optimizer_step_pre_hook(begin).remove)
    gpu.exit.callback(optimizers.register_optimizer_step_post_hook(end).remove)
    grouping = "_group_tensors_by_device_and_dtype"
    for owner in (torch.utils._foreach_utils, optimizers):
        patches.set(owner, grouping, group_by_device_and_dtype)
    for owner in (torch.nn.utils.clip_grad, torch.amp.grad_scaler):
        if hasattr(owner, grouping):
            patches.set(owner, grouping, group_by_device_and_dtype)


def group_by_device_and_dtype(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
    """By virtual device and dtype of the first list; torch's own function would see all meta tensors on one device."""
    groups: dict[Any, Any] = {}
    for index, first in enumerate(lists[0]):
        if first is None:
            continue
        key = (first.device, first.dtype)
        columns, indices = groups.setdefault(key, ([[] for _ in lists], []))
        for column, values in zip(columns, lists, strict=True):
            if values:
                column.append(values[index])
        indices.append(index)
    return groups


def _install_fake_mode(gpu: GpuState, patches: Patches) -> None:
    """DTensor and others find out shapes with fake tensors of their own; those are not the script's memory."""
    dispatch = FakeTensorMode.__torch_dispatch__

    def dispatch_uncounted(mode: Any, *args: Any, **kwargs: Any) -> Any:
        before = gpu.mode.asleep, gpu.mode.busy
        gpu.mode.asleep = gpu.mode.busy = True
        try:
            return dispatch(mode, *args, **kwargs)
        finally:
            gpu.mode.asleep, gpu.mode.busy = before

    patches.set(FakeTensorMode, "__torch_dispatch__", dispatch_uncounted)


WITHOUT_WORKERS = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
}


def _install_loader(gpu: GpuState, patches: Patches) -> None:
    from torch.utils.data import DataLoader

    true_iterator = DataLoader._get_iterator

    def get_iterator(loader: Any) -> Iterator[Any]:
        """Batches are made in this process: workers would not see the virtual devices."""
        before = {name: getattr(loader, name) for name in WITHOUT_WORKERS}
        if loader.num_workers:
            gpu.note(
                f"{loader.num_workers} data loader workers are left out: batches are made in the script's own process"
            )
            vars(loader).update(WITHOUT_WORKERS)
        try:
            return true_iterator(loader)  # type: ignore[no-any-return]
        finally:
            vars(loader).update(before)

    patches.set(DataLoader, "_get_iterator", get_iterator)
