"""Cut, finish one side, replay the other."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from torch import nn

from vramcast.errors import InputError
from vramcast.runtime import GraphCut, as_leaf

MiB = 1 << 20


def trunk_and_losses():
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 512))
    heads = [
        nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)).requires_grad_(False)
        for _ in range(4)
    ]
    x = torch.randn(512, 64)
    return trunk, x, [lambda y, head=head: head(y).pow(2).mean() for head in heads]


def test_losses_one_at_a_time_give_the_joint_gradient():
    trunk, x, losses = trunk_and_losses()
    sum(loss(trunk(x)) for loss in losses).backward()
    joint = [p.grad.clone() for p in trunk.parameters()]
    trunk.zero_grad()
    with GraphCut({"y": trunk(x)}) as cut:
        for loss in losses:
            loss(cut.leaves["y"]).backward()
        cut.replay()
    for p, expected in zip(trunk.parameters(), joint, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-6, atol=1e-8)


def test_only_one_loss_is_alive_at_a_time():
    trunk, x, losses = trunk_and_losses()
    with LiveBytes(trunk) as joint:
        y = trunk(x)
        sum(loss(y) for loss in losses).backward()
    trunk.zero_grad()
    del y
    with LiveBytes(trunk) as cut_bytes, GraphCut({"y": trunk(x)}) as cut:
        for loss in losses:
            loss(cut.leaves["y"]).backward()
        cut.replay()
    # Each loss saves one 512×512 float32 tanh output and reads another: four losses at once hold three more.
    assert joint.peaks["cpu"] - cut_bytes.peaks["cpu"] >= 2 * 512 * 512 * 4


def test_a_leaf_on_a_second_device_sends_its_gradient_back():
    trunk, x, _ = trunk_and_losses()
    with LiveBytes(trunk) as live:
        y = trunk(x)
        cut = GraphCut({"y": y}, device="cpu:1")
        head = nn.Linear(512, 4).requires_grad_(False).to("cpu:1")
        head(cut.leaves["y"]).sum().backward()
        assert live.live["cpu:1"] >= 512 * 512 * 4
        cut.replay()
    assert all(p.grad is not None for p in trunk.parameters())


def test_a_leaf_of_a_view_does_not_keep_the_whole_storage():
    with LiveBytes() as live:
        whole = torch.zeros(MiB)
        leaf = as_leaf(whole[:10])
        del whole
        assert live.total() == leaf.numel() * 4


def test_a_tensor_without_gradient_is_refused():
    with pytest.raises(InputError, match=r"\['w'\]"):
        GraphCut({"w": torch.zeros(2)})


def test_replay_without_any_backward_is_refused():
    x = torch.zeros(2, requires_grad=True)
    with GraphCut({"y": x * 2}) as cut, pytest.raises(InputError, match="no gradient reached"):
        cut.replay()
