"""Snapshot -> Analysis: peaks, fragmentation, holders, timeline, replay. Start reading the package here.

Everything is about one device and the recorded window: what happened before the recording began is not known, and the
notes say so where it matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.allocator import AllocatorSettings
from vramcast.allocator.block import ALLOCATED
from vramcast.ledger import Category, Entry, Ledger, Level, Origin
from vramcast.snapshot.history import History, Moment, Walk
from vramcast.snapshot.holders import Attribution, Holder
from vramcast.snapshot.layout import Layout
from vramcast.snapshot.record import OOM, Row, Snapshot
from vramcast.snapshot.replay import Alternative, Replay, replay, replay_with
from vramcast.snapshot.timeline import Shares, Timeline, bucket_events, timeline

PEAK_PHASE = "peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """Where reserved memory that nobody uses sits."""

    allocated_bytes: int
    reserved_bytes: int
    waiting_bytes: int  # freed by the program, still used by another stream
    releasable_bytes: int  # whole free segments: empty_cache would return them
    stuck_bytes: int  # free pieces of segments that are in use
    largest_free_bytes: int
    rounding_bytes: int  # inside allocated: size of the blocks minus what was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class OomEvent:
    """A request that torch could not serve."""

    index: int
    requested_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One device of one snapshot."""

    device: int
    devices: tuple[int, ...]
    settings_text: str
    events: int
    duration_us: int
    start: Moment
    end: Moment
    peak_allocated: Moment
    peak_reserved: Moment
    fragmentation: Fragmentation
    holders: tuple[Holder, ...]
    timeline: Timeline
    ooms: tuple[OomEvent, ...]
    unexplained_events: int
    replay: Replay | None
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]

    def ledger(self) -> Ledger:
        """The moment of the peak as a bill: allocated by holder, and what is reserved beyond it."""
        place = f"cuda:{self.device}"
        entries = [
            Entry(
                category=holder.category,
                component=holder.frame,
                place=place,
                phases=(PEAK_PHASE,),
                nbytes=holder.allocated_bytes,
                origin=Origin.MEASURED,
                formula=f"{holder.blocks} blocks",
            )
            for holder in self.holders
        ]
        slack = self.peak_allocated.reserved_bytes - self.peak_allocated.allocated_bytes
        entries.append(
            Entry(
                category=Category.SLACK,
                component="reserved, not allocated",
                place=place,
                phases=(PEAK_PHASE,),
                nbytes=slack,
                origin=Origin.MEASURED,
                level=Level.RESERVED,
            )
        )
        ledger = Ledger(entries=tuple(entries), top_level=Level.RESERVED)
        ledger.check()
        return ledger


