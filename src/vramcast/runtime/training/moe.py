"""What a mixture-of-experts model's gates saw and said, kept so that the gates can be trained after the graph is gone.

In: a model whose routers are transformers' recorded ones or are named by the caller. Out: per router call its
detached inputs and its routing, and a replay that rebuilds the routing from those inputs with a graph to the gate's
parameters only. Replaying differs from keeping the whole graph in one respect: the gradient that a gating loss would
send through lower layers is cut, so it is exact for the last mixture layer and leaves out the cross-layer terms of
the earlier ones. A router that draws noise draws it anew on replay. Does not know the gating loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.ledger import BACKWARD, STEP, Category, Entry, Ledger, Origin
from vramcast.runtime.training.graph_cut import as_leaf
from vramcast.runtime.training.placement import tensor_bytes

KEEP = {
    "inputs": "detached gate inputs: the gates are run again in the second phase",
    "graph": "live logits: the whole graph stays until the last backward",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What one router call decided. Weights are (tokens, k) beside `indices`, or dense (tokens, experts) without."""

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
            raise UnsupportedError(f"{self.layer} reports only logits. Pass read= to AuxCollector to read its weights.")
        return self.weights > 0

    def detached(self) -> Routing:
        kept = [_input(value) for value in (self.logits, self.weights, self.indices, self.surprise)]
        return Routing(layer=self.layer, logits=kept[0], weights=kept[1], indices=kept[2], surprise=kept[3])


Reader = Callable[[Any], Routing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A gate inside a model, under its name without wrappers, the block around it, and where its logits are."""

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
        only. transformers 4 returns logits, or what they lead to: then they are computed from the gate's input.
        """
        if isinstance(output, Tensor):
            return Routing(layer=self.name, logits=_flat(output))
        if isinstance(output, dict):
            fields = {key: _flat(value) for key, value in output.items() if key in ("logits", "weights", "indices")}
            return Routing(layer=self.name, **fields)
        if _lacks_logits(output):
            logits = self._linear(first_floating(args, kwargs or {}), parameters or dict(self.gate.named_parameters()))
            return _with_choice(self.name, logits, *(_flat(value) for value in output[:2]))
        logits = _flat(self.logits(output))
        if self.logits_index != 0 or len(output) < 3:
            return Routing(layer=self.name, logits=logits)
        return Routing(layer=self.name, logits=logits, weights=_flat(output[1]), indices=_flat(output[2]))

    def _linear(self, hidden: Tensor | None, parameters: Mapping[str, Tensor]) -> Tensor:
        """The product all these gates begin with, in float32."""
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if hidden is None or weight is None or weight.dim() != 2 or weight.shape[-1] != hidden.shape[-1]:
            raise UnsupportedError(
                f"{self.name} ({type(self.gate).__name__}) returns no logits and has no (experts, hidden) weight to "
                "compute them from. Pass read= to AuxCollector to read its output."
            )
        return F.linear(_flat(hidden).float(), weight.float(), None if bias is None else bias.float())


def _lacks_logits(output: Any) -> bool:
    """(indices, weights) as DeepSeek's gates, or (a score for every expert, indices) as gpt-oss', in transformers 4."""
    if not isinstance(output, (tuple, list)) or len(output) < 2:
        return False
    integers = [isinstance(value, Tensor) and not value.is_floating_point() for value in output[:2]]
    return integers[0] or (len(output) == 2 and integers[1])


def _with_choice(layer: str, logits: Tensor, first: Tensor, second: Tensor) -> Routing:
    if second.is_floating_point():
        return Routing(layer=layer, logits=logits, weights=second, indices=first)
    return Routing(layer=layer, logits=logits, weights=first.gather(-1, second), indices=second)


def first_floating(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The hidden states among a module's arguments."""
    values = (*args, *kwargs.values())
    return next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), None)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def find_routers(model: nn.Module, names: Iterable[str] | None = None) -> tuple[Router, ...]:
    """The routers named by patterns such as "layers.*.mlp.gate", or those transformers records for this model, or,
    where it records none (before 4.56), every `gate` or `router` that stands beside `experts`.
    """
    found = _named(model, names) if names is not None else _recorded(model) or _beside_experts(model)
    if not found:
        raise UnsupportedError(
            f"{type(model).__name__} declares no routers. Name them: routers=['layers.*.mlp.gate']. "
            f"Linear modules here: {', '.join(_some_linear_names(model))}."
        )
    return tuple(found)


