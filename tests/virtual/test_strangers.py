"""What scripts of strangers do with torch: each test was a script that once failed, cut down to the point."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from vramcast.cli import main
from vramcast.units import MiB
from vramcast.virtual import virtual_gpu


def test_what_was_saved_is_loaded_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with virtual_gpu("rtx4090"):
        model = nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 1024, device="cuda")).sum().backward()
        optimizer.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path
        )
        assert path.exists(), "a script looks for what it has saved"
        before = torch.cuda.memory_allocated()
        loaded = torch.load(path, map_location="cuda:0")
        assert torch.cuda.memory_allocated() - before >= 3 * 4 * MiB  # weights and two states
        assert loaded["epoch"] == 3
        assert float(loaded["optimizer"]["state"][0]["step"]) == 1.0
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        assert torch.load(path, map_location="cpu")["model"]["weight"].device.type == "cpu"
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        assert torch.load(buffer)["weight"].shape == (1024, 1024)
        with pytest.raises(RuntimeError, match="Parent directory"):
            torch.save({}, tmp_path / "absent" / "checkpoint.pt")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_on_disk_is_not_written_over(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    pickled, safe = tmp_path / "model.pt", tmp_path / "model.safetensors"
    torch.save({"weight": torch.full((3,), 7.0)}, pickled)
    save_file({"weight": torch.full((3,), 7.0)}, safe)
    with virtual_gpu("rtx4090"):
        model = nn.Linear(8, 8).cuda()
        assert torch.load(pickled)["weight"].tolist() == [7.0] * 3
        torch.save(model.state_dict(), pickled)
        save_file(model.state_dict(), safe)
        save_file(model.state_dict(), tmp_path / "new.safetensors")
        assert torch.load(pickled)["weight"].shape == (8, 8)
    assert torch.load(pickled)["weight"].tolist() == [7.0] * 3
    assert load_file(safe)["weight"].tolist() == [7.0] * 3
    assert not (tmp_path / "new.safetensors").exists()


def test_messages_gathered_into_a_tensor_of_zeros() -> None:
    with virtual_gpu("rtx4090"):
        layer = nn.Linear(16, 8).cuda()
        source, target = torch.randint(0, 50, (2, 300), device="cuda")
        features = torch.randn(50, 16, device="cuda")
        gathered = torch.zeros(50, 8, device="cuda").index_add_(0, target, layer(features)[source])
        degree = torch.zeros(50, device="cuda").scatter_add_(
            0, target, torch.ones(300, device="cuda")
        )
        assert degree.sum().item() == 300, "what is known stays known"
        (gathered / degree.clamp(min=1)[:, None]).square().mean().backward()
        rows = torch.zeros(4, 8, device="cuda")
        rows[1] += layer(features[0])
        rows[2:] = layer(features[:2])
        (rows * rows).sum().backward()
        assert layer.weight.grad is not None


def test_an_op_without_a_meta_function_runs_on_zeros() -> None:
    with virtual_gpu("rtx4090"):
        logits = torch.randn(30, 4, 12, device="cuda", requires_grad=True)
        targets = torch.randint(1, 12, (4, 7), device="cuda")
        loss = F.ctc_loss(logits.log_softmax(2), targets, torch.full((4,), 30), torch.full((4,), 7))
        loss.backward()
        assert logits.grad is not None


def test_a_captured_graph_has_a_pool_of_its_own() -> None:
    with virtual_gpu("rtx4090") as gpu:
        model = nn.Linear(512, 512).cuda()
        x = torch.randn(64, 512, device="cuda")
        cached = torch.empty(8 << 20, device="cuda")
        del cached  # 32 MiB wait in the ordinary pool
        reserved = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            out = model(x)
        assert torch.cuda.memory_reserved() <= reserved, "the cache is emptied before a capture"
        held = torch.cuda.memory_allocated()
        for _ in range(3):
            x.copy_(torch.randn(64, 512, device="cuda"))
            graph.replay()
        assert torch.cuda.memory_allocated() == held
        segments = torch.cuda.memory_snapshot()
        assert {segment["segment_pool_id"] for segment in segments} == {(0, 0), graph.pool()}
        assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
        assert sum(segment["allocated_size"] for segment in segments) == held
        assert out.shape == (64, 512)
    assert any("CUDA graphs" in note for note in gpu.notes)


def test_functions_of_parameters() -> None:
    from torch.func import functional_call, grad, vmap

    with virtual_gpu("rtx4090"):
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
        parameters = {name: value.detach() for name, value in model.named_parameters()}

        def loss(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return functional_call(model, values, (x,)).square().mean()

        x = torch.randn(8, 16, device="cuda")
        assert grad(loss)(parameters, x)["0.weight"].shape == (32, 16)
        assert vmap(grad(loss), in_dims=(None, 0))(parameters, x)["0.weight"].shape == (8, 32, 16)


def test_flex_attention_keeps_no_scores() -> None:
    from torch.nn.attention import flex_attention as flex

    with virtual_gpu("a100-80gb"):
        query = torch.randn(1, 8, 4096, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = torch.cuda.memory_allocated()
        out = torch.compile(flex.flex_attention)(query, query, query)
        assert torch.cuda.memory_allocated() - before < 2 * query.numel() * query.element_size()
        out.sum().backward()


def test_a_subclass_of_parameter_without_ops_of_its_own() -> None:
    class Quantized(nn.Parameter):
        pass

    with virtual_gpu("rtx4090"):
        weight = Quantized(torch.randn(4, 4)).data.cuda()
        assert weight.device.type == "cuda"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import flash_attn", "sdpa"),
        ("import no_such_package_at_all", "Install no_such_package_at_all"),
        (
            "s = torch.nn.Linear(9, 1).cuda().weight.data\ntorch.sparse.softmax(s.to_sparse(), 1)",
            "dense",
        ),
    ],
)
def test_what_cannot_be_followed_is_said_with_a_way_out(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{line}\n")
    assert main(["trace", str(script), "--gpu", "24GiB"]) == 2
    assert words in capsys.readouterr().err


def test_workers_and_pinned_batches(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
    options: dict[str, Any] = {
        "num_workers": 2,
        "pin_memory": True,
        "persistent_workers": True,
        "prefetch_factor": 4,
    }
    with virtual_gpu("rtx4090") as gpu:
        loader = DataLoader(data, batch_size=4, shuffle=True, drop_last=True, **options)
        seen = sum(x.cuda(non_blocking=True).size(0) for _ in range(2) for x, _ in loader)
        assert seen == 32
        assert loader.num_workers == 2
    assert any("2 data loader workers" in note for note in gpu.notes)


def test_a_number_is_a_card() -> None:
    with virtual_gpu("rtx4090", count=2):
        assert nn.Linear(2, 2).to(1).weight.device == torch.device("cuda", 1)
        assert torch.ones(2).to(0).device == torch.device("cuda", 0)
        assert torch.ones(2).to(device=1, dtype=torch.float16).device == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("kind", "values", "states"), [("LSTM", 5 * 2 + 1, 2), ("GRU", 6 * 2 + 1, 1)]
)
def test_recurrent_layers_keep_one_reserve(kind: str, values: int, states: int) -> None:
    steps, batch, width = 50, 16, 256
    with virtual_gpu("a100-80gb"):
        layers = getattr(nn, kind)(width, width, num_layers=2).cuda()
        x = torch.randn(steps, batch, width, device="cuda")
        before = torch.cuda.memory_allocated()
        out, _last = layers(x)
        kept = torch.cuda.memory_allocated() - before
        first = states * 2 * batch * width * 4  # the zeros it starts from; as many again come out
        assert kept == (values + 1) * steps * batch * width * 4 + 2 * first
        out.sum().backward()
        assert all(parameter.grad is not None for parameter in layers.parameters())
        packed = nn.utils.rnn.pack_padded_sequence(x[:10], [10] * 8 + [5] * 8)
        assert layers(packed)[0].data.shape == (8 * 15, width)
        with torch.autocast("cuda", torch.float16):
            assert layers(x)[0].dtype == torch.float16
        with torch.no_grad():
            assert layers.eval()(x)[0].shape == (steps, batch, width)


def test_tensors_of_unknown_values_are_compared() -> None:
    with virtual_gpu("rtx4090") as gpu:
        weight = nn.Linear(4, 4).cuda().weight
        assert not torch.allclose(weight, weight * 2)
        assert not torch.equal(weight, weight * 2)
        assert torch.allclose(torch.ones(3, device="cuda"), torch.ones(3, device="cuda"), atol=1e-3)
    assert any("torch.allclose" in note for note in gpu.notes)


def test_checks_of_unknown_values_pass() -> None:
    with virtual_gpu("rtx4090") as gpu:
        logits = nn.Linear(4, 6).cuda()(torch.randn(200, 4, device="cuda"))
        policy = torch.distributions.Categorical(logits=logits)
        assert policy.log_prob(policy.sample()).shape == (200,)
        assert torch.all(logits < 0)
        assert (logits > 0).all()
        assert not torch.zeros(3, device="cuda").all()
    assert any("torch.all" in note for note in gpu.notes)


def test_safetensors_of_a_run_are_loaded_in_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with virtual_gpu("rtx4090"):
        model = nn.Sequential(nn.Linear(64, 32), nn.Embedding(10, 32, dtype=torch.bfloat16)).cuda()
        save_file(model.state_dict(), path, metadata={"format": "pt"})
        before = torch.cuda.memory_allocated()
        state = load_file(path, device="cuda:0")
        assert torch.cuda.memory_allocated() > before
        assert {name: (t.shape, t.dtype, t.device.type) for name, t in state.items()} == {
            name: (t.shape, t.dtype, "cuda") for name, t in model.state_dict().items()
        }
        model.load_state_dict(state)
        assert load_model(model, path, device="cuda:0") == (set(), [])
    assert not path.exists()


def test_values_are_read_under_a_default_device() -> None:
    with virtual_gpu("rtx4090"):
        torch.set_default_device("cuda")
        try:
            losses = torch.stack([torch.randn(300, 300).mean() for _ in range(3)])
            assert losses.tolist() == [1.0] * 3
            assert torch.cuda.get_rng_state_all()[0].device.type == "cpu"
        finally:
            torch.set_default_device(None)


class Filling(torch.autograd.Function):
    """Its gradients are made in backward, as fused losses make them."""

    @staticmethod
    def forward(
        ctx: Any, factor: int, hidden: torch.Tensor, constant: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        ctx.bias = bias.shape
        return (hidden * factor + constant).sum() + bias.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return (
            None,
            torch.zeros(3, device="cuda"),
            None,
            torch.ones(ctx.bias, device="cuda").mul_(gradient),
        )


def test_a_function_of_the_script_fills_its_gradients_itself() -> None:
    with virtual_gpu("rtx4090"):
        hidden = torch.ones(3, device="cuda", requires_grad=True)
        bias = nn.Parameter(torch.zeros(5, device="cuda"))
        Filling.apply(2, hidden * 2, torch.ones(3, device="cuda"), bias).backward()
        assert hidden.grad is not None
        assert hidden.grad.shape == (3,)
        assert bias.grad is not None
        assert bias.grad.is_cuda
        torch.optim.AdamW([hidden, bias]).step()


def test_gradients_travel_between_cards_under_a_default_device() -> None:
    with virtual_gpu("rtx4090", count=2), torch.device("cpu"):
        weight = nn.Parameter(torch.randn(300, 300, device="cuda:0"))
        (weight * 2).to("cuda:1").sum().backward()
        assert weight.grad is not None
        assert weight.grad.device == torch.device("cuda:0")


def test_helpers_of_a_backward_pass_on_the_host_stay_there() -> None:
    """What torch's derivatives make for themselves is where the gradients are: here a loss that never saw the card."""
    with virtual_gpu("rtx4090"):
        policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
        state = torch.rand(4)
        chances = torch.distributions.Categorical(F.softmax(policy(state), dim=-1))
        chosen = -chances.log_prob(chances.sample())
        loss = F.smooth_l1_loss(value(state), torch.tensor([0.5]))
        (torch.stack([chosen]).sum() + torch.stack([loss]).sum()).backward()
        assert policy.weight.grad.device.type == "cpu"
        assert torch.cuda.memory_allocated() == 0


def test_memory_of_a_card_is_shared_as_it_is() -> None:
    with virtual_gpu("rtx4090"):
        model = nn.Linear(64, 64).cuda()
        before = torch.cuda.memory_allocated()
        assert model.share_memory() is model
        assert model.weight.is_shared()
        assert torch.cuda.memory_allocated() == before
        assert not torch.zeros(4).is_shared()


def test_a_plain_number_may_be_conjugated() -> None:
    """The gradient of `1j * x` takes the conjugate of a number that is no tensor."""
    with virtual_gpu("rtx4090"):
        frequencies = torch.randn(8, 16, device="cuda", requires_grad=True)
        torch.exp(1j * frequencies).real.sum().backward()
        assert frequencies.grad.dtype == torch.float32


def test_a_module_missing_from_a_package_is_a_matter_of_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import packaging.of_tomorrow\n")
    assert main(["trace", "--gpu", "rtx4090", "--", "python", str(script)]) == 2
    said = capsys.readouterr().err
    assert "another version" in said
    assert "Install" not in said


def test_a_run_is_named_by_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.ones(8, device='cuda')\n")
    main(["trace", "--gpu", "rtx4090", "--", "python", str(script)])
    assert f"{script} ran" in capsys.readouterr().out
