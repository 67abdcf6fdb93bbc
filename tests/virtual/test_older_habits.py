"""What older and odd scripts do: types by tensor, default tensor types, checkpoints that are not there, profilers."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from vramcast.report.trace import folded
from vramcast.units import MiB
from vramcast.virtual import virtual_gpu


def test_tensors_follow_the_one_they_are_made_like() -> None:
    with virtual_gpu("rtx4090"):
        on_card = torch.zeros(4, dtype=torch.float16, device="cuda")
        like = torch.ones(1 << 20).type_as(on_card)
        assert (like.device.type, like.dtype) == ("cuda", torch.float16)
        assert torch.cuda.memory_allocated() >= 2 * MiB
        made = on_card.new_tensor([[1, 2], [3, 4]])
        assert (made.device.type, made.dtype, made.tolist()) == (
            "cuda",
            torch.float16,
            [[1, 2], [3, 4]],
        )
        assert on_card.new_tensor([1], dtype=torch.int64, device="cpu").device.type == "cpu"
        assert torch.zeros(2).new_tensor([1.5]).tolist() == [1.5]
        copied = on_card.new_tensor(torch.tensor([7.0]))
        assert (copied.device.type, copied.tolist()) == ("cuda", [7.0])


def test_the_default_tensor_type_may_be_cudas() -> None:
    with virtual_gpu("rtx4090"):
        torch.set_default_tensor_type("torch.cuda.HalfTensor")
        assert (torch.zeros(2).device.type, nn.Linear(2, 2).weight.dtype) == ("cuda", torch.float16)
        torch.set_default_tensor_type(torch.FloatTensor)
        assert (torch.zeros(2).device.type, torch.zeros(2).dtype) == ("cpu", torch.float32)
        assert torch.zeros(2, device="cuda").type(torch.FloatTensor).device.type == "cpu"
        assert torch.zeros(2).type(torch.cuda.HalfTensor).dtype == torch.float16
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
    assert (torch.zeros(2).device.type, torch.get_default_dtype()) == ("cpu", torch.float32)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with virtual_gpu("rtx4090", empty_weights=True) as gpu:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoint = torch.load(tmp_path / "absent.pt", map_location="cuda")
        model.load_state_dict(checkpoint["model"])
        model.load_state_dict({name.removeprefix("module."): 1 for name in checkpoint["model"]})
        optimizer.load_state_dict(checkpoint["optimizer"])
        assert list(range(checkpoint["epoch"] + 1, 3)) == [1, 2]
        torch.save({"epoch": 7}, tmp_path / "there.pt")
        assert torch.load(tmp_path / "there.pt")["epoch"] == 7
    assert any("absent.pt is not there" in note for note in gpu.notes)


def test_a_profiler_of_cuda_sees_nothing_and_ends() -> None:
    code = (
        "import torch\nfrom vramcast.virtual import virtual_gpu\n"
        "from torch.profiler import profile, ProfilerActivity, schedule\n"
        "with virtual_gpu('rtx4090'):\n"
        "    layer = torch.nn.Linear(64, 64).cuda()\n"
        "    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]\n"
        "    with profile(activities=kinds, profile_memory=True, schedule=schedule(wait=0, warmup=1, active=1)) as p:\n"
        "        for _ in range(2):\n"
        "            layer(torch.zeros(8, 64, device='cuda')).sum().backward()\n"
        "            p.step()\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr
    assert len(done.stderr.splitlines()) < 10


def test_a_package_that_the_script_does_without_is_named(tmp_path: Path) -> None:
    script = tmp_path / "attention.py"
    script.write_text("try:\n    import flash_attn_interface\nexcept ImportError:\n    pass\n")
    with virtual_gpu("rtx4090", protect=False) as gpu:
        exec(compile(script.read_text(), str(script), "exec"), {})
    assert any("flash_attn_interface is not installed" in note for note in gpu.notes)


def test_a_library_that_compiles_its_own_functions_is_not_the_script(tmp_path: Path) -> None:
    source = "import torch\n@torch.compile\ndef f(x): return x\n"
    with virtual_gpu("rtx4090") as gpu:
        exec(compile(source, "/usr/lib/site-packages/lib.py", "exec"), {})
        assert not gpu.notes
        torch.compile(nn.Linear(2, 2).cuda())(torch.ones(2, 2, device="cuda"))
        assert any("torch.compile" in note for note in gpu.notes)


def test_bitsandbytes_does_not_complain_of_a_missing_library(caplog: object) -> None:
    logger, seen = logging.getLogger("bitsandbytes.cextension"), []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[assignment, method-assign]
    logger.addHandler(handler)
    try:
        with virtual_gpu("rtx4090"):
            logger.error("bitsandbytes library load error: libcudart.so.12")
            logger.error("something else")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in seen] == ["something else"]


def test_only_numbers_of_layers_are_folded() -> None:
    assert folded("GPT.blocks.3.mlp.0") == "GPT.blocks.*.mlp.*"
    assert folded("0.weight") == "*.weight"
    assert folded("cuBLAS workspace, forward, stream 0") == "cuBLAS workspace, forward, stream 0"
    assert folded("CUDA context on GPU with 2.00 GiB") == "CUDA context on GPU with 2.00 GiB"


def test_old_tensor_types_know_their_instances() -> None:
    with virtual_gpu("rtx4090"):
        on_card = torch.ones(2, device="cuda")
        assert isinstance(on_card, torch.cuda.FloatTensor)
        assert not isinstance(on_card, torch.cuda.HalfTensor)
        assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)


def test_a_profiler_with_stacks_finds_the_modules() -> None:
    with virtual_gpu("rtx4090"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
        with torch.profiler.profile(with_stack=True, record_shapes=True) as profiler:
            model(torch.ones(2, 4, device="cuda")).sum().backward()
    assert any("nn.Module: Linear" in event.name for event in profiler.events())


def test_a_gradient_that_the_script_makes_itself() -> None:
    with virtual_gpu("rtx4090"):
        layer = nn.Linear(8, 8).cuda()
        for parameter in layer.parameters():
            parameter.grad = torch.zeros(parameter.size(), device="cuda")
        before = torch.cuda.memory_allocated()
        layer(torch.ones(2, 8, device="cuda")).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        layer.weight.grad = None
        layer.zero_grad()
        assert torch.cuda.memory_allocated() - before < 1 << 26
    assert nn.Linear(2, 2).weight.grad is None


def test_weights_of_a_subfolder_and_settings_of_a_call(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, num_hidden_layers=1, **sizes)
    config.save_pretrained(tmp_path / "text_encoder")
    kind = transformers.BertForSequenceClassification
    with virtual_gpu("rtx4090", empty_weights=True):
        model = kind.from_pretrained(tmp_path, subfolder="text_encoder", num_labels=7)
        assert model.classifier.weight.shape == (7, 32)
        assert model.config.name_or_path == str(tmp_path)
        again = kind.from_pretrained(str(tmp_path / "text_encoder"), config=config)
        assert again.classifier.weight.shape == (2, 32)
