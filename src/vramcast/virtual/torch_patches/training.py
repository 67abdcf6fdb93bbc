"""The parts of torch that training scripts lean on: backward, optimizers, data loaders, losses, compile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.attention.flex_attention as flex_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import optimizer as optimizers

from vramcast.virtual.kernels import attention
from vramcast.virtual.torch_patches import bitsandbytes_library, checkpoints, leaves
from vramcast.virtual.torch_patches import paged_memory as paged
from vramcast.virtual.torch_patches import torchscript as scripted

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu


class StepsDone(BaseException):
    """Raised inside the script after the last step asked for; not an Exception, so that scripts do not catch it."""


def install(gpu: VirtualGpu, patches: Patches) -> None:
    _install_backward(gpu, patches)
    _install_optimizers(gpu, patches)
    _install_loader(gpu, patches)
    scripted.install(checkpoints.install(gpu, patches), patches)
    _install_fake_mode(gpu, patches)
    _install_losses(gpu, patches)
    bitsandbytes_library.install(gpu)
    patches.set(flex_module, "flex_attention", _flex(gpu))
    patches.set(torch, "compile", _uncompiled(gpu))
    patches.set(torch.backends.mha, "get_fastpath_enabled", lambda: _no_fast_path(gpu))
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    patches.set(torch._dynamo, "reset", lambda: None)
    patches.set(torch.nn.Module, "compile", lambda module, *args, **kwargs: gpu.note(_COMPILE_NOTE))


def _flex(gpu: VirtualGpu) -> Any:
    def flex_attention(*args: Any, **kwargs: Any) -> Any:
        gpu.note("flex_attention is billed as its compiled kernel, which keeps no scores")
        return attention.flex_attention(*args, **kwargs)

    return flex_attention


def _no_fast_path(gpu: VirtualGpu) -> bool:
    """Asked in every forward of torch's own attention and encoder layers; only evaluation would have taken it."""
    asking = sys._getframe(2).f_locals.get("self")
    if not getattr(asking, "training", True) and not torch.is_grad_enabled():
        gpu.notes.setdefault(_FAST_PATH_NOTE, 1)
    return False


_FAST_PATH_NOTE = "nn.TransformerEncoder's fast path of evaluation is left out: its layers are billed op by op"
_COMPILE_NOTE = "torch.compile is left out: the eager ops are billed"


def _uncompiled(gpu: VirtualGpu) -> Any:
    def compile(model: Any = None, **kwargs: Any) -> Any:
        gpu.note(_COMPILE_NOTE)
        return model if model is not None else lambda function: function

    return compile


def _install_backward(gpu: VirtualGpu, patches: Patches) -> None:
    run = torch.autograd._engine_run_backward

    def run_backward(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients given by the script lose their values: autograd wants them on the output's true device."""
        gradients = tuple(leaves.given_gradient(gpu, gradient) for gradient in gradients)
        gpu.phases.backward_begins()
        try:
            return run(outputs, gradients, *args, **kwargs)
        finally:
            gpu.phases.backward_ends()

    patches.set(torch.autograd, "_engine_run_backward", run_backward)


def _install_losses(gpu: VirtualGpu, patches: Patches) -> None:
    true_ctc = torch.ctc_loss

    def ctc_loss(log_probs: Any, targets: Any, *lengths_and_more: Any, **kwargs: Any) -> Any:
        """CUDA copies the lengths to the device; under a dispatch mode torch leaves that out."""
        moved = (v.to(log_probs.device) if isinstance(v, torch.Tensor) else v for v in lengths_and_more)
        return true_ctc(log_probs, targets, *moved, **kwargs)

    patches.set(torch, "ctc_loss", ctc_loss)


def _install_optimizers(gpu: VirtualGpu, patches: Patches) -> None:
    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        gpu.optimizers.add(optimizer)
        paged.serve(gpu, patches)
        gpu.phases.step_begins()

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        gpu.phases.step_ends(optimizer)
        if gpu.step_limit is not None and gpu.phases.steps >= gpu.step_limit:
            raise StepsDone

    gpu.exit.callback(optimizers.register_optimizer_step_pre_hook(begins).remove)
    gpu.exit.callback(optimizers.register_optimizer_step_post_hook(ends).remove)
    patches.set(torch.utils._foreach_utils, "_group_tensors_by_device_and_dtype", grouped)
    patches.set(optimizers, "_group_tensors_by_device_and_dtype", grouped)
    for owner in (torch.nn.utils.clip_grad, torch.amp.grad_scaler):
        if hasattr(owner, "_group_tensors_by_device_and_dtype"):
            patches.set(owner, "_group_tensors_by_device_and_dtype", grouped)


def grouped(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
    """By virtual device and dtype of the first list; torch's own would see meta tensors all in one place."""
    groups: dict[Any, Any] = {}
    for index, first in enumerate(lists[0]):
        if first is None:
            continue
        found = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for column, values in zip(found[0], lists, strict=True):
            if values:
                column.append(values[index])
        found[1].append(index)
    return groups


def _install_fake_mode(gpu: VirtualGpu, patches: Patches) -> None:
    """DTensor and others propagate shapes through fake tensors of their own; those are not the script's memory."""
    dispatch = FakeTensorMode.__torch_dispatch__

    def asleep(mode: Any, *args: Any, **kwargs: Any) -> Any:
        before = gpu.mode.asleep, gpu.mode.busy
        gpu.mode.asleep = gpu.mode.busy = True
        try:
            return dispatch(mode, *args, **kwargs)
        finally:
            gpu.mode.asleep, gpu.mode.busy = before

    patches.set(FakeTensorMode, "__torch_dispatch__", asleep)


def _install_loader(gpu: VirtualGpu, patches: Patches) -> None:
    from torch.utils.data import DataLoader

    true_iterator = DataLoader._get_iterator

    def get_iterator(loader: Any) -> Iterator[Any]:
        """Batches are made in this process: workers would not see the virtual devices."""
        workers, prefetch = loader.num_workers, loader.prefetch_factor
        persistent, timeout, context = loader.persistent_workers, loader.timeout, loader.multiprocessing_context
        if workers:
            gpu.note(f"{workers} data loader workers are left out: batches are made in the script's own process")
            vars(loader).update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
        try:
            return true_iterator(loader)  # type: ignore[no-any-return]
        finally:
            vars(loader).update(
                num_workers=workers, prefetch_factor=prefetch, persistent_workers=persistent, timeout=timeout
            )
            del context

    patches.set(DataLoader, "_get_iterator", get_iterator)
