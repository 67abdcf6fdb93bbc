"""torch.compile on the virtual GPU: what compiled code keeps is what AOTAutograd's own graphs keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import vramcast
from vramcast.virtual.compiled.graphs import MAX_OPS
from vramcast.virtual.compiled.region import COMPILED_NOTE


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(96), nn.RMSNorm(96)
        self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(F.gelu(self.up(self.first(x))))
        return x + self.down(F.silu(self.up(self.second(x))))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(1000, 96), nn.Linear(96, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(x.shape[0], device=x.device)
        logits = self.head(torch.tanh(self.table(ids)[:, None] * x))
        return F.cross_entropy(logits.flatten(0, 1).float(), ids.repeat_interleave(x.shape[1]))


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(96, 96, 3, padding=1), nn.GroupNorm(4, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        return F.relu(self.norm(self.conv(x))) + x


MODELS: dict[str, Callable[[], nn.Module]] = {"norms": Norms, "head": Head, "conv": Convolved}


def kept_by_aot(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that Dynamo, AOTAutograd and its partitioner keep on a CPU, weights and inputs left out."""
    from functorch.compile import aot_module_simplified, min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    found = []

    def forward_compiler(graph: Any, inputs: Any) -> Any:
        placeholders = {node for node in graph.graph.nodes if node.op == "placeholder"}
        outputs = next(iter(reversed(graph.graph.nodes))).args[0]
        found.append(sum(size(node) for node in outputs[1:] if root(node) not in placeholders))
        return graph.forward

    def backend(graph: Any, inputs: Any) -> Any:
        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=forward_compiler,
            bw_compiler=lambda graph, inputs: graph.forward,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(x)
    return int(found[0])


def root(node: Any) -> Any:
    while "permute" in str(node.target) or "view" in str(node.target):
        node = node.args[0]
    return node


def size(node: Any) -> int:
    value = node.meta["val"]
    return int(value.numel() * value.element_size())


@pytest.mark.parametrize("name", MODELS)
def test_kept_bytes_are_those_of_aot_autograd(name: str) -> None:
    torch.manual_seed(0)
    expected = kept_by_aot(MODELS[name](), torch.randn(8, 32, 96, requires_grad=True))
    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        model = torch.compile(MODELS[name]().cuda())
        x = torch.randn(8, 32, 96, device="cuda", requires_grad=True)
        torch.nn.Linear(8, 8).cuda()(x.new_ones(8, 8))  # cuBLAS has its workspace
        before = torch.cuda.memory_allocated()
        out = model(x)
        kept = torch.cuda.memory_allocated() - before - out.numel() * out.element_size()
        assert COMPILED_NOTE in gpu.notes
        out.sum().backward()
    assert expected <= kept <= expected * 1.01 + 512 * 12, "rounding to 512 bytes"


def peak_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        function(x).sum().backward()
    return int(torch.cuda.max_memory_allocated())


def test_fused_work_takes_no_memory() -> None:
    def activation(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))

    with vramcast.virtual_gpu("a100-40gb", protect=False):
        x = torch.randn(1 << 20, device="cuda", requires_grad=True)
        x.grad = torch.zeros_like(x)
        base = torch.cuda.memory_allocated()
        eager = peak_of(activation, x) - base
        compiled = peak_of(torch.compile(activation), x) - base
    assert eager > 6 * 4 << 20
    assert compiled <= 3 * 4 << 20, "output, its gradient, the input's gradient"


def test_the_module_that_is_given_stays_as_it_was() -> None:
    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        model = Norms().cuda()
        compiled = torch.compile(model)
        assert compiled is not model
        assert compiled._orig_mod is model
        assert set(compiled.state_dict()) == {f"_orig_mod.{name}" for name in model.state_dict()}
        x = torch.randn(8, 32, 96, device="cuda")
        model(x)
        assert not gpu.notes
        compiled(x).sum().backward()
        assert model.up.weight.grad is not None
        names = {entry.component for entry in gpu.ledger().entries}
        assert not any("_orig_mod" in name for name in names)


def test_what_decides_by_values_is_counted_op_by_op() -> None:
    def decide(x: torch.Tensor) -> torch.Tensor:
        return x.exp() if x.sum().item() > 0 else x.sin()

    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        x = torch.randn(1 << 20, device="cuda", requires_grad=True)
        torch.compile(decide)(x).sum().backward()
        assert any("decide could not be followed" in note for note in gpu.notes)
        assert x.grad is not None


def test_training_inside_a_compiled_function_happens_once() -> None:
    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        @torch.compile
        def step(x: torch.Tensor) -> None:
            model(x).sum().backward()
            optimizer.step()

        step(torch.randn(8, 64, device="cuda"))
        assert gpu.phases.steps == 1


def test_checkpointing_inside_and_around_lets_go() -> None:
    class Deep(nn.Module):
        def __init__(self, *, inside: bool) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Norms() for _ in range(4))
            self.inside = inside

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.inside else layer(x)
            return x

    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        x = torch.randn(64, 128, 96, device="cuda", requires_grad=True)

        def kept(model: nn.Module) -> int:
            before = torch.cuda.memory_allocated()
            out = model(x)
            return torch.cuda.memory_allocated() - before - out.numel() * 4

        whole = kept(torch.compile(Deep(inside=False).cuda()))
        inside = kept(torch.compile(Deep(inside=True).cuda()))
        around = Deep(inside=True).cuda()
        for layer in around.layers:
            layer.compile()
        outside = kept(around)
        around(x).sum().backward()
        assert around.layers[0].up.weight.grad is not None
        assert not any("op by op" in note for note in gpu.notes)
    one = 64 * 128 * 96 * 4
    assert whole > 20 * one
    assert inside <= 5 * one
    assert outside <= 5 * one


def test_layers_that_are_alike_are_written_down_once() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: int) -> None:
            super().__init__()
            self.inner, self.scale = nn.Linear(64, 64), scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * self.scale

    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        x = torch.randn(8, 64, device="cuda")
        for scale in (2, 2, 3):
            layer = Scaled(scale).cuda()
            layer.compile()
            x = layer(x)
        x.sum().backward()
        assert len(gpu.compiled_plans) == 3, (
            "two alike of which the first has an input without gradient"
        )
        assert layer.inner.weight.grad is not None


class KeepsItsLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.last_loss = nn.Linear(96, 384), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.up(x)
        self.last_loss = logits.float().pow(2).mean()
        return logits


def test_what_a_forward_leaves_on_its_module_is_a_result() -> None:
    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        model = KeepsItsLoss().cuda()
        compiled = torch.compile(model)
        losses = []
        for _ in range(3):
            compiled(torch.randn(8, 96, device="cuda"))
            losses.append(model.last_loss)
            model.last_loss.backward()
    assert COMPILED_NOTE in gpu.notes
    assert len(set(map(id, losses))) == 3, "each call has a loss of its own"
    assert model.up.weight.grad is not None


def test_nothing_stays_behind() -> None:
    with vramcast.virtual_gpu("a100-40gb", protect=False) as gpu:
        model = Norms().cuda()
        x = torch.randn(8, 32, 96, device="cuda")
        model(x).sum().backward()
        model.zero_grad()
        before, phase = torch.cuda.memory_allocated(), gpu.phases.current
        compiled = torch.compile(model)
        compiled(x).sum().backward()
        model.zero_grad()
        del compiled
        assert torch.cuda.memory_allocated() == before
        assert gpu.phases.current == phase
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
    assert not torch.compiler.is_compiling()
    assert MAX_OPS > 0
