"""How GPUs are divided: what multiplies to the world, what a model allows, and what the errors say."""

from __future__ import annotations

import pytest

from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.pipeline import chunks_in_flight, stages_of_rank
from vramcast.engine.parallel.rank_model import layers_of_stages
from vramcast.engine.parallel.topology import hints, topology_of
from vramcast.errors import InputError, UnsupportedError
from vramcast.job import Job, job_from
from vramcast.setup import resolve


def job(**values: object) -> Job:
    return job_from(
        {
            "model": "llama-3.1-8b",
            **{name.replace("_", "-"): value for name, value in values.items()},
        }
    )


def test_sizes_multiply_to_the_world() -> None:
    topology = topology_of(resolve(job(gpus=16384, tp=8, pp=16, cp=2, strategy="zero1")))
    assert (topology.data, topology.shard, topology.nodes, topology.replicas) == (64, 128, 2048, 1)
    assert topology.text == "dp 64 · tp 8 · pp 16 · cp 2"


def test_sizes_that_do_not_divide_the_world_are_named() -> None:
    with pytest.raises(InputError, match=r"tp 3 × pp 1 × cp 1 = 3 does not divide the 8 GPUs"):
        topology_of(resolve(job(gpus=8, tp=3)))


def test_copies_need_a_strategy() -> None:
    assert topology_of(resolve(job(gpus=8))).strategy == "ddp"
    assert topology_of(resolve(job(gpus=8, tp=8))).strategy == "none"
    with pytest.raises(InputError, match="strategy none leaves 8 copies"):
        topology_of(resolve(job(gpus=8, strategy="none")))


def test_hybrid_sharding_keeps_copies() -> None:
    topology = topology_of(resolve(job(gpus=64, strategy="fsdp2", shard_size=8)))
    assert (topology.shard, topology.replicas) == (8, 8)
    with pytest.raises(InputError, match="shard-size 7 does not divide the 64 ranks"):
        topology_of(resolve(job(gpus=64, strategy="fsdp2", shard_size=7)))


def test_experts_are_shared_by_fewer_ranks() -> None:
    topology = topology_of(resolve(job(gpus=64, strategy="fsdp2", ep=8)))
    assert topology.expert_shard == 8
    assert (
        topology_of(
            resolve(job(gpus=64, tp=2, ep=8, framework="megatron", strategy="zero1"))
        ).expert_tp
        == 2
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpus": 48, "tp": 48}, "heads 32 does not divide by tp 48"),
        (
            {"gpus": 4, "tp": 4, "model": "flan-t5-small", "framework": "megatron"},
            "heads 6 does not divide by tp 4",
        ),
        ({"gpus": 64, "pp": 64}, "32 layers cannot fill pp 64"),
        ({"gpus": 8, "pp": 4, "virtual_stages": 2}, "virtual-stages 2 needs schedule interleaved"),
        (
            {"gpus": 8, "pp": 4, "schedule": "interleaved"},
            "schedule interleaved needs virtual-stages",
        ),
        ({"gpus": 8, "cp": 8, "seq": 1001}, "seq 1001 does not divide by 8"),
        (
            {"gpus": 8, "tp": 8, "framework": "torchtitan", "seq": 1001},
            "seq 1001 does not divide by 8",
        ),
    ],
)
def test_what_a_model_does_not_allow_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate(job(**values))


def test_a_family_without_tensor_parallel_rules_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedError, match=r"tensor parallelism of model_type 'gpt2' is not described"
    ):
        estimate(job_from({"model": "gpt2", "gpus": 2, "tp": 2}))


def test_hints_name_what_leaves_the_node() -> None:
    assert any(
        "tp 16 spans nodes of 8" in hint
        for hint in hints(topology_of(resolve(job(gpus=16, tp=16))))
    )
    assert not any("ep 1" in hint for hint in hints(topology_of(resolve(job(gpus=16, tp=16)))))
    assert not list(hints(topology_of(resolve(job(gpus=16, tp=8)))))


def test_layers_go_to_stages_as_frameworks_do() -> None:
    assert layers_of_stages(32, 4, resolve(job())) == [8, 8, 8, 8]
    assert layers_of_stages(126, 16, resolve(job())) == [
        7,
        *[8] * 14,
        7,
    ]  # embedding and head count as a layer each
    assert layers_of_stages(32, 4, resolve(job(framework="torchtitan"))) == [8, 9, 8, 7]
    assert layers_of_stages(30, 4, resolve(job())) == [7, 8, 8, 7]
    assert layers_of_stages(29, 4, resolve(job())) == [8, 7, 7, 7]
    assert layers_of_stages(32, 4, resolve(job(first_stage_layers=5, last_stage_layers=7))) == [
        5,
        10,
        10,
        7,
    ]
    with pytest.raises(InputError, match="do not divide"):
        layers_of_stages(32, 4, resolve(job(first_stage_layers=4)))


def test_microbatches_in_flight_by_schedule() -> None:
    def counts(**values: object) -> list[int]:
        asked = job(gpus=4, pp=4, accumulate=16, **values)
        return [
            chunks_in_flight(resolve(asked), topology_of(resolve(asked)), stage)
            for stage in range(4)
        ]

    assert counts() == [4, 3, 2, 1]
    assert counts(schedule="zero-bubble") == [4, 4, 4, 4]
    assert counts(schedule="gpipe") == [16, 16, 16, 16]
    # Megatron: 2(p - i - 1) + (v - 1)p warm-up chunks, and the one that runs
    assert counts(schedule="interleaved", virtual_stages=2) == [11, 9, 7, 5]
    assert stages_of_rank(
        resolve(job(gpus=4, pp=4, virtual_stages=2)).parallel,
        topology_of(resolve(job(gpus=4, pp=4))),
        1,
    ) == (1, 5)


def test_few_microbatches_cannot_fill_the_pipeline() -> None:
    asked = job(gpus=4, pp=4, accumulate=2)
    assert [
        chunks_in_flight(resolve(asked), topology_of(resolve(asked)), stage) for stage in range(4)
    ] == [
        2,
        2,
        2,
        1,
    ]


@pytest.mark.parametrize("framework", ["torchtitan", "megatron"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_adapters_that_a_framework_has_no_words_for_are_refused(framework: str, gpus: int) -> None:
    values = {
        "model": "llama-3.2-1b",
        "framework": framework,
        "lora-rank": 8,
        "gpus": gpus,
        "strategy": "fsdp2",
    }
    with pytest.raises(UnsupportedError, match="name another framework"):
        estimate(job_from(values if gpus > 1 else {**values, "strategy": "none"}))


@pytest.mark.parametrize("model", ["t5-base", "qwen2-vl-2b"])
def test_a_model_with_parts_between_two_stacks_is_not_cut_into_stages(model: str) -> None:
    values = {"model": model, "gpus": 4, "pp": 2, "strategy": "ddp", "seq": 256, "gpu": "h100-80gb"}
    with pytest.raises(UnsupportedError, match="between two: take pp 1"):
        estimate(job_from(values))
