"""What a script sees: devices, memory counters, autocast, attribution, stand-ins, steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from vramcast.ledger import Category
from vramcast.virtual import trace_step, virtual_gpu
from vramcast.virtual.kernels import autocast_lists
from vramcast.virtual.kernels.attention import takes_efficient, takes_flash


def test_the_card_is_the_one_asked_for() -> None:
    with virtual_gpu("rtx4090", count=2) as gpu:
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 2
        assert "4090" in torch.cuda.get_device_name(1)
        assert torch.cuda.get_device_capability() == (8, 9)
        assert torch.cuda.get_device_properties(0).total_memory == gpu.card.capacity_bytes()
        free, total = torch.cuda.mem_get_info()
        assert (free, total) == (
            gpu.card.capacity_bytes() - gpu.card.context_bytes,
            gpu.card.capacity_bytes(),
        )
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            torch.zeros(1, device="cuda:2")


def test_tensors_live_where_they_were_put_and_counters_follow() -> None:
    with virtual_gpu("rtx4090", count=2):
        block = torch.empty(1000, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 1024
        moved = block.to("cuda:1")
        assert moved.device == torch.device("cuda:1")
        assert moved.is_cuda
        assert torch.cuda.memory_allocated(1) == 1024
        del block
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 1024
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.memory_reserved() == 2 << 20
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert "CUDA memory summary" in torch.cuda.memory_summary()


def test_devices_do_not_mix() -> None:
    with virtual_gpu("rtx4090", count=2):
        here, there, host = (
            torch.ones(3, device="cuda:0"),
            torch.ones(3, device="cuda:1"),
            torch.ones(3),
        )
        for other in (there, host):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                here + other
        assert (here * torch.tensor(2.0)).device == here.device  # a scalar of the host may
        assert here[torch.tensor([0, 2])].device == here.device  # and so may indices
        assert F.one_hot(torch.tensor([0, 2], device="cuda")).device == here.device


def test_known_values_stay_true_on_a_device() -> None:
    with virtual_gpu("rtx4090"):
        mask = torch.tensor([[1, 1, 0]], device="cuda")
        assert not mask.all()
        assert mask.sum().item() == 2
        assert mask.nonzero().tolist() == [[0, 0], [0, 1]]
        lengths = mask.cumsum(1)[:, -1]
        assert lengths.tolist() == [2]


def test_unknown_values_are_stood_in_for_and_named() -> None:
    with virtual_gpu("rtx4090") as gpu:
        loss = torch.nn.Linear(4, 1).cuda()(torch.ones(2, 4, device="cuda")).sum()
        assert loss.item() == 1.0
        assert torch.isfinite(loss)
        assert not torch.isnan(loss)
    assert any("test_virtual_gpu.py" in note and "stood in" in note for note in gpu.notes)


def test_parameters_keep_their_identity_and_ties_when_moved() -> None:
    with virtual_gpu("rtx4090"):
        embedding, head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
        head.weight = embedding.weight
        model = torch.nn.Sequential(embedding, head)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.cuda()
        assert head.weight is embedding.weight is optimizer.param_groups[0]["params"][0]
        assert head.weight.device.type == "cuda"
        assert torch.cuda.memory_allocated() == 512


def test_autocast_casts_weights_once_and_forgets_them_at_the_end() -> None:
    with virtual_gpu("rtx4090"):
        layer = torch.nn.Linear(512, 512, bias=False).cuda()
        x = torch.randn(4, 512, device="cuda")
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
            assert layer(x).dtype == torch.bfloat16
            layer(x)
            copies = torch.cuda.memory_allocated() - before - 2 * (2 * 4096 + 8 * 16) * 512
            assert 512 * 512 * 2 <= copies < 2 * 512 * 512 * 2
            assert F.layer_norm(x.bfloat16(), (512,)).dtype == torch.float32
            assert (x.bfloat16() + 1).dtype == torch.bfloat16
        assert torch.cuda.memory_allocated() - before < 512 * 512 * 2 + (9 << 20)


def test_autocast_lists_are_those_of_the_installed_torch() -> None:
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()

    def listed(name: str) -> set[str]:
        body = re.search(rf"#define {name}\(_\)(.*?)\n\n", header, re.DOTALL)
        assert body is not None
        calls = re.findall(r"_\(\s*(\w+)(?:,\s*(\w+))?\)", body.group(1))
        return {f"{op}.{overload}" if overload else op for op, overload in calls}

    assert set(autocast_lists.LOWER_PRECISION) == listed("AT_FORALL_LOWER_PRECISION_FP")
    assert set(autocast_lists.FLOAT32) == listed("AT_FORALL_FP32")
    assert set(autocast_lists.FLOAT32_RESULT) == listed("AT_FORALL_FP32_SET_OPT_DTYPE")
    assert set(autocast_lists.WIDEST) == listed("AT_FORALL_PROMOTE")
    other = re.search(
        r"#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE\(_\)(.*?)\n\n", header, re.DOTALL
    )
    assert other is not None
    assert set(autocast_lists.FLOAT32_APPENDED) == set(re.findall(r'"([\w.]+)"', other.group(1)))


def test_norms_are_taken_in_fp32_under_autocast() -> None:
    with virtual_gpu("rtx4090"):
        x = torch.randn(8, 512, device="cuda", dtype=torch.float16)
        with torch.autocast("cuda"):
            assert x.norm().dtype == torch.float32
            assert torch.ops.aten.norm(x, 2).dtype == torch.float32
            assert torch.ops.aten.norm(x, 2, [1]).dtype == torch.float32
            assert torch.ops.aten.norm(x, 2, [1], True).shape == (8, 1)
            with pytest.raises(RuntimeError, match="unsafe to autocast"):
                F.binary_cross_entropy(torch.rand(4, device="cuda"), torch.rand(4, device="cuda"))


def test_attention_kernels_follow_dtype_mask_and_card() -> None:
    def heads(dtype: torch.dtype, size: int = 64) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty(2, 4, 16, size, dtype=dtype, device="meta") for _ in range(3))

    half, single, odd = heads(torch.bfloat16), heads(torch.float32), heads(torch.float32, 63)
    mask = torch.empty(2, 1, 16, 16, dtype=torch.bool, device="meta")
    assert takes_flash(*half, None, (8, 0), False)
    assert not takes_flash(*half, mask, (8, 0), False)
    assert not takes_flash(*half, None, (7, 5), False)
    assert not takes_flash(*single, None, (8, 0), False)
    assert takes_efficient(*half, (8, 0), 0.0)
    assert takes_efficient(*single, (7, 5), 0.1)
    assert not takes_efficient(*odd, (8, 0), 0.0)


def test_flash_keeps_no_square_and_math_keeps_one_in_fp32() -> None:
    def kept(card: str, dtype: torch.dtype) -> int:
        with virtual_gpu(card):
            query = torch.randn(1, 8, 1024, 64, device="cuda", dtype=dtype).requires_grad_()
            before = torch.cuda.memory_allocated()
            out = F.scaled_dot_product_attention(query, query, query, is_causal=True)
            after = torch.cuda.memory_allocated()
            del out
        return int(after - before)

    square = 8 * 1024 * 1024
    assert kept("a100-80gb", torch.bfloat16) < square
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert kept("a100-80gb", torch.bfloat16) > 4 * square


def test_dropout_keeps_one_byte_per_element() -> None:
    with virtual_gpu("a100-80gb"):
        x = torch.randn(1 << 20, device="cuda", dtype=torch.bfloat16).requires_grad_()
        before = torch.cuda.memory_allocated()
        out = F.dropout(x, 0.1)
        assert torch.cuda.memory_allocated() - before == out.numel() * (2 + 1)


def test_every_byte_at_the_peak_has_a_kind_a_module_and_a_line() -> None:
    with virtual_gpu("a100-80gb") as gpu:
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(8192, 256, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    ledger = gpu.ledger()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    sums = {
        phase: ledger.grouped(lambda entry: entry.category, phase=phase, place="cuda:0")
        for phase in ledger.phases("cuda:0")
    }
    assert sums["step"][Category.WEIGHTS] == sums["step"][Category.GRADIENTS] == 4 * parameters
    assert sums["next forward"][Category.OPTIMIZER] == 8 * parameters
    assert Category.OPTIMIZER not in sums["backward"]
    assert sums["forward"][Category.ACTIVATIONS] >= 8192 * (512 + 512 + 256) * 4
    kept = [
        entry for entry in ledger.alive("loss", "cuda:0") if entry.category == Category.ACTIVATIONS
    ]
    assert {entry.component for entry in kept} == {"Sequential.0", "Sequential.1", "Sequential.2"}
    assert all(entry.source.startswith("test_virtual_gpu.py:") for entry in kept)
    for phase in ledger.phases("cuda:0"):
        assert ledger.moment(phase, "cuda:0").allocated_bytes == sum(
            nbytes
            for kind, nbytes in sums[phase].items()
            if kind not in (Category.SLACK, Category.CONTEXT)
        )
    assert max(point.allocated_bytes for point in gpu.timeline()) == max(
        ledger.moment(phase, "cuda:0").allocated_bytes for phase in ledger.phases("cuda:0")
    )


class Checkpointed(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64, bias=False) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def test_parameters_keep_their_names_when_backward_runs_their_blocks_again() -> None:
    with virtual_gpu("rtx4090") as gpu:
        model = Checkpointed().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
    for category in (Category.WEIGHTS, Category.GRADIENTS):
        entries = [e for e in gpu.ledger().entries if e.category == category and "step" in e.phases]
        assert sorted(e.component for e in entries if e.place == "cuda:0") == [
            f"blocks.{number}.weight" for number in range(8)
        ]


def test_the_run_stops_after_the_steps_asked_for() -> None:
    seen = 0
    with virtual_gpu("24GiB", steps=3) as gpu:
        weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        while True:
            seen += 1
            weight.sum().backward()
            optimizer.step()
    assert gpu.phases.steps == seen == 3


def test_a_step_of_a_real_model_leaves_it_alone() -> None:
    model = torch.nn.Linear(64, 64)
    before = model.weight.clone()
    traced = trace_step(model, lambda twin: twin(torch.ones(8, 64, device="cuda")).sum())
    assert torch.equal(model.weight, before)
    assert model.weight.device.type == "cpu"
    states = traced.ledger().grouped(
        lambda entry: entry.category, phase="next forward", place="cuda:0"
    )
    assert states[Category.OPTIMIZER] == 2 * (64 * 64 * 4 + 512)


def test_host_tensors_are_billed_to_the_host() -> None:
    with virtual_gpu("24GiB") as gpu:
        kept = torch.zeros(1 << 20, dtype=torch.uint8)
        torch.zeros(1, device="cuda")
    assert kept.numel() == 1 << 20
    assert gpu.ledger().peak("host").allocated_bytes >= 1 << 20


def test_only_what_comes_from_the_host_is_input() -> None:
    """Autocast's fp32 copy of the logits is made outside of any module, on the card: it belongs to the loss."""
    with virtual_gpu("rtx4090") as gpu:
        head = torch.nn.Linear(64, 50_000).cuda()
        x, y = torch.randn(256, 64).cuda(), torch.zeros(256, dtype=torch.long).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(head(x), y)
        loss.backward()
        torch.optim.SGD(head.parameters()).step()
    entries = [entry for entry in gpu.ledger().entries if entry.place == "cuda:0"]
    assert sum(e.nbytes for e in entries if e.category == Category.INPUT) == 4 * 256 * 64 + 8 * 256
    wide = [e for e in entries if e.category == Category.LOGITS and "_to_copy" in e.component]
    assert max(e.nbytes for e in wide) >= 4 * 256 * 50_000
