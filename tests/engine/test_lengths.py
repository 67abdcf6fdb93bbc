"""Batches of many lengths: which of them make the cache grow, with which a replay may do without the others."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest
import torch

from vramcast.accuracy.run import peak_bytes
from vramcast.catalog.gpus import find_gpu
from vramcast.engine.estimate import estimate
from vramcast.engine.prices.peaks import Recording
from vramcast.engine.prices.sweep import peak_grid
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import plain, sizes_of
from vramcast.engine.replay import drafts
from vramcast.engine.replay.card import roughly_reserved
from vramcast.engine.replay.drafts import Drafts
from vramcast.engine.replay.run import Run, Script, _is_gradient, replay
from vramcast.engine.replay.varying_lengths import (
    Earlier,
    _lengths,
    earlier_lengths,
    padded_lengths,
    random_records,
    records,
)
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.job import Job, job_from
from vramcast.ledger import Level
from vramcast.models.read.model import read_model
from vramcast.setup import complete, resolve

LORA = {
    "model": "qwen2-0.5b", "precision": "bf16-true", "batch": 1, "seq": 1024, "lora-rank": 8, "framework": "hf",
    "gpu": "a100-80gb",
}  # fmt: skip
ORDER = (300, 200, 700, 100, 650, 900, 899, 450, 1024, 80)


def forecast(base: dict[str, Any], **changes: Any) -> Forecast:
    return estimate(
        job_from({**base, **{name.replace("_", "-"): value for name, value in changes.items()}})
    )


def total(earlier: Earlier) -> int:
    return sum(earlier.lengths)


def lengths_file(folder: Path, lengths: tuple[int, ...]) -> str:
    path = folder / "lengths.txt"
    path.write_text("\n".join(map(str, lengths)), encoding="utf-8")
    return str(path)


def script_after(
    lengths: tuple[int, ...], stepped_after: int, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> Script:
    """The job's script with exactly these batches before the longest."""
    job = job_from({**LORA, "accumulate": 4, "mean-seq": 512, **changes})
    assert job.model is not None
    assert job.gpu is not None
    config = read_model(job.model).config
    assert config is not None
    earlier = Earlier(lengths=lengths, stepped_after=stepped_after)
    with monkeypatch.context() as patch:
        patch.setattr(drafts, "earlier_lengths", lambda *_: earlier)
        return Drafts(config, find_gpu(job.gpu)).of(resolve(job)).script


@pytest.mark.parametrize(
    "model", ["gemma-3-270m", "flan-t5-small", "pythia-160m"]
)  # the first has a window of 512
def test_shorter_batches_are_what_jobs_of_their_length_record(model: str, tmp_path: Path) -> None:
    lengths = lengths_file(tmp_path, (100, 480, 700, 900))
    values = {"model": model, "gpu": "a100-80gb", "checkpointing": "full"}
    config = read_model(model).config
    assert config is not None
    together = Drafts(config, find_gpu("a100-80gb"))
    earlier = together.of(resolve(job_from({**values, "lengths": lengths}))).script.earlier
    assert len(earlier) == 3
    for stream, length in zip(earlier, (100, 480, 700), strict=True):
        alone = together.of(
            resolve(job_from({**values, "seq": length, "target-seq": length}))
        ).stream
        same = [
            (item.phase, item.section, item.event.sign, int(item.event.nbytes)) for item in alone
        ]
        assert [
            (item.phase, item.section, item.event.sign, item.event.nbytes) for item in stream
        ] == same


def test_many_lengths_fill_the_cache_and_change_nothing_else() -> None:
    same, varied = forecast(LORA), forecast(LORA, mean_seq=512)
    assert peak_bytes(varied, Level.RESERVED) > 1.1 * peak_bytes(same, Level.RESERVED)
    assert peak_bytes(varied, Level.ALLOCATED) == pytest.approx(
        peak_bytes(same, Level.ALLOCATED), rel=0.02
    )


@pytest.mark.parametrize("mean", [30, 300, 500, 700, 990])
def test_lengths_have_the_mean_and_stay_within_the_longest(mean: int) -> None:
    job = Job(model="gpt2", mean_seq=mean)
    even = [(number + 0.5) / 2000 for number in range(2000)]
    lengths = _lengths(resolve(job).data, 1000, even)
    assert sum(lengths) / 2000 == pytest.approx(mean, rel=0.02)
    assert (min(lengths) >= 1, max(lengths) <= 1000) == (True, True)
    assert list(lengths) == sorted(lengths)
    assert sum(_lengths(resolve(replace(job, batch=8)).data, 1000, even)) > sum(
        lengths
    )  # the longest of eight


