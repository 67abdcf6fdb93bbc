"""Unmodified CUDA scripts through the command line: the examples, and the corners of torch that real scripts visit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vramcast.cli import main
from vramcast.virtual import virtual_gpu
from vramcast.virtual.accounting import source_lines as lines

EXAMPLES = Path(__file__).parents[2] / "examples"


def traced(capsys: pytest.CaptureFixture[str], *arguments: str, expect: int = 0) -> Any:
    assert main(["trace", "--json", *arguments]) == expect
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_nanogpt_style_script(capsys: pytest.CaptureFixture[str]) -> None:
    data = traced(capsys, str(EXAMPLES / "train_gpt.py"), "--gpu", "rtx4090", "--steps", "2")
    assert data["schema"] == "vramcast/1"
    assert data["trace"]["steps"] == 2
    assert data["verdict"]["fits"] is True
    assert {phase["phase"] for phase in data["phases"]} >= {
        "load",
        "eval",
        "forward",
        "backward",
        "step",
    }
    assert any("torch.compile" in text for text in data["assumptions"])


def test_a_card_too_small_ends_the_script_at_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    data = traced(capsys, str(EXAMPLES / "train_gpt.py"), "--gpu", "6GiB", expect=1)
    assert data["verdict"]["fits"] is False
    assert data["trace"]["out_of_memory"].startswith("CUDA out of memory")
    assert data["trace"]["out_of_memory_line"].startswith("train_gpt.py:")


def test_a_frozen_reference_is_a_companion(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    data = traced(capsys, str(EXAMPLES / "train_dpo.py"), "--gpu", "rtx4090", "--steps", "1")
    kinds = {entry["category"] for entry in data["entries"] if entry["place"] == "cuda:0"}
    assert {"companion models", "weights", "gradients", "optimizer states"} <= kinds
    assert not list(tmp_path.iterdir()), "nothing is written for virtual tensors"


def test_two_cards_have_a_bill_each(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = traced(
        capsys,
        str(EXAMPLES / "train_two_gpus.py"),
        "--gpu",
        "rtx3060",
        "--gpus",
        "2",
        "--steps",
        "1",
    )
    assert first["verdict"]["peak_place"] == "cuda:0"
    assert second["verdict"]["peak_place"] == "cuda:1"
    assert (
        main(["trace", str(EXAMPLES / "train_two_gpus.py"), "--gpu", "rtx3060"]) == 2
    )  # it asks for two


@pytest.mark.slow
def test_the_trainer(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    script = str(EXAMPLES / "train_trainer.py")
    plain = traced(capsys, script, "--gpu", "rtx3060", "--steps", "2", "--", "--block-size", "256")
    mixed = traced(
        capsys, script, "--gpu", "rtx3060", "--steps", "2", "--", "--block-size", "256", "--bf16",
        "--gradient-checkpointing",
    )  # fmt: skip
    assert plain["verdict"]["allocated_bytes"] > mixed["verdict"]["allocated_bytes"]


def test_from_pretrained_needs_no_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from transformers import Qwen2Config

    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    Qwen2Config(vocab_size=256, num_key_value_heads=2, **sizes).save_pretrained(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}, dtype=torch.bfloat16, device_map='cuda')\n"
        "ids = torch.randint(0, 256, (2, 16), device='cuda')\n"
        "model(input_ids=ids, labels=ids).loss.backward()\n"
        "assert model.dtype == torch.bfloat16\n"
    )
    data = traced(capsys, str(script), "--gpu", "24GiB", "--empty-weights")
    assert any("empty weights" in text for text in data["assumptions"])


def test_what_goes_wrong_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import torch\ntorch.ones(2, device='cuda') @ torch.ones(3, device='cuda')\n")
    assert main(["trace", str(broken), "--gpu", "24GiB"]) == 2
    assert "broken.py:2" in capsys.readouterr().err
    host = tmp_path / "host.py"
    host.write_text("import torch\ntorch.ones(2)\n")
    assert main(["trace", str(host), "--gpu", "24GiB"]) == 2
    assert "nothing on a GPU" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "absent.py"), "--gpu", "24GiB"]) == 2
    assert main(["trace", str(host), "--gpu", "no-such-card"]) == 2
    assert main(["trace", str(host), "--gpu", "mi300x"]) == 2


def test_generation_ends_and_rollouts_train() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with virtual_gpu("rtx4090"):
        config = GPT2Config(
            n_layer=2, n_embd=64, n_head=2, vocab_size=500, bos_token_id=1, eos_token_id=2
        )
        model = GPT2LMHeadModel(config).cuda()
        prompt = torch.randint(5, 500, (4, 8), device="cuda")
        with torch.no_grad():
            rollout = model.generate(prompt, max_new_tokens=6, do_sample=True, pad_token_id=0)
        assert rollout.shape == (4, 14)
        model(input_ids=rollout, labels=rollout).loss.backward()


def test_gradient_penalty_and_spectral_norm() -> None:
    with virtual_gpu("rtx4090"):
        critic = nn.Sequential(
            nn.utils.spectral_norm(nn.Conv2d(3, 8, 3)), nn.LeakyReLU(0.2), nn.Flatten()
        ).cuda()
        mixed = torch.randn(2, 3, 16, 16, device="cuda").requires_grad_()
        scores = critic(mixed)
        wanted = torch.ones_like(scores)
        (slope,) = torch.autograd.grad(scores, mixed, grad_outputs=wanted, create_graph=True)
        ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean().backward()
        assert critic[0].weight_orig.grad is not None


def test_packed_sequences() -> None:
    with virtual_gpu("rtx4090"):
        model = nn.LSTM(8, 16, 2, batch_first=True).cuda()
        lengths = torch.tensor([5, 3, 2])
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(3, 5, 8, device="cuda"), lengths, batch_first=True
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)
        assert out.shape == (3, 5, 16)
        out.sum().backward()


def test_a_gradient_scaler_steps() -> None:
    with virtual_gpu("t4") as gpu:
        model = nn.Linear(8, 8).cuda()
        optimizer, scaler = (
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.amp.GradScaler("cuda"),
        )
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(2, 8, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 65536.0
    assert gpu.phases.steps == 1


def test_default_device_inference_mode_and_streams() -> None:
    with virtual_gpu("rtx4090"):
        torch.set_default_device("cuda")
        try:
            layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
            assert layer.linear1.weight.device.type == "cuda"
            with torch.inference_mode():
                out = layer(torch.randn(2, 4, 16))
                assert out.float().device.type == "cuda"
        finally:
            torch.set_default_device(None)
        with torch.cuda.stream(torch.cuda.Stream()):
            ahead = torch.randn(4, 16).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.current_stream().synchronize()
        assert F.linear(ahead, ahead).shape == (4, 4)


def test_data_parallel_splits_the_batch() -> None:
    with virtual_gpu("rtx4090", count=2):
        model = nn.DataParallel(nn.Linear(64, 64)).cuda()
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        assert torch.cuda.max_memory_allocated(1) > 64 * 64 * 4


def test_an_installed_script_is_named_by_its_own_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_INSTALLED", (str(tmp_path),))
    script = tmp_path / "installed_training.py"
    script.write_text(
        "import torch\nx = torch.randn(999, 999, device='cuda', requires_grad=True)\nx.sum().backward()\n"
    )
    assert main(["trace", str(script), "--gpu", "rtx4090"]) == 0
    assert "installed_training.py:2" in capsys.readouterr().out
