"""torch.func, TorchScript and copies of models on virtual devices."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, hessian, jacfwd, jacrev, vmap
from torch.optim.swa_utils import AveragedModel, update_bn

from vramcast.virtual import virtual_gpu


def test_gradients_of_every_sample_are_billed() -> None:
    with virtual_gpu("rtx4090"):
        model = nn.Linear(512, 256).cuda()
        weights = {name: weight.detach() for name, weight in model.named_parameters()}

        def loss(
            weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
        ) -> torch.Tensor:
            return nn.functional.mse_loss(functional_call(model, weights, (x,)), y)

        x, y = torch.randn(8, 512, device="cuda"), torch.randn(8, 256, device="cuda")
        before = torch.cuda.memory_allocated()
        gradients, losses = vmap(grad_and_value(loss), in_dims=(None, 0, 0))(weights, x, y)
        assert gradients["weight"].shape == (8, 256, 512)
        assert losses.shape == (8,)
        assert torch.cuda.memory_allocated() - before >= 8 * 256 * 512 * 4


def test_jacobians_with_respect_to_data() -> None:
    with virtual_gpu("rtx4090"):
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
        x = torch.randn(6, 8, device="cuda")
        assert vmap(jacrev(model))(x).shape == (6, 4, 8)
        assert vmap(jacfwd(model))(x).shape == (6, 4, 8)
        assert vmap(hessian(lambda row: model(row).square().sum()))(x).shape == (6, 8, 8)
        assert x.device == torch.device("cuda", 0), "it gave up its values, not its place"


def test_scripts_make_tensors_of_their_own(tmp_path: Path) -> None:
    @torch.jit.script
    def padded(x: torch.Tensor, width: int) -> torch.Tensor:
        return torch.cat([x, torch.zeros(x.size(0), width, device=x.device), torch.ones_like(x)], 1)

    path = tmp_path / "scripted.pt"
    before = torch.jit._builtins._find_builtin(torch.zeros)
    with virtual_gpu("rtx4090"):

        @torch.jit.script
        def inside(x: torch.Tensor, width: int) -> torch.Tensor:
            return torch.cat([x, torch.zeros(x.size(0), width, device=x.device)], 1)

        x = torch.randn(4, 8, device="cuda")
        assert padded(x, 3).shape == (4, 19)
        assert inside(x, 3).shape == (4, 11)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(256, 1024), nn.ReLU())).cuda()
        scripted(torch.randn(2, 256, device="cuda")).sum().backward()
        traced = torch.jit.trace(nn.Linear(8, 8).cuda(), x)
        assert traced(x).shape == (4, 8)
        torch.jit.save(scripted, path)
        held = torch.cuda.memory_allocated()
        loaded = torch.jit.load(path, map_location="cuda")
        assert torch.cuda.memory_allocated() - held == 256 * 1024 * 4 + 1024 * 4
        loaded(torch.randn(2, 256, device="cuda")).sum().backward()
        assert all(weight.is_leaf and weight.grad.is_cuda for weight in loaded.parameters())
    assert not path.exists()
    assert torch.jit._builtins._find_builtin(torch.zeros) == before == "aten::zeros"


def test_a_copied_model_keeps_its_statistics_on_the_card() -> None:
    with virtual_gpu("rtx4090"):
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32)).cuda()
        average = AveragedModel(model)
        assert {buffer.device.type for buffer in average.module.buffers()} == {"cuda"}
        assert copy.deepcopy(torch.arange(5, device="cuda")).tolist() == [0, 1, 2, 3, 4]
        model(torch.randn(4, 16, device="cuda")).sum().backward()
        average.update_parameters(model)
        update_bn([torch.randn(4, 16)], average, device="cuda")
        assert int(average.module[1].num_batches_tracked) == 1
