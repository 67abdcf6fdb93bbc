"""`vramcast snapshot` as a user meets it: text, JSON and the page."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from naive_allocator import NaiveAllocator
from recordings import MIB, Recording, frame, record

from vramcast.cli import main
from vramcast.ledger import Category, Level, Origin
from vramcast.snapshot.analysis import PEAK_PHASE, analyse
from vramcast.snapshot.reader import read_snapshot

MODEL = frame("/home/user/model.py", 12, "forward")
LIBRARY = frame("/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 134, "forward")
CALL = frame("/usr/lib/python3/site-packages/torch/nn/modules/module.py", 1790, "_call_impl")
TRAIN = frame("/home/user/train.py", 40, "<module>")
ENGINE = {
    "filename": "??",
    "line": 0,
    "name": "torch::autograd::Engine::evaluate_function(std::shared_ptr<...>)",
}
NODE = {
    "filename": "??",
    "line": 0,
    "name": "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
}
ADAM = frame("/usr/lib/python3/site-packages/torch/optim/adam.py", 187, "_init_group")
UNWIND = {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"}


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A step with known holders: activations, then gradients that stay, then optimizer states at the peak."""
    allocator = NaiveAllocator()
    weights = allocator.malloc(40 * MIB)
    allocator.events.clear()
    del allocator.figures[:-1]
    activations = [
        allocator.malloc(30 * MIB, frames=[UNWIND, LIBRARY, CALL, MODEL, CALL, TRAIN])
        for _ in range(4)
    ]
    gradient = allocator.malloc(40 * MIB, frames=[UNWIND, NODE, ENGINE])
    for piece in activations:
        allocator.free(piece)
    states = [allocator.malloc(100 * MIB, frames=[UNWIND, ADAM, TRAIN]) for _ in range(2)]
    assert [piece.state for piece in (weights, gradient, *states)] == ["live"] * 4
    return Recording(allocator, allocator.events, allocator.figures, "").write(
        tmp_path / "training.pickle"
    )


def run(capsys: Any, *arguments: str) -> str:
    assert main(["snapshot", *arguments]) == 0
    out: str = capsys.readouterr().out
    return out


def test_holders_at_the_peak_are_lines_of_the_users_code(training: Path) -> None:
    analysis = analyse(read_snapshot(training), 0, with_replay=False)
    assert analysis.peak_allocated.allocated_bytes == 280 * MIB
    found = {
        (holder.frame, str(holder.category)): (holder.allocated_bytes, holder.blocks)
        for holder in analysis.holders
    }
    assert found == {
        ("/home/user/train.py:40 <module>", "optimizer states"): (200 * MIB, 2),
        ("autograd node MmBackward0", "gradients"): (40 * MIB, 1),
        ("allocated before the recording", "unattributed"): (40 * MIB, 1),
    }


def test_the_timeline_adds_up_at_every_sample(training: Path) -> None:
    timeline = analyse(read_snapshot(training), 0, with_replay=False).timeline
    assert max(timeline.allocated_bytes) == 280 * MIB
    for i, allocated in enumerate(timeline.allocated_bytes):
        assert (
            sum(layer.allocated_bytes[i] for layer in timeline.layers)
            == allocated
            <= timeline.reserved_bytes[i]
        )
    activations = next(
        layer for layer in timeline.layers if layer.label == "/home/user/model.py:12 forward"
    )
    assert (max(activations.allocated_bytes), activations.category) == (120 * MIB, "activations")


def test_the_ledger_is_the_bill_of_the_peak(training: Path) -> None:
    ledger = analyse(read_snapshot(training), 0, with_replay=False).ledger()
    moment = ledger.moment(PEAK_PHASE, "cuda:0")
    assert (moment.allocated_bytes, moment.reserved_bytes) == (280 * MIB, 400 * MIB)
    assert {entry.origin for entry in ledger.entries} == {Origin.MEASURED}
    slack = [entry for entry in ledger.entries if entry.category is Category.SLACK]
    assert [(entry.nbytes, entry.level) for entry in slack] == [(120 * MIB, Level.RESERVED)]


def test_fragmentation_tells_stuck_from_releasable(training: Path) -> None:
    what = analyse(read_snapshot(training), 0, with_replay=False).fragmentation
    assert (what.allocated_bytes, what.reserved_bytes) == (280 * MIB, 400 * MIB)
    assert (what.releasable_bytes, what.stuck_bytes, what.largest_free_bytes) == (
        120 * MIB,
        0,
        30 * MIB,
    )


def test_json_has_the_promised_keys(training: Path, capsys: Any) -> None:
    data = json.loads(run(capsys, str(training), "--json", "--top", "2"))
    assert data["schema"] == "vramcast/1"
    assert data["peak_allocated_bytes"] == 280 * MIB
    assert data["peak_reserved_bytes"] == 400 * MIB
    assert data["events"] == 4 * 2 + 2 + 8 + 2 * 2
    replay = data["replay"]
    assert (replay["allocations"], replay["same_address"]) == (7, 7)
    assert (replay["peak_reserved_bytes"], replay["peak_allocated_bytes"]) == (400 * MIB, 280 * MIB)
    assert [holder["bytes"] for holder in data["holders"]] == [200 * MIB, 40 * MIB]
    assert data["holders_total"] == 3


def test_text_starts_with_the_peak_and_says_what_is_guessed(training: Path, capsys: Any) -> None:
    text = run(capsys, str(training), "--replay", "--alloc-conf", "expandable_segments:True")
    assert re.search(
        r"peak allocated\s+allocated\s+0\.27 GiB\s+reserved\s+0\.39 GiB\s+after event 22", text
    )
    assert "guessed" in text
    assert (
        "replay: 7 of 7 allocations at the same address (100.000%), 7 of 7 segments taken as recorded"
        in text
    )
    assert "120.00 MiB  whole free segments" in text
    assert "expandable_segments:True" in text
    assert "█" in text
    assert "note: The recording starts in the middle" in text


