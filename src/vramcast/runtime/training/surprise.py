"""How strongly each token's loss pulls at each expert's input: per-token, per-expert gradient norms, as tensors.

In: a mixture-of-experts model in training. Out: after backward, one (tokens, experts) matrix per layer, zero where a
token was not routed. Nothing is read back to the host. Experts come in two forms. One module for all of them
(transformers 5) takes (hidden, indices, weights) in one call, which sums the experts' input gradients; while the
tracker is open that call is made with every token repeated once per chosen expert, which gives the same output and
separates the gradients, for one (tokens·k, hidden) tensor more per layer. A list of modules (transformers 4) has inputs
that are apart already; which tokens they are is seen where the block gathers them. Blocks of another form call `watch`
on the inputs they gather. Does not know what the norms are used for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import UnsupportedError
from vramcast.runtime.training.gathering import Gathering
from vramcast.runtime.training.moe import Passes, Router, find_routers, first_floating, inside_backward


class SurpriseTracker:
    """with SurpriseTracker(model) as tracker: loss.backward(); tracker.take()["model.layers.0.mlp.gate"]"""

    def __init__(self, model: nn.Module, routers: Iterable[str] | None = None) -> None:
        self._matrices: dict[str, Tensor] = {}
        self._pending: dict[str, _Repeated] = {}
        self._gathering: dict[str, Gathering] = {}
        self._unseen: set[str] = set()
        self._handles: list[Any] = []
        self._passes = Passes(model)
        for router in find_routers(model, routers):
            experts = getattr(router.block, "experts", None)
            if isinstance(experts, (nn.ModuleList, nn.ModuleDict)):
                self._track_list(router, list(experts.values() if isinstance(experts, nn.ModuleDict) else experts))
            elif isinstance(experts, nn.Module):
                self._track(router.name, experts)
            else:
                self._unseen.add(router.name)

    def __enter__(self) -> SurpriseTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        self, layer: str, gathered: Tensor, *, tokens: Tensor, experts: Tensor | int, shape: Sequence[int]
    ) -> None:
        """Record the gradient norms of inputs a block gathered itself: row i is token `tokens[i]` at expert
        `experts`.
        """
        if not gathered.requires_grad:
            return
        matrix = self._matrix(layer, torch.Size(shape), gathered)
        rows = tokens.detach()
        columns = experts.detach() if isinstance(experts, Tensor) else torch.full_like(rows, experts)

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
            call = _Repeated(layer, args, kwargs)
            self._pending[layer] = call
            if not inside_backward():
                self._matrices.pop(layer, None)
            shape = (call.num_tokens, _num_experts(layer, experts))
            self.watch(layer, call.hidden, tokens=call.rows, experts=call.experts, shape=shape)
            return call.args, call.kwargs

        return expand

    def _folder(self, layer: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]:
        def fold(experts: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            return self._pending.pop(layer).folded(output) if layer in self._pending else None

        return fold

    def _track_list(self, router: Router, experts: list[nn.Module]) -> None:
        """Inside the block's forward, see what it gathers; at each expert, say which tokens came."""
        layer = router.name
        self._handles += [
            router.block.register_forward_pre_hook(self._opener(layer), with_kwargs=True),
            router.block.register_forward_hook(self._closer(layer), always_call=True),  # also when the forward fails
            *(
                expert.register_forward_pre_hook(self._looker(layer, index, len(experts)), with_kwargs=True)
                for index, expert in enumerate(experts)
            ),
        ]

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
                self._unseen.add(layer)  # the block may call watch() itself; a step without surprise says so
            else:
                shape = (gathering.num_tokens, num_experts)
                self.watch(layer, gathered, tokens=tokens, experts=index, shape=shape)

        return look


class _Repeated:
    """A call experts(hidden, indices, weights) with every token once per expert that was chosen for it."""

    def __init__(self, layer: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, indices, weights = _three(layer, args, kwargs)
        self.num_tokens, self._k = indices.shape
        self._shape = hidden.shape
        flat = hidden.reshape(self.num_tokens, 1, -1)
        self.hidden = flat.expand(-1, self._k, -1).reshape(self.num_tokens * self._k, -1)
        self.rows = torch.arange(self.num_tokens, device=indices.device).repeat_interleave(self._k)
        self.experts = indices.reshape(-1)
        changed = {
            id(hidden): self.hidden,
            id(indices): indices.reshape(-1, 1),
            # Weights stand beside the indices, or there is one for every expert (gpt-oss in transformers 4).
            id(weights): weights.reshape(-1, 1)
            if weights.shape == indices.shape
            else weights.repeat_interleave(self._k, dim=0),
        }
        self.args = tuple(changed[id(value)] for value in args)
        self.kwargs = {name: changed[id(value)] for name, value in kwargs.items()}

    def folded(self, output: Tensor) -> Tensor:
        return output.reshape(self.num_tokens, self._k, -1).sum(dim=1).reshape(self._shape)


def _norms(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float32)


def _three(layer: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states first; of the two others the integers are indices, in whichever order and by whatever name."""
    values = (*args, *kwargs.values())
    if len(values) == 3 and all(isinstance(value, Tensor) for value in values):
        hidden, *others = values
        indices = [value for value in others if not value.is_floating_point() and value.dim() == 2]
        weights = [value for value in others if value.is_floating_point() and value.dim() == 2]
        if len(indices) == len(weights) == 1 and hidden.numel() == indices[0].shape[0] * hidden.shape[-1]:
            return hidden, indices[0], weights[0]
    raise UnsupportedError(
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
