"""Surprise: the norm of the loss's gradient at the input of each expert, per token.

In: a mixture-of-experts model in training. Out: after backward, one (tokens, experts) matrix per layer, zero where a
token was not routed. Nothing is read back to the host. Does not know what the norms are used for.

Experts come in two forms:
- One module for all of them (transformers 5) takes (hidden, indices, weights) in one call, which sums the experts'
  input gradients. While the tracker is open that call is made with every token repeated once per chosen expert. The
  output is the same and the gradients are separate, for one (tokens·k, hidden) tensor more per layer. Example: 4
  tokens, k = 2 of 8 experts, hidden 16. The call gets (8, 16) hidden states and (8, 1) indices instead of (4, 16) and
  (4, 2); its (8, 16) output is summed in pairs to (4, 16); the 8 norms go to 8 of the 4 × 8 cells of the matrix.
- A list of modules (transformers 4) has separate inputs; which tokens they are is observed where the block gathers them
  (`gathering.py`).
Blocks of another form call `watch` on the inputs they gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import UnsupportedError
from vramcast.runtime.training.gathering import Gathering
from vramcast.runtime.training.moe import Passes, inside_backward
from vramcast.runtime.training.routers import Router, find_routers, first_floating


class SurpriseTracker:
    """with SurpriseTracker(model) as tracker: loss.backward(); tracker.take()["model.layers.0.mlp.gate"]"""

    def __init__(self, model: nn.Module, routers: Iterable[str] | None = None) -> None:
        self._matrices: dict[str, Tensor] = {}
        self._pending: dict[str, _RepeatedCall] = {}
        self._gathering: dict[str, Gathering] = {}
        self._unseen: set[str] = set()
        self._handles: list[Any] = []
        self._passes = Passes(model)
        for router in find_routers(model, routers):
            experts = getattr(router.block, "experts", None)
            if isinstance(experts, nn.ModuleDict):
                self._track_list(router, list(experts.values()))
            elif isinstance(experts, nn.ModuleList):
                self._track_list(router, list(experts))
            elif isinstance(experts, nn.Module):
                self._track(router.name, experts)
            else:
                self._unseen.add(router.name)

    def __enter__(self) -> SurpriseTracker:
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
        self._passes.close()
        self._matrices.clear()
        self._pending.clear()

    def take(self) -> dict[str, Tensor]:
        """The matrices since the last take, by router name."""
        taken, self._matrices = self._matrices, {}
        return taken

    def of(self, layer: str) -> Tensor:
        """What is known so far about one layer, for hooks that run during the same backward."""
        if layer not in self._matrices:
            raise self.unmeasured(layer)
        return self._matrices[layer]

    def unmeasured(self, layer: str) -> UnsupportedError:
        """Why a layer has no surprise, and what to do."""
        if layer in self._unseen:
            return UnsupportedError(
                f"no surprise was measured for {layer}: which tokens its block gives to which expert is not seen. "
                f"In the block, call tracker.watch({layer!r}, gathered, tokens=rows, experts=index, shape=(tokens, "
                "experts)) on the input of each expert."
            )
        return UnsupportedError(
            f"no surprise was measured for {layer}: no gradient reaches the inputs of its experts. Train something "
            "below it (or call model.enable_input_require_grads()), or leave the tracker out."
        )

    def watch(
        self,
        layer: str,
        gathered: Tensor,
        *,
        tokens: Tensor,
        experts: Tensor | int,
        shape: Sequence[int],
    ) -> None:
        """Record the gradient norms of inputs a block gathered itself: row i is token `tokens[i]` at expert
        `experts`.
        """
        if not gathered.requires_grad:
            return
        matrix = self._matrix(layer, torch.Size(shape), gathered)
        rows = tokens.detach()
        columns = (
            experts.detach() if isinstance(experts, Tensor) else torch.full_like(rows, experts)
        )

        def record(gradient: Tensor) -> None:
            matrix.index_put_((rows, columns), _norms(gradient).reshape(-1))

        gathered.register_hook(record)

    def _matrix(self, layer: str, shape: torch.Size, like: Tensor) -> Tensor:
        """One matrix per layer and forward; checkpointing's recomputation writes into the one the forward made."""
        known = self._matrices.get(layer)
        if known is None or known.shape != shape:
            known = torch.zeros(shape, dtype=torch.float32, device=like.device)
            self._matrices[layer] = known
        return known

    def _track(self, layer: str, experts: nn.Module) -> None:
        self._handles += [
            experts.register_forward_pre_hook(self._expander(layer), with_kwargs=True),
            experts.register_forward_hook(self._folder(layer)),
        ]

    def _expander(self, layer: str) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]] | None]:
        def expand(
            experts: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
            self._pending.pop(layer, None)  # of a forward that failed inside the experts
            if not experts.training or self._passes.gradient_free:
                return None
            call = _RepeatedCall(layer, args, kwargs)
            self._pending[layer] = call
            if not inside_backward():
                self._matrices.pop(layer, None)
            shape = (call.num_tokens, _num_experts(layer, experts))
            self.watch(layer, call.hidden, tokens=call.rows, experts=call.experts, shape=shape)
            return call.args, call.kwargs

        return expand

    def _folder(self, layer: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]:
        def fold(experts: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            call = self._pending.pop(layer, None)
            return None if call is None else call.sum_repeats(output)

        return fold

    def _track_list(self, router: Router, experts: list[nn.Module]) -> None:
        """Inside the block's forward, see what it gathers; at each expert, say which tokens came."""
        layer = router.name
        self._handles += [
            router.block.register_forward_pre_hook(self._opener(layer), with_kwargs=True),
            # Always called: also when the forward fails.
            router.block.register_forward_hook(self._closer(layer), always_call=True),
        ]
        for index, expert in enumerate(experts):
            look = self._looker(layer, index, len(experts))
            self._handles.append(expert.register_forward_pre_hook(look, with_kwargs=True))

    def _opener(self, layer: str) -> Callable[..., None]:
        def start(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not block.training or self._passes.gradient_free:
                return
            if not inside_backward():
                self._matrices.pop(layer, None)
            hidden = first_floating(args, kwargs)
            if hidden is not None and torch.is_grad_enabled():
                self._gathering[layer] = Gathering(hidden)
                self._gathering[layer].__enter__()

        return start

    def _closer(self, layer: str) -> Callable[..., None]:
        def end(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            gathering = self._gathering.pop(layer, None)
            if gathering is not None:
                gathering.__exit__(None, None, None)

        return end

    def _looker(self, layer: str, index: int, num_experts: int) -> Callable[..., None]:
        def look(expert: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            gathering, gathered = self._gathering.get(layer), first_floating(args, kwargs)
            if gathering is None or gathered is None:
                return
            tokens = gathering.tokens_of(gathered)
            if tokens is None:
                # The block may call watch() itself; a step without surprise says so.
                self._unseen.add(layer)
                return
            shape = (gathering.num_tokens, num_experts)
            self.watch(layer, gathered, tokens=tokens, experts=index, shape=shape)

        return look


class _RepeatedCall:
    """A call experts(hidden, indices, weights) with every token repeated once per expert that was chosen for it."""

    def __init__(self, layer: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, indices, weights = _expert_inputs(layer, args, kwargs)
        self.num_tokens, self._k = indices.shape
        self._shape = hidden.shape
        flat = hidden.reshape(self.num_tokens, 1, -1)
        self.hidden = flat.expand(-1, self._k, -1).reshape(self.num_tokens * self._k, -1)
        self.rows = torch.arange(self.num_tokens, device=indices.device).repeat_interleave(self._k)
        self.experts = indices.reshape(-1)
        changed = {
            id(hidden): self.hidden,
            id(indices): indices.reshape(-1, 1),
            id(weights): self._repeat_weights(weights, indices),
        }
        self.args = tuple(changed[id(value)] for value in args)
        self.kwargs = {name: changed[id(value)] for name, value in kwargs.items()}

    def _repeat_weights(self, weights: Tensor, indices: Tensor) -> Tensor:
        """There is a weight per index, or one for every expert (gpt-oss in transformers 4)."""
        if weights.shape == indices.shape:
            return weights.reshape(-1, 1)
        return weights.repeat_interleave(self._k, dim=0)

    def sum_repeats(self, output: Tensor) -> Tensor:
        """The output of the original call."""
        return output.reshape(self.num_tokens, self._k, -1).sum(dim=1).reshape(self._shape)


def _norms(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float32)


def _expert_inputs(
    layer: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, indices and weights. The hidden states come first; of the others the integers are indices."""
    values = (*args, *kwargs.values())
    if len(values) != 3 or not all(isinstance(value, Tensor) for value in values):
        raise _unknown_call(layer)
    hidden, indices, weights = values
    if indices.is_floating_point():
        indices, weights = weights, indices
    if indices.is_floating_point() or not weights.is_floating_point():
        raise _unknown_call(layer)
    if indices.dim() != 2 or weights.dim() != 2:
        raise _unknown_call(layer)
    if hidden.numel() != indices.shape[0] * hidden.shape[-1]:
        raise _unknown_call(layer)
    return hidden, indices, weights


def _unknown_call(layer: str) -> UnsupportedError:
    return UnsupportedError(
        f"the experts beside {layer} are not called as experts(hidden, indices, weights) with (tokens, ...) tensors. "
        "Call SurpriseTracker.watch() inside the block on each expert's gathered input instead."
    )


def _num_experts(layer: str, experts: nn.Module) -> int:
    value = getattr(experts, "num_experts", None)
    if not isinstance(value, int):
        raise UnsupportedError(
            f"the experts beside {layer} do not say num_experts. Call SurpriseTracker.watch() instead."
        )
    return value
