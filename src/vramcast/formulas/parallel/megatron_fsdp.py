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

from vramcast.formulas.events import Event
from vramcast.formulas.parallel.topology import Topology
from vramcast.formulas.parallel.windows import GATHERED, REDUCED, Unit, _Fsdp2, _woven
from vramcast.formulas.recipe import RECIPES
from vramcast.formulas.timeline import Change
from vramcast.job import Job

AHEAD, QUEUED = 2, 2


def is_megatron_fsdp(job: Job, topology: Topology) -> bool:
    return job.framework == "megatron" and topology.strategy in ("zero2", "zero3") and topology.shard > 1


def megatron_change(job: Job, units: list[Unit], topology: Topology) -> Change:
    item = RECIPES[job.precision].gradients.nbytes
    return _woven(units, partial(MegatronWindow, gathers=topology.strategy == "zero3", item=item))


class MegatronWindow(_Fsdp2):
    """AllGatherPipeline and GradReducePipeline (param_and_grad_buffer.py)."""

    def __init__(self, units: list[Unit], *, gathers: bool, item: int) -> None:
        super().__init__(units)
        self.gathers, self.item = gathers, item
        self.queue: list[Unit] = []

    def _gathered(self, unit: Unit, step: int) -> Iterator[Event]:
        """This unit and the next ones in the direction of travel."""
        if not self.gathers:
            return
        place = self.units.index(unit)
        for number in range(AHEAD + 1):
            if 0 <= place + step * number < len(self.units):
                near = self.units[place + step * number]
                yield from self.born(GATHERED, near, near.gathered_bytes)

    def before_forward(self, unit: Unit) -> Iterator[Event]:
        yield from self._gathered(unit, 1)

    def after_forward(self, unit: Unit) -> Iterator[Event]:
        if unit.reshards:
            yield from self.dies(GATHERED, unit)

    def end_forward(self) -> Iterator[Event]:
        return iter(())

    def begin_backward(self) -> Iterator[Event]:
        return iter(())

    def before_backward(self, unit: Unit) -> Iterator[Event]:
        yield from self._gathered(unit, -1)
        yield from self.born(REDUCED, unit, self._bucket_bytes(unit))

    def after_backward(self, unit: Unit, gradients: list[Event]) -> Iterator[Event]:
        yield from self.dies(GATHERED, unit)
        self.queue.append(unit)
        while len(self.queue) > QUEUED:
            yield from self._reduced(self.queue.pop(0))

    def end_backward(self) -> Iterator[Event]:
        for unit in self.queue:
            yield from self._reduced(unit)
        for unit in self.units:
            yield from self.dies(GATHERED, unit)

    def _reduced(self, unit: Unit) -> Iterator[Event]:
        yield from self.dies(REDUCED, unit, self._bucket_bytes(unit))

    def _bucket_bytes(self, unit: Unit) -> int:
        return sum(unit.numels) * self.item
