"""Forwards of a frozen model with some weights replaced, on a second device, differentiable with respect to them.

In: a model, the names of the weights to edit, and where to run. Out: the gradient factors an editor starts from,
logits of the edited model on the main device, and the ledger of both devices. On one device nothing of the model is
copied; on two, only the layers from the first edited one on, the last norm and the head are. Gradients exist for the
edited weights only: factors come from activations, so the gradient of a base weight is never made. The base model runs
in eval mode. Does not know the editor: see mend.py for one.

Example: a weight of 4,096 × 14,336 in bfloat16 takes 112 MiB, and so does its gradient. Its two factors for 256 tokens
in float32 take 256 · (4,096 + 14,336) · 4 = 18 MiB, and only these move between the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vramcast.errors import InputError, UnsupportedError
from vramcast.ledger import BACKWARD, EDIT, LOAD, STEP, Category, Entry, Ledger, Origin
from vramcast.runtime.training.placement import (
    module_bytes,
    move,
    normalise_device,
    require_available,
)
from vramcast.runtime.training.preference import IGNORED
from vramcast.runtime.training.tail import Prefix, Tail, find_layers


class Factors(NamedTuple):
    """A weight's gradient as its two factors: inputs (tokens, in) and gradients of outputs (tokens, out).

    A tuple, because FSDP and DDP find the tensors of a module's output in tuples and dicts only.
    """

    inputs: Tensor
    deltas: Tensor

    def to(self, device: torch.device) -> Factors:
        return Factors(inputs=self.inputs.to(device), deltas=self.deltas.to(device))


class FunctionalEdit:
    """edit = FunctionalEdit(model, names).place("cuda:0", "cuda:1"); logits = edit(edit.prefix(batch), weights)"""

    def __init__(self, model: nn.Module, inner_parameters: Sequence[str]) -> None:
        self.model = model.requires_grad_(False)
        self.names = tuple(inner_parameters)
        self.layers = find_layers(model, self.names)
        self._tail = Tail(model, self.layers, from_layer=self.layers.indices[0], device=None)
        self.device = self.sub_device = _device_of(model)
        for name in self.names:
            _is_transposed(name, self._module(name))

    def place(
        self,
        device: int | str | torch.device,
        sub_device: int | str | torch.device | None = None,
        *,
        from_layer: int | None = None,
    ) -> FunctionalEdit:
        """Lower layers on `device`, edited ones on `sub_device`; without one, the next GPU if there is any.

        On two devices the upper layers' originals wait on the CPU, so run the base through this object as well:
        edit(edit.prefix(batch)).
        """
        self.device = normalise_device(device)
        self.sub_device = _choose_second(self.device, sub_device)
        require_available(self.device)
        require_available(self.sub_device)
        cut = self.layers.indices[0] if from_layer is None else from_layer
        if self.sub_device == self.device:
            self.model.to(self.device)
            self._tail = Tail(self.model, self.layers, from_layer=cut, device=None)
        else:
            self._tail = Tail(self.model, self.layers, from_layer=cut, device=self.sub_device)
            self._tail.send_prefix(self.device)
        return self

    def prefix(self, batch: Mapping[str, Any]) -> Prefix:
        """The frozen lower layers, once per batch; base and edited forwards of the batch share it."""
        prefix = self._tail.prefix(move(batch, self.device))
        return Prefix(
            hidden=prefix.hidden.to(self.sub_device), inputs=move(prefix.inputs, self.sub_device)
        )

    def __call__(
        self,
        prefix: Prefix,
        weights: Mapping[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Logits on the main device. With `positions`, a (batch, sequence) mask, only those rows ever become logits.

        A mask on the CPU costs no synchronisation: it is turned into indices where it lives.
        """
        there = None if positions is None else positions.nonzero().T.to(self.sub_device)
        moved = {name: weight.to(self.sub_device) for name, weight in (weights or {}).items()}
        return self._tail(prefix, moved, there).to(self.device)

    def factors(
        self, prefix: Prefix, loss_of: Callable[[Tensor], Tensor], positions: Tensor | None = None
    ) -> dict[str, Factors]:
        """Inputs and output gradients of every inner weight for one loss, on the main device."""
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        handles = [
            self._module(name).register_forward_hook(_tap(name, inputs, outputs))
            for name in self.names
        ]
        try:
            loss = loss_of(self(prefix, positions=positions))
            deltas = torch.autograd.grad(loss, [outputs[name] for name in self.names])
        finally:
            for handle in handles:
                handle.remove()
        return {
            name: Factors(inputs=_flat(inputs[name]), deltas=_flat(delta)).to(self.device)
            for name, delta in zip(self.names, deltas, strict=True)
        }

    def edited(self, steps: Mapping[str, Factors]) -> dict[str, Tensor]:
        """W − deltasᵀ·inputs on the second device: only the small factors travel."""
        return {name: self._edited(name, step.to(self.sub_device)) for name, step in steps.items()}

    def kept_bytes(self, prefix: Prefix, positions: Tensor | None = None) -> int:
        """What one edited forward saves for its backward in addition to weights, measured by running it once."""
        weights = {name: self.weight(name).detach().requires_grad_() for name in self.names}
        known = {
            p.untyped_storage()._cdata for p in (*self._tail.module.parameters(), *weights.values())
        }
        kept: dict[int, torch.UntypedStorage] = {}

        def remember(tensor: Tensor) -> None:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                kept[storage._cdata] = storage

        # Storages, not tensors: a node that held its own output would keep itself alive.
        with torch.autograd.graph.saved_tensors_hooks(remember, lambda _: None):
            logits = self(prefix, weights, positions)
        del logits
        return sum(storage.nbytes() for storage in kept.values())

    def ledger(self, *, tokens: int, kept_bytes: int) -> Ledger:
        """What an edit step of batch · sequence tokens holds on each device: in its edited forwards and their backward
        (edit, with `kept_bytes` for the largest of them), and while it is replayed into the editor (backward).
        """
        main, sub = str(self.device), str(self.sub_device)
        always, both = (LOAD, EDIT, BACKWARD, STEP), (EDIT, BACKWARD)
        sizes = [self.weight(name).numel() for name in self.names]
        elements, largest = sum(sizes), max(sizes)
        size = self.weight(self.names[0]).element_size()
        edited, formula = size * elements, f"Σ out·in·{size} = {elements}·{size}"
        width = sum(sum(self.factor_widths(name)) for name in self.names)

        entries = [_entry(Category.WEIGHTS, "base model", main, always, self._tail.prefix_bytes())]
        if sub != main:
            copied = module_bytes(self._tail.module)
            entries.append(_entry(Category.COPIES, "edited layers", sub, always, copied))
        entries += [
            _entry(Category.COMPANION, "edited weights", sub, both, edited, formula),
            _entry(Category.GRADIENTS, "edited weights", sub, both, edited, formula),
            _entry(
                Category.TEMPORARY,
                "next gradient",
                sub,
                (EDIT,),
                size * largest,
                f"out·in·{size} = {largest}·{size}",
            ),
        ]
        if size != 4:
            in_float32, formula = 4 * largest, f"out·in·4 = {largest}·4"
            entries.append(
                _entry(
                    Category.TEMPORARY, "gradient in float32", sub, (BACKWARD,), in_float32, formula
                )
            )
        factors, formula = 4 * tokens * width, f"T·Σ(in+out)·4 = {tokens}·{width}·4"
        entries += [
            _entry(Category.ACTIVATIONS, "factors", sub, both, factors, formula),
            _entry(Category.ACTIVATIONS, "edited forward", sub, (EDIT,), kept_bytes),
        ]
        return Ledger(entries=tuple(entries))

    def weight(self, name: str) -> Tensor:
        """An inner weight where the edited layers are."""
        return self._tail.module.get_parameter(name)

    def factor_widths(self, name: str) -> tuple[int, int]:
        """Inputs and outputs of an inner weight's module."""
        rows, columns = self.weight(name).shape
        return (rows, columns) if _is_transposed(name, self._module(name)) else (columns, rows)

    def _module(self, name: str) -> nn.Module:
        return self._tail.module.get_submodule(name.rpartition(".")[0])

    def _edited(self, name: str, step: Factors) -> Tensor:
        base = self.weight(name)
        update = (-step.deltas).T @ step.inputs
        if _is_transposed(name, self._module(name)):
            update = update.T
        return base + update.to(base.dtype)


