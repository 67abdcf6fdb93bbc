"""A snapshot is a stranger's pickle: whatever it tries, it is read as data or refused, and nothing runs."""

from __future__ import annotations

import os
import pickle
import random
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recordings import record

from vramcast.cli import main
from vramcast.errors import SnapshotError
from vramcast.snapshot.reader import read_snapshot
from vramcast.snapshot.record import ACTIONS

MARKER = "VRAMCAST_GADGET_RAN"


class Gadget:
    """Unpickling this sets an environment variable: the mildest thing that a pickle can do."""

    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self._reduced = reduced

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self._reduced


class Stateful:
    """A plain object: its state is set on loading."""

    def __init__(self) -> None:
        self.harmless = True


GADGETS: dict[str, Any] = {
    "os.putenv": Gadget((os.putenv, (MARKER, "1"))),
    "exec": Gadget((exec, (f"import os; os.environ['{MARKER}'] = '1'",))),
    "eval": Gadget((eval, (f"__import__('os').environ.__setitem__('{MARKER}', '1')",))),
    "getattr": Gadget((getattr, ("", "join"))),
    "subprocess": Gadget((subprocess.Popen, (["true"],))),
    "state": Stateful(),
    "list items": Gadget((list, (), None, iter([1]))),
    "a class": dict,
    "bytearray": bytearray(b"x"),
    "set": {1, 2},
}


def places(gadget: Any) -> dict[str, Any]:
    """Where in a snapshot it can hide."""
    segment = {
        "device": 0,
        "address": 512,
        "total_size": 0,
        "stream": 0,
        "segment_type": "small",
        "blocks": [],
    }
    return {
        "alone": gadget,
        "as segments": {"segments": gadget, "device_traces": []},
        "in a segment": {"segments": [{**segment, "frames": gadget}], "device_traces": []},
        "in an event": {
            "segments": [],
            "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": [gadget]}]],
        },
        "as a key": {
            "segments": [],
            "device_traces": [],
            (1, gadget if isinstance(gadget, Gadget) else 2): gadget,
        },
        "deep": {"segments": [], "external_annotations": [[[({"a": [gadget]},)]]]},
    }


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", GADGETS)
def test_a_pickle_that_tries_to_run_code_is_refused(
    name: str, protocol: int, tmp_path: Path
) -> None:
    os.environ.pop(MARKER, None)
    path = tmp_path / "evil.pickle"
    for content in places(GADGETS[name]).values():
        path.write_bytes(pickle.dumps(content, protocol))
        with pytest.raises(SnapshotError):
            read_snapshot(path)
    assert MARKER not in os.environ


