"""Find the routers of a mixture-of-experts model, and read what they decide.

In: a model, and patterns of names if its routers are not transformers' own. Out: a Router per gate, and a Routing
(logits, weights, indices) of each output it returns. Knows the forms of output of transformers 4 and 5, and no losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vramcast.errors import UnsupportedError, unknown
from vramcast.runtime.training.graph_cut import without_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What one router call decided. Weights are (tokens, k) if there are `indices`, else dense (tokens, experts)."""

    layer: str
    logits: Tensor
    weights: Tensor | None = None
    indices: Tensor | None = None
    surprise: Tensor | None = None

    @property
    def scores(self) -> Tensor:
        return torch.softmax(self.logits, dim=-1, dtype=torch.float32)

    def routed(self) -> Tensor:
        """Which expert each token went to, as (tokens, experts) booleans; any k, also one per token."""
        if self.indices is not None:
            mask = torch.zeros_like(self.logits, dtype=torch.bool)
            return mask.scatter_(-1, self.indices, True)
        if self.weights is None:
            raise UnsupportedError(
                f"{self.layer} reports only logits. Pass read= to AuxCollector to read its weights."
            )
        return self.weights > 0

    def detached(self) -> Routing:
        kept = [
            without_graph(value)
            for value in (self.logits, self.weights, self.indices, self.surprise)
        ]
        return Routing(
            layer=self.layer, logits=kept[0], weights=kept[1], indices=kept[2], surprise=kept[3]
        )


