"""What DTensor does with the table of an embedding whose rows are divided over tensor-parallel ranks.

torch has no rule that divides its gradient (torch/distributed/tensor/_ops/_embedding_ops.py,
embedding_dense_backward): every rank gets it whole. Who needs the rank's rows copies them out: FSDP2 at once, an
optimizer in each operation of its step. Does not know tables that are tied to the head.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.engine.parallel.topology import Topology
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Change, Chunk, Mode
from vramcast.ledger import BACKWARD
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Param
from vramcast.setup.records import Optimizer, Versions

OTHERS = ("megatron", "deepspeed")  # they divide layers and gradients themselves


def divides_itself(versions: Versions, topology: Topology) -> bool:
    """Tensor parallelism and nothing else, by torch's parallelize_module."""
    alone = topology.strategy in ("none", "ddp") and topology.data * topology.cp == 1
    return topology.tp > 1 and alone and versions.framework not in OTHERS


def whole_tables(versions: Versions, program: Program, topology: Topology) -> tuple[Param, ...]:
    """Trained tables, as the rank stores them, whose gradient is made whole."""
    inside = topology.tp > 1 and topology.strategy == "fsdp2" and versions.framework not in OTHERS
    if not inside and not divides_itself(versions, topology):
        return ()
    tied = {param.tied_to for param in program.params()}
    return tuple(
        p for p in program.params() if p.kind == "embedding" and p.trainable and p.name not in tied
    )


def held_whole(param: Param, topology: Topology) -> Param:
    """A table's gradient as it lies there until zero_grad."""
    return param.stored(param.dtype, (param.shape[0] * topology.tp, *param.shape[1:]), None)


def whole_gradients(
    versions: Versions, program: Program, topology: Topology, label: str
) -> tuple[Change, ...]:
    """FSDP2 finds the rank's rows, cut out of what carries `label`; elsewhere a whole gradient stays as it is."""
    labels = {f"gradient of {table.name}" for table in whole_tables(versions, program, topology)}

    def cut(event: Event) -> Iterator[Event]:
        if event.sign < 0:
            return iter((event,))
        key, nbytes = ("outer", "whole", event.key), event.nbytes * topology.tp
        made = Event(1, key, nbytes, "working", label)
        return iter((made, event, made._replace(sign=-1)))

    def kept(event: Event) -> Iterator[Event]:
        return iter((event._replace(nbytes=event.nbytes * topology.tp),))

    way = cut if topology.strategy == "fsdp2" else kept

    def change(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in stream:
            if chunk.phase != BACKWARD or not any(event.label in labels for event in chunk.events):
                yield chunk
                continue
            made = [each for e in chunk.events for each in (way(e) if e.label in labels else (e,))]
            yield chunk._replace(events=made)

    return (change,) if labels else ()


def copied_rows(optimizer: Optimizer, tables: tuple[Param, ...]) -> tuple[tuple[int, ...], ...]:
    """Lists that the optimizer's step makes and drops before its own: foreach's lerp reads a gradient once, its
    addcmul twice; fused reads it once."""
    rows = tuple(table.nbytes for table in tables)
    how = optimizer.implementation
    if not rows or how == "in-backward":
        return ()
    return (rows,) if how == "fused" else (rows, rows * 2)
