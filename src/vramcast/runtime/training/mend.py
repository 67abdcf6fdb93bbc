"""A MEND-style editor: a hypernetwork that turns the two factors of a gradient into the two factors of an edit.

In: Factors per edited weight. Out: Factors of the same shapes, differentiable to the hypernetwork, and a learned rate
per weight. Weights of one shape share a network; each has its own scale and shift. Starts as the identity on
normalised factors. After Mitchell et al., "Fast Model Editing at Scale" (2022). Only its combined, shared form; knows
nothing about the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vramcast.ledger import BACKWARD, EDIT, LOAD, STEP, Category, Entry, Ledger, Origin
from vramcast.runtime.training.edit import Factors, FunctionalEdit


class LowRank(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """x + relu(u·v·x + b), scaled and shifted per weight. u starts at zero, so the layer starts as the identity."""

    def __init__(self, width: int, rank: int, num_weights: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(width, min(rank, width)))
        self.v = nn.Parameter(torch.randn(min(rank, width), width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.ones(num_weights, width))
        self.shift = nn.Parameter(torch.zeros(num_weights, width))

    def forward(self, x: Tensor, index: int) -> Tensor:
        added = (x @ self.v.T @ self.u.T + self.bias) * self.scale[index] + self.shift[index]
        return x + added.clamp(
            min=0
        )  # clamp, unlike relu, has a gradient at the zero it starts from


class Running(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """Mean and deviation of all rows seen in training, merged batch by batch (Chan's update of Welford's sums)."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("squares", torch.zeros(width))

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        if self.training:
            self._merge(x.detach(), kept)
        deviation = (self.squares / (self.count - 1).clamp(min=1)).sqrt()
        return (x - self.mean) / (deviation + 1e-7)

    def _merge(self, x: Tensor, kept: Tensor) -> None:
        rows = kept.sum()
        mean = (x * kept).sum(dim=0) / rows.clamp(min=1)
        total, apart = self.count + rows, mean - self.mean
        share = rows / total.clamp(min=1)
        self.squares += (((x - mean) ** 2) * kept).sum(dim=0) + apart**2 * self.count * share
        self.mean += apart * share
        self.count.copy_(total)


class Transform(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """The network of one shape."""

    def __init__(
        self, inputs: int, outputs: int, *, rank: int, num_hidden: int, num_weights: int
    ) -> None:
        super().__init__()
        self.split = (inputs, outputs)
        self.normalise_inputs = Running(inputs)
        self.normalise_deltas = Running(outputs)
        self.layers = nn.ModuleList(
            LowRank(inputs + outputs, rank, num_weights) for _ in range(num_hidden + 1)
        )

    def forward(self, factors: Factors, index: int) -> Factors:
        inputs, deltas = factors.inputs.float(), factors.deltas.float()
        # Unlabelled tokens and padding have a zero gradient and must not move the weight. They are masked, not dropped:
        # dropping them would ask the device how many there are.
        kept = (
            (inputs != 0).any(dim=-1, keepdim=True) & (deltas != 0).any(dim=-1, keepdim=True)
        ).float()
        x = torch.cat(
            (self.normalise_inputs(inputs, kept), self.normalise_deltas(deltas, kept)), dim=-1
        )
        for layer in self.layers:
            x = layer(x, index)
        inputs, deltas = x.split(self.split, dim=-1)
        return Factors(inputs=inputs, deltas=deltas * kept)


class Mend(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """weights = edit.edited(mend(edit.factors(prefix, loss_of)))"""

    def __init__(
        self,
        edit: FunctionalEdit,
        *,
        rank: int = 1920,
        num_hidden: int = 1,
        initial_rate: float = 1e-4,
    ) -> None:
        super().__init__()
        groups = _by_shape(edit)
        self.place_of = {
            name: (_key(shape), index)
            for shape, names in groups.items()
            for index, name in enumerate(names)
        }
        self.transforms = nn.ModuleDict(
            {
                _key(shape): Transform(
                    *shape, rank=rank, num_hidden=num_hidden, num_weights=len(names)
                )
                for shape, names in groups.items()
            }
        )
        self.rates = nn.ParameterList(
            nn.Parameter(torch.tensor([initial_rate])) for _ in edit.names
        )
        self.names = edit.names
        self.to(edit.device)

    def forward(self, factors: Mapping[str, Factors]) -> dict[str, Factors]:
        return {
            name: self._transform(name, factors[name], rate)
            for name, rate in zip(self.names, self.rates, strict=True)
        }

    def ledger(self, place: str, *, tokens: int) -> Ledger:
        """The editor's own states, what its forward keeps, and the list of roots that Adam's foreach form makes."""
        count = sum(p.numel() for p in self.parameters())
        kept = sum(self._kept(name, tokens) for name in self.names)
        lines = (
            (Category.WEIGHTS, "editor", (LOAD, EDIT, BACKWARD, STEP), 4 * count, f"4·{count}"),
            (
                Category.OPTIMIZER,
                "editor: exp_avg, exp_avg_sq",
                (EDIT, BACKWARD, STEP),
                8 * count,
                f"8·{count}",
            ),
            (Category.GRADIENTS, "editor", (STEP,), 4 * count, f"4·{count}"),
            (Category.TEMPORARY, "editor: _foreach_sqrt", (STEP,), 4 * count, f"4·{count}"),
            (
                Category.ACTIVATIONS,
                "editor",
                (EDIT, BACKWARD),
                4 * kept,
                f"Σ layers·(3·T·(in+out) + T·rank)·4 = {kept}·4",
            ),
        )
        return Ledger(
            entries=tuple(
                Entry(
                    category=category,
                    component=name,
                    place=place,
                    phases=phases,
                    nbytes=nbytes,
                    formula=formula,
                    origin=Origin.FORMULA,
                )
                for category, name, phases, nbytes, formula in lines
            )
        )

    def _kept(self, name: str, tokens: int) -> int:
        """A layer keeps its input, the product before scaling and the sum before clamping, and the low-rank middle."""
        layers = self.transforms[self.place_of[name][0]].layers
        return sum(tokens * (3 * layer.u.shape[0] + layer.u.shape[1]) for layer in layers)

    def _transform(self, name: str, factors: Factors, rate: Tensor) -> Factors:
        key, index = self.place_of[name]
        moved: Factors = self.transforms[key](factors, index)
        # On the small factor: rate · (deltasᵀ·inputs) would keep the whole update for the rate's gradient.
        return Factors(inputs=moved.inputs, deltas=rate * moved.deltas)


def _by_shape(edit: FunctionalEdit) -> dict[tuple[int, int], list[str]]:
    groups: dict[tuple[int, int], list[str]] = {}
    for name in edit.names:
        groups.setdefault(edit.factor_widths(name), []).append(name)
    return groups


def _key(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"
