"""LSTM and GRU as cuDNN runs them: one call for all steps and layers, one reserve buffer kept for backward.

In come the arguments of `torch.lstm` and `torch.gru`, out come output and states. The size of the reserve is not
documented. It is taken from pytorch/pytorch#2895, where a maintainer prints 736,000,000 bytes for an LSTM and
864,000,000 for a GRU of four layers (both 320 wide by their parameter counts): as 23 to 27, that is 5·4 + 3 values for
every step and unit of the LSTM (four gates and the cell per layer, the output between layers) and 6·4 + 3 for the GRU.
Not known: what another cuDNN keeps; masks of dropout between layers; its workspace; the plain RNN's reserve, so that
one is taken apart step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

NOTE = (
    "LSTM and GRU are counted as cuDNN's, with a reserve of 5 (GRU 6) values per layer, step and unit and one between "
    "layers, as reported in pytorch/pytorch#2895; cuDNN does not document it"
)
VALUES_KEPT = {"lstm": 5, "gru": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments that decide the sizes."""

    kind: str  # lstm or gru
    layers: int
    directions: int
    trains: bool

    def reserve_bytes(self, x: torch.Tensor, width: int) -> int:
        """Rows are steps times sequences; those of a packed batch come without padding."""
        rows = x.numel() // x.size(-1)
        values = (VALUES_KEPT[self.kind] * self.layers + self.layers - 1) * self.directions
        return int(rows * width * values * x.element_size())


def run(
    call: Call, x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> Any:
    """Under autocast all inputs are cast to its dtype, weights too."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x = x.to(dtype)
        states = [state.to(dtype) for state in states]
        weights = [weight.to(dtype) for weight in weights]
    return CudnnRecurrent.apply(call, len(states), x, *states, *weights)


class CudnnRecurrent(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, call: Call, num_states: int, x: torch.Tensor, *rest: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        states = rest[:num_states]
        out = x.new_empty((*x.shape[:-1], call.directions * states[0].size(-1)))
        last = tuple(torch.empty_like(state) for state in states)
        if call.trains:
            reserve = x.new_empty(call.reserve_bytes(x, states[-1].size(-1)), dtype=torch.uint8)
            ctx.save_for_backward(x, *rest, out, reserve)
        return (out, *last)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors[:-2]
        gradients_of_inputs = [
            torch.empty_like(tensor) if needed else None
            for tensor, needed in zip(inputs, ctx.needs_input_grad[2:], strict=True)
        ]
        return None, None, *gradients_of_inputs
