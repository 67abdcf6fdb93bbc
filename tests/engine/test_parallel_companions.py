"""Beside a rank's step: evaluation, frozen companions, saving, resuming; by hand where bytes follow from counts."""

from __future__ import annotations

import pytest

from vramcast.engine.estimate import estimate
from vramcast.engine.recording.record import DEVICE
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecast import Forecast
from vramcast.job import Job, Precision
from vramcast.ledger import EVAL, HOST, RESUME, SAVE

PARAMETERS = 1_235_814_400  # Llama 3.2 1B, its tied head counted once
EMBEDDING = 128_256 * 2048


def forecast(**keys: object) -> Forecast:
    facts = {
        "model": "llama-3.2-1b",
        "gpus": 8,
        "strategy": "fsdp2",
        "seq": 1024,
        "precision": Precision.BF16_TRUE,
    }
    return estimate(Job(**{**facts, **keys}))  # type: ignore[arg-type]


def line(answer: Forecast, text: str) -> int:
    (entry,) = (entry for entry in answer.ledger.entries if text in entry.component)
    return entry.nbytes


def test_a_reference_is_sharded_where_parameters_are_gathered() -> None:
    assert line(forecast(reference="same"), "reference model, bf16") == 2 * PARAMETERS // 8
    assert (
        line(forecast(reference="same", strategy="ddp"), "reference model, bf16") == 2 * PARAMETERS
    )
    assert (
        line(forecast(reference="same", strategy="zero2"), "reference model, bf16")
        == 2 * PARAMETERS
    )


def test_a_reference_on_the_host_is_there_for_every_rank_of_the_node() -> None:
    answer = forecast(reference="cpu", gpus=16)
    assert line(answer, "reference model, bf16") == 8 * 2 * PARAMETERS
    assert {e.place for e in answer.ledger.entries if "reference model" in e.component} == {HOST}


def test_a_whole_state_dict_is_gathered_parameter_by_parameter() -> None:
    answer = forecast()
    assert line(answer, "gathered for the state dict") == 2 * EMBEDDING
    sharded = forecast(framework="torchtitan")
    assert not [e for e in sharded.ledger.entries if "state dict" in e.component]
    assert SAVE in answer.ledger.phases(DEVICE)


def test_evaluation_gathers_units_and_keeps_no_graph() -> None:
    answer = forecast(evaluate=True)
    here = answer.ledger
    assert (
        here.moment(EVAL, DEVICE).allocated_bytes < here.moment("next loss", DEVICE).allocated_bytes
    )
    assert line(answer, "gathered parameters while evaluating") >= 2 * EMBEDDING


def test_resuming_reads_a_part_or_everything() -> None:
    shares, whole = forecast(resume="cpu"), forecast(resume="cpu", strategy="ddp")
    assert line(shares, "checkpoint of the ranks") == 3 * 2 * PARAMETERS
    assert line(whole, "checkpoint of the ranks") == 8 * 3 * 2 * PARAMETERS
    assert RESUME in shares.ledger.phases(DEVICE)


def test_nvme_leaves_swap_buffers_in_pinned_memory() -> None:
    """Four fp32 buffers of a sub-group and five 16-bit ones of 10⁸ elements per rank, in powers of two."""
    answer = forecast(
        strategy="zero3", precision=Precision.BF16_MASTER, offload="params", offload_device="nvme"
    )
    assert (
        line(answer, "swap buffers of the optimizer") == 8 * 4 * 2**30
    )  # 154,476,800 × 4 B is more than half a GiB
    assert line(answer, "swap buffers of weights") == 8 * 2**30
    assert line(answer, "max_in_cpu") == 8 * 2**29
    share = PARAMETERS // 8
    assert line(answer, "gradients of the ranks' shares") == pytest.approx(
        8 * (2 + 4) * share, rel=1e-4
    )
    assert not [
        e for e in answer.ledger.entries if e.component in ("adamw states", "fp32 master weights")
    ]


def test_zero3_pins_one_vector_of_weights_where_fsdp_pins_every_shard() -> None:
    answer = forecast(strategy="zero3", precision=Precision.BF16_MASTER, offload="params")
    assert (
        line(answer, "sharded weights of the ranks") == 8 * 2**29
    )  # 2 B × 154 M, up to the next power of two
    assert line(answer, "fp32 gradients of the optimizer") == 8 * 2**30
    assert line(answer, "on their way to the optimizer") == 8 * 2**29
    shards = forecast(strategy="fsdp2", offload="params")
    assert 2 * PARAMETERS < line(shards, "sharded weights of the ranks") < 4 * PARAMETERS


@pytest.mark.parametrize(
    ("keys", "kind", "text"),
    [
        ({"resume": "same"}, InputError, "Say resume cpu"),
        ({"reference": "cuda:1"}, InputError, "Take same or cpu"),
        ({"critic": "cpu"}, InputError, "critic must be none, same"),
        ({"evaluate": True, "pp": 2}, UnsupportedError, "take pp 1"),
        ({"ep": 4}, InputError, "has none"),
        ({"cp": 2, "attention": "eager"}, InputError, "Take sdpa"),
        ({"strategy": "ddp", "offload": "params"}, InputError, "fsdp1, fsdp2, zero3"),
        ({"offload": "params", "offload_device": "nvme"}, InputError, "zero3 does"),
        ({"strategy": "zero3", "offload_device": "nvme"}, InputError, "optimizer, params or all"),
        (
            {"strategy": "zero3", "offload": "params", "offload_device": "nvme", "gpus": 2},
            InputError,
            "131,334,144 elements",
        ),
        ({"expert_capacity": 125}, InputError, "has none"),
        ({"model": "mixtral-8x7b", "pad_experts": True}, InputError, "needs expert-capacity"),
        ({"model": "mixtral-8x7b", "expert_capacity": 0}, InputError, "at least 1, not 0"),
        ({"tp": 3}, InputError, "gpus 6 or 9"),
        ({"cp": 8, "cp_style": "ulysses", "tp": 8, "gpus": 64}, InputError, "1, 2, 4"),
    ],
)
def test_what_cannot_be_says_what_could(
    keys: dict[str, object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        forecast(**keys)


def rows_received(**keys: object) -> int:
    """Activations of the blocks, which grow with the rows that a rank's experts get."""
    facts = {"model": "mixtral-8x7b", "gpus": 8, "ep": 8, "strategy": "fsdp2", "seq": 512}
    answer = estimate(Job(**{**facts, **keys}))  # type: ignore[arg-type]
    return max(
        e.nbytes for e in answer.ledger.entries if e.component == "model.layers (kept for backward)"
    )


def test_capacity_bounds_an_uneven_load_and_padding_fills_it() -> None:
    even, uneven = rows_received(), rows_received(expert_load=200)
    assert even < rows_received(expert_load=200, expert_capacity=150) < uneven
    assert rows_received(expert_capacity=150) == even  # nothing to drop
    assert rows_received(expert_capacity=150, pad_experts=True) == rows_received(expert_load=150)
    assert rows_received(expert_capacity=50) < even


def test_how_uneven_experts_could_be_is_said() -> None:
    answer = forecast(model="mixtral-8x7b", ep=8)
    assert any(
        "it would be 400%" in text for text in answer.assumptions
    )  # 8 GPUs × one of two choices
