"""FSDP1's streams by hand: when the memory of a freed block can be used again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.comm_buffers import filled
from vramcast.engine.parallel.gathering import GATHERED, JOINED
from vramcast.engine.parallel.rank_replay import RankRun, RankScript, Wrapping
from vramcast.engine.parallel.ranks import Rank, rank_of_stage, rank_program
from vramcast.engine.parallel.topology import topology_of
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Stamped
from vramcast.job import job_from
from vramcast.ledger import HOST
from vramcast.models.read.model import read_model
from vramcast.setup import resolve
from vramcast.units import MiB

SIZE = 100 * MiB
OFFLOADED = {
    "framework": "plain", "model": "llama-3.2-1b", "gpus": 4, "gpu": "rtx4090", "seq": 512, "accumulate": 4,
    "offload": "params",
    "checkpointing": "full",
}  # fmt: skip


def offloaded_rank(**values: object) -> Rank:
    job = job_from({**OFFLOADED, **values})
    config, topology, gpu = (
        read_model("llama-3.2-1b").config,
        topology_of(resolve(job)),
        find_gpu("rtx4090"),
    )
    assert config is not None
    return rank_of_stage(
        resolve(job),
        gpu,
        topology,
        rank_program(resolve(job), config, gpu, topology, sizes_of(resolve(job).data, config)),
        0,
    )


def event(sign: int, kind: str, name: str) -> Stamped:
    return Stamped("forward", 0, Event(sign, name, SIZE, kind, name), name)


def run_of(
    strategy: str, wrapping: tuple[Wrapping, ...] = (), buckets: tuple[int, ...] = ()
) -> RankRun:
    script = RankScript(
        weights=(), first=[], later=[], states=(), step_temporaries=(), zero_grad_first=True, strategy=strategy,
        wrapping=wrapping, broadcast=buckets, buckets=buckets, rebuilt=(SIZE,),
    )  # fmt: skip
    return RankRun(script, capacity_bytes=None, conf="")


def reserved(strategy: str, *events: Stamped) -> int:
    run = run_of(strategy)
    run.play(list(events))
    return run.allocator.peak_reserved_bytes // SIZE


def gathered_one_by_one(count: int) -> list[Stamped]:
    return [event(sign, GATHERED, f"unit {number}") for number in range(count) for sign in (1, -1)]


def test_a_freed_vector_can_be_used_again_when_the_rate_limiter_has_waited_for_it() -> None:
    """The third vector waits for the first one's event, so two blocks serve any number of them."""
    assert reserved("fsdp1", *gathered_one_by_one(1)) == 1
    assert reserved("fsdp1", *gathered_one_by_one(2)) == 2
    assert reserved("fsdp1", *gathered_one_by_one(9)) == 2


def test_without_record_stream_one_block_does() -> None:
    assert reserved("zero3", *gathered_one_by_one(9)) == 1


def test_a_gradient_waits_for_the_reduction_behind_it() -> None:
    """Its event is the one behind the next unit's vector, for which the host waits two units later."""

    def backward(units: int) -> list[Stamped]:
        return [
            each
            for number in range(units)
            for each in (
                event(1, GATHERED, f"unit {number}"), event(1, JOINED, f"gradient {number}"),
                event(-1, GATHERED, f"unit {number}"), event(-1, JOINED, f"gradient {number}"),
            )
        ]  # fmt: skip

    main = [reserved("fsdp1", *backward(units)) - min(units, 2) for units in (1, 2, 3, 4, 9)]
    assert main == [1, 2, 3, 3, 3]


def test_the_end_of_a_step_waits_for_all_streams() -> None:
    run = run_of("fsdp1")
    events = gathered_one_by_one(2)
    run.is_rebuilt = True
    for _ in range(3):
        run.play(events)
        run.end_step(gradients=True)
    assert run.allocator.peak_reserved_bytes == 2 * SIZE
    assert run.allocator.active_bytes == 0


