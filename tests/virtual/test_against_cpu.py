"""Traced peaks against real runs of the same steps on the CPU, with the CPU's kernels selected."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, train
from real_run import peak_bytes

from vramcast.virtual import virtual_gpu

# oneDNN's convolutions take scratch memory of their own choosing, as cuDNN's do; without it these run plain kernels.
CONVOLUTIONAL = {"convnext", "mobilenet", "resnet", "swin", "vit"}
SLOW = {
    "bart", "resnet", "swin", "mobilenet", "gemma2", "olmo2", "qwen3-moe", "distilbert", "bloom", "gpt2-lora",
    "mistral",
}  # fmt: skip


def traced_peak_bytes(name: str) -> int:
    build, batch = FAMILIES[name]
    with virtual_gpu("a100-80gb", kernels="cpu"):
        torch.manual_seed(0)
        train(build().cuda(), batch, "cuda")
        peak: int = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return peak


def real_peak_bytes(name: str) -> int:
    build, batch = FAMILIES[name]

    def work() -> None:
        torch.manual_seed(0)
        train(build(), batch, "cpu")

    with torch.backends.mkldnn.flags(enabled=name not in CONVOLUTIONAL):
        return peak_bytes(work)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FAMILIES],
)
def test_peak_is_within_a_thousandth_of_the_real_run(name: str) -> None:
    real, traced = real_peak_bytes(name), traced_peak_bytes(name)
    assert abs(traced - real) <= 0.001 * real, f"{name}: traced {traced}, real {real}"
