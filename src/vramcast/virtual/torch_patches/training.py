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
from vramcast.virtual.compiled.graphs import refuse_inside_a_graph
from vramcast.virtual.kernels import attention
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches import (
    bitsandbytes_library,
    checkpoints,
    compiling,
    leaves,
    paged_memory,
    torchscript,
)


class StepsDone(BaseException):
    """Raised inside the script after the last step asked for; not an Exception, so that scripts do not catch it."""


STEPS_WITHOUT_LIMIT = 2  # once a card proved too small: the first one makes the optimizer's states


def install(gpu: GpuState, patches: Patches) -> None:
    _install_backward(gpu, patches)
    _install_optimizers(gpu, patches)
    _install_loader(gpu, patches)
    torchscript.install(checkpoints.install(gpu, patches), patches)
    _install_fake_mode(gpu, patches)
    _install_losses(gpu, patches)
    bitsandbytes_library.install(gpu)
    _install_profiler(gpu, patches)
    patches.set(flex_module, "flex_attention", _flex(gpu))
    compiling.install(gpu, patches)
    patches.set(torch.backends.mha, "get_fastpath_enabled", lambda: _no_fast_path(gpu))


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


def _install_backward(gpu: GpuState, patches: Patches) -> None:
    run = torch.autograd._engine_run_backward

    def run_backward(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients given by the script drop their values: autograd wants them on the output's true device."""
        refuse_inside_a_graph(gpu, "backward()")
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


def _install_profiler(gpu: GpuState, patches: Patches) -> None:
    """A profiler of CUDA's activities would ask the driver for each; here it sees those of the CPU."""
    kind = torch.autograd.profiler.profile
    true_init = kind.__init__

    def init(profiler: Any, *args: Any, **options: Any) -> None:
        if options.get("use_device") is not None or options.pop("use_cuda", False):
            options.update(use_device=None, use_cpu=True)
            gpu.note_once("torch.profiler: there are no CUDA activities to record")
        true_init(profiler, *args, **options)

    patches.set(kind, "__init__", init)


def _install_optimizers(gpu: GpuState, patches: Patches) -> None:
    def begin(optimizer: Any, args: Any, kwargs: Any) -> None:
        refuse_inside_a_graph(gpu, "an optimizer's step")
        gpu.optimizers[optimizer] = None
        paged_memory.install_if_imported(gpu, patches)
        gpu.phases.begin_step()

    def end(optimizer: Any, args: Any, kwargs: Any) -> None:
        gpu.phases.end_step(optimizer)
        if is_enough(gpu):
            raise StepsDone

    def after_own_step() -> None:
        if is_enough(gpu):
            raise StepsDone

    true_add = torch.optim.Optimizer.add_param_group

    def add_param_group(optimizer: Any, group: dict[str, Any]) -> None:
        true_add(optimizer, group)
        for parameter in optimizer.param_groups[-1]["params"]:
            gpu.trained[parameter] = True

    patches.set(torch.optim.Optimizer, "add_param_group", add_param_group)
    gpu.phases.after_own_step = after_own_step
    gpu.exit.callback(optimizers.register_optimizer_step_pre_hook(begin).remove)
    gpu.exit.callback(optimizers.register_optimizer_step_post_hook(end).remove)
    grouping = "_group_tensors_by_device_and_dtype"
    for owner in (torch.utils._foreach_utils, optimizers):
        patches.set(owner, grouping, group_by_device_and_dtype)
    for owner in (torch.nn.utils.clip_grad, torch.amp.grad_scaler):
        if hasattr(owner, grouping):
            patches.set(owner, grouping, group_by_device_and_dtype)


def is_enough(gpu: GpuState) -> bool:
    """Whether as many steps were done as asked for, or as are needed to see what a card too small for them lacks."""
    steps, missing = gpu.phases.steps, gpu.out_of_memory
    if gpu.step_limit is not None and steps >= gpu.step_limit:
        return True
    return (
        missing is not None and missing.was_lifted and steps >= missing.steps + STEPS_WITHOUT_LIMIT
    )


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
        with gpu.mode.uncounted():
            return dispatch(mode, *args, **kwargs)

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
