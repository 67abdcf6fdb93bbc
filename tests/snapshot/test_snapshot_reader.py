"""What is read from files of all shapes that torch has written."""

from __future__ import annotations

import io
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from recordings import FRAMES, MIB, frame, record

from vramcast.allocator.block import ALLOCATED, FREE, PENDING
from vramcast.snapshot.reader import read_snapshot
from vramcast.snapshot.record import ALLOC, OOM, ROW, Snapshot


def same(one: Snapshot, other: Snapshot) -> bool:
    return (
        one.segments == other.segments
        and rows(one) == rows(other)
        and one.settings == other.settings
    )


def rows(snapshot: Snapshot) -> list[list[tuple[Any, ...]]]:
    """Events with their stacks written out, since stacks are numbered as they come."""
    return [
        [(row[0], tuple(str(line) for line in snapshot.stacks[row[1]]), *row[4:]) for row in trace]
        for trace in snapshot.traces
    ]


class OneBatchPickler(pickle._Pickler):  # type: ignore[misc]
    """Writes each list in one go, as torch's own C++ pickler does, instead of in batches of a thousand."""

    _BATCHSIZE = 1 << 30


def test_all_protocols_say_the_same(tmp_path: Path) -> None:
    recording = record("max_split_size_mb:32", seed=3, steps=200, max_split=32 * MIB)
    snapshots = [
        read_snapshot(recording.write(tmp_path / "s.pickle", protocol)) for protocol in range(6)
    ]
    buffer = io.BytesIO()
    OneBatchPickler(buffer, 2).dump(recording.content())
    (tmp_path / "cpp.pickle").write_bytes(buffer.getvalue())
    snapshots.append(read_snapshot(tmp_path / "cpp.pickle"))
    assert len(snapshots[0].trace(0)) > 200
    assert all(same(snapshot, snapshots[0]) for snapshot in snapshots)
    assert snapshots[0].settings.max_split_bytes == 32 * MIB


def test_events_and_stacks_come_through(tmp_path: Path) -> None:
    shared = FRAMES[0]
    content = {
        "segments": [],
        "device_traces": [[
            {"action": "alloc", "addr": 4096, "size": 100, "stream": 0, "time_us": 5, "frames": shared},
            {"action": "alloc", "addr": 8192, "size": 200, "stream": 1 << 40, "time_us": 6, "frames": shared},
            {"action": "oom", "device_free": 77, "size": 1 << 50, "time_us": 7, "frames": [FRAMES[1][0], shared[0]]},
            {"action": "snapshot", "addr": 0, "size": 3, "stream": 0, "time_us": 8, "frames": []},
        ]],
    }  # fmt: skip
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(content))
    snapshot = read_snapshot(path)
    trace = snapshot.trace(0)
    assert [row[0] for row in trace][:1] == [ALLOC]
    assert [row[4] for row in trace] == [4096, 8192, 77, 0]
    assert trace[2][0] == OOM
    assert trace[2][5] == 1 << 50
    assert [trace.streams[row[3]] for row in trace] == [0, 1 << 40, 0, 0]
    assert trace[0][1] == trace[1][1] != trace[2][1]
    assert [line.name for line in snapshot.stacks[trace[2][1]]] == ["step_1", "step_0"]
    assert trace[3][1] == 0


def test_a_bare_list_of_segments_is_a_snapshot_without_history(tmp_path: Path) -> None:
    recording = record("", seed=1, steps=60)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(recording.allocator.segments()))
    snapshot = read_snapshot(path)
    assert len(snapshot.segments) == len(recording.allocator.segments()) > 3
    assert snapshot.trace(0).rows == b""


def test_blocks_of_torch_1_13_have_no_address_but_a_history(tmp_path: Path) -> None:
    blocks = [
        {
            "size": 1024,
            "state": "active_allocated",
            "history": [{"addr": 2 * MIB, "real_size": 600, "frames": FRAMES[2]}],
        },
        {"size": 512, "state": "active_awaiting_free", "history": []},
        {"size": 2 * MIB - 1536, "state": "inactive"},
    ]
    segment = {
        "device": 0,
        "address": 2 * MIB,
        "total_size": 2 * MIB,
        "stream": 0,
        "segment_type": "small",
        "blocks": blocks,
    }
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment]}))
    snapshot = read_snapshot(path)
    first, second, third = snapshot.segments[0].blocks
    assert (first.address, first.requested, first.state) == (2 * MIB, 600, ALLOCATED)
    assert snapshot.stacks[first.stack][0].name == "step_2"
    assert (second.address, second.requested, second.state) == (2 * MIB + 1024, 512, PENDING)
    assert (third.address, third.state) == (2 * MIB + 1536, FREE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"total_size": 5}, "do not add up"),
        ({"blocks": [1]}, "blocks that are none"),
        ({"device": "zero"}, "device"),
        ({"address": -1}, "64 bits"),
        ({"segment_pool_id": "main"}, "pool id"),
        ({"blocks": [{"size": 2 * MIB, "state": "lost"}]}, "unknown block state 'lost'"),
        ({"blocks": [{"size": 2 * MIB, "state": "inactive", "address": 12345}]}, "not where the block before it ends"),
        ({"blocks": [{"size": 2 * MIB, "state": "active_allocated", "requested_size": 3 * MIB}]}, "claims"),
    ],
)  # fmt: skip
def test_malformed_segments_are_named(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    block = {"size": 2 * MIB, "state": "inactive", "address": 2 * MIB}
    segment = {
        "device": 0,
        "address": 2 * MIB,
        "total_size": 2 * MIB,
        "stream": 0,
        "segment_type": "small",
        "blocks": [block],
    }
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [{**segment, **change}]}))
    with pytest.raises(Exception, match=says):
        read_snapshot(path)


def test_overlapping_segments_are_refused(tmp_path: Path) -> None:
    segment = {
        "device": 0,
        "address": 2 * MIB,
        "total_size": 2 * MIB,
        "blocks": [{"size": 2 * MIB, "state": "inactive"}],
    }
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment, {**segment, "address": 3 * MIB}]}))
    with pytest.raises(Exception, match="overlap"):
        read_snapshot(path).segments_of(0)


def test_progress_counts_up_to_the_size_of_the_file(tmp_path: Path) -> None:
    path = record("", seed=1, steps=100).write(tmp_path / "s.pickle")
    seen: list[tuple[int, int]] = []
    read_snapshot(path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


@pytest.mark.slow
def test_memory_is_bounded_by_the_events_not_by_their_stacks(tmp_path: Path) -> None:
    """A stack of 60 frames takes about 300 bytes in the file each time; in memory an event takes a row."""
    lines = [frame(f"/lib/module_{i}.py", i, f"function_{i}") for i in range(400)]
    stacks = [[lines[(i * 7 + j * 13) % 400] for j in range(60)] for i in range(50)]
    events = [
        {
            "action": "alloc",
            "addr": 512 * i,
            "size": 512,
            "stream": 0,
            "time_us": i,
            "frames": list(stacks[i % 50]),
        }
        for i in range(12_000)
    ]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}, 4))
    file_bytes = path.stat().st_size
    del events
    tracemalloc.start()
    snapshot = read_snapshot(path)
    held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(snapshot.trace(0)) == 12_000
    assert len(snapshot.stacks) == 51
    assert held_bytes < 12_000 * (ROW.size + 10) + 400_000
    assert peak_bytes < file_bytes + 8 * MIB
