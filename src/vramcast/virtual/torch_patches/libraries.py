"""Libraries around torch: what they remember about CUDA, how they write files, and weights that are not on disk.

In come calls of transformers, accelerate, peft and safetensors, out come files with true headers and models with true
shapes. Does not know the values of weights, nor libraries that are not named here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from vramcast.patches import Patches
from vramcast.virtual.state import GpuState

# Modules that remember, once and for all, whether there is a CUDA device.
_REMEMBERING = (
    "transformers.utils.import_utils",
    "transformers.utils.generic",
    "transformers.utils",
    "accelerate.utils.imports",
    "accelerate.utils.environment",
    "peft.import_utils",
)

DTYPE_FROM = (4, 56)  # modeling_utils.py: `dtype` is what `torch_dtype` was called before
CONFIG_DECIDES_FROM = (5, 0)  # modeling_utils.py from_pretrained: dtype "auto" unless asked


def forget_devices() -> None:
    """Clear what libraries cached, when the virtual GPU begins and when it ends."""
    for name in _REMEMBERING:
        if name not in sys.modules:
            continue
        for value in list(vars(sys.modules[name]).values()):
            clear = getattr(value, "cache_clear", None)
            if callable(clear):
                clear()


def install_safetensors(gpu: GpuState, patches: Patches) -> None:
    """Its writer reads memory by address, and virtual tensors have none: files get true headers and a hole for data."""
    try:
        import safetensors.torch
    except ImportError:
        return

    def keep(tensors: dict[str, torch.Tensor], *args: Any) -> dict[str, torch.Tensor]:
        gpu.note("safetensors wrote no weights: virtual tensors have no values")
        return tensors

    def write(
        tensors: dict[str, torch.Tensor], path: Any, metadata: dict[str, str] | None = None
    ) -> None:
        header, data_bytes = _safetensors_header(tensors, metadata)
        with open(path, "wb") as file:
            file.write(header)
            file.truncate(len(header) + data_bytes)

    def serialize(
        tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
    ) -> bytes:
        header, data_bytes = _safetensors_header(tensors, metadata)
        return header + bytes(data_bytes)

    patches.set(safetensors.torch, "serialize_file", write)
    patches.set(safetensors.torch, "serialize", serialize)
    for name in ("_flatten", "_flatten_as_ptr"):
        if hasattr(safetensors.torch, name):
            patches.set(safetensors.torch, name, keep)


def _safetensors_header(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None
) -> tuple[bytes, int]:
    """The header of a safetensors file, and how many bytes of data follow it: as a hole, they read as zeros."""
    from safetensors.torch import _TYPES

    names = {dtype: name for name, dtype in _TYPES.items()}
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    widest_first = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # aligned
    for name, tensor in widest_first:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def install_empty_weights(gpu: GpuState, patches: Patches) -> None:
    """`from_pretrained` with a config and no weights: a model of the right shape and dtype."""
    from transformers import GenerationConfig, PreTrainedModel

    def from_pretrained(cls: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
        config = _config(cls, path, kwargs)
        dtype = _loaded_dtype(config, kwargs.get("dtype") or kwargs.get("torch_dtype"))
        gpu.note(f"{cls.__name__}.from_pretrained({str(path)!r}): empty weights in {dtype}")
        options = {"dtype" if _transformers_version() >= DTYPE_FROM else "torch_dtype": dtype}
        attention = kwargs.get("attn_implementation")
        if attention is not None:
            options["attn_implementation"] = attention
        model = cls._from_config(config, **options)
        if model.can_generate():
            model.generation_config = GenerationConfig.from_model_config(config)
        saved_quantization = getattr(config, "quantization_config", None)
        quantization = kwargs.get("quantization_config") or saved_quantization
        return _place(model, kwargs.get("device_map"), quantization, dtype).eval()

    patches.set(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))


_NOT_FOR_THE_CONFIG = (
    "attn_implementation",
    "config",
    "device_map",
    "dtype",
    "low_cpu_mem_usage",
    "quantization_config",
    "torch_dtype",
)


def _config(cls: Any, path: Any, options: dict[str, Any]) -> Any:
    """As from_pretrained finds it: where it was told to look, with the settings that it was told (`num_labels=3`)."""
    from transformers import AutoConfig, PretrainedConfig

    given = options.get("config")
    if isinstance(given, PretrainedConfig):
        given.name_or_path = str(path or given.name_or_path)
        return given
    settings = {key: value for key, value in options.items() if key not in _NOT_FOR_THE_CONFIG}
    reader = getattr(cls, "config_class", None) or AutoConfig
    config = reader.from_pretrained(given or path, return_unused_kwargs=True, **settings)[0]
    config.name_or_path = str(path)  # trainers find the tokenizer by it
    return config


def _loaded_dtype(config: Any, asked: Any) -> torch.dtype:
    """What from_pretrained loads: what is asked for; unasked fp32, since 5.0 what the config says."""
    if asked is None and _transformers_version() < CONFIG_DECIDES_FROM:
        return torch.float32
    if asked in (None, "auto"):
        asked = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    found: torch.dtype = getattr(torch, asked) if isinstance(asked, str) else asked
    return found or torch.float32


def _transformers_version() -> tuple[int, int]:
    import transformers

    major, minor = transformers.__version__.split(".")[:2]
    return int(major), int(minor)


def _place(model: Any, device_map: Any, quantization: Any, dtype: torch.dtype) -> Any:
    if quantization is not None:
        _quantize(model, quantization, dtype, _one_device(device_map or "auto"))
        return model
    return model if device_map is None else model.to(_one_device(device_map))


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
    """Models are not divided over cards here: the device a map names, else the first card."""
    if isinstance(device_map, dict):
        places = set(device_map.values())
        return places.pop() if len(places) == 1 else "cuda:0"
    if device_map in ("auto", "balanced", "sequential", "balanced_low_0"):
        return "cuda:0"
    return device_map
