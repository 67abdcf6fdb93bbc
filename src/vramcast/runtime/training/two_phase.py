"""Four ways to train gates with a loss of their own, behind one call: step(closure) -> StepLosses.

  TwoPhaseStep      main backward frees the graph, the main optimizer may step, then the gates are run again from their
                    detached inputs. Holds gate inputs and scores between the phases. Cross-layer gate terms are cut.
  OnePassStep       a hook adds the gating gradient to the logits during the main backward. Holds nothing. The loss must
                    be a sum over layers; the injected gradient also reaches lower layers and their surprise.
  RetainGraphStep   the baseline that keeps the whole graph. Both optimizers step at the end: stepping in between fails.
  JointStep         the baseline that adds the losses. Knows no surprise: that exists only after the main backward.

The closure runs the forward and returns the main loss; what it does not return (logits) dies with it. Gradients
accumulate as torch does: a gate receives the main loss's gradient too. A step that fails leaves nothing for the next
one: no gate call, no surprise, no gradient. Does not clip, scale or schedule: use the phases separately for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vramcast.errors import InputError, UnsupportedError
from vramcast.runtime.ranks import average_
from vramcast.runtime.training.graph_cut import as_leaf
from vramcast.runtime.training.moe import AuxCollector
from vramcast.runtime.training.routers import Router, Routing, find_routers
from vramcast.runtime.training.surprise import SurpriseTracker

Closure = Callable[[], Tensor]
GatingLoss = Callable[[Sequence[Routing]], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLosses:
    """Detached values, still on the device: reading them is the caller's synchronisation."""

    main: Tensor
    gating: Tensor