def test_of_so_many_batches_about_their_logarithm_are_longer_than_all_before() -> None:
    random = Random(1)
    for batches in (10, 1000, 100_000):
        found = [random_records(random, batches) for _ in range(2000)]
        assert sum(map(len, found)) / 2000 == pytest.approx(math.log(batches) + 0.577, rel=0.05)
        assert all(run == sorted(run) for run in found)
    assert max(len(random_records(random, 10**15)) for _ in range(2000)) < 100


@pytest.mark.parametrize(
    ("mean", "samples", "batch"), [(1, 10**15, 1), (1, 1, 1), (511, 3, 8), (512, 10**15, 64)]
)
def test_no_number_of_samples_and_no_mean_is_too_extreme(
    mean: int, samples: int, batch: int
) -> None:
    job = Job(model="gpt2", mean_seq=mean, samples=samples, batch=batch, accumulate=64)
    assert all(1 <= length < 512 for length in earlier_lengths(resolve(job), 512, total).lengths)


@pytest.mark.slow
def test_more_samples_reserve_more() -> None:
    few, many = (
        forecast(LORA, mean_seq=400, samples=count, checkpointing="full") for count in (20, 20_000)
    )
    assert peak_bytes(many, Level.RESERVED) > 1.1 * peak_bytes(few, Level.RESERVED)
    assert any("20,000 batches in a typical random order" in text for text in many.assumptions)


def test_a_mean_above_the_longest_is_a_mistake() -> None:
    with pytest.raises(InputError, match="mean-seq 2000 is more than the longest"):
        forecast(LORA, mean_seq=2000)


def test_only_batches_longer_than_all_before_count_and_count_anew_behind_the_first_step(
    tmp_path: Path,
) -> None:
    assert records(ORDER) == [300, 700, 900, 1024]
    job = Job(model="gpt2", lengths=lengths_file(tmp_path, ORDER), accumulate=4)
    assert earlier_lengths(resolve(job), 1024, total) == Earlier(
        lengths=(300, 700, 650, 900), stepped_after=2
    )
    adapted = replace(job, lora_rank=8)  # too small a state to settle in a cached block
    assert earlier_lengths(resolve(adapted), 1024, total) == Earlier(
        lengths=(300, 700, 900), stepped_after=2
    )
    late = replace(job, accumulate=64)
    assert earlier_lengths(resolve(late), 1024, total) == Earlier(
        lengths=(300, 700, 900), stepped_after=None
    )


def test_samples_are_padded_to_the_longest_of_their_batch_and_cut_to_seq(tmp_path: Path) -> None:
    job = Job(model="gpt2", lengths=lengths_file(tmp_path, ORDER), batch=4)
    assert complete(job).seq == 1024
    assert padded_lengths(resolve(job).data, 1024) == (700, 900, 1024)
    assert padded_lengths(resolve(replace(job, seq=640)).data, 640) == (640, 640, 640)


