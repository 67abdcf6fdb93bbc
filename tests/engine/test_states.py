"""Weights, gradients and optimizer states: by hand, and against real torch optimizers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch

from vramcast.engine.estimate import estimate
from vramcast.engine.lines.optimizers import state_bytes, temporaries
from vramcast.engine.lines.states import States, from_count, state_entries
from vramcast.errors import InputError, UnsupportedError
from vramcast.job import Job, Precision, job_from
from vramcast.ledger import Category
from vramcast.models.params import Params
from vramcast.models.record.tape import BF16, F32, Param
from vramcast.setup import resolve


def totals(job: Job) -> dict[str, int]:
    """Bytes per category over the whole bill: a line that grows counts at its largest."""
    return estimate(job).ledger.grouped(lambda entry: str(entry.category), place="cuda:0")


# bytes per parameter: weights, gradients, optimizer states, master weights
RECIPES = {
    Precision.FP32: (4, 4, 8, 0),
    Precision.BF16_TRUE: (2, 2, 4, 0),
    Precision.FP16_TRUE: (2, 2, 4, 0),
    Precision.BF16_AUTOCAST: (2, 2, 4, 0),
    Precision.FP16_AUTOCAST: (2, 2, 4, 0),
    Precision.BF16_MIXED: (4, 4, 8, 0),
    Precision.FP16_MIXED: (4, 4, 8, 0),
    Precision.BF16_MASTER: (2, 2, 8, 4),
    Precision.FP16_MASTER: (2, 2, 8, 4),
    Precision.MEGATRON_BF16: (2, 4, 8, 4),
    Precision.FP8: (2, 4, 8, 4),
}


@pytest.mark.parametrize("precision", Precision)
def test_bytes_per_parameter_of_every_recipe(precision: Precision) -> None:
    weights, gradients, states, master = RECIPES[precision]
    bill = totals(Job(params=1000, precision=precision))
    assert bill["weights"] == 1000 * weights
    assert bill["gradients"] == 1000 * gradients
    assert bill["optimizer states"] == 1000 * states
    assert bill.get("master weights", 0) == 1000 * master


def test_seven_billion_in_fp32_with_adamw() -> None:
    verdict = estimate(job_from({"params": "7e9", "precision": "fp32"})).verdict()
    assert verdict.allocated_bytes == 112_000_000_000
    assert (verdict.reserved_bytes, verdict.process_bytes, verdict.fits) == (None, None, None)


def test_phi_3_mini_as_torch_autocast_stores_it() -> None:
    bill = totals(Job(model="phi-3-mini", precision=Precision.BF16_MIXED, optimizer="adamw"))
    assert bill["weights"] == bill["gradients"] == 15_284_318_208
    assert bill["optimizer states"] == 30_568_636_416


SHAPES = ((300, 500), (64, 3, 7, 7), (500,), (7,))
TORCH = {
    "adamw": lambda p: torch.optim.AdamW(p),
    "adam": lambda p: torch.optim.Adam(p),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", TORCH)
def test_states_are_what_torch_makes(name: str, dtype: torch.dtype) -> None:
    tensors = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in SHAPES]
    optimizer = TORCH[name](tensors)
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    made = sum(
        state.nbytes for tensor in tensors for key, state in optimizer.state[tensor].items()
        if isinstance(state, torch.Tensor) and key != "step"
    )  # fmt: skip
    job = Job(params=1, optimizer=name)
    ours = BF16 if dtype == torch.bfloat16 else F32
    params = [Param(name="p", shape=shape, kind="linear", dtype=ours) for shape in SHAPES]
    assert sum(state_bytes(param, resolve(job), None) for param in params) == made


BITSANDBYTES = {"lion-8bit": "Lion8bit", "ademamix": "AdEMAMix", "ademamix-8bit": "AdEMAMix8bit"}


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_states_are_what_bitsandbytes_makes(name: str) -> None:
    import bitsandbytes

    tensors = [torch.nn.Parameter(torch.ones(shape, dtype=torch.bfloat16)) for shape in SHAPES]
    optimizer = getattr(bitsandbytes.optim, BITSANDBYTES[name])(tensors)
    for at, tensor in enumerate(tensors):
        optimizer.init_state(optimizer.param_groups[0], tensor, 0, at)
    made = sum(
        state.nbytes for tensor in tensors for key, state in optimizer.state[tensor].items()
        if isinstance(state, torch.Tensor) and not key.startswith("qmap")  # one for all of them
    )  # fmt: skip
    job = resolve(Job(params=1, optimizer=name))
    params = [Param(name="p", shape=shape, kind="linear", dtype=BF16) for shape in SHAPES]
    assert sum(state_bytes(param, job, None) for param in params) == made


def matrix(rows: int, columns: int, kind: str = "linear") -> Param:
    return Param(name="w", shape=(rows, columns), kind=kind, dtype=F32)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("lion", 4 * 400_000),
        ("sophia", 8 * 400_000),
        ("adafactor", 4 * (1000 + 400)),
        ("came", 4 * 400_000 + 2 * 4 * (1000 + 400)),
        ("muon", 4 * 400_000),
        ("galore", 4 * (400 * 128 + 2 * 128 * 1000)),
        ("adam-mini", 4 * (400_000 + 1000)),
        ("lomo", 0),
        ("adamw-8bit", 2 * (400_000 + 4 * 1563)),
        # 400,000 = 3125 × 128, and no multiple of 256: torchao 0.18 keeps full states under 8 bit
        ("adamw-torchao-8bit", 8 * 400_000),
        ("adamw-torchao-4bit", 2 * (200_000 + 4 * 3125 + 4 * 16)),
        ("lion-8bit", 400_000 + 4 * 1563),
        ("paged-lion", 4 * 400_000),
        ("ademamix", 12 * 400_000),
        ("schedule-free-adamw", 8 * 400_000),
        ("apollo", 4 * (400 * 128 + 2 * 128 * 1000)),
    ],
)
def test_states_of_a_matrix_by_hand(optimizer: str, expected: int) -> None:
    assert (
        state_bytes(matrix(1000, 400), resolve(Job(params=1, optimizer=optimizer)), None)
        == expected
    )


def test_torchaos_eight_bit_states_of_a_large_matrix() -> None:
    """Measured with torchao 0.18: 16,777,216 B of codes, 262,144 of scales and 1,024 of a table, twice."""
    job = resolve(Job(params=1, optimizer="adamw-torchao-8bit"))
    assert state_bytes(matrix(4096, 4096), job, None) == 2 * (16_777_216 + 262_144 + 1_024)


def test_eight_bit_states_of_small_tensors_and_embeddings() -> None:
    plain, hf = (
        Job(params=1, optimizer="adamw-8bit", framework="plain"),
        Job(params=1, optimizer="adamw-8bit", framework="hf"),
    )
    small = Param(name="b", shape=(4095,), kind="bias", dtype=F32)
    assert state_bytes(small, resolve(plain), None) == 8 * 4095
    table = matrix(1000, 400, "embedding")
    assert state_bytes(table, resolve(hf), None) == 8 * 400_000
    assert state_bytes(table, resolve(plain), None) == 2 * (400_000 + 4 * 1563)
    old = replace(plain, optimizer_block=2048)
    assert state_bytes(table, resolve(old), None) == 2 * (400_000 + 4 * 196)


def test_phi_3_mini_with_eight_bit_adam_needs_7_76_gb_of_states() -> None:
    bill = totals(Job(model="phi-3-mini", optimizer="adamw-8bit", framework="plain"))
    assert bill["optimizer states"] / 1e9 == pytest.approx(7.76, abs=0.005)


def test_paged_states_lie_in_memory_that_the_driver_may_move() -> None:
    entries = state_entries(
        from_count(10**9, resolve(Job(params=10**9, optimizer="paged-adamw-8bit"))), "cuda:0"
    )
    assert [entry.place for entry in entries if entry.category == Category.OPTIMIZER] == ["host"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fused"),
        ({"framework": "plain"}, "foreach"),
        ({"framework": "hf"}, "fused"),
        ({"framework": "hf", "transformers-version": "4.50"}, "foreach"),
        ({"framework": "hf", "torch-version": "2.6"}, "foreach"),
        ({"framework": "torchtitan"}, "fused"),
        ({"optimizer": "adafactor"}, "loop"),
        ({"optimizer": "lomo"}, "in-backward"),
        ({"optimizer-impl": "loop"}, "loop"),
    ],
)
def test_how_the_step_runs_follows_framework_and_versions(
    changes: dict[str, str], expected: str
) -> None:
    assert resolve(job_from({"params": 1, **changes})).optimizer.implementation == expected


@pytest.mark.parametrize("impl", ["foreach", "fused"])
def test_step_temporaries_against_a_real_step(impl: str) -> None:
    tensors = [torch.nn.Parameter(torch.ones(shape)) for shape in ((512, 512), (512, 128))]
    optimizer = torch.optim.AdamW(tensors, foreach=impl == "foreach", fused=impl == "fused")
    peaks = []
    for _ in range(2):
        for tensor in tensors:
            tensor.grad = torch.ones_like(tensor)
        with torch.profiler.profile(profile_memory=True) as profile:
            optimizer.step()
        peaks.append(_peak(profile))
    params = Params(
        Param(name="p", shape=tuple(t.shape), kind="linear", dtype=F32) for t in tensors
    )
    expected, _ = temporaries(params, resolve(Job(params=1, optimizer_impl=impl)), None)
    assert peaks[1] == pytest.approx(expected, abs=4096), "the second step makes no states any more"
    assert expected == (4 * sum(prod(t.shape) for t in tensors) if impl == "foreach" else 0)


def _peak(profile: torch.profiler.profile) -> int:
    level = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak


def test_freezing_by_pattern_leaves_no_gradients_and_states() -> None:
    bill = totals(Job(model="t5-small", freeze=("shared", "encoder.*"), optimizer="adamw"))
    forecast = estimate(Job(model="t5-small", freeze=("shared", "encoder.*")))
    assert forecast.model is not None
    trained = forecast.model.params_trainable
    assert 0 < trained < forecast.model.params_total
    assert bill["gradients"] == 4 * trained
    assert bill["optimizer states"] == 8 * trained


def test_lora_trains_adapters_only() -> None:
    forecast = estimate(Job(model="llama-2-7b", lora_rank=8, lora_targets=("q_proj", "v_proj")))
    assert forecast.model is not None
    assert forecast.model.params_trainable == 4_194_304
    assert forecast.model.params_total == 6_738_415_616 + 4_194_304


def test_nf4_stores_linear_weights_in_half_a_byte_and_a_scale() -> None:
    job = Job(
        model="llama-2-7b",
        lora_rank=8,
        quantize="nf4",
        framework="litgpt",
        precision=Precision.BF16_TRUE,
    )
    linear = (
        32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32_000 * 4096
    )  # Fabric replaces every nn.Linear, the head too
    rest = 6_738_415_616 - linear
    weights = totals(job)["weights"] - 2 * estimate(job).model.params_trainable  # type: ignore[union-attr]
    assert weights == linear // 2 + 4 * linear // 64 + 2 * rest


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"model": "phi-3-mini", "lora-rank": 8, "lora-targets": "q_proj,o_proj"}, "qkv_proj"),
        ({"model": "phi-3-mini", "freeze": "nothing"}, "matches no parameter"),
        ({"model": "phi-3-mini", "freeze": "*"}, "leaves nothing to train"),
        ({"params": 10, "lora-rank": 8}, "give a model"),
        ({"model": "phi-3-mini", "dora": True}, "lora-rank"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(
    job: dict[str, object], message: str
) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        estimate(job_from(job))


def test_states_of_a_table_add_up() -> None:
    states = States(params=Params((matrix(10, 10), matrix(5, 5))), setup=resolve(Job(params=1)))
    assert states.gradient_bytes == 4 * 125
