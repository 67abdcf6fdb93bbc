"""Megatron-FSDP's windows: parameters gathered unit by unit, gradients in buckets that are reduced and let go.

data_parallel_sharding_strategy optim_grads is `zero2` here, optim_grads_params `zero3`. A unit is a transformer layer;
embedding, last norm and head stay gathered through the step. Two units are gathered ahead and up to two buckets wait
for their reduction (megatron_fsdp.py: suggested_AG_prefetch_size and suggested_RS_queue_capacity are twice a unit). A
bucket has the main gradients' dtype, and exists from the first gradient of its unit on. Double buffers that stay
allocated (fsdp_double_buffer) and fp8 parameters are not described.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vramcast.engine.parallel.fsdp_units import Unit
from vramcast.engine.parallel.gathering import GATHERED, REDUCED, Fsdp2Gathering, weave
from vramcast.engine.parallel.topology import Topology
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Change
from vramcast.setup.precision import Recipe
from vramcast.setup.records import Versions

AHEAD, QUEUED = 2, 2


def is_megatron_fsdp(versions: Versions, topology: Topology) -> bool:
    return (
        versions.framework == "megatron"
        and topology.strategy in ("zero2", "zero3")
        and topology.shard > 1
    )


def megatron_change(precision: Recipe, units: list[Unit], topology: Topology) -> Change:
    recipe = precision
    item = recipe.weights.nbytes if topology.strategy == "zero3" else 0
    return weave(units, partial(MegatronWindow, item=item, gradient_item=recipe.gradients.nbytes))


class MegatronWindow(Fsdp2Gathering):
    """AllGatherPipeline and GradReducePipeline (param_and_grad_buffer.py)."""

    def __init__(self, units: list[Unit], *, item: int, gradient_item: int) -> None:
        super().__init__(units)
        self.item, self.gradient_item = (
            item,
            gradient_item,
        )  # bytes of an element as gathered (0: never) and reduced
        roots, layers = (
            [unit for unit in units if unit.is_root],
            [unit for unit in units if not unit.is_root],
        )
        self.order = {
            1: [*roots, *layers],
            -1: [*roots, *reversed(layers)],
        }  # embedding first, or head first
        self.entered: set[tuple[int, int]] = set()
        self.queue: list[Unit] = []

    def _gathered(self, unit: Unit, direction: int) -> Iterator[Event]:
        """This unit and the next ones on the way; the root is met twice, and is there the second time."""
        first = (direction, unit.number) not in self.entered
        self.entered.add((direction, unit.number))
        place = self.order[direction].index(unit)
        for near in self.order[direction][place : place + 1 + AHEAD * first]:
            yield from self.born(GATHERED, near, near.elements * self.item)

    def before_forward(self, unit: Unit) -> Iterator[Event]:
        yield from self._gathered(unit, 1)

    def after_forward(self, unit: Unit) -> Iterator[Event]:
        if not unit.is_root:  # across pipeline stages as well
            yield from self.dies(GATHERED, unit, unit.elements * self.item)

    def end_forward(self) -> Iterator[Event]:
        return iter(())

    def begin_backward(self) -> Iterator[Event]:
        return iter(())

    def before_backward(self, unit: Unit) -> Iterator[Event]:
        yield from self._gathered(unit, -1)
        yield from self.born(REDUCED, unit, self._bucket_bytes(unit))

    def after_backward(self, unit: Unit, gradients: list[Event]) -> Iterator[Event]:
        yield from self.dies(GATHERED, unit, unit.elements * self.item)
        self.queue.append(unit)
        while len(self.queue) > QUEUED:
            yield from self._reduced(self.queue.pop(0))

    def end_backward(self) -> Iterator[Event]:
        for unit in self.queue:
            yield from self._reduced(unit)
        for unit in self.units:
            yield from self.dies(GATHERED, unit, unit.elements * self.item)

    def _reduced(self, unit: Unit) -> Iterator[Event]:
        yield from self.dies(REDUCED, unit, self._bucket_bytes(unit))

    def _bucket_bytes(self, unit: Unit) -> int:
        return sum(unit.numels) * self.gradient_item