@pytest.mark.slow
def test_a_batch_that_is_not_the_longest_so_far_reserves_hardly_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lets a replay of thousands of batches do with a few."""
    checkpointed = {"checkpointing": "full"}
    whole = script_after(ORDER[:8], 4, monkeypatch, **checkpointed)
    short = script_after((300, 700, 650, 900), 2, monkeypatch, **checkpointed)
    every, some = (replay(script, capacity_bytes=None, conf="") for script in (whole, short))
    assert some.peak_reserved_bytes == pytest.approx(every.peak_reserved_bytes, rel=0.01)
    fewer = replay(
        script_after((300,), 1, monkeypatch, **checkpointed), capacity_bytes=None, conf=""
    )
    assert fewer.peak_reserved_bytes < 0.9 * some.peak_reserved_bytes


def test_gradients_of_all_lengths_are_those_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    script = script_after((300, 700, 900), 3, monkeypatch, **{"model": "gpt2", "lora-rank": None})
    run = Run(script, capacity_bytes=None, conf="")
    sizes = []
    for stream in script.earlier:
        run.play(stream)
        run.end_step(gradients=False)  # micro-batches of one step
        sizes.append(sum(nbytes for key, (_, nbytes) in run.blocks.items() if _is_gradient(key)))
    assert sizes == [2 * 124_439_808] * 3


def test_the_report_says_which_lengths_were_taken(tmp_path: Path) -> None:
    base = {name: value for name, value in LORA.items() if name != "seq"}
    known = forecast(base, lengths=lengths_file(tmp_path, ORDER))
    assert any(
        "10 batches in the order of" in text and " 4 of them longer" in text
        for text in known.assumptions
    )
    assumed = forecast(LORA, mean_seq=512)
    assert any(
        "lengths of mean 512 as evenly spread up to 1,024" in text for text in assumed.assumptions
    )
    assert any("1,000 batches (samples not given)" in text for text in assumed.assumptions)
    divided = forecast(LORA, mean_seq=512, gpus=2, strategy="ddp")
    assert any("every batch is 1,024 tokens long" in text for text in divided.assumptions)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no sample in it"), ("12\n\n-3\n", "line 3: '-3' is no number of tokens"), ("1e3", "line 1: '1e3'"),
        ("0", "'0'"), ("tokens\n12", "'tokens'"), ("9" * 5000, "line 1: '9999"), ("１２", "line 1"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_list_of_lengths_is_named_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        complete(Job(model="gpt2", lengths=str(path)))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    cases = {
        tmp_path: "a folder",
        tmp_path / "missing": "no such file",
        tmp_path / "binary": "not text in UTF-8",
    }
    for path, why in cases.items():
        with pytest.raises(InputError, match=why):
            complete(Job(model="gpt2", lengths=str(path)))
    with pytest.raises(InputError, match="leave out mean-seq"):
        Job(model="gpt2", lengths=lengths_file(tmp_path, ORDER), mean_seq=100)


@pytest.mark.parametrize(("batch", "copies"), [(1, False), (2, True)])
def test_shifted_logits_of_one_sample_are_no_copy(batch: int, copies: bool) -> None:
    """`logits[..., :-1, :].contiguous()` before transformers 4.49; the grid, which may hold both, finds the same."""
    logits = torch.empty(batch, 5, 7)
    assert (logits[..., :-1, :].contiguous().data_ptr() != logits.data_ptr()) == copies
    job = job_from({**LORA, "batch": batch, "transformers-version": "4.45"})
    assert job.model is not None
    config = read_model(job.model).config
    assert config is not None
    sizes = plain(sizes_of(resolve(job).data, config))
    program = record_job(resolve(job), config, None, sizes)
    labels = [op.output.label for op in program.sections[-1].section.ops]
    assert ("shifted logits" in labels) == copies
    grid = peak_grid(job, config, None, numpy.array([[1, 2]]), numpy.array([[1024]]))
    assert grid[0, batch - 1] == Recording(resolve(job), config, None, sizes).peak(resolve(job))


def test_the_loss_under_autocast_keeps_what_torch_keeps() -> None:
    """`cross_entropy` asks log_softmax for the dtype of its input (LossNLL.cpp), so autocast leaves that in 16 bits and
    runs nll_loss in fp32: on the virtual GPU one and a half fp32 logits are kept. Accelerate hands them on in fp32."""
    job = job_from(
        {**LORA, "precision": "bf16-autocast", "transformers-version": "4.36", "model": "gpt2"}
    )
    config = read_model("gpt2").config
    assert config is not None
    section = (
        record_job(resolve(job), config, None, plain(sizes_of(resolve(job).data, config)))
        .sections[-1]
        .section
    )
    logits = 1023 * 50257 * 4
    kept = {value.label: value.nbytes for op in section.ops for value in op.saved}
    assert kept == {"log-probabilities": logits // 2, "log-probabilities fp32": logits}
    handed_on = [op.output.label for op in section.ops if op.by_caller]
    assert handed_on[0] == "logits handed on in fp32"
    assert (
        handed_on[1:] == ["keys and values handed on in fp32"] * 24
    )  # a tuple in 4.36, of 12 layers


@pytest.mark.slow
@pytest.mark.parametrize("rank", [8, None])
def test_sums_of_lengths_and_the_largest_tensors_alone_order_runs_as_all_tensors_do(
    rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lets the middle one of many runs be found without replaying each of them whole."""
    job = {"lora-rank": rank, "checkpointing": "full"}
    runs = [
        (100, 300, 500, 700, 900),
        (900,),
        (500, 1000),
        (200, 400, 950, 1000),
        (50, 60, 70),
        (600, 650, 700, 750),
    ]
    rough, whole = [], []
    for lengths in runs:
        script = script_after(lengths, 1, monkeypatch, **job)
        rough.append(
            roughly_reserved(script.largest(), 1024)(Earlier(lengths=lengths, stepped_after=1))
        )
        whole.append(replay(script, capacity_bytes=None, conf="").peak_reserved_bytes)
    assert numpy.corrcoef(rough, whole)[0, 1] > 0.9
    assert numpy.corrcoef(list(map(sum, runs)), whole)[0, 1] > 0.9
