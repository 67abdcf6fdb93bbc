"""What a strategy (FSDP1, FSDP2, ZeRO-3, Megatron-FSDP, DDP) does to the stream of one micro-batch."""

from __future__ import annotations

from vramcast.engine.parallel.dtensor import whole_gradients
from vramcast.engine.parallel.fsdp_units import accumulates_unsharded, units_of
from vramcast.engine.parallel.gathering import (
    LABELS,
    LOSS_OUTSIDE,
    UNSHARDED,
    Fsdp1Gathering,
    Fsdp2Gathering,
    copies_aside,
    weave,
    zero3_change,
)
from vramcast.engine.parallel.megatron_fsdp import is_megatron_fsdp, megatron_change
from vramcast.engine.parallel.topology import Topology
from vramcast.engine.stream.timeline import Change
from vramcast.models.record.program import Program
from vramcast.setup import Setup


def strategy_changes(
    setup: Setup, program: Program, topology: Topology, *, fresh: bool
) -> tuple[Change, ...]:
    """What the strategy does to the stream of one micro-batch; `fresh`: sharded gradients do not exist yet, and come
    with this one where their reduction waits for the last."""
    if is_megatron_fsdp(setup.versions, topology):
        return (megatron_change(setup.precision, units_of(setup, program, topology), topology),)
    whole = whole_gradients(setup.versions, program, topology, LABELS[UNSHARDED])
    if topology.strategy not in ("fsdp1", "fsdp2", "zero3") or topology.shard == 1:
        return whole
    units = units_of(setup, program, topology)
    if topology.strategy == "zero3":
        return (zero3_change(setup, units, topology),)
    kind = Fsdp2Gathering if topology.strategy == "fsdp2" else Fsdp1Gathering
    inside = setup.versions.framework not in LOSS_OUTSIDE and topology.pp == 1
    waits = accumulates_unsharded(setup) and not fresh
    return (
        *whole,
        weave(
            units,
            kind,
            fresh=fresh,
            loss_inside=inside,
            copies_aside=copies_aside(setup),
            waits=waits,
            first=waits and setup.data.accumulate == 2,
        ),
    )
