"""How strongly each token's loss pulls at each expert's input: per-token, per-expert gradient norms, as tensors.

In: a mixture-of-experts model in training. Out: after backward, one (tokens, experts) matrix per layer, zero where a
token was not routed. Nothing is read back to the host. transformers' experts take (hidden, indices, weights) in one
call, which sums the experts' input gradients; while the tracker is open that call is made with every token repeated
once per chosen expert, which gives the same output and separates the gradients, for one (tokens·k, hidden) tensor
more per layer. Blocks of another form call `watch` on the inputs they gather. Does not know what the norms are used
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import UnsupportedError
from vramcast.runtime.moe import Passes, find_routers, inside_backward


class SurpriseTracker:
    """with SurpriseTracker(model) as tracker: loss.backward(); tracker.take()["model.layers.0.mlp.gate"]"""

    def __init__(self, model: nn.Module, routers: Iterable[str] | None = None) -> None:
        self._matrices: dict[str, Tensor] = {}
        self._pending: dict[str, tuple[int, int]] = {}
        self._handles: list[Any] = []
        self._passes = Passes(model)
        for router in find_routers(model, routers):
            experts = getattr(router.block, "experts", None)
            # A ModuleList of experts has no one call to separate: such a block calls watch() itself.
            if isinstance(experts, nn.Module) and not isinstance(experts, (nn.ModuleList, nn.ModuleDict)):
                self._track(router.name, experts)

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

    def take(self) -> dict[str, Tensor]:
        """The matrices since the last take, by router name."""
        taken, self._matrices = self._matrices, {}
        return taken

    def of(self, layer: str) -> Tensor:
        """What is known so far about one layer, for hooks that run during the same backward."""
        return self._matrices[layer]

    def watch(self, layer: str, gathered: Tensor, *, tokens: Tensor, experts: Tensor | int, shape: torch.Size) -> None:
        """Record the gradient norms of inputs a block gathered itself: row i is token `tokens[i]` at expert
        `experts`.
        """
        if not gathered.requires_grad:
            return
        matrix = self._matrix(layer, shape, gathered)
        rows = tokens.detach()
        columns = experts.detach() if isinstance(experts, Tensor) else torch.full_like(rows, experts)

        def record(gradient: Tensor) -> None:
            matrix.index_put_((rows, columns), _norms(gradient))

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
            experts.register_forward_pre_hook(self._expander(layer)),
            experts.register_forward_hook(self._folder(layer)),
        ]

    def _expander(self, layer: str) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
        def expand(experts: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            self._pending.pop(layer, None)  # of a forward that failed inside the experts
            if not experts.training or self._passes.gradient_free:
                return None
            hidden, indices, weights = _three(layer, args)
            tokens, k = indices.shape
            num_experts = _num_experts(layer, experts)
            self._pending[layer] = (tokens, k)
            repeated = hidden.unsqueeze(1).expand(tokens, k, hidden.shape[-1]).reshape(tokens * k, -1)
            rows = torch.arange(tokens, device=indices.device).repeat_interleave(k)
            if not inside_backward():
                self._matrices.pop(layer, None)
            self.watch(
                layer, repeated, tokens=rows, experts=indices.reshape(-1), shape=torch.Size((tokens, num_experts))
            )
            return repeated, indices.reshape(-1, 1), weights.reshape(-1, 1)

        return expand

    def _folder(self, layer: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]:
        def fold(experts: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if layer not in self._pending:
                return None
            tokens, k = self._pending.pop(layer)
            return output.view(tokens, k, -1).sum(dim=1)

        return fold


def _norms(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float32)


def _three(layer: str, args: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    if len(args) == 3 and all(isinstance(value, Tensor) for value in args) and args[0].dim() == args[1].dim() == 2:
        return args
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