def _entry(
    category: Category,
    component: str,
    place: str,
    phases: tuple[str, ...],
    nbytes: int,
    formula: str = "",
) -> Entry:
    """Computed if it has a formula, else read off tensors."""
    return Entry(
        category=category,
        component=component,
        place=place,
        phases=phases,
        nbytes=nbytes,
        formula=formula,
        origin=Origin.FORMULA if formula else Origin.MEASURED,
    )


def label_positions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Where logits predict a label, as a (batch, sequence) mask, and those labels in the order of the picked logits."""
    following = torch.full_like(labels, IGNORED)
    following[:, :-1] = labels[:, 1:]
    mask = following != IGNORED
    return mask, following[mask]


def _choose_second(
    device: torch.device, sub_device: int | str | torch.device | None
) -> torch.device:
    if sub_device is None:
        return _next_gpu(device) or device
    chosen = normalise_device(sub_device)
    if chosen == device:
        raise InputError(
            f"device and sub_device are both {device}: the edited layers would be copied beside the base and save "
            "nothing. Name another device, or leave sub_device out to edit on one device without a copy."
        )
    return chosen


def _next_gpu(device: torch.device) -> torch.device | None:
    index = (device.index or 0) + 1
    if device.type == "cuda" and index < torch.cuda.device_count():
        return torch.device("cuda", index)
    return None


def _tap(name: str, inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> Callable[..., Tensor]:
    """The lowest tapped output becomes a leaf, so autograd starts there and no weight needs a gradient."""

    def tap(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        inputs[name] = args[0].detach()
        outputs[name] = output if output.requires_grad else output.detach().requires_grad_()
        return outputs[name]

    return tap


def _is_transposed(name: str, module: nn.Module) -> bool:
    """Linear keeps (out, in); GPT-2's Conv1D keeps (in, out)."""
    if isinstance(module, nn.Linear):
        return False
    if type(module).__name__ == "Conv1D":
        return True
    raise UnsupportedError(f"{name} belongs to a {type(module).__name__}. Known: Linear, Conv1D.")


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _device_of(model: nn.Module) -> torch.device:
    return normalise_device(next(model.parameters()).device)