def test_the_page_needs_nothing_else_and_names_cannot_break_out_of_it(
    tmp_path: Path, capsys: Any
) -> None:
    allocator = NaiveAllocator()
    hostile = frame("</script><script>alert(1)</script>.py", 1, "<img src=x onerror=alert(2)>")
    allocator.malloc(5 * MIB, frames=[hostile])
    path = Recording(allocator, allocator.events, allocator.figures, "").write(
        tmp_path / "<b>evil.pickle"
    )
    page_path = tmp_path / "page.html"
    run(capsys, str(path), "--html", str(page_path))
    page = page_path.read_text()
    assert page.count("</script>") == 3
    assert "<b>evil" not in page
    assert "<img" not in page
    inlined = re.search(
        r'<script id="timeline-0" type="application/json">(.*?)</script>', page, re.DOTALL
    )
    assert inlined is not None
    frame_of_page = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<[^>]*\s(?:src|href)\s*=|@import|url\(", frame_of_page)
    assert "http" not in frame_of_page.replace("http-equiv", "")
    sources = [label[2] for label in json.loads(inlined.group(1))["labels"]]
    assert any(source.endswith("onerror=alert(2)>") for source in sources)


def test_names_cannot_talk_to_the_terminal(tmp_path: Path, capsys: Any) -> None:
    allocator = NaiveAllocator()
    allocator.malloc(
        5 * MIB, frames=[frame("/tmp/\x1b[31mred\x1b]0;title\x07.py", 1, "two\nlines")]
    )
    recording = Recording(allocator, allocator.events, allocator.figures, "max_split_size_mb:64")
    text = run(capsys, str(recording.write(tmp_path / "s.pickle")))
    assert "\x1b" not in text
    assert "two�lines" in text


def test_settings_of_a_newer_torch_are_left_out_and_named(tmp_path: Path, capsys: Any) -> None:
    recording = record(
        "max_split_size_mb:32,quantum_segments:True,per_process_memory_fraction:0.0",
        seed=1,
        max_split=32 * MIB,
    )
    data = json.loads(run(capsys, str(recording.write(tmp_path / "s.pickle")), "--json"))
    assert data["replay"]["same_address"] == data["replay"]["allocations"] > 50
    assert any("quantum_segments:True" in note for note in data["notes"])


def two_devices(tmp_path: Path) -> Path:
    one, two = record("", seed=1, steps=50), record("", seed=2, steps=150)
    segments = [
        *one.content()["segments"],
        *({**segment, "device": 1} for segment in two.content()["segments"]),
    ]
    path = tmp_path / "two.pickle"
    path.write_bytes(
        pickle.dumps({"segments": segments, "device_traces": [one.events, two.events]})
    )
    return path


def test_the_fullest_device_is_shown_and_the_others_are_named(tmp_path: Path, capsys: Any) -> None:
    path = two_devices(tmp_path)
    default = json.loads(run(capsys, str(path), "--json"))
    other = json.loads(run(capsys, str(path), "--json", "--device", "0"))
    assert (default["device"], other["device"], default["devices"]) == (1, 0, [0, 1])
    assert default["peak_reserved_bytes"] > other["peak_reserved_bytes"]
    assert "also in the file: cuda:0" in run(capsys, str(path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "7"], "the snapshot has 0, 1"),
        (["--alloc-conf", "expandable_segment:True"], "Did you mean expandable_segments"),
        (["--alloc-conf", "backend:cudaMallocAsync"], "not modelled"),
        (["--alloc-conf", "per_process_memory_fraction:0.5"], "does not say how large the card is"),
        (["--top", "-3"], "--top -3"),
        (["--html", "/nonexistent/folder/out.html"], "/nonexistent/folder/out.html"),
    ],
)
def test_wrong_arguments_get_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: Any
) -> None:
    assert main(["snapshot", str(two_devices(tmp_path)), *arguments]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_a_snapshot_without_history_shows_its_state(tmp_path: Path, capsys: Any) -> None:
    recording = record("", seed=1, steps=60)
    path = tmp_path / "s.pickle"
    path.write_bytes(
        pickle.dumps({"segments": recording.allocator.segments(), "device_traces": [[]]})
    )
    data = json.loads(run(capsys, str(path), "--json"))
    assert data["peak_allocated_bytes"] == recording.allocator.allocated()
    assert data["peak_reserved_bytes"] == recording.allocator.reserved
    assert (data["events"], data["replay"]["allocations"]) == (0, 0)
    assert "no events" in run(capsys, str(path))


def test_missing_events_are_admitted(tmp_path: Path, capsys: Any) -> None:
    recording = record("", seed=9, steps=100)
    frees = [i for i, event in enumerate(recording.events) if event["action"].startswith("free_")]
    kept = [event for i, event in enumerate(recording.events) if i not in frees[10:14]]
    path = Recording(recording.allocator, kept, recording.figures, "").write(tmp_path / "s.pickle")
    assert "missing" in run(capsys, str(path))


def test_an_empty_snapshot_is_an_error(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    assert main(["snapshot", str(path)]) == 2
    assert "empty" in capsys.readouterr().err


def test_a_recorded_failure_is_reported(tmp_path: Path, capsys: Any) -> None:
    recording = record("", seed=3, steps=500, capacity=150 * MIB)
    text = run(capsys, str(recording.write(tmp_path / "s.pickle")))
    assert re.search(
        r"out of memory at event [\d,]+: [\d.]+ MiB requested, [\d.]+ .iB free on the card", text
    )
