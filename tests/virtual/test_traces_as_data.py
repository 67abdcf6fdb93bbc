"""Traces saved, compared, exported and scaled: what comes back is what was run, also at sizes not traced."""

from __future__ import annotations

import gc
import gzip
import json
import pickle
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.cli.trace_scale import read_knobs, with_values
from vramcast.errors import InputError
from vramcast.report.trace_compare import render_traces
from vramcast.report.trace_scale import formula
from vramcast.traces.record import Trace, from_json, read, write
from vramcast.traces.replay import replay
from vramcast.traces.scaling import Differs, Scaled
from vramcast.virtual import virtual_gpu
from vramcast.virtual.accounting.cards import Lifting
from vramcast.virtual.accounting.export import trace_json
from vramcast.virtual.script import run_script

MODEL = """
import sys, torch
from torch import nn
batch, length, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(128), nn.Linear(128, 384), nn.Linear(128, 128)
        self.mlp = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
    def forward(self, x):
        q, k, v = (t.view(*t.shape[:2], 4, 32).transpose(1, 2) for t in self.qkv(self.norm(x)).split(128, 2))
        if kind == "scores":
            y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)
embedding, head = nn.Embedding(2000, 128).cuda(), nn.Linear(128, 2000).cuda()
blocks = nn.ModuleList(Block() for _ in range(3)).cuda()
optimizer = torch.optim.AdamW([*embedding.parameters(), *blocks.parameters(), *head.parameters()])
for _ in range(2):
    tokens = torch.randint(0, 2000, (batch, length), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        hidden = embedding(tokens)
        for block in blocks:
            if kind == "checkpoint":
                hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        loss = nn.functional.cross_entropy(head(hidden).view(-1, 2000), tokens.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def traced(
    folder: Path, batch: int, length: int, kind: str = "flash", source: str = MODEL
) -> Trace:
    script = folder / "model.py"
    script.write_text(source)
    gpu = virtual_gpu("rtx4090", protect=False, lifts_limit=Lifting.ALWAYS)
    gpu.keep_history()
    run = run_script(str(script), [str(batch), str(length), kind], gpu)
    run.check()
    data = trace_json(gpu, ["model.py", str(batch), str(length)], run.steps, str(run.ending))
    return from_json(json.loads(json.dumps(data)))


def scaled(folder: Path, values: tuple[tuple[int, ...], ...], kind: str) -> Scaled:
    traces = {point: traced(folder, *point, kind) for point in product(*values)}
    found = Scaled(knobs=("batch", "seq"), values=values, traces=traces, place="cuda:0")
    found.check()
    return found


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [("flash", (512, 256)), ("checkpoint", (512, 256)), ("scores", (512, 256, 128))],
)
@pytest.mark.parametrize("point", [(9, 1024), (24, 384)])
def test_sizes_that_were_not_traced_are_predicted(
    tmp_path: Path, kind: str, lengths: tuple[int, ...], point: tuple[int, int]
) -> None:
    found = scaled(tmp_path, ((4, 8), lengths), kind)
    truth = traced(tmp_path, *point, kind)
    moments = [truth.ledger.moment(phase, "cuda:0") for phase in truth.ledger.phases("cuda:0")]
    played = found.replay(point)
    allocated = max(moment.allocated_bytes for moment in moments)
    assert played.allocated_bytes == pytest.approx(allocated, rel=0.0005)
    reserved = max(moment.reserved_bytes for moment in moments)
    assert played.reserved_bytes == pytest.approx(reserved, rel=0.005)
    exact, of = found.count_exact(point, truth.cards["cuda:0"])
    assert exact >= 0.98 * of


def test_a_replay_is_the_run(tmp_path: Path) -> None:
    trace = traced(tmp_path, 4, 256)
    stream = trace.cards["cuda:0"]
    played = replay(stream, stream.requested_bytes)
    phases = trace.ledger.phases("cuda:0")
    assert played.allocated_bytes == max(
        trace.ledger.moment(p, "cuda:0").allocated_bytes for p in phases
    )
    small = replay(stream, stream.requested_bytes, capacity_bytes=played.reserved_bytes // 2)
    assert small.ran_out


def test_the_largest_that_fits_is_on_the_edge(tmp_path: Path) -> None:
    found = scaled(tmp_path, ((4, 8), (512, 256)), "flash")
    largest = found.largest_that_fits((4, 512), 0, 1, 1 << 20)
    assert largest is not None
    assert found.fits((largest, 512))
    assert not found.fits((largest + 1, 512))
    weights = dict(found.terms((4, 512)))["weights"]
    parameters = (
        2 * 2000 * 128 + 2000 + 3 * (4 * 128 + 4 * 128 * 128 + 4 * 128 + 8 * 128 * 128 + 5 * 128)
    )
    assert weights[0, 0] == 4 * parameters
    assert not any(value for powers, value in weights.items() if powers != (0, 0))


@pytest.fixture
def collected_when_asked() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_when_asked")
def test_when_python_collects_what_the_script_left_is_no_difference(tmp_path: Path) -> None:
    """Model and optimizer are in cycles: they stay until Python collects, before the trace is written or after it."""
    names = "embedding, head, blocks, block, optimizer, hidden, loss, tokens"
    collected = MODEL + f"import gc\ndel {names}\ngc.collect()\n"
    traces = {
        point: traced(tmp_path, *point, source=collected if point == (8, 256) else MODEL)
        for point in product((4, 8), (512, 256))
    }
    frees = {
        point: sum(event < 0 for event in trace.cards["cuda:0"].events)
        for point, trace in traces.items()
    }
    assert frees[8, 256] > frees[4, 256]
    Scaled(
        knobs=("batch", "seq"), values=((4, 8), (512, 256)), traces=traces, place="cuda:0"
    ).check()


def test_another_order_is_refused(tmp_path: Path) -> None:
    source = MODEL + "if batch > 4:\n    extra = torch.zeros(9, device='cuda')\n"
    traces = {
        (batch, length): traced(tmp_path, batch, length, source=source)
        for batch, length in product((4, 8), (512, 256))
    }
    with pytest.raises(
        Differs, match=r"batch 4, seq 512 and at batch 8, seq 512 \(first at model.py:"
    ):
        Scaled(
            knobs=("batch", "seq"), values=((4, 8), (512, 256)), traces=traces, place="cuda:0"
        ).check()


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    form = json.loads(json.dumps(_small()))
    write(path, form)
    trace = read(path)
    assert trace.cards["cuda:0"].events == (0, 1, -1, -2)
    assert trace.command == ("train.py",)
    for damage, words in (
        ({"version": 9}, "version 9"),
        ({"format": "other"}, "not a trace"),
        ({"cards": {"cuda:0": {**form["cards"]["cuda:0"], "events": [5]}}}, "damaged"),
        ({"entries": [{}]}, "damaged"),
    ):
        write(path, {**form, **damage})
        with pytest.raises(InputError, match=words):
            read(path)
    for content in (b"", b"\x1f\x8b\x08junk", b"plain", gzip.compress(b"[1, 2")):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a trace"):
            read(path)


def _small() -> dict[str, object]:
    entry = {
        "category": "weights", "component": "w", "place": "cuda:0", "phases": ["load"], "nbytes": 512,
        "origin": "traced", "level": "allocated", "source": "train.py:1", "range_bytes": None,
    }  # fmt: skip
    card = {
        "labels": [["weights", "w", "train.py:1", "aten::zeros", "load"]],
        "bytes": [8, 512], "label": [0, 0], "stream": [0, 0], "events": [0, 1, -1, -2],
    }  # fmt: skip
    return {
        "format": "vramcast trace", "version": 1, "command": ["train.py"], "card": "A", "capacity_bytes": 1,
        "context_bytes": 0, "steps": 1, "ending": "ran to its end", "entries": [entry], "cards": {"cuda:0": card},
    }  # fmt: skip


def test_two_traces_are_compared(tmp_path: Path) -> None:
    text = render_traces(("a", "b"), (traced(tmp_path, 4, 256), traced(tmp_path, 8, 256)))
    lines = {line.split("  ")[1]: line for line in text.splitlines() if line.startswith("  ")}
    assert lines["weights"].endswith("same")
    assert "+" in lines["logits and loss"]


def test_polynomials_are_written_as_people_write_them() -> None:
    terms = (((0, 0), Fraction(1 << 20)), ((1, 0), Fraction(0)), ((1, 2), Fraction(-3 << 10)))
    assert formula(terms, ("batch", "seq")) == "1.00 MiB − 3.00 KiB·batch·seq²"


def test_knobs_are_flags_of_the_command() -> None:
    command = ["train.py", "--batch-size", "8", "--max-length=512", "batch=2"]
    knobs = read_knobs("batch=--batch-size,seq=--max-length", command)
    assert [knob.value for knob in knobs] == [8, 512]
    assert with_values(command, knobs, (3, 64)) == [
        "train.py",
        "--batch-size",
        "3",
        "--max-length=64",
        "batch=2",
    ]
    assert read_knobs("b=batch", command)[0].value == 2
    for spec, words in (
        ("batch", "NAME=FLAG"),
        ("lr=--lr", "does not say it"),
        ("a=train.py", "positive"),
    ):
        with pytest.raises(InputError, match=words):
            read_knobs(spec, command)


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, kept, pickled = tmp_path / "model.py", tmp_path / "a.trace", tmp_path / "a.pickle"
    script.write_text(MODEL)
    line = [
        "trace",
        str(script),
        "--gpu",
        "rtx4090",
        "--save",
        str(kept),
        "--snapshot",
        str(pickled),
    ]
    assert main([*line, "--", "4", "256", "flash"]) == 0
    snapshot = pickle.loads(pickled.read_bytes())
    events = snapshot["device_traces"][0]
    assert {event["action"] for event in events} == {"alloc", "free_requested", "free_completed"}
    assert any(
        frame["filename"].endswith("model.py") for event in events for frame in event["frames"]
    )
    capsys.readouterr()
    assert main(["snapshot", str(pickled), "--json"]) == 0
    stream = read(kept).cards["cuda:0"]
    peak = replay(stream, stream.requested_bytes).allocated_bytes
    assert str(peak) in capsys.readouterr().out, "the snapshot reader finds the same peak"
    assert main(["compare", str(kept), str(kept)]) == 0
    assert "none" in capsys.readouterr().out