Reader = Callable[[Any], Routing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A gate inside a model: its name without wrappers, the block around it, and where its output has the logits."""

    name: str
    gate: nn.Module
    block: nn.Module
    logits_index: int = 0

    def logits(self, output: Any) -> Tensor:
        """The very tensor of the output, for hooks on its gradient."""
        if isinstance(output, Tensor):
            return output
        if _lacks_logits(output):
            raise UnsupportedError(
                f"{self.name} ({type(self.gate).__name__}) returns no logits, so nothing can be added to their "
                "gradient. Use TwoPhaseStep, which computes them again from the gate's input."
            )
        found: Tensor = output["logits" if isinstance(output, dict) else self.logits_index]
        return found

    def read(
        self,
        output: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Routing:
        """transformers 5 returns (logits, weights, indices); a router with its logits elsewhere is read for them
        only. transformers 4 returns logits, or only the choice made from them: then they are computed from the
        gate's input.
        """
        if isinstance(output, Tensor):
            return Routing(layer=self.name, logits=_flat(output))
        if isinstance(output, dict):
            return _from_dict(self.name, output)
        if _lacks_logits(output):
            hidden = first_floating(args, kwargs or {})
            logits = self._compute_logits(hidden, parameters or dict(self.gate.named_parameters()))
            return _with_choice(self.name, logits, _flat(output[0]), _flat(output[1]))
        logits = _flat(self.logits(output))
        if self.logits_index != 0 or len(output) < 3:
            return Routing(layer=self.name, logits=logits)
        return Routing(
            layer=self.name, logits=logits, weights=_flat(output[1]), indices=_flat(output[2])
        )

    def _compute_logits(self, hidden: Tensor | None, parameters: Mapping[str, Tensor]) -> Tensor:
        """The product with which all these gates begin, in float32."""
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if hidden is None or weight is None or weight.shape[1:] != hidden.shape[-1:]:
            raise UnsupportedError(
                f"{self.name} ({type(self.gate).__name__}) returns no logits and has no (experts, hidden) weight to "
                "compute them from. Pass read= to AuxCollector to read its output."
            )
        if bias is not None:
            bias = bias.float()
        return F.linear(_flat(hidden).float(), weight.float(), bias)


def _lacks_logits(output: Any) -> bool:
    """(indices, weights) as DeepSeek's gates, or (a score for every expert, indices) as gpt-oss', in transformers 4."""
    if not isinstance(output, (tuple, list)) or len(output) < 2:
        return False
    integers = [isinstance(value, Tensor) and not value.is_floating_point() for value in output[:2]]
    return integers[0] or (len(output) == 2 and integers[1])


def _from_dict(layer: str, output: Mapping[str, Tensor]) -> Routing:
    known = [key for key in ("logits", "weights", "indices") if key in output]
    return Routing(layer=layer, **{key: _flat(output[key]) for key in known})


def _with_choice(layer: str, logits: Tensor, first: Tensor, second: Tensor) -> Routing:
    """A routing of one of the two outputs that `_lacks_logits` knows."""
    if second.is_floating_point():
        return Routing(layer=layer, logits=logits, weights=second, indices=first)
    return Routing(layer=layer, logits=logits, weights=first.gather(-1, second), indices=second)


def first_floating(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The hidden states among a module's arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return None


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def find_routers(model: nn.Module, names: Iterable[str] | None = None) -> tuple[Router, ...]:
    """The routers named by patterns such as "layers.*.mlp.gate", or those transformers records for this model, or,
    where it records none (before 4.56), every `gate` or `router` in a block that also has `experts`.
    """
    found = _named(model, names) if names is not None else _declared(model)
    if not found:
        raise UnsupportedError(
            f"{type(model).__name__} declares no routers. Name them: routers=['layers.*.mlp.gate']. "
            f"Linear modules here: {', '.join(_some_linear_names(model))}."
        )
    return tuple(found)


def _declared(model: nn.Module) -> list[Router]:
    return _recorded(model) or _next_to_experts(model)


def _named(model: nn.Module, patterns: Iterable[str]) -> list[Router]:
    modules = dict(model.named_modules())
    found: dict[str, Router] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        names = [
            name
            for name in modules
            if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")
        ]
        if not names:
            raise unknown("router", pattern, modules)
        found.update({name: _router(model, name) for name in names})
    return list(found.values())


def _recorded(model: nn.Module) -> list[Router]:
    """Every submodel of transformers 5 lists the classes whose outputs are router logits; 4.56 and 4.57 list the blocks
    around the gates.
    """
    found: dict[str, Router] = {}
    for root, submodel in model.named_modules():
        recorded = getattr(submodel, "_can_record_outputs", None) or {}
        specs = recorded.get("router_logits", [])
        for spec in specs if isinstance(specs, list) else [specs]:
            for name, module in _modules_of(spec, submodel, root):
                gate = _gate_next_to_experts(name, module) or name
                found[gate] = _router(model, gate, getattr(spec, "index", 1))
    return list(found.values())


def _modules_of(spec: Any, submodel: nn.Module, root: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a record of transformers is about: of one class, and below a layer name if it has one."""
    target: Any = getattr(spec, "target_class", spec)
    layer_name = getattr(spec, "layer_name", None)
    wanted = f".{layer_name.strip('.')}." if layer_name else "."
    for name, module in submodel.named_modules(prefix=root):
        if isinstance(module, target) and wanted in f".{name}.":
            yield name, module


def _next_to_experts(model: nn.Module) -> list[Router]:
    gates = [_gate_next_to_experts(name, module) for name, module in model.named_modules()]
    return [_router(model, gate) for gate in gates if gate is not None]


def _gate_next_to_experts(name: str, block: nn.Module) -> str | None:
    children = dict(block.named_children())
    if "experts" not in children:
        return None
    for gate in ("gate", "router"):
        if gate in children:
            return f"{name}.{gate}".lstrip(".")
    return None


def _router(model: nn.Module, path: str, logits_index: int = 0) -> Router:
    """DDP and torch.compile put a word of their own into every name; a layer keeps its name without them."""
    name = ".".join(part for part in path.split(".") if part not in ("module", "_orig_mod"))
    block = model.get_submodule(path.rpartition(".")[0])
    return Router(name=name, gate=model.get_submodule(path), block=block, logits_index=logits_index)


def _some_linear_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][:8]
