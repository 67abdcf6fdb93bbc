"""`tensor.data = other` where only one of them has values: small tensors keep theirs, parameters have none."""

from __future__ import annotations

import torch

from vramcast.virtual import virtual_gpu


def test_a_parameter_takes_a_small_tensor_with_values() -> None:
    with virtual_gpu("24GiB"):
        layer = torch.nn.Linear(256, 256, device="cuda")
        before = torch.cuda.memory_allocated()
        layer.bias.data = torch.zeros(1024, device="cuda")
        assert layer.bias.shape == (1024,)
        assert torch.cuda.memory_allocated() == before + 3 * 1024, "4 KiB instead of 1 KiB"
        layer.bias.data = torch.ones(4)
        assert layer.bias.device.type == "cpu"
        assert torch.cuda.memory_allocated() == before - 1024


def test_a_tensor_with_values_takes_a_parameters_data() -> None:
    with virtual_gpu("24GiB"):
        layer = torch.nn.Linear(256, 256, device="cuda")
        counted = torch.arange(256, device="cuda")
        before = torch.cuda.memory_allocated()
        counted.data = layer.bias.data
        assert counted.dtype == torch.float32
        assert torch.cuda.memory_allocated() == before - 2048, (
            "the bias is shared, its own 2 KiB are gone"
        )


def test_two_tensors_with_values_keep_them() -> None:
    with virtual_gpu("24GiB"):
        counted = torch.zeros(3, dtype=torch.int64, device="cuda")
        counted.data = torch.arange(3, device="cuda")
        assert counted.tolist() == [0, 1, 2]