def _named(model: nn.Module, patterns: Iterable[str]) -> list[Router]:
    modules = dict(model.named_modules())
    found: dict[str, Router] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        names = [name for name in modules if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")]
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
        specs = (getattr(submodel, "_can_record_outputs", None) or {}).get("router_logits", [])
        for spec in specs if isinstance(specs, list) else [specs]:
            target: Any = getattr(spec, "target_class", spec)
            for name, module in submodel.named_modules(prefix=root):
                wanted = f".{spec.layer_name.strip('.')}." if getattr(spec, "layer_name", None) else "."
                if isinstance(module, target) and wanted in f".{name}.":
                    gate = _gate_beside_experts(name, module) or name
                    found[gate] = _router(model, gate, getattr(spec, "index", 1))
    return list(found.values())


def _beside_experts(model: nn.Module) -> list[Router]:
    gates = [_gate_beside_experts(name, module) for name, module in model.named_modules()]
    return [_router(model, gate) for gate in gates if gate is not None]


def _gate_beside_experts(name: str, block: nn.Module) -> str | None:
    children = dict(block.named_children())
    gate = next((each for each in ("gate", "router") if each in children and "experts" in children), None)
    return None if gate is None else f"{name}.{gate}".lstrip(".")


def _router(model: nn.Module, path: str, logits_index: int = 0) -> Router:
    """DDP and torch.compile put a word of their own into every name; a layer keeps its name without them."""
    name = ".".join(part for part in path.split(".") if part not in ("module", "_orig_mod"))
    block = model.get_submodule(path.rpartition(".")[0])
    return Router(name=name, gate=model.get_submodule(path), block=block, logits_index=logits_index)


def _some_linear_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCall:
    """One forward of one gate: enough to run it again."""

    router: Router
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    routing: Routing
    parameters: dict[str, tuple[torch.Size, torch.dtype]]  # as the forward saw them
    autocast: tuple[str, torch.dtype, bool]
    versions: tuple[int, ...]

    def replay(self, parameters: dict[str, Tensor]) -> Routing:
        """The routing again, with a graph from the given full parameters."""
        if self.versions != _versions(self.args):
            raise InputError(
                f"{self.router.name}: the model changed the gate's input in place after the gate ran, so it cannot be "
                "replayed. Clone it before the in-place operation, or use OnePassStep."
            )
        device_type, dtype, enabled = self.autocast
        cast = {name: parameters[name].to(seen) for name, (_, seen) in self.parameters.items()}
        with torch.autocast(device_type, dtype=dtype, enabled=enabled):
            output = torch.func.functional_call(self.router.gate, cast, self.args, self.kwargs)
            routing = self.router.read(output, self.args, self.kwargs, cast)
        return replace(routing, surprise=self.routing.surprise)

    def held(self) -> list[Tensor]:
        routing = [self.routing.logits, self.routing.weights, self.routing.indices, self.routing.surprise]
        return [value for value in (*self.args, *self.kwargs.values(), *routing) if isinstance(value, Tensor)]


class Passes:
    """Whether the forward that is running was started without gradients.

    Asked where the model itself is called: inside, reentrant checkpointing switches gradients off for layers that will
    have some. A call of a single layer is taken for one with gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        self._with_gradients: list[bool] = []
        self._handles = [
            model.register_forward_pre_hook(self._enter),
            model.register_forward_hook(self._leave, always_call=True),  # also when the forward fails
        ]

    @property
    def gradient_free(self) -> bool:
        return bool(self._with_gradients) and not self._with_gradients[-1]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._with_gradients.clear()

    def _enter(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        self._with_gradients.append(torch.is_grad_enabled())

    def _leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._with_gradients:
            self._with_gradients.pop()


class AuxCollector:
    """Collects every training forward of the routers while it is open.

    with AuxCollector(model) as aux:
        model(**batch).loss.backward()
        aux.calls[0].routing.logits          # detached; aux.calls[0].replay(...) has a graph

    A forward without gradients (torch.no_grad) trains nothing and is not collected, in train mode either.
    """

    def __init__(
        self,
        model: nn.Module,
        routers: Iterable[str] | None = None,
        *,
        keep: str = "inputs",
        read: Reader | None = None,
    ) -> None:
        if keep == "scores":
            raise UnsupportedError(
                "keep='scores' cannot train the gate: detached scores carry no gradient, so backward on a loss of them "
                "raises. The least that works is keep='inputs' (gate inputs, run again in the second phase)."
            )
        if keep not in KEEP:
            raise unknown("keep", keep, KEEP)
        self.routers = find_routers(model, routers)
        self.calls: list[GateCall] = []
        self._keep = keep
        self._read = read
        self._paused = False
        self._num_finished = 0  # calls of forwards whose backward came to its end
        self._passes = Passes(model)
        self._handles = [
            router.gate.register_forward_hook(self._hook_of(router), with_kwargs=True) for router in self.routers
        ]

    def __enter__(self) -> AuxCollector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._passes.close()
        self.release()

    def release(self) -> None:
        """Forget what was collected."""
        self.calls.clear()
        self._num_finished = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Calls inside count if the block comes to its end. If it fails they are forgotten, as are calls outside."""
        self.forget_unfinished()
        try:
            yield
        except BaseException:
            self.forget_unfinished()
            raise
        self._num_finished = len(self.calls)

    def forget_unfinished(self) -> None:
        """Forget the calls that were made outside recording(), or in one that failed."""
        del self.calls[self._num_finished :]

    def gate_parameters(self) -> list[nn.Parameter]:
        return list(dict.fromkeys(p for router in self.routers for p in router.gate.parameters() if p.requires_grad))

    def unfinished(self) -> list[GateCall]:
        """The calls of the recording that is running."""
        return self.calls[self._num_finished :]

    def attach(self, surprise: dict[str, Tensor]) -> None:
        """Give the latest call of each layer the surprise that was measured for it."""
        latest = {call.router.name: index for index, call in enumerate(self.calls)}
        for name, matrix in surprise.items():
            if name not in latest:
                raise unknown("layer", name, latest, "Call SurpriseTracker.watch with the router's name.")
            call = self.calls[latest[name]]
            self.calls[latest[name]] = replace(call, routing=replace(call.routing, surprise=matrix))

    def held_bytes(self) -> int:
        """What the collected calls keep alive, each storage once."""
        return tensor_bytes([tensor for call in self.calls for tensor in call.held()])

    def replay(self, parameters: dict[str, dict[str, Tensor]]) -> list[Routing]:
        """All collected calls again, from full parameters per router, without collecting them a second time."""
        self._paused = True
        try:
            return [call.replay(parameters[call.router.name]) for call in self.calls]
        finally:
            self._paused = False

    def _hook_of(self, router: Router) -> Callable[..., None]:
        def collect(gate: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            # Checkpointing runs the forward again inside backward; that is the same call, not another one.
            if self._paused or not gate.training or self._passes.gradient_free or inside_backward():
                return
            if self._read is not None:
                routing = replace(self._read(output), layer=router.name)
            else:
                routing = router.read(output, args, kwargs)
            self.calls.append(_call(router, args, kwargs, routing, self._keep))

        return collect


def _call(router: Router, args: tuple[Any, ...], kwargs: dict[str, Any], routing: Routing, keep: str) -> GateCall:
    if keep == "inputs":
        args = tuple(_input(value) for value in args)
        kwargs = {name: _input(value) for name, value in kwargs.items()}
        routing = routing.detached()
    else:
        args, kwargs = (), {}
    device_type = routing.logits.device.type
    return GateCall(
        router=router, args=args, kwargs=kwargs, routing=routing, versions=_versions(args),
        parameters={name: (p.shape, p.dtype) for name, p in router.gate.named_parameters()},
        autocast=(device_type, torch.get_autocast_dtype(device_type), torch.is_autocast_enabled(device_type)),
    )  # fmt: skip


def _input(value: Any) -> Any:
    return as_leaf(value, requires_grad=False) if isinstance(value, Tensor) else value


def _versions(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(value._version for value in args if isinstance(value, Tensor))


def inside_backward() -> bool:
    """Whether autograd is running a backward pass on this thread, as torch.utils.checkpoint itself asks."""
    return bool(torch._C._current_graph_task_id() != -1)


def held_between_phases(
    *, num_layers: int, tokens: int, hidden: int, experts: int, top_k: int, dtype_bytes: int, tracked: bool = False,
    place: str = "cuda:0",
) -> Ledger:  # fmt: skip
    """What TwoPhaseStep holds after the first phase, before anything ran; `tracked` where surprise is measured."""
    lines = [
        ("gate inputs", "h", hidden, dtype_bytes),
        ("router logits", "E", experts, dtype_bytes),
        ("routing weights", "k", top_k, dtype_bytes),
        ("expert indices", "k", top_k, 8),
    ]
    if tracked:
        lines.append(("surprise", "E", experts, 4))
    return Ledger(entries=tuple(
        Entry(category=Category.ACTIVATIONS, component=name, place=place, phases=(BACKWARD, STEP),
              nbytes=num_layers * tokens * width * size, origin=Origin.FORMULA, needed_by="gate phase",
              formula=f"L·T·{sign}·{size} = {num_layers}·{tokens}·{width}·{size}")
        for name, sign, width, size in lines
    ))  # fmt: skip
