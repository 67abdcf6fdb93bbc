"""After the context, torch is as it was: every patched attribute, the dispatcher, modes, hooks, errors included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vramcast import patches as patching
from vramcast.errors import InputError
from vramcast.virtual import virtual_gpu


def surface() -> dict[str, int]:
    """Identity of everything the virtual GPU may touch, found by letting it tell us."""
    touched: dict[tuple[int, str], object] = {}
    original = patching.Patches.set

    def record(self: patching.Patches, owner: object, name: str, value: object) -> object:
        touched[id(owner), name] = owner
        return original(self, owner, name, value)

    patching.Patches.set = record  # type: ignore[method-assign, assignment]
    try:
        with virtual_gpu("24GiB", empty_weights=True):
            pass
    finally:
        patching.Patches.set = original  # type: ignore[method-assign]
    return {
        f"{getattr(owner, '__name__', owner)}.{name}": id(vars(owner).get(name))
        for (_, name), owner in touched.items()
    }


def test_every_patched_attribute_is_put_back() -> None:
    before = surface()
    assert len(before) > 100
    with pytest.raises(ZeroDivisionError), virtual_gpu("24GiB"):
        torch.zeros(1 // 0, device="cuda")
    assert surface() == before


def test_torch_behaves_as_before() -> None:
    def behaviour() -> tuple[object, ...]:
        query = torch.ones(1, 2, 8, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
        attended = F.scaled_dot_product_attention(query, query, query)
        linear = torch.nn.Linear(2, 2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = linear(torch.ones(1, 2)).dtype
        return (
            torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available(), torch.version.cuda,
            type(attended.grad_fn).__name__, cast, query.device, linear.weight.device, linear.weight.is_meta,
            torch._C._len_torch_dispatch_stack(), torch.is_autocast_enabled("cuda"), torch.get_default_device(),
            torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.AutocastCUDA),
            hasattr(torch._C, "_cuda_getDeviceCount"), torch.Generator().device,
        )  # fmt: skip

    before = behaviour()
    with virtual_gpu("rtx4090", count=2) as gpu:
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
    assert behaviour() == before
    assert gpu.phases.steps == 1
    real = torch.nn.Linear(8, 8)
    torch.optim.AdamW(real.parameters()).step()
    assert gpu.phases.steps == 1, "the step hook outlived the context"
    assert real.weight.sum().item() != 0


def test_two_virtual_gpus_in_sequence_do_not_influence_each_other() -> None:
    def peak() -> int:
        with virtual_gpu("24GiB"):
            model = torch.nn.Linear(512, 512).cuda()
            model(torch.ones(64, 512, device="cuda")).sum().backward()
            return int(torch.cuda.max_memory_allocated())

    kept_alive = virtual_gpu("24GiB")
    with kept_alive:
        survivor = torch.zeros(1 << 20, device="cuda")
    assert peak() == peak()
    del survivor  # dies after its device: nothing may happen


def test_a_second_virtual_gpu_inside_the_first_is_refused() -> None:
    with (
        virtual_gpu("24GiB"),
        pytest.raises(InputError, match="already active"),
        virtual_gpu("24GiB"),
    ):
        pass
    with virtual_gpu("24GiB"):
        assert torch.cuda.is_available()


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match="count 0"):
        virtual_gpu("24GiB", count=0)
    with pytest.raises(InputError, match="neither cuda nor cpu"):
        virtual_gpu("24GiB", kernels="metal")
