"""Facts with a date: what older torch, transformers and bitsandbytes held, as differences between two versions."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.accuracy.run import peak_bytes
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.formulas.estimate import estimate
from vramcast.formulas.lengths import STEPS, earlier_lengths
from vramcast.job import Job, Precision, job_from
from vramcast.ledger import NEXT_FORWARD, Category, Level
from vramcast.units import MiB

SMALL = {"model": "gpt2", "precision": "fp32", "batch": 4, "seq": 128, "gpu": "v100-16gb", "framework": "hf"}
QLORA = {
    "model": "tinyllama", "framework": "litgpt", "precision": "bf16-true", "batch": 2, "seq": 256, "lora-rank": 8,
    "quantize": "nf4", "lora-targets": "query,value",
}  # fmt: skip


def forecast(base: dict[str, Any], **changes: Any) -> Forecast:
    return estimate(job_from({**base, **{name.replace("_", "-"): value for name, value in changes.items()}}))


def held(found: Forecast, category: Category, phase: str) -> int:
    return found.ledger.grouped(lambda entry: entry.category, phase=phase, place="cuda:0").get(category, 0)


def test_zero_grad_kept_gradients_before_torch_2() -> None:
    assert held(forecast(SMALL, torch_version="1.13"), Category.GRADIENTS, NEXT_FORWARD) == 4 * 124_439_808
    assert held(forecast(SMALL, torch_version="2.0"), Category.GRADIENTS, NEXT_FORWARD) == 0


@pytest.mark.parametrize(("torch", "mib"), [("1.10", 1343), ("1.12", 1343), ("2.1", 350 + 128)])
def test_the_context_held_every_kernel_before_torch_1_13(torch: str, mib: int) -> None:
    assert held(forecast(SMALL, torch_version=torch), Category.CONTEXT, NEXT_FORWARD) == mib * MiB


def test_softmax_kept_its_input_before_torch_1_11() -> None:
    old, new = (forecast(SMALL, torch_version=torch, attention="eager") for torch in ("1.10", "1.11"))
    scores = 12 * 4 * 12 * 128 * 128 * 4  # layers · b · heads · s · s, fp32
    more = held(old, Category.ACTIVATIONS, NEXT_FORWARD) - held(new, Category.ACTIVATIONS, NEXT_FORWARD)
    assert more == pytest.approx(scores, rel=0.1)


def test_bitsandbytes_pinned_the_input_of_every_quantised_linear_until_the_graph_died() -> None:
    """In the next forward the old graph is still there: 22 layers of two hidden-size and two norm-size inputs more."""
    old, new = (forecast(QLORA, bitsandbytes_version=number) for number in ("0.43", "0.44"))
    inputs = 22 * 2 * 256 * (3 * 2048 + 5632) * 2
    more = peak_bytes(old, Level.ALLOCATED) - peak_bytes(new, Level.ALLOCATED)
    assert inputs < more < 2.2 * inputs


def test_states_of_a_paged_optimizer_lie_on_the_host_in_fp32() -> None:
    found = forecast({**SMALL, "optimizer": "paged-adamw", "precision": "bf16-true"})
    states = [entry for entry in found.ledger.entries if entry.category == Category.OPTIMIZER]
    assert sum(entry.nbytes for entry in states) == 8 * 124_439_808
    assert held(found, Category.OPTIMIZER, NEXT_FORWARD) < 8 * 200_000


@pytest.mark.parametrize(
    ("framework", "torch", "tensors"), [("plain", "2.5", 1), ("plain", "2.4", 2), ("hf", "2.5", 2)]
)
def test_torchs_adafactor_makes_one_matrix_and_transformers_two(framework: str, torch: str, tensors: int) -> None:
    found = forecast(SMALL, optimizer="adafactor", framework=framework, torch_version=torch)
    assert held(found, Category.TEMPORARY, "step") == tensors * 50257 * 768 * 4


def test_many_lengths_fill_the_cache_and_change_nothing_else() -> None:
    base = {**SMALL, "gpu": "a100-80gb", "model": "qwen2-0.5b", "precision": "bf16-true", "seq": 1024, "lora-rank": 8}
    same, varied = forecast(base), forecast(base, mean_seq=512)
    assert peak_bytes(varied, Level.RESERVED) > 1.1 * peak_bytes(same, Level.RESERVED)
    assert peak_bytes(varied, Level.ALLOCATED) == pytest.approx(peak_bytes(same, Level.ALLOCATED), rel=0.02)


def test_lengths_stay_below_twice_the_mean_and_the_longest() -> None:
    lengths = earlier_lengths(Job(model="gpt2", mean_seq=300, batch=1, precision=Precision.FP32), 1000)
    assert len(lengths) == len(set(lengths)) == STEPS
    assert max(lengths) <= 600
    assert sum(lengths) / STEPS == pytest.approx(300, rel=0.15)
    padded = earlier_lengths(Job(model="gpt2", mean_seq=300, batch=8), 1000)
    assert sum(padded) > 1.5 * sum(lengths)  # the longest of eight


def test_a_mean_above_the_longest_is_a_mistake() -> None:
    with pytest.raises(InputError, match="mean-seq 200 is more than the longest"):
        forecast(SMALL, mean_seq=200)
