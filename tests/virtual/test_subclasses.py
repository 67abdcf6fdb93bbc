"""Tensor subclasses that wrap other tensors, as quantized optimizer states are: they have a device and no memory."""

from __future__ import annotations

from typing import Any

import torch

from vramcast import virtual_gpu


class Coded(torch.Tensor):
    """fp32 to the outside, one byte per value inside."""

    codes: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor) -> Coded:
        wrapper: Coded = torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, device=codes.device, dtype=torch.float32
        )
        wrapper.codes = codes
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            args[0].codes.copy_(args[1].to(torch.uint8))
            return args[0]
        if func is torch.ops.aten.lerp.Scalar:
            return torch.lerp(args[0].codes.float(), *args[1:])
        raise NotImplementedError(func)


def test_a_wrapper_is_on_the_device_of_what_it_wraps_and_can_be_written() -> None:
    with virtual_gpu("24GiB", count=2):
        state = Coded(torch.zeros(1024, 1024, dtype=torch.uint8, device="cuda:1"))
        torch.zeros(4, device="cuda:0")  # where the last tensor was made does not matter
        assert state.device == torch.device("cuda:1")
        assert state.is_cuda
        state.copy_(state.lerp(torch.ones(1024, 1024, device="cuda:1"), 0.1))
        assert torch.cuda.memory_allocated(1) == 1024 * 1024
    assert Coded(torch.zeros(2, dtype=torch.uint8)).device == torch.device("cpu")
