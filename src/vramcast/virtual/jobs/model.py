"""The model of a job, made for real: transformers' class in the job's dtype, bitsandbytes' 4-bit layers, PEFT's
adapters, frozen names, checkpointing, the fused loss.

In come a Config and a Job, out comes a module on the host; on its way to the card 4-bit weights are packed. Does not
know dora, int8 and the kernels that Liger puts into blocks.
"""

from __future__ import annotations

import fnmatch
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.models.families import MODULE_OF
from vramcast.models.read.config import Config
from vramcast.models.read.expansion import added_layers
from vramcast.setup import resolve
from vramcast.virtual.jobs.adapters import adapted_model
from vramcast.virtual.jobs.classes import built_config, cannot_build, model_class
from vramcast.virtual.jobs.loss import fuse_loss, tile_loss

# 0.50 dequantises inside the kernel of its product, where no tensor shows what it takes.
BITSANDBYTES = "bitsandbytes>=0.46,<0.50"
KEPT_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
)


def bare_model(config: Config, job: Job, dtype: torch.dtype) -> Any:
    own = built_config(config)
    kind = model_class(config, own)
    # Left alone, transformers takes sdpa for every part that has it.
    if job.attention != "sdpa" or (config.model_type in MODULE_OF and kind._supports_sdpa):
        own._attn_implementation = job.attention
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return _with_fp32_parts(_in_dtype(kind(own), dtype), dtype)
    except Exception as error:
        if config.model_type in MODULE_OF:
            raise
        raise cannot_build(config, error) from error
    finally:
        torch.set_default_dtype(before)


def _in_dtype(model: Any, dtype: torch.dtype) -> Any:
    """As from_pretrained loads it: parameters that a class makes in a dtype of its own (XLNet, DeBERTa) are cast, too,
    unless it wants them kept in fp32 whatever the rest is (`_keep_in_fp32_modules_strict`)."""
    kept = tuple(model._keep_in_fp32_modules_strict or ())
    for name, parameter in model.named_parameters():
        is_other = parameter.is_floating_point() and parameter.dtype != dtype
        if is_other and not any(part in name for part in kept):
            parameter.data = parameter.data.to(dtype)
    return model


def _with_fp32_parts(model: Any, dtype: torch.dtype) -> Any:
    """Modules that from_pretrained keeps in fp32 when it loads the rest in fp16 (`_keep_in_fp32_modules`)."""
    kept = set(model._keep_in_fp32_modules or ()) if dtype == torch.float16 else set()
    for name, parameter in model.named_parameters():
        if kept & set(name.split(".")):
            parameter.data = parameter.data.float()
    return model


def frozen_model(config: Config, job: Job, dtype: torch.dtype) -> Any:
    return bare_model(config, job, dtype).eval().requires_grad_(False)


def trained_model(config: Config, job: Job, dtype: torch.dtype, compute: torch.dtype) -> Any:
    """Ready for its first step, still on the host; `compute` is what 4-bit weights are dequantised to."""
    model = bare_model(config, job, dtype)
    blocks = set(model._no_split_modules or ())
    if job.loss == "fused":
        fuse_loss(model)
    if job.loss == "tiled":
        tile_loss(model)
    for name, parameter in model.named_parameters():
        if any(
            fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
            for pattern in job.freeze
        ):
            parameter.requires_grad_(False)
    if job.expand_blocks is not None:
        _train_added(model, added_layers(config, job.expand_blocks))
    if job.quantize != "none":
        model = _in_4_bit(model, job, compute)
    if job.checkpointing != "none":
        _checkpoint(model, job)
    if job.has_adapters:
        model = adapted_model(model, job)
    model = model.train()
    model.vramcast_blocks = blocks
    return model


def _train_added(model: Any, numbers: frozenset[int]) -> None:
    """Of LLaMA-Pro's blocks those that were added."""
    for name, parameter in model.named_parameters():
        number = next((int(part) for part in name.split(".") if part.isdecimal()), None)
        parameter.requires_grad_(number in numbers)


# ---- 4-bit weights


def bitsandbytes() -> Any:
    log = logging.getLogger("bitsandbytes")
    before = log.level
    log.setLevel(logging.ERROR)  # it tells about kernels of the CPU that nobody needs here
    try:
        import bitsandbytes as found
    except ImportError:
        raise UnsupportedError(
            f"this job needs bitsandbytes to be traced: pip install '{BITSANDBYTES}'"
        ) from None
    finally:
        log.setLevel(before)
    if tuple(int(part) for part in found.__version__.split(".")[:2]) >= (0, 50):
        raise UnsupportedError(
            f"bitsandbytes {found.__version__} hides what its 4-bit product takes: pip install '{BITSANDBYTES}'"
        )
    return found


def _in_4_bit(model: Any, job: Job, compute: torch.dtype) -> Any:
    """load_in_4bit, and prepare_model_for_kbit_training unless weights are sharded or adapters have 16 bits: linear
    layers (GPT-2's Conv1D too) but the head are packed, the rest is raised to fp32."""
    from transformers.pytorch_utils import Conv1D

    library = bitsandbytes()
    head, spared = model.get_output_embeddings(), model._keep_in_fp32_modules or ()
    for name, module in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if (
            isinstance(module, torch.nn.Linear | Conv1D)
            and module is not head
            and child not in spared
        ):
            setattr(model.get_submodule(parent), child, _packed(library, module, job, compute))
    model.requires_grad_(False)
    raises = job.strategy != "fsdp2" and resolve(job).adapter.is_raised
    for parameter in model.parameters() if raises else ():
        if not isinstance(parameter, library.nn.Params4bit):
            parameter.data = parameter.data.float()
    model.is_loaded_in_4bit = True  # what PEFT asks before it chooses its 4-bit adapter
    return model


def _packed(library: Any, linear: Any, job: Job, compute: torch.dtype) -> Any:
    how: dict[str, Any] = {
        "quant_type": "nf4",
        "compress_statistics": job.quantize == "nf4-double",
        "quant_storage": compute
        if job.strategy == "fsdp2"
        else torch.uint8,  # shards want one dtype
    }
    weight = (
        linear.weight.data
        if isinstance(linear, torch.nn.Linear)
        else linear.weight.data.T.contiguous()
    )
    outs, ins = weight.shape
    made = library.nn.Linear4bit(
        ins, outs, bias=linear.bias is not None, compute_dtype=compute, **how
    )
    made.weight = library.nn.Params4bit(weight, requires_grad=False, module=made, **how)
    made.bias = linear.bias
    return made


def pack_on_host(model: Any, device: torch.device) -> None:
    """Before weights are divided: packed where they were loaded, their scales whole on every card."""
    library = bitsandbytes()
    for module in model.modules():
        if isinstance(module, library.nn.Linear4bit):
            module.weight = module.weight.to("cpu")
            module.weight.quant_state.to(device)
            module.quant_state = module.weight.quant_state


# ---- checkpointing


def _checkpoint(model: Any, job: Job) -> None:
    model.config.use_cache = False
    if job.checkpointing == "full":
        reentrant = resolve(job).checkpointing.is_reentrant
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    elif job.checkpointing == "selective":
        kept = functools.partial(
            checkpoint.create_selective_checkpoint_contexts, list(KEPT_PRODUCTS)
        )
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": kept})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": True})
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = _offloaded


def _offloaded(block: Callable[..., Any], *inputs: Any) -> Any:
    """Inputs of blocks wait in pinned host memory: saved tensors of the checkpoint, and of nothing else."""
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        return checkpoint.checkpoint(block, *inputs, use_reentrant=True)
