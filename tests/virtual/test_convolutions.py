"""Convolutions: the layout cuDNN writes, and the workspace as a stated range."""

from __future__ import annotations

import pytest
import torch

from vramcast.ledger import Category, Ledger, Origin
from vramcast.virtual import virtual_gpu

MiB = 1 << 20


def step(*, last: bool) -> torch.Tensor:
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU()).cuda()
    x = torch.randn(8, 16, 64, 64, device="cuda")
    out: torch.Tensor = model(x.to(memory_format=torch.channels_last) if last else x)
    out.sum().backward()
    return out


@pytest.mark.parametrize("last", [True, False])
def test_the_output_lies_as_the_input_does(last: bool) -> None:
    with virtual_gpu("rtx3060"):
        assert step(last=last).is_contiguous(memory_format=torch.channels_last) is last


def test_a_channels_last_filter_is_enough() -> None:
    with virtual_gpu("rtx3060"):
        model = torch.nn.Conv2d(16, 32, 3).cuda().to(memory_format=torch.channels_last)
        assert model(torch.randn(2, 16, 8, 8, device="cuda")).is_contiguous(
            memory_format=torch.channels_last
        )


def workspaces(last: bool) -> dict[str, tuple[int, int] | None]:
    with virtual_gpu("rtx3060") as gpu:
        step(last=last)
    lines = [
        entry for entry in gpu.ledger().entries if entry.component == "cuDNN convolution workspace"
    ]
    assert all(
        line.origin is Origin.ASSUMED and line.category is Category.WORKSPACE for line in lines
    )
    assert all("pytorch/pytorch#49207" in line.source for line in lines)
    return {line.phases[0]: line.range_bytes for line in lines}


def test_the_workspace_is_a_range_up_to_copies_of_the_three_tensors() -> None:
    found = workspaces(last=False)
    x, y, filters = 8 * 16 * 64 * 64 * 4, 8 * 32 * 64 * 64 * 4, 32 * 16 * 9 * 4
    # The phase peaks with the ReLU's output (as large as y) beside what the convolution left.
    assert found["forward"] == (0, x + filters)
    assert found["backward"] is not None
    assert 0 < found["backward"][1] <= x + y + filters


def test_nothing_is_transposed_where_all_is_channels_last() -> None:
    assert workspaces(last=True) == {}


def test_the_cap_of_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_CONV_WSCAP_DBG", "1")
    with virtual_gpu("rtx3060") as gpu:
        torch.nn.Conv2d(16, 32, 3, padding=1).cuda()(torch.randn(8, 16, 64, 64, device="cuda"))
    (line,) = [
        entry for entry in gpu.ledger().entries if entry.component == "cuDNN convolution workspace"
    ]
    assert line.range_bytes == (0, 1 * MiB)


def ledger_of_step(*, last: bool) -> Ledger:
    with virtual_gpu("rtx3060") as gpu:
        step(last=last)
    return gpu.ledger()


def test_workspaces_leave_the_slack_open_in_both_directions() -> None:
    ledger = ledger_of_step(last=False)
    largest = (8 * 16 * 64 * 64 + 8 * 32 * 64 * 64 + 32 * 16 * 9) * 4
    phases = ledger.phases("cuda:0")
    assert phases[0] == "load"
    for index, phase in enumerate(phases):
        (line,) = [
            entry for entry in ledger.alive(phase, "cuda:0") if entry.category is Category.SLACK
        ]
        if phase == "load":
            assert line.range_bytes is None, "before the first convolution"
            continue
        assert line.range_bytes is not None
        moments = [ledger.moment(earlier, "cuda:0") for earlier in phases[: index + 1]]
        assert moments[-1].allocated_bytes + line.range_bytes[0] == max(
            moment.allocated_bytes for moment in moments
        )
        assert line.range_bytes[1] == line.nbytes + 4 * largest


def test_without_a_workspace_the_slack_is_what_was_replayed() -> None:
    lines = [
        entry for entry in ledger_of_step(last=True).entries if entry.category is Category.SLACK
    ]
    assert lines
    assert all(line.range_bytes is None for line in lines)


def test_the_range_ends_where_the_card_does() -> None:
    with virtual_gpu("400MiB") as gpu:
        step(last=False)
    ledger = gpu.ledger()
    most = [
        sum(
            entry.range_bytes[1]
            if entry.range_bytes and entry.category is not Category.CONTEXT
            else entry.nbytes
            for entry in ledger.alive(phase, "cuda:0")
        )
        for phase in ledger.phases("cuda:0")
    ]
    assert max(most) == 400 * MiB
