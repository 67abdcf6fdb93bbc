"""Collect inputs and outputs of a mixture-of-experts model's gates, to train the gates after the graph is freed.

In: a model whose routers are transformers' recorded ones or are named by the caller. Out: per router call its
detached inputs and its routing, and a replay that rebuilds the routing from those inputs with a graph to the gate's
parameters only. Replaying differs from keeping the whole graph in one respect: the gradient that a gating loss would
send through lower layers is cut, so it is exact for the last mixture layer and leaves out the cross-layer terms of
the earlier ones. A router that draws noise draws it anew on replay. Does not know the gating loss.

Example: 24 layers, 8,192 tokens, hidden 2,048, 64 experts, k = 8, bfloat16. Per layer the inputs take 8,192 · 2,048 · 2
= 32 MiB, logits 8,192 · 64 · 2 = 1 MiB, weights 8,192 · 8 · 2 = 128 KiB, indices 8,192 · 8 · 8 = 512 KiB: 807 MiB for
all layers, instead of every activation of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.ledger import BACKWARD, STEP, Category, Entry, Ledger, Origin
from vramcast.runtime.training.graph_cut import without_graph
from vramcast.runtime.training.placement import tensor_bytes
from vramcast.runtime.training.routers import Reader, Router, Routing, find_routers

KEEP = {
    "inputs": "detached gate inputs: the gates are run again in the second phase",
    "graph": "live logits: the whole graph stays until the last backward",
}


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
        """The tensors that this call keeps alive."""
        routing = self.routing
        decided = (routing.logits, routing.weights, routing.indices, routing.surprise)
        values = (*self.args, *self.kwargs.values(), *decided)
        return [value for value in values if isinstance(value, Tensor)]


class Passes:
    """Whether the forward that is running was started without gradients.

    Asked where the model itself is called: inside, reentrant checkpointing switches gradients off for layers that will
    have some. A call of a single layer is taken for one with gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        self._with_gradients: list[bool] = []
        self._handles = [
            model.register_forward_pre_hook(self._enter),
            # Always called: also when the forward fails.
            model.register_forward_hook(self._leave, always_call=True),
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
            router.gate.register_forward_hook(self._hook_of(router), with_kwargs=True)
            for router in self.routers
        ]

    def __enter__(self) -> AuxCollector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
        """Trainable parameters of all gates, each once."""
        parameters: dict[nn.Parameter, None] = {}
        for router in self.routers:
            parameters |= dict.fromkeys(p for p in router.gate.parameters() if p.requires_grad)
        return list(parameters)

    def unfinished(self) -> list[GateCall]:
        """The calls of the recording that is running."""
        return self.calls[self._num_finished :]

    def attach(self, surprise: dict[str, Tensor]) -> None:
        """Give the latest call of each layer the surprise that was measured for it."""
        latest = {call.router.name: index for index, call in enumerate(self.calls)}
        for name, matrix in surprise.items():
            if name not in latest:
                raise unknown(
                    "layer", name, latest, "Call SurpriseTracker.watch with the router's name."
                )
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
        def collect(
            gate: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            # Checkpointing runs the forward again inside backward; that is the same call, not another one.
            if self._paused or not gate.training or self._passes.gradient_free or inside_backward():
                return
            if self._read is not None:
                routing = replace(self._read(output), layer=router.name)
            else:
                routing = router.read(output, args, kwargs)
            self.calls.append(_call(router, args, kwargs, routing, self._keep))

        return collect


def _call(
    router: Router, args: tuple[Any, ...], kwargs: dict[str, Any], routing: Routing, keep: str
) -> GateCall:
    if keep == "inputs":
        args = tuple(without_graph(value) for value in args)
        kwargs = {name: without_graph(value) for name, value in kwargs.items()}
        routing = routing.detached()
    else:
        args, kwargs = (), {}
    device_type = routing.logits.device.type
    return GateCall(
        router=router,
        args=args,
        kwargs=kwargs,
        routing=routing,
        versions=_versions(args),
        parameters={name: (p.shape, p.dtype) for name, p in router.gate.named_parameters()},
        autocast=(
            device_type,
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_enabled(device_type),
        ),
    )


def _versions(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(value._version for value in args if isinstance(value, Tensor))


def inside_backward() -> bool:
    """Whether autograd is running a backward pass on this thread, as torch.utils.checkpoint itself asks."""
    return bool(torch._C._current_graph_task_id() != -1)


def held_between_phases(
    *,
    num_layers: int,
    tokens: int,
    hidden: int,
    experts: int,
    top_k: int,
    dtype_bytes: int,
    tracked: bool = False,
    place: str = "cuda:0",
) -> Ledger:
    """What TwoPhaseStep holds after the first phase, before anything ran; `tracked` where surprise is measured."""
    lines = [
        ("gate inputs", "h", hidden, dtype_bytes),
        ("router logits", "E", experts, dtype_bytes),
        ("routing weights", "k", top_k, dtype_bytes),
        ("expert indices", "k", top_k, 8),
    ]
    if tracked:
        lines.append(("surprise", "E", experts, 4))
    return Ledger(
        entries=tuple(
            Entry(
                category=Category.ACTIVATIONS,
                component=name,
                place=place,
                phases=(BACKWARD, STEP),
                nbytes=num_layers * tokens * width * size,
                origin=Origin.FORMULA,
                needed_by="gate phase",
                formula=f"L·T·{sign}·{size} = {num_layers}·{tokens}·{width}·{size}",
            )
            for name, sign, width, size in lines
        )
    )
