"""Copies that attention code makes, by version; buffers by version; gradients of tied parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vramcast.engine.estimate import estimate
from vramcast.engine.program import record_job
from vramcast.engine.recording.attention_copies import copies_before_sdpa
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.replay.run import Script, replay
from vramcast.engine.stream.events import Event, backward_events
from vramcast.engine.stream.timeline import Stamped
from vramcast.job import job_from
from vramcast.ledger import BACKWARD, FORWARD
from vramcast.models.read.model import read_model
from vramcast.setup import resolve
from vramcast.units import MiB

ELEMENTS = 4 * 128 * 768  # of one hidden state of gpt2 below


def gpt2_job(**values: Any) -> Any:
    return job_from({"model": "gpt2", "batch": 4, "seq": 128, "precision": "fp32", **values})


def copies(model: str, transformers: str, **values: Any) -> list[str]:
    """Labels of the copies in the first layer."""
    job = job_from(
        {"model": model, "batch": 4, "seq": 128, "transformers-version": transformers, **values}
    )
    config = read_model(model).config
    assert config is not None
    section = next(
        p.section
        for p in record_job(
            resolve(job), config, None, sizes_of(resolve(job).data, config)
        ).sections
        if p.section.is_block
    )
    return [op.output.label for op in section.ops if op.name == "copy"]


@pytest.mark.parametrize(
    ("transformers", "count"),
    [("4.47", 0), ("4.48", 3), ("4.55", 3), ("4.56", 0)],
    ids=lambda value: str(value),
)
def test_sdpa_got_contiguous_heads_for_eight_versions(transformers: str, count: int) -> None:
    made = copies("gpt2", transformers, precision="fp32")
    assert sum(label.endswith(", contiguous") for label in made) == count


def test_grouped_heads_are_laid_out_by_repeating_them() -> None:
    made = copies("qwen2.5-0.5b", "4.49", precision="fp32")
    assert [label for label in made if label.endswith(", contiguous")] == [
        "q with positions, contiguous"
    ]


def test_flash_results_are_copied_where_queries_were() -> None:
    at = {version: copies("gpt2", version, precision="bf16-true") for version in ("4.49", "4.57")}
    assert at["4.49"].count("attention output") == 1
    assert at["4.57"].count("attention output") == 0


def test_the_flash_attn_package_and_other_families_are_left_alone() -> None:
    config = read_model("gpt2").config
    assert config is not None
    assert copies_before_sdpa(resolve(gpt2_job(**{"transformers-version": "4.49"})), config)
    assert not copies_before_sdpa(
        resolve(gpt2_job(attention="flash", **{"transformers-version": "4.49"})), config
    )
    assert [
        label for label in copies("opt-125m", "4.49", precision="fp32") if "contiguous" in label
    ] == []


@pytest.mark.parametrize(("batch", "count"), [(4, 3), (1, 0)])
def test_eager_matmul_folds_heads_by_copying(batch: int, count: int) -> None:
    made = copies("t5-small", "4.49", precision="fp32", batch=batch)
    assert sum(label.endswith(", contiguous") for label in made) == count


def bytes_of(ledger: Any, text: str) -> int:
    return sum(entry.nbytes for entry in ledger.alive(FORWARD, "cuda:0") if text in entry.component)


@pytest.mark.parametrize(
    ("model", "transformers", "text", "nbytes"),
    [
        ("gpt2", "5.1", "causal masks", 12 * 1024 * 1024),
        ("gpt2", "5.2", "causal masks", 0),
        ("pythia-160m", "4.48", "causal masks", 12 * 2048 * 2048),
        ("pythia-160m", "4.49", "causal masks", 0),
        ("mistral-7b-v0.1", "4.41", "rotary tables", 32 * 2 * 32768 * 128 * 2),
        ("mistral-7b-v0.1", "4.42", "rotary tables", 0),
        ("pythia-160m", "4.44", "rotary tables", 12 * 2 * 2048 * 16 * 2),
    ],
)
def test_buffers_lie_on_the_gpu_as_long_as_transformers_had_them(
    model: str, transformers: str, text: str, nbytes: int
) -> None:
    job = job_from({
        "model": model, "batch": 1, "seq": 64, "precision": "bf16-true", "transformers-version": transformers,
    })  # fmt: skip
    assert bytes_of(estimate(job).ledger, text) == nbytes


def test_past_key_values_stay_where_a_variable_holds_the_outputs() -> None:
    """gpt2 in 4.49: the kernel keeps copies, the cache holds the projection they were copied from."""
    held = {
        keep: estimate(
            gpt2_job(**{"keep-outputs": keep, "transformers-version": "4.49"})
        ).ledger.moment("backward", "cuda:0")
        for keep in (True, False)
    }
    assert held[True].allocated_bytes - held[False].allocated_bytes >= 12 * 3 * 4 * ELEMENTS


class Tied(torch.nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table, self.head = (
            torch.nn.Embedding(rows, width),
            torch.nn.Linear(width, rows, bias=False),
        )
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(ids))
        return out


def most_alive(sizes: list[int], one: int) -> int:
    level = most = 0
    for nbytes in sizes:
        if abs(nbytes) == one:
            level += 1 if nbytes > 0 else -1
            most = max(most, level)
    return most


def test_torch_holds_three_gradients_of_a_tied_table_at_once() -> None:
    """Without a dispatch mode, which would change how autograd adds."""
    rows, width = 20_000, 64
    model = Tied(rows, width)
    loss = model(torch.randint(0, rows, (1, 8))).logsumexp(-1).mean()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        loss.backward()
    events = profiled.profiler.kineto_results.events()
    memory = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    assert most_alive([nbytes for _, nbytes in memory], 4 * rows * width) == 3


@pytest.mark.parametrize("fresh", [True, False])
def test_the_formula_holds_as_many(fresh: bool) -> None:
    config = read_model("gpt2").config
    assert config is not None
    setup = resolve(gpt2_job())
    program = record_job(setup, config, None, sizes_of(setup.data, config))
    table = next(param for param in program.params() if param.name.endswith("wte.weight"))
    head = next(placed.section for placed in program.sections if placed.name == "head")
    left = backward_events(head, fresh_grads=fresh)
    assert left.given
    there = backward_events(program.sections[0].section, fresh_grads=fresh, has_grad=left.given)
    sizes = [event.sign * int(event.nbytes) for event in (*left.events, *there.events)]
    assert most_alive(sizes, table.nbytes) == 3
    assert sum(n for n in sizes if abs(n) == table.nbytes) == (table.nbytes if fresh else 0)


@pytest.mark.parametrize("first", [True, False])
def test_zeroing_after_the_forward_frees_all_gradients_before_backward(first: bool) -> None:
    """Then backward's first temporary finds a gradient's block, and no third one is needed."""
    sized = (("activation", FORWARD, 1), ("temporary", BACKWARD, 1), ("temporary", BACKWARD, -1),
             (("gradient", 7), BACKWARD, 1), ("activation", BACKWARD, -1))  # fmt: skip
    stream = [
        Stamped(phase, 0, Event(sign, key, 30 * MiB, "working", ""), (0, key)) for key, phase, sign in sized
    ]  # fmt: skip
    script = Script(
        weights=(),
        first=stream,
        later=stream,
        states=(),
        step_temporaries=(),
        zero_grad_first=first,
    )
    assert replay(script, capacity_bytes=None, conf="").peak_reserved_bytes == 60 * MiB
