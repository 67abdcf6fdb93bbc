"""File -> Snapshot, in memory that grows with the number of events and not with the text of their stacks.

Takes what torch.cuda.memory._dump_snapshot writes in any version, and a bare list of segments as
torch.cuda.memory_snapshot returns it. Records are taken over while the file is read;
`pickle_stream` says why reading is safe.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vramcast.allocator import DEFAULT_POOL, AllocatorSettings, PoolId
from vramcast.allocator.block import ALLOCATED, FREE, PENDING
from vramcast.errors import InputError, SnapshotError, VramcastError
from vramcast.files import open_file
from vramcast.snapshot.pickle_stream import Packed, PickleStream
from vramcast.snapshot.record import (
    ACTIONS,
    NO_POOL,
    OOM,
    ROW,
    BlockRecord,
    Frame,
    SegmentRecord,
    Snapshot,
    Stack,
    Trace,
)
from vramcast.units import GiB

_STATES = {
    "active_allocated": ALLOCATED,
    "active_pending_free": PENDING,
    "active_awaiting_free": PENDING,
    "inactive": FREE,
}
MOST_FILE_BYTES = 16 * GiB
_MOST_DEVICES = 1024
_LARGEST_BYTES = 1 << 40
# A protocol number, or in protocols 0 and 1 a mark, an empty dict or list, or an import, to be refused with its reason.
_FIRST_BYTES = (b"\x80", b"(", b"}", b"]", b"c", b"P")
_OTHER_FORMATS = {
    b"PK": "a zip archive (torch.save makes those)",
    b"\x1f\x8b": "a gzip file: unpack it first",
    b"": "empty",
    b"<h": "an HTML page",
    b"<!": "an HTML page",
    b'{"': "JSON",
}


def read_snapshot(path: str | Path, progress: Callable[[int, int], None] | None = None) -> Snapshot:
    """Read a file; `progress(done_bytes, file_bytes)` is called now and then."""
    try:
        file = open_file(path, MOST_FILE_BYTES)
    except InputError as error:
        raise SnapshotError(str(error)) from None
    try:
        with file:
            file_bytes = os.fstat(file.fileno()).st_size
            start = file.read(2)
            file.seek(0)
            if start in _OTHER_FORMATS or start[:1] not in _FIRST_BYTES:
                raise SnapshotError(
                    f"it is {_OTHER_FORMATS.get(start, 'text or something else')}, not a pickle."
                )
            intake = Intake()
            report = progress or _no_progress
            stream = PickleStream(
                file,
                file_bytes,
                absorb=intake.absorb,
                absorb_list=intake.stack_reference,
                progress=report,
            )
            loaded = stream.load()
            report(file_bytes, file_bytes)
            return intake.snapshot(loaded)
    except VramcastError as error:
        raise SnapshotError(f"{path}: {error}") from None
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror or error}") from None
    except (RecursionError, MemoryError, OverflowError):
        raise SnapshotError(
            f"{path}: nested too deeply or too large for this machine; torch writes no such file."
        ) from None


def _no_progress(done_bytes: int, file_bytes: int) -> None:
    """Nobody is watching."""


class StackReference:
    """A call stack that was seen before, by number."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Intake:
    """Turns the dicts of a snapshot into records as they come by, and the rest into a Snapshot at the end."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str], Frame] = {}
        self._stacks: dict[Stack, int] = {(): 0}
        self._streams: dict[int, int] = {}
        self._pools: dict[PoolId, int] = {}

    def absorb(self, fields: dict[Any, Any]) -> object | None:
        """A record in place of a dict that is one; None for any other dict."""
        if "action" in fields:
            return self._event(fields)
        if "filename" in fields and "line" in fields:
            return self._frame(fields)
        if "state" in fields and "size" in fields:
            return self._block(fields)
        if "blocks" in fields and "total_size" in fields:
            return self._segment(fields)
        return None

    def stack_reference(self, items: list[Any]) -> StackReference | None:
        if not all(type(item) is Frame for item in items):
            return None
        return StackReference(self._stack_number(items))

    def _event(self, fields: dict[Any, Any]) -> Packed:
        name = fields["action"]
        action = ACTIONS.get(name) if isinstance(name, str) else None
        if action is None:
            raise SnapshotError(f"unknown event {_shown(name)}. Known: {', '.join(ACTIONS)}.")
        if (
            action != OOM
            and not 0 <= _integer(fields.get("size"), f"size of an {name} event") <= _LARGEST_BYTES
        ):
            raise SnapshotError(f"an event {name!r} is about more bytes than any card has.")
        address = (
            fields.get("device_free", fields.get("addr", 0))
            if action == OOM
            else fields.get("addr", 0)
        )
        pool = fields.get("pool_id", fields.get("segment_pool_id"))
        try:
            return Packed(
                ROW.pack(
                    action,
                    self._stack_number(fields.get("frames")),
                    NO_POOL
                    if pool is None
                    else self._pools.setdefault(_pool_id(pool), len(self._pools)),
                    self._streams.setdefault(
                        _integer(fields.get("stream", 0), "stream"), len(self._streams)
                    ),
                    address,
                    fields["size"],
                    fields.get("time_us", 0),
                )
            )
        except (struct.error, KeyError):
            raise SnapshotError(
                f"an event {name!r} has no size, address or time that fits 64 bits."
            ) from None

    def _frame(self, fields: dict[Any, Any]) -> Frame:
        filename, line, name = fields["filename"], fields["line"], fields.get("name", "")
        if not (isinstance(filename, str) and isinstance(line, int) and isinstance(name, str)):
            raise SnapshotError("a stack frame has a file name, line or function that is none.")
        return self._frames.setdefault((filename, line, name), Frame(filename, line, name))

    def _block(self, fields: dict[Any, Any]) -> BlockRecord:
        state = fields["state"]
        if not isinstance(state, str) or state not in _STATES:
            raise SnapshotError(
                f"unknown block state {_shown(state)}. Known: {', '.join(_STATES)}."
            )
        frames, requested = fields.get("frames"), fields.get("requested_size")
        history = fields.get("history")  # torch 1.13 and 2.0: who allocated it, newest first
        newest = _newest_of(history) if history is not None else None
        if newest is not None:
            frames = newest.get("frames", frames)
            requested = newest.get("real_size") if requested is None else requested
        size = _size(fields["size"], "block size")
        if state == "inactive":
            requested = 0  # torch leaves an old figure there
        elif requested is not None and _size(requested, "requested size") > size:
            raise SnapshotError(f"a block of {size} bytes claims that {requested} were asked for.")
        return BlockRecord(
            address=_size(fields.get("address", 0), "address"),
            size=size,
            requested=size if requested is None else requested,
            state=_STATES[state],
            stack=self._stack_number(frames),
        )

    def _segment(self, fields: dict[Any, Any]) -> SegmentRecord:
        blocks = fields["blocks"]
        if not isinstance(blocks, list) or not all(type(block) is BlockRecord for block in blocks):
            raise SnapshotError("a segment has blocks that are none.")
        address, size = (
            _size(fields.get("address"), "segment address"),
            _size(fields["total_size"], "segment size"),
        )
        if sum(block.size for block in blocks) != size:
            raise SnapshotError(
                f"the blocks of segment {address:#x} do not add up to its {size} bytes."
            )
        return SegmentRecord(
            device=_device(fields.get("device", 0)),
            address=address,
            size=size,
            stream=_integer(fields.get("stream", 0), "stream"),
            is_small=fields.get("segment_type") == "small",
            is_expandable=bool(fields.get("is_expandable", False)),
            pool=_pool_id(fields.get("segment_pool_id", DEFAULT_POOL)),
            blocks=_placed(blocks, address),
        )

    def _stack_number(self, frames: object) -> int:
        if isinstance(frames, StackReference):
            return frames.index
        if not frames:
            return 0
        if not isinstance(frames, list) or not all(type(frame) is Frame for frame in frames):
            raise SnapshotError("a call stack holds something that is no frame.")
        return self._stacks.setdefault(tuple(frames), len(self._stacks))

    def snapshot(self, loaded: object) -> Snapshot:
        content: dict[Any, Any] = loaded if isinstance(loaded, dict) else {"segments": loaded}
        segments = content.get("segments")
        if not isinstance(segments, list) or not all(
            type(segment) is SegmentRecord for segment in segments
        ):
            raise SnapshotError(
                "the pickle can be read, but it is no memory snapshot: no list of segments in it. "
                "Make one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(path)."
            )
        recorded = content.get("allocator_settings")
        recorded = recorded if isinstance(recorded, dict) else {}
        text = recorded.get("PYTORCH_ALLOC_CONF") or recorded.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        settings, ignored = AllocatorSettings.from_snapshot(recorded)
        return Snapshot(
            segments=tuple(segments),
            traces=self._traces(content.get("device_traces", [])),
            stacks=tuple(self._stacks),
            settings=settings,
            settings_text=text if isinstance(text, str) else "",
            ignored_settings=ignored,
        )

    def _traces(self, lists: object) -> tuple[Trace, ...]:
        if not isinstance(lists, list) or len(lists) > _MOST_DEVICES:
            raise SnapshotError("device_traces is not a list with an entry per device.")
        traces = []
        for events in lists:
            packed = (
                b""
                if events == []
                else events[0]
                if isinstance(events, list) and len(events) == 1
                else None
            )
            if not isinstance(packed, bytes | bytearray) or len(packed) % ROW.size:
                raise SnapshotError("device_traces holds something that is no event.")
            traces.append(
                Trace(rows=packed, streams=tuple(self._streams), pools=tuple(self._pools))
            )
        return tuple(traces)


def _shown(value: object) -> str:
    """For errors. What is not text may hold itself, or a thousand times the same, and is not written out."""
    return repr(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"


def _placed(blocks: list[BlockRecord], address: int) -> tuple[BlockRecord, ...]:
    """Blocks of old snapshots have no address: they follow one another."""
    placed = []
    for block in blocks:
        if block.address not in (0, address):
            raise SnapshotError(
                f"block {block.address:#x} is not where the block before it ends, {address:#x}."
            )
        fields = {name: getattr(block, name) for name in ("size", "requested", "state", "stack")}
        placed.append(block if block.address else BlockRecord(address=address, **fields))
        address += block.size
    return tuple(placed)


def _newest_of(history: object) -> dict[Any, Any] | None:
    """The last allocation of a block; None where nothing is recorded of it."""
    if isinstance(history, list) and history and isinstance(history[0], dict):
        return history[0]
    return None


def _integer(value: object, what: str) -> int:
    if not isinstance(value, int):
        raise SnapshotError(f"a {what} is not a whole number.")
    return value


def _device(value: object) -> int:
    number = _integer(value, "device")
    if not 0 <= number < _MOST_DEVICES:
        raise SnapshotError(
            f"a segment is on device {number}; devices are 0 to {_MOST_DEVICES - 1}."
        )
    return number


def _size(value: object, what: str) -> int:
    number = _integer(value, what)
    if not 0 <= number < 1 << 64:
        raise SnapshotError(f"a {what} does not fit 64 bits.")
    return number


def _pool_id(value: object) -> PoolId:
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(part, int) for part in value)
    ):
        return (value[0], value[1])
    raise SnapshotError("a pool id is not a pair of whole numbers.")
