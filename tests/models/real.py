"""Real torch as the judge: build a transformers model, run it on the CPU, add up what autograd saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import transformers
from transformers import initialization


class Savings:
    """Distinct storages saved for backward, without parameters (and their autocast copies, told by shape), buffers
    and the tensors that exist anyway."""

    def __init__(self, module: torch.nn.Module, outside: tuple[torch.Tensor, ...] = ()) -> None:
        self._known = {
            _pointer(tensor) for tensor in (*module.parameters(), *module.buffers(), *outside)
        }
        self._weights = {
            shape for p in module.parameters() for shape in (tuple(p.shape), tuple(p.shape[::-1]))
        }
        self._alive: list[Any] = []  # a freed storage's address could be given out again
        self.found: dict[int, torch.Tensor] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tuple(tensor.shape) in self._weights and tensor.dtype == torch.bfloat16
        if _pointer(tensor) not in self._known and not copy:
            self.found[_pointer(tensor)] = tensor.detach()
        self._alive.append(tensor.detach())
        return tensor.detach()  # the tensor itself would hold its graph, and the graph the tensor

    @property
    def nbytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.found.values())


def _pointer(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def saved_bytes(
    module: torch.nn.Module, run: Callable[[], Any], outside: tuple[torch.Tensor, ...] = ()
) -> int:
    """Bytes saved for backward while `run` runs."""
    savings = Savings(module, outside)
    with torch.autograd.graph.saved_tensors_hooks(savings.pack, lambda tensor: tensor):
        result = run()
    del result
    return savings.nbytes


@contextmanager
def savings_of(layer: torch.nn.Module) -> Iterator[list[Savings]]:
    """What `layer` saves whenever the model calls it. Its first argument counts as its own; masks, tables and encoder
    states that come with it do not."""
    made: list[Savings] = []
    hooks: list[torch.autograd.graph.saved_tensors_hooks] = []

    def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs["hidden_states"]
        outside = tuple(x for x in _tensors((args, kwargs)) if _pointer(x) != _pointer(stream))
        made.append(Savings(module, outside))
        hooks.append(torch.autograd.graph.saved_tensors_hooks(made[-1].pack, lambda tensor: tensor))
        hooks[-1].__enter__()

    def after(*ignored: Any) -> None:
        hooks.pop().__exit__(None, None, None)

    handles = [
        layer.register_forward_pre_hook(before, with_kwargs=True),
        layer.register_forward_hook(after),
    ]
    yield made
    for handle in handles:
        handle.remove()


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        yield from _tensors(tuple(tree.values()))
    elif isinstance(tree, tuple | list):
        for branch in tree:
            yield from _tensors(branch)


def hf_config(data: Mapping[str, Any], **changes: Any) -> transformers.PretrainedConfig:
    """The config object transformers makes of a config.json."""
    keys = {key: value for key, value in data.items() if key not in ("model_type", "auto_map")}
    config = transformers.AutoConfig.for_model(data["model_type"], **keys)
    for key, value in changes.items():
        setattr(config, key, value)
    return config


def model_class(data: Mapping[str, Any]) -> Any:
    return getattr(transformers, data["architectures"][0])


def meta_model(data: Mapping[str, Any]) -> torch.nn.Module:
    """The model of a config.json, without data."""
    with torch.device("meta"):
        model: torch.nn.Module = model_class(data)._from_config(hf_config(data))
    return model


def real_model(
    data: Mapping[str, Any], *, precision: str, attention: str, use_cache: bool = False
) -> torch.nn.Module:
    """The model of a config.json in memory, in training mode; its values do not matter."""
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    kind, config = model_class(data), hf_config(data, use_cache=use_cache)
    attention = (
        "eager" if attention == "sdpa" and not kind._supports_sdpa else attention
    )  # as transformers chooses
    with initialization.no_init_weights():
        model = kind._from_config(config, dtype=dtype, attn_implementation=attention)
    training: torch.nn.Module = model.train()
    return training


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
