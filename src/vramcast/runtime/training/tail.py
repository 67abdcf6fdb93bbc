"""The upper layers of a model as a separate model, on any device, whose input is the output of the lower layers.

In: a model whose blocks are in a ModuleList, and the first layer to take. Out: a module with the same parameter names
that runs the model's own forward, in which everything below that layer is a stand-in without weights. So masks,
positions, the last norm and the head are computed by the model's code, and only the weights of the upper layers, the
norm and the head are copied. A stand-in for a layer has the layer's plain attributes, which some forwards read (gemma2
of transformers 4.53 to 4.57). Encoder-decoder models are not supported.

Example: 32 layers of 400 MiB each, cut at layer 29, a head of 500 MiB. The tail holds layers 29 to 31 and the head,
1,700 MiB; layers 0 to 28 are stand-ins that return their input.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.runtime.training.placement import copy_to, tensor_bytes

# Inputs that only modules below the layers read. Their features are already inside the hidden states.
PREFIX_ONLY = ("pixel_values", "pixel_values_videos", "input_features", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The ModuleList that holds some parameters, and which of its entries do."""

    name: str
    modules: nn.ModuleList
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The output of the layers below the cut for one batch."""

    hidden: Tensor
    inputs: dict[str, Any]


def find_layers(model: nn.Module, parameters: Iterable[str]) -> Layers:
    """The outermost ModuleList around all the named parameters."""
    known = dict(model.named_parameters())
    found: dict[str, set[int]] = {}
    for parameter in parameters:
        if parameter not in known:
            raise unknown("parameter", parameter, known, "Names follow model.named_parameters().")
        name, index = _layer_of(model, parameter)
        found.setdefault(name, set()).add(index)
    if len(found) != 1:
        raise UnsupportedError(
            f"the inner parameters are in several stacks of layers: {', '.join(sorted(found))}."
        )
    ((name, indices),) = found.items()
    modules = model.get_submodule(name)
    assert isinstance(modules, nn.ModuleList)
    return Layers(name=name, modules=modules, indices=tuple(sorted(indices)))


def _layer_of(model: nn.Module, parameter: str) -> tuple[str, int]:
    parts = parameter.split(".")
    for depth in range(1, len(parts) - 1):
        name = ".".join(parts[:depth])
        if isinstance(model.get_submodule(name), nn.ModuleList):
            return name, int(parts[depth])
    raise UnsupportedError(
        f"{parameter} is not inside a ModuleList of layers, so there is no layer to cut at."
    )


class Tail:
    """Layers from `from_layer` on. Costs nothing with device=None: it then shares the model's tensors."""

    def __init__(
        self, model: nn.Module, layers: Layers, *, from_layer: int, device: torch.device | None
    ) -> None:
        _check_from_layer(layers, from_layer)
        self.model = model
        self.layers = layers
        self.from_layer = from_layer
        self._tuples = False
        self._device = device
        stand_ins = _stand_ins(model, layers, from_layer)
        self.module = copy_to(model, device, replace=stand_ins, share=device is None).eval()
        self._hidden: Tensor | None = None
        self._positions: Tensor | None = None
        entry = self.module.get_submodule(layers.name)[from_layer]
        entry.register_forward_pre_hook(self._enter, with_kwargs=True)
        if (head := _head(self.module)) is not None:
            head.register_forward_pre_hook(self._select)

    def send_prefix(self, device: torch.device) -> None:
        """Move everything the lower part uses to the device, and what only the upper part uses to the CPU."""
        upper = self._upper_only()
        for parameter in (*self.model.parameters(), *self.model.buffers()):
            parameter.data = parameter.data.to("cpu" if id(parameter) in upper else device)

    def prefix_bytes(self) -> int:
        """Bytes of the model on the lower part's device: all of it if the tail shares its tensors."""
        upper = set() if self._device is None else self._upper_only()
        tensors = (*self.model.parameters(), *self.model.buffers())
        return tensor_bytes([tensor for tensor in tensors if id(tensor) not in upper])

    def _upper_only(self) -> set[int]:
        """Parameters of the copied layers and of the head, without those that something below also uses (ties)."""
        upper = list(self.layers.modules[self.from_layer :])
        head = _head(self.model)
        if head is not None:
            upper.append(head)
        lower = _stand_ins(self.model, self.layers, self.from_layer)
        return _parameter_ids(upper) - _parameter_ids(lower)

    def prefix(self, batch: Mapping[str, Any]) -> Prefix:
        """Run the model up to the cut, once, without a graph: everything below is frozen."""
        caught: list[Tensor] = []

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught.append(args[0] if args else kwargs["hidden_states"])
            raise _Stop

        def notice_tuples(module: nn.Module, args: Any, output: Any) -> None:
            self._tuples = isinstance(output, tuple)

        handles = [
            self.layers.modules[self.from_layer].register_forward_pre_hook(stop, with_kwargs=True)
        ]
        if self.from_layer > 0:
            handles.append(
                self.layers.modules[self.from_layer - 1].register_forward_hook(notice_tuples)
            )
        training = self.model.training
        try:
            with torch.no_grad():
                self.model.eval()(**_without_cache(self.model, batch))
        except _Stop:
            pass
        finally:
            self.model.train(training)
            for handle in handles:
                handle.remove()
        inputs = {name: value for name, value in batch.items() if name not in PREFIX_ONLY}
        return Prefix(hidden=caught[0].detach(), inputs=inputs)

    def __call__(
        self,
        prefix: Prefix,
        weights: Mapping[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Logits of the upper layers with some weights replaced; only at `positions` (rows of indices) if given."""
        for stand_in in self.module.modules():
            if isinstance(stand_in, _PassThrough):
                stand_in.as_tuple = self._tuples
        self._hidden, self._positions = prefix.hidden, positions
        try:
            inputs = _without_cache(self.module, prefix.inputs)
            output = torch.func.functional_call(self.module, dict(weights or {}), (), inputs)
        finally:
            self._hidden, self._positions = None, None
        return output if isinstance(output, Tensor) else output.logits

    def _enter(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (self._hidden, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self._hidden}

    def _select(self, head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return None if self._positions is None else (args[0][tuple(self._positions)], *args[1:])


class _Stop(Exception):
    """The hidden states at the cut have been seen; nothing above is needed."""


class _PassThrough(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """Stands for a layer below the cut."""

    as_tuple = False

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        for name, value in vars(like).items():
            if not name.startswith("_") and isinstance(value, (bool, int, float, str)):
                setattr(self, name, value)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (hidden_states,) if self.as_tuple else hidden_states


class _Blank(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """Stands for an embedding: an output of the right shape that is never read."""

    def __init__(self, like: nn.Embedding) -> None:
        super().__init__()
        self.width, self.dtype = like.embedding_dim, like.weight.dtype

    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, self.width, dtype=self.dtype, device=ids.device)


class _Absent(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """Stands for another tower of the model, such as a vision encoder."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{self.name} was called above the cut. Its inputs must be consumed below the layers."
        )


def _check_from_layer(layers: Layers, from_layer: int) -> None:
    lowest = layers.indices[0]
    if not 0 <= from_layer <= lowest:
        raise InputError(
            f"from_layer={from_layer} would leave an edited layer behind: the lowest one is {lowest}. "
            f"Choose 0 to {lowest}; {lowest} moves the least."
        )


def _stand_ins(model: nn.Module, layers: Layers, from_layer: int) -> dict[nn.Module, nn.Module]:
    """Lower layers, embeddings and other towers, with what replaces each: the upper layers do not need them."""
    stand_ins: dict[nn.Module, nn.Module] = {}
    for layer in layers.modules[:from_layer]:
        stand_ins[layer] = _PassThrough(layer)
    inside = {id(module) for module in layers.modules.modules()}
    for name, module in model.named_modules():
        if id(module) in inside or _is_around(name, layers):
            continue
        if isinstance(module, nn.Embedding):
            stand_ins[module] = _Blank(module)
        elif _has_layers(module):
            stand_ins[module] = _Absent(name)
    return stand_ins


def _is_around(name: str, layers: Layers) -> bool:
    """Whether the module of this name contains the layers, or is their ModuleList."""
    return not name or f"{layers.name}.".startswith(f"{name}.")


def _has_layers(module: nn.Module) -> bool:
    return any(isinstance(part, nn.ModuleList) for part in module.modules())


def _parameter_ids(modules: Iterable[nn.Module]) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _head(model: nn.Module) -> nn.Module | None:
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if getter is not None else getattr(model, "lm_head", None)
    return head if isinstance(head, nn.Module) else None


def _without_cache(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Generation caches are of no use here and would keep every layer's keys and values."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    return inputs
