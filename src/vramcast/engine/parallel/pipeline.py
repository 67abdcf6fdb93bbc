"""Micro-batches in flight: how many forward passes a stage has run whose backward has not, by schedule.

1F1B: stage i of p holds p - i. Interleaved (Megatron `forward_backward_pipelining_with_interleaving`): 2(p - i - 1) +
(v - 1)p + 1 model chunks. GPipe: all. Zero-bubble (ZB-H1): weight gradients are put off, so that every stage holds p.
Where expert-parallel communication is overlapped (Megatron `combined_1f1b.py`) a chunk's forward goes layer by layer
beside the backward of another: what one brings the other lets go, and a layer's forward is there in backward too.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.engine.parallel.topology import Topology
from vramcast.engine.stream.events import Event, kept_ids, peak_above
from vramcast.engine.stream.timeline import KEEP, Change, Chunk, Mode, passes
from vramcast.ledger import BACKWARD, FORWARD
from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.program import Program
from vramcast.setup import Setup
from vramcast.setup.records import Parallel, Versions

IN_FLIGHT = "in flight"
HELD = (
    "activation",
    "working",
    "pinned",
    "kv cache",
)  # not copies of weights, which all micro-batches share


def chunks_in_flight(setup: Setup, topology: Topology, stage: int) -> int:
    """Passes through one model chunk that are alive at once; a chunk is the whole stage unless interleaved."""
    p, most = topology.pp, setup.data.accumulate * setup.parallel.virtual_stages
    if p == 1:
        return 1
    wanted = {
        "gpipe": most,
        "1f1b": p - stage,
        "zero-bubble": p,
        "interleaved": 2 * (p - stage - 1) + (setup.parallel.virtual_stages - 1) * p + 1,
    }[setup.parallel.schedule]
    return min(wanted, most)


def stages_of_rank(parallel: Parallel, topology: Topology, stage: int) -> tuple[int, ...]:
    """The model chunks of a rank: every p-th when interleaved."""
    return tuple(stage + turn * topology.pp for turn in range(parallel.virtual_stages))


def kept_bytes(versions: Versions, program: Program, mode: Mode) -> Number:
    """What one micro-batch leaves behind between its forward and its backward, what follows the layers apart: backward
    comes at once behind it. What a stage sends on stays where it is (torch/distributed/pipelining/stage.py fwd_cache),
    but not with Megatron (pipeline_parallel/schedules.py deallocate_output_tensor)."""
    total: Number = 0
    for chunk in passes(program, mode):
        if chunk.phase == BACKWARD:
            break
        if program.sections[chunk.section].name not in ("mtp", "head", "loss"):
            total = total + sum(
                event.sign * event.nbytes for event in chunk.events if event.kind in HELD
            )
    sent = program.sections[-1].section
    own = kept_ids(sent, KEEP[mode.recompute(program.sections[-1])])
    is_dropped = (
        versions.framework == "megatron"
        and sent.is_block
        and id(sent.outputs[0].storage) not in own
    )
    return total - sent.outputs[0].nbytes if is_dropped else total


def in_flight_change(others: int, each_bytes: Number) -> Change:
    """Activations of the other micro-batches: there before this one begins, replaced as it ends."""

    def change(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        label = "activations of other micro-batches in flight"
        born = [
            Event(1, ("outer", IN_FLIGHT, n), each_bytes, IN_FLIGHT, label) for n in range(others)
        ]
        yield Chunk(FORWARD, 0, born)
        yield from stream
        yield Chunk(BACKWARD, 0, [Event(-1, e.key, e.nbytes, e.kind, e.label) for e in born])

    return change


def forward_bytes(program: Program, mode: Mode) -> Number:
    """The most that one layer's forward has alive beyond what was there before it."""
    most: Number = 0
    for chunk in passes(program, mode):
        if chunk.phase == BACKWARD:
            break
        if program.sections[chunk.section].section.is_block:
            most = maximum(most, peak_above(chunk.events))
    return most


def overlap_change(nbytes: Number) -> Change:
    """Another micro-batch's forward through a layer while backward runs through this one's; the head goes alone."""

    def change(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        alone = {
            index
            for index, placed in enumerate(program.sections)
            if placed.name in ("head", "loss")
        }
        born: Event | None = None
        for chunk in stream:
            if chunk.phase == BACKWARD and born is None and chunk.section not in alone:
                label = "forward of another micro-batch during this backward"
                born = Event(1, ("outer", "overlap"), nbytes, IN_FLIGHT, label)
                yield Chunk(BACKWARD, chunk.section, [born])
            yield chunk
        if born is not None:
            yield Chunk(BACKWARD, 0, [Event(-1, born.key, born.nbytes, born.kind, born.label)])

    return change