HAND_WRITTEN = {
    "GLOBAL": b"cos\nsystem\n.",
    "GLOBAL and REDUCE": b"cos\nsystem\n(S'true'\ntR.",
    "INST": b"(S'true'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'true'\no.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "NEWOBJ": b"\x80\x02cbuiltins\nlist\n)\x81.",
    "NEWOBJ_EX": b"\x80\x04cbuiltins\nlist\n)}\x92.",
    "BUILD": b"\x80\x02}}b.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "PERSID": b"Pmodule\n.",
    "BINPERSID": b"\x80\x02K\x01Q.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "READONLY_BUFFER": b"\x80\x05}\x98.",
    "hidden behind POP": b"\x80\x02cos\nsystem\n0}.",
    "hidden in the memo": b"\x80\x02cos\nsystem\nq\x000}.",
}


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_every_opcode_that_can_build_an_object_is_refused_by_name(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(HAND_WRITTEN[name])
    with pytest.raises(SnapshotError, match="refused and nothing was run"):
        read_snapshot(path)


BOMBS = {
    "a string of 2^60 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
    "bytes of 4 GiB": b"\x80\x04B" + struct.pack("<I", 0xFFFF_FFFF) + b"x.",
    "a number of 2 GiB": b"\x80\x02\x8b" + struct.pack("<I", 0x7FFF_FFFF) + b"x.",
    "a decimal number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "memo entry four billion": b"\x80\x02}r" + struct.pack("<I", 0xFFFF_FFFF) + b".",
    "a negative memo entry": b"}p-7\n.",
    "a memo entry that is not there": b"\x80\x02h\x07.",
    "frames without end": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b".",
    "nested a million deep": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "a billion laughs": b"\x80\x02"
    + b"".join(b"]q%c(" % i + b"h%c" % max(0, i - 1) * 200 + b"e" for i in range(200)) + b".",
    "more marks than values": b"(" * 100_000 + b"t" * 100_000 + b".",
    "stops before it starts": b"\x80\x04.",
    "appends to a number": b"\x80\x02K\x01K\x02a.",
    "sets an item of a list": b"\x80\x02]K\x01K\x02s.",
    "a dict with a list as key": b"\x80\x02}]K\x01s.",
    "protocol 200": b"\x80\xc8}.",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_cost_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pickle"
    path.write_bytes(BOMBS[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SnapshotError):
        read_snapshot(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


FLOODS = {
    "blocks without end": (b"\x80\x04](", b"}", "segments and blocks"),
    "blocks with keys without end": (b"\x80\x04](", b"}(K\x01K\x02u", "segments and blocks"),
    "values without end": (b"\x80\x04](", b"N", "belong to nothing"),
    "marks without end": (b"\x80\x04]", b"(", "nested"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_small_things_ends_before_the_memory_does(name: str, tmp_path: Path) -> None:
    start, piece, reason = FLOODS[name]
    path = tmp_path / "flood.pickle"
    path.write_bytes(start + piece * (16_000_000 // len(piece)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SnapshotError, match=reason):
        read_snapshot(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB


def test_an_event_that_is_referred_to_twice_is_refused(tmp_path: Path) -> None:
    event = {"action": "alloc", "addr": 1024, "size": 512, "frames": []}
    path = tmp_path / "twice.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event, event]]}, 4))
    with pytest.raises(SnapshotError, match="second time"):
        read_snapshot(path)


def test_a_file_cut_anywhere_is_a_clear_error(tmp_path: Path) -> None:
    whole = record("", seed=1, steps=30).write(tmp_path / "whole.pickle").read_bytes()
    path = tmp_path / "cut.pickle"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotError) as caught:
            read_snapshot(path)
        assert "\n" not in str(caught.value)


def test_flipped_bytes_are_read_or_refused_but_never_crash(tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = record("", seed=1, steps=40).write(tmp_path / "whole.pickle").read_bytes()
    path, refused = tmp_path / "flipped.pickle", 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 20])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        refused += main(["snapshot", str(path)]) != 0
    assert 0 < refused <= 600


def contradict(content: dict[str, Any], rng: random.Random) -> None:
    """Lose, move or falsify a few events, or lose a segment."""
    events, segments = content["device_traces"][0], content["segments"]
    for _ in range(rng.choice([1, 2, 5])):
        event = rng.choice(events)
        match rng.randrange(6):
            case 0:
                events.remove(event)
            case 1:
                event["addr"] = rng.choice(
                    [0, rng.randrange(1 << 64), rng.choice(events).get("addr", 5) ^ 512]
                )
            case 2:
                event["size"] = rng.choice([0, 1, rng.randrange(1 << 40)])
            case 3:
                event["action"] = rng.choice(sorted(ACTIONS))
            case 4:
                segments.pop(rng.randrange(len(segments)))
            case _:
                events.insert(rng.randrange(len(events)), dict(event))


@pytest.mark.parametrize("seed", range(4))
def test_recordings_that_contradict_themselves_are_survived(seed: int, tmp_path: Path) -> None:
    rng, path = random.Random(seed), tmp_path / "s.pickle"
    whole = pickle.dumps(
        record(
            "expandable_segments:True",
            seed=seed,
            steps=80,
            expandable=True,
            delays=True,
            streams=(0, 3),
        ).content()
        if seed % 2
        else record(
            "max_split_size_mb:32", seed=seed, steps=80, private=True, max_split=1 << 25, keep=90
        ).content()
    )
    for _ in range(60):
        content = pickle.loads(whole)
        contradict(content, rng)
        path.write_bytes(pickle.dumps(content))
        arguments = [
            "--replay",
            "--json",
            "--alloc-conf",
            "expandable_segments:True",
            "--html",
            str(tmp_path / "page.html"),
        ]
        assert main(["snapshot", str(path), *arguments]) in (0, 2)


DEEP_STATE = b"\x80\x04]}\x8c\x05state" + b"]" * 20_000 + b"a" * 19_999 + b"s\x8c\x04sizeK\x01sa."


def one_event(event: dict[str, Any]) -> bytes:
    return pickle.dumps({"segments": [], "device_traces": [[event]]})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + b"\0" * 40, "zip archive"),
        (b"\x1f\x8b\x08" + b"\0" * 40, "gzip"),
        (b'{"segments": []}', "JSON"),
        (b"<html>", "HTML"),
        (b"hello, this is text\n", "not a pickle"),
        (b"(this starts like a pickle\n", "not a readable memory snapshot"),
        (pickle.dumps({"weights": [1, 2, 3]}), "no memory snapshot"),
        (pickle.dumps([1, 2, 3]), "no memory snapshot"),
        (pickle.dumps({"segments": [], "device_traces": 7}), "device_traces"),
        (pickle.dumps({"segments": [], "device_traces": [[1, 2]]}), "no event"),
        (pickle.dumps({"segments": [], "device_traces": [7]}), "no event"),
        (pickle.dumps({"segments": [], "device_traces": [None]}), "no event"),
        (one_event({"action": "explode", "size": 1}), "unknown event 'explode'"),
        (one_event({"action": [[1]], "size": 1}), "unknown event of type list"),
        (pickle.dumps([{"device": -1, "address": 0, "total_size": 0, "blocks": []}]), "device -1"),
        (b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.", "tuples inside of tuples"),
        (b"\x80\x04}\x8c\x06action" + b"]" * 20_000 + b"a" * 19_999 + b"s]q\x00h\x00a\x85.", "no memory snapshot"),
        (DEEP_STATE, "unknown block state of type list"),
        (one_event({"action": "alloc", "size": -1}), "than any card has"),
        (one_event({"action": "alloc", "size": 1 << 41}), "than any card has"),
        (one_event({"action": "alloc", "size": "big"}), "not a whole number"),
        (one_event({"action": "alloc"}), "not a whole number"),
        (one_event({"action": "alloc", "size": 1, "addr": 1 << 64}), "fits 64 bits"),
        (one_event({"action": "oom"}), "fits 64 bits"),
        (one_event({"action": "alloc", "size": 1, "stream": "fast"}), "stream"),
        (one_event({"action": "alloc", "size": 1, "pool_id": 3}), "pool id"),
        (one_event({"action": "alloc", "size": 1, "frames": [5]}), "no frame"),
    ],
)  # fmt: skip
def test_other_files_get_one_line_and_exit_code_2(
    content: bytes, says: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "other.pickle"
    path.write_bytes(content)
    assert main(["snapshot", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"vramcast: {path}: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err


def test_a_missing_file_and_a_folder_get_one_line_too(tmp_path: Path, capsys: Any) -> None:
    assert main(["snapshot", str(tmp_path / "none.pickle")]) == 2
    assert main(["snapshot", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_the_reader_never_imports_pickle_to_load(tmp_path: Path) -> None:
    """With pickle and torch made unimportable the file still reads: nothing else could have loaded it."""
    path = record("", seed=1, steps=30).write(tmp_path / "snapshot.pickle")
    script = (
        "import sys; sys.modules['pickle'] = sys.modules['_pickle'] = sys.modules['torch'] = None\n"
        "from vramcast.snapshot.reader import read_snapshot\n"
        f"print(len(read_snapshot({str(path)!r}).trace(0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 30