class _TwoOptimizers:
    def __init__(
        self,
        *,
        main_optimizer: torch.optim.Optimizer,
        gate_optimizer: torch.optim.Optimizer,
        gating_loss: GatingLoss,
        collector: AuxCollector,
        tracker: SurpriseTracker | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.main_optimizer = main_optimizer
        self.gate_optimizer = gate_optimizer
        self.gating_loss = gating_loss
        self.collector = collector
        self.tracker = tracker
        self.group = group
        _check_disjoint(main_optimizer, gate_optimizer, collector)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """A forward and its backward. Only one that comes to its end is seen by the gating loss."""
        if self.tracker is not None:
            self.tracker.take()  # what a forward outside, or one that failed, left there
        with self.collector.recording():
            yield

    def _attach_surprise(self) -> None:
        if self.tracker is None:
            return
        surprise = self.tracker.take()
        self.collector.attach(surprise)
        for call in self.collector.unfinished():
            if call.router.name not in surprise:
                raise self.tracker.unmeasured(call.router.name)
            if call.routing.surprise is None:
                raise UnsupportedError(
                    f"{call.router.name} ran more than once before one backward, and surprise is known for the last "
                    "run only. Call main_phase once per forward, each with its own part of the loss."
                )

    @contextmanager
    def _whole_step(self) -> Iterator[None]:
        with _no_gradients_after_failure((self.main_optimizer, self.gate_optimizer)):
            try:
                yield
            except BaseException:
                self.collector.release()
                raise


class TwoPhaseStep(_TwoOptimizers):
    """step = TwoPhaseStep(...); step(lambda: model(**batch).loss)"""

    def __call__(self, closure: Closure) -> StepLosses:
        with self._whole_step():
            main = self.main_phase(closure)
            self.main_optimizer.step()
            self.main_optimizer.zero_grad(set_to_none=True)
            gating = self.gate_phase()
            self.gate_optimizer.step()
            self.gate_optimizer.zero_grad(set_to_none=True)
        return StepLosses(main=main, gating=gating)

    def main_phase(self, closure: Closure) -> Tensor:
        """Forward and backward of the main loss. Afterwards only gate inputs and scores are held.

        If it fails, its gate calls are forgotten. Gradients that a backward made before it failed are torch's: call
        zero_grad() to skip the batch.
        """
        with self._recording():
            loss = closure()
            loss.backward()
            self._attach_surprise()
        return loss.detach()

    def gate_phase(self) -> Tensor:
        """The gating loss over the main phases since the last gate phase, into the gates' gradients."""
        self.collector.forget_unfinished()
        if not self.collector.calls:
            raise InputError(
                "no gate was called in a main phase since the last gate phase, so there is nothing to train the gates "
                "on. Call main_phase(closure) first, with a closure that runs the model in train mode with gradients."
            )
        leaves = {router.name: _full_parameters(router.gate) for router in self.collector.routers}
        _check_whole(self.collector, leaves)
        loss = self.gating_loss(self.collector.replay(leaves))
        targets = {
            (name, key): leaf
            for name, named in leaves.items()
            for key, leaf in named.items()
            if leaf.requires_grad
        }
        gradients = _gradients(loss, list(targets.values()))
        self.collector.release()
        gates = {
            router.name: dict(router.gate.named_parameters()) for router in self.collector.routers
        }
        for (name, key), gradient in zip(targets, gradients, strict=True):
            _accumulate(gates[name][key], average_(gradient, self.group))
        return loss.detach()


class RetainGraphStep(_TwoOptimizers):
    """The collector must keep the graph: AuxCollector(model, keep="graph")."""

    def __call__(self, closure: Closure) -> StepLosses:
        with self._whole_step():
            losses = self.backward(closure)
            _step_all((self.main_optimizer, self.gate_optimizer))
        return losses

    def backward(self, closure: Closure) -> StepLosses:
        with self._recording():
            loss = closure()
            loss.backward(retain_graph=True)
            self._attach_surprise()
            gating = self.gating_loss([call.routing for call in self.collector.calls])
            gates = self.collector.gate_parameters()
            for gate, gradient in zip(gates, _gradients(gating, gates), strict=True):
                _accumulate(gate, average_(gradient, self.group))
            self.collector.release()
        return StepLosses(main=loss.detach(), gating=gating.detach())


class JointStep(_TwoOptimizers):
    """One backward of the sum. The collector must keep the graph."""

    def __call__(self, closure: Closure) -> StepLosses:
        with self._whole_step(), self._recording():
            loss = closure()
            gating = self.gating_loss([call.routing for call in self.collector.calls])
            self.collector.release()
            (loss + gating).backward()
            _step_all((self.main_optimizer, self.gate_optimizer))
        return StepLosses(main=loss.detach(), gating=gating.detach())


class OnePassStep:
    """Adds d(layer_loss)/d(logits) to each router's logits during the main backward, times `coefficient`.

    A layer's experts run backward before its gate, so the layer's own surprise is complete when the hook fires. The
    injected gradient continues into lower layers and pollutes their surprise as the coefficient grows; the last
    mixture layer is exact.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizers: Sequence[torch.optim.Optimizer],
        layer_loss: Callable[[Routing], Tensor],
        routers: Sequence[str] | None = None,
        tracker: SurpriseTracker | None = None,
        coefficient: float = 1.0,
    ) -> None:
        self.optimizers = tuple(optimizers)
        self.layer_loss = layer_loss
        self.tracker = tracker
        self.coefficient = coefficient
        self._losses: dict[str, Tensor] = {}
        self._handles = [
            router.gate.register_forward_hook(self._hook_of(router))
            for router in find_routers(model, routers)
        ]

    def __enter__(self) -> OnePassStep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __call__(self, closure: Closure) -> StepLosses:
        with _no_gradients_after_failure(self.optimizers):
            losses = self.backward(closure)
            _step_all(self.optimizers)
        return losses

    def backward(self, closure: Closure) -> StepLosses:
        self._losses = {}  # of a backward that failed
        loss = closure()
        loss.backward()
        if self.tracker is not None:
            self.tracker.take()
        gating, self._losses = sum(self._losses.values(), torch.zeros_like(loss)), {}
        return StepLosses(main=loss.detach(), gating=gating.detach())

    def _hook_of(self, router: Router) -> Callable[..., None]:
        def watch(gate: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            raw = router.logits(output)
            if gate.training and raw.requires_grad:
                routing = router.read(output).detached()
                raw.register_hook(lambda gradient: self._inject(routing, gradient))

        return watch

    def _inject(self, routing: Routing, gradient: Tensor) -> Tensor:
        surprise = None if self.tracker is None else self.tracker.of(routing.layer)
        with torch.enable_grad():
            logits = as_leaf(routing.logits)
            loss = self.layer_loss(replace(routing, logits=logits, surprise=surprise))
            (added,) = torch.autograd.grad(loss, logits)
        self._losses[routing.layer] = loss.detach()
        return gradient + self.coefficient * added.reshape(gradient.shape).to(gradient.dtype)


def _step_all(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@contextmanager
def _no_gradients_after_failure(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """A backward that runs out of memory has made some gradients already: they are of a batch that is skipped."""
    try:
        yield
    except BaseException:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        raise


def _check_disjoint(
    main: torch.optim.Optimizer, gate: torch.optim.Optimizer, collector: AuxCollector
) -> None:
    in_main = {id(p) for group in main.param_groups for p in group["params"]}
    in_gate = {id(p) for group in gate.param_groups for p in group["params"]}
    if in_main & in_gate:
        raise InputError(
            f"{len(in_main & in_gate)} parameters are in both optimizers and would be stepped twice. Give the gates "
            "(collector.gate_parameters()) to gate_optimizer and everything else to main_optimizer."
        )
    missing = [p for p in collector.gate_parameters() if id(p) not in in_gate | in_main]
    if missing:
        raise InputError(
            f"{len(missing)} gate parameters are in neither optimizer, so the gating loss would train nothing."
        )


def _gradients(loss: Tensor, targets: list[Tensor]) -> list[Tensor]:
    """Through autograd.grad, so that neither DDP's nor FSDP's gradient hooks run a second time."""
    if not loss.requires_grad:
        raise InputError(
            "the gating loss has no path to the gates: it was built from detached scores, which carry no gradient. "
            "Build it from the routings that the step passes in; their logits are replayed from the gate inputs."
        )
    gradients = torch.autograd.grad(loss, targets, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise InputError(
            "the gating loss reaches none of the gates' parameters. Are they frozen or replaced?"
        )
    return [
        torch.zeros_like(t) if g is None else g for t, g in zip(targets, gradients, strict=True)
    ]


def _full_parameters(gate: nn.Module) -> dict[str, Tensor]:
    """Leaves with the whole parameter, gathered where FSDP2 keeps a shard (a gate is experts × hidden: small)."""
    with torch.no_grad():
        return {
            name: as_leaf(
                p.full_tensor() if hasattr(p, "full_tensor") else p, requires_grad=p.requires_grad
            )
            for name, p in gate.named_parameters()
        }


def _check_whole(collector: AuxCollector, leaves: dict[str, dict[str, Tensor]]) -> None:
    for call in collector.calls:
        for key, (shape, _) in call.parameters.items():
            if leaves[call.router.name][key].shape != shape:
                raise InputError(
                    f"{call.router.name}.{key} is {tuple(leaves[call.router.name][key].shape)} outside forward but was "
                    f"{tuple(shape)} inside: it is sharded by FSDP1 or ZeRO-3. Use FSDP2 (fully_shard), or OnePassStep."
                )


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add a full gradient, equal on all ranks, to a parameter that may be a shard."""
    if hasattr(parameter, "placements"):
        from torch.distributed.tensor import DTensor, Replicate

        replicated = [Replicate()] * parameter.device_mesh.ndim
        gradient = DTensor.from_local(gradient, parameter.device_mesh, replicated, run_check=False)
        gradient = gradient.redistribute(placements=parameter.placements)
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
