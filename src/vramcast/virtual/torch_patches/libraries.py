"""Libraries around torch: what they remember about CUDA, how they write files, and weights that are not on disk."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu

# Modules that remember, once and for all, whether there is a CUDA device.
_REMEMBERING = (
    "transformers.utils.import_utils", "transformers.utils.generic", "transformers.utils", "accelerate.utils.imports",
    "accelerate.utils.environment", "peft.import_utils",
)  # fmt: skip


def forget_devices() -> None:
    """Clear what libraries cached, on the way in and on the way out."""
    for name in _REMEMBERING:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            clear = getattr(value, "cache_clear", None)
            if callable(clear):
                clear()


def install_safetensors(gpu: VirtualGpu, patches: Patches) -> None:
    """Its writer reads memory by address, and virtual tensors have none: files get true headers and a hole for data."""
    try:
        import safetensors.torch
    except ImportError:
        return

    def keep(tensors: dict[str, torch.Tensor], *args: Any) -> dict[str, torch.Tensor]:
        gpu.note("safetensors wrote no weights: virtual tensors have no values")
        return tensors

    def write(tensors: dict[str, torch.Tensor], path: Any, metadata: dict[str, str] | None = None) -> None:
        header, data_bytes = _shapes(tensors, metadata)
        with open(path, "wb") as file:
            file.write(header)
            file.truncate(len(header) + data_bytes)

    def serialize(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
        header, data_bytes = _shapes(tensors, metadata)
        return header + bytes(data_bytes)

    patches.set(safetensors.torch, "serialize_file", write)
    patches.set(safetensors.torch, "serialize", serialize)
    for name in ("_flatten", "_flatten_as_ptr"):
        if hasattr(safetensors.torch, name):
            patches.set(safetensors.torch, name, keep)


def _shapes(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None) -> tuple[bytes, int]:
    """The head of a safetensors file, and how many bytes of data follow it: as a hole, they read as zeros."""
    from safetensors.torch import _TYPES

    names = {dtype: name for name, dtype in _TYPES.items()}
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):  # widest first: aligned
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def install_empty_weights(gpu: VirtualGpu, patches: Patches) -> None:
    """`from_pretrained` with a config and no weights: a model of the right shape and dtype."""
    from transformers import AutoConfig, GenerationConfig, PreTrainedModel

    def from_pretrained(cls: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.pop("config", None) or AutoConfig.from_pretrained(path)
        dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
        if dtype in (None, "auto"):
            dtype = getattr(config, "dtype", None) or torch.float32
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        attention = kwargs.pop("attn_implementation", None)
        options = {} if attention is None else {"attn_implementation": attention}
        gpu.note(f"{cls.__name__}.from_pretrained({str(path)!r}): empty weights in {dtype}")
        model = cls._from_config(config, dtype=dtype, **options)
        if model.can_generate():
            model.generation_config = GenerationConfig.from_model_config(config)
        device_map = kwargs.pop("device_map", None)
        quantization = kwargs.pop("quantization_config", None) or getattr(config, "quantization_config", None)
        if quantization is not None:
            _quantize(model, quantization, dtype, _one_device(device_map or "auto"))
        elif device_map is not None:
            model = model.to(_one_device(device_map))
        return model.eval()

    patches.set(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))


def _quantize(model: Any, how: Any, dtype: torch.dtype, device: Any) -> None:
    """As from_pretrained does it: modules are exchanged, and each weight is quantized on its way to the device."""
    from transformers.quantizers import AutoHfQuantizer

    quantizer = AutoHfQuantizer.from_config(how, pre_quantized=False)
    quantizer.validate_environment(device_map={"": device})
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        quantizer.preprocess_model(model=model, dtype=dtype, device_map={"": device})
    finally:
        torch.set_default_dtype(before)
    torch.nn.Module.to(model, device)  # the model's own refuses once it is quantized
    model.hf_quantizer = quantizer
    quantizer.postprocess_model(model)


def _one_device(device_map: Any) -> Any:
    if isinstance(device_map, dict):
        places = set(device_map.values())
        return places.pop() if len(places) == 1 else "cuda:0"
    return "cuda:0" if device_map in ("auto", "balanced", "sequential", "balanced_low_0") else device_map