def test_wrapping_leaves_holes_of_the_size_of_parameters() -> None:
    """Two parameters and their vector, of which half stays: it takes the place of a parameter, in which the next unit's
    first one then has no room."""
    run = run_of("fsdp1", (Wrapping(params=(SIZE, SIZE), shards=(SIZE,)),) * 3)
    run.wrap()
    assert run.allocator.allocated_bytes == 3 * SIZE
    assert run.allocator.reserved_bytes == 6 * SIZE


def test_fully_shard_makes_no_vector() -> None:
    """Two parameters and the shard of each, which go in the moved ones' place from the second unit on."""
    run = run_of(
        "fsdp2", (Wrapping(params=(SIZE, SIZE), shards=(SIZE // 2, SIZE // 2), joins=False),) * 3
    )
    run.wrap()
    assert run.allocator.allocated_bytes == 3 * SIZE
    assert run.allocator.peak_allocated_bytes == 5 * SIZE


def test_ddp_sends_two_vectors_at_once_and_makes_its_buckets_anew_after_one_backward() -> None:
    run = run_of("ddp", buckets=(SIZE,) * 4)
    run.load()
    assert run.allocator.peak_allocated_bytes == 4 * SIZE
    run.end_step(gradients=True)
    run.end_step(gradients=True)
    assert run.allocator.allocated_bytes == SIZE


def test_a_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    """1 MiB for the first, 25 MiB for the others; a large gradient does not get a bucket of its own."""
    assert list(filled([MiB, 10 * MiB, 125 * MiB, 20 * MiB], (MiB, 25 * MiB))) == [
        MiB,
        135 * MiB,
        20 * MiB,
    ]


def test_statistics_of_4_bit_weights_stay_whole_on_every_rank() -> None:
    """An int8 maximum for 64 weights, an fp32 one for 256 of those: as much on 8 GPUs as on 2, and with weights on the
    host as well."""
    job = {
        "model": "llama-2-7b", "strategy": "fsdp1", "precision": "bf16-true", "lora-rank": 8, "quantize": "nf4-double",
        "seq": 64,
    }  # fmt: skip
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    wanted = linear // 64 + 4 * linear // (64 * 256)
    for values in ({"gpus": 2}, {"gpus": 8}, {"gpus": 8, "offload": "params"}):
        entries = estimate(job_from({**job, **values})).ledger.entries
        line = next(entry for entry in entries if entry.component.startswith("statistics"))
        assert line.nbytes == wanted


def test_an_optimizer_with_nothing_to_update_on_the_gpu_makes_nothing_there() -> None:
    found = estimate(
        job_from({**OFFLOADED, "strategy": "fsdp1", "optimizer": "adafactor"}), with_scaling=False
    )
    assert not [
        entry
        for entry in found.ledger.entries
        if "adafactor" in entry.component and entry.place != HOST
    ]


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("lora_rank", [None, 8])
def test_gradients_that_leave_for_the_host_are_found_by_no_micro_batch(
    strategy: str, lora_rank: int | None
) -> None:
    step = offloaded_rank(strategy=strategy, **{"lora-rank": lora_rank}).step
    assert step.repeats
    assert step.stream(fresh=False) == step.stream()
    kept = replace(step.setup, offload=replace(step.setup.offload, what="none"))
    assert not replace(step, setup=kept).repeats


def test_a_micro_batch_that_begins_as_an_earlier_one_did_is_not_played_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_from({**OFFLOADED, "strategy": "fsdp2", "lora-rank": 8, "precision": "bf16-mixed"})
    played: list[int] = []
    play = RankRun.play
    monkeypatch.setattr(
        RankRun, "play", lambda run, *args, **how: (played.append(1), play(run, *args, **how))[1]
    )
    short = estimate(job, with_scaling=False)
    assert len(played) == 3
    monkeypatch.setattr(RankRun, "state", lambda run: object())
    assert estimate(job, with_scaling=False) == short
    assert len(played) == 3 + 4