def analyse(
    snapshot: Snapshot,
    device: int,
    *,
    with_replay: bool,
    other_settings: Sequence[tuple[str, AllocatorSettings]] = (),
) -> Analysis:
    """Everything the snapshot tells about one device."""
    history = History.of(snapshot, device)
    survey = _survey(history)
    peak = _look_closer(history, survey, Attribution(snapshot))
    alternatives = [replay_with(history, settings, text) for text, settings in other_settings]
    if alternatives:
        alternatives.insert(
            0, replay_with(history, snapshot.settings, snapshot.settings_text or "as recorded")
        )
    return Analysis(
        device=device,
        devices=snapshot.devices(),
        settings_text=snapshot.settings_text,
        events=len(history.trace),
        duration_us=survey.end.time_us - survey.start.time_us,
        start=survey.start,
        end=survey.end,
        peak_allocated=survey.peak_allocated,
        peak_reserved=survey.peak_reserved,
        fragmentation=peak.fragmentation,
        holders=peak.holders,
        timeline=peak.timeline,
        ooms=survey.ooms,
        unexplained_events=survey.unexplained,
        replay=replay(history) if with_replay else None,
        alternatives=tuple(alternatives),
        notes=(*_notes(survey, history), *_settings_notes(snapshot)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Survey:
    """What one walk through the events finds. `fullest` are the events to sample, one per bucket."""

    start: Moment
    end: Moment
    peak_allocated: Moment
    peak_reserved: Moment
    fullest: frozenset[int]
    ooms: tuple[OomEvent, ...]
    unexplained: int
    end_matches: bool


def _survey(history: History) -> _Survey:
    walks = history.walk()
    walk = next(walks)
    start = allocated = reserved = walk.moment()
    bucket = bucket_events(len(history.trace))
    fullest, fullest_bytes, fullest_event = {-1}, -1, -1
    ooms = []
    for walk, row in zip(walks, history.trace, strict=True):
        if walk.allocated_bytes > fullest_bytes:
            fullest_bytes, fullest_event = walk.allocated_bytes, walk.index
            if walk.allocated_bytes > allocated.allocated_bytes:
                allocated = walk.moment()
        if walk.reserved_bytes > reserved.reserved_bytes:
            reserved = walk.moment()
        if row[0] == OOM:
            ooms.append(_oom_event(walk, row))
        if (walk.index + 1) % bucket == 0:
            fullest.add(fullest_event)
            fullest_bytes = -1
    fullest.update((walk.index, allocated.index))
    return _Survey(
        start=start,
        end=walk.moment(),
        peak_allocated=allocated,
        peak_reserved=reserved,
        fullest=frozenset(fullest),
        ooms=tuple(ooms),
        unexplained=walk.unexplained,
        end_matches=_matches(walk.layout, history.end),
    )


def _oom_event(walk: Walk, row: Row) -> OomEvent:
    return OomEvent(
        index=walk.index,
        requested_bytes=row[5],
        device_free_bytes=row[4],
        allocated_bytes=walk.allocated_bytes,
        reserved_bytes=walk.reserved_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    fragmentation: Fragmentation
    holders: tuple[Holder, ...]
    timeline: Timeline


def _look_closer(history: History, survey: _Survey, attribution: Attribution) -> _Peak:
    """A second walk, now that it is known where to look."""
    shares, samples = Shares(attribution), []
    for walk in history.walk():
        shares.follow(walk)
        if walk.index in survey.fullest:
            samples.append(shares.sample(walk))
        if walk.index == survey.peak_allocated.index:
            allocated = (block for block in walk.layout.blocks.values() if block.state == ALLOCATED)
            fragmentation, holders = _fragmentation(walk), attribution.holders(allocated)
    return _Peak(fragmentation=fragmentation, holders=holders, timeline=timeline(samples))


def _matches(reached: Layout, recorded: Layout) -> bool:
    ours = {address: (block.size, block.state) for address, block in reached.blocks.items()}
    return ours == {
        address: (block.size, block.state) for address, block in recorded.blocks.items()
    }


def _fragmentation(walk: Walk) -> Fragmentation:
    free_whole = free_pieces = largest = 0
    for segment in walk.layout.held():
        position = segment.address
        gaps = []
        for block in segment.blocks:
            gaps.append(block.address - position)
            position = block.address + block.size
        gaps.append(segment.address + segment.size - position)
        largest = max(largest, *gaps)
        if segment.blocks:
            free_pieces += sum(gaps)
        else:
            free_whole += segment.size
    return Fragmentation(
        allocated_bytes=walk.allocated_bytes,
        reserved_bytes=walk.reserved_bytes,
        waiting_bytes=walk.active_bytes - walk.allocated_bytes,
        releasable_bytes=free_whole,
        stuck_bytes=free_pieces,
        largest_free_bytes=largest,
        rounding_bytes=walk.active_bytes - walk.requested_bytes,
    )


def _settings_notes(snapshot: Snapshot) -> tuple[str, ...]:
    ignored = ", ".join(snapshot.ignored_settings)
    return (
        (f"Allocator settings not understood here and left out: {ignored[:200]}",)
        if ignored
        else ()
    )


def _notes(survey: _Survey, history: History) -> tuple[str, ...]:
    notes = []
    if not len(history.trace):
        notes.append(
            "The file holds no events, so the peak is the state it shows. Start the recording earlier with "
            "torch.cuda.memory._record_memory_history()."
        )
    elif survey.start.reserved_bytes:
        notes.append(
            "The recording starts in the middle: memory was held before its first event. Peaks are those of the "
            "recorded window."
        )
    if survey.unexplained:
        notes.append(
            f"{survey.unexplained} events contradict the state before them; events seem to be missing."
        )
    elif not survey.end_matches:
        notes.append(
            "Following the events does not lead to the state at the end of the file; events seem to be missing."
        )
    if history.uncertain_blocks:
        notes.append(
            f"{history.uncertain_blocks} blocks from before the recording may have been up to 1 MiB larger than "
            "counted until they were freed: how much of its segment such a block took is not recorded."
        )
    return tuple(notes)
