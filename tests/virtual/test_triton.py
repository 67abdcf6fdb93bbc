"""Triton's kernels on the virtual GPU: they are launched, allocate nothing, and leave unknown numbers behind."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from vramcast.virtual import virtual_gpu

KERNELS = """
    import torch, triton
    import triton.language as tl
    from triton.language.extra.libdevice import rsqrt


    @triton.autotune(configs=[triton.Config({"BLOCK": 256}, num_warps=4)], key=["n"])
    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + place, rsqrt(tl.load(x + place)) + tl.load(y + place), mask=place < n)


    @triton.jit(do_not_specialize=["n"])
    def fill(out, n, BLOCK: tl.constexpr):
        tl.store(out + tl.program_id(0), 1.0)


    def run():
        x = torch.ones(1 << 20, device="cuda")
        y = torch.empty_like(x)
        add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x, y, x.numel())
        fill[(4,)](y, 4, BLOCK=triton.next_power_of_2(3))
        return y
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "kernels_of_a_script.py").write_text(textwrap.dedent(KERNELS))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kernels_of_a_script", raising=False)
    return "kernels_of_a_script"


def test_kernels_allocate_nothing(kernels: str) -> None:
    with virtual_gpu("rtx4090"):
        made = importlib.import_module(kernels).run()
        assert torch.cuda.max_memory_allocated() == 2 * made.nbytes


def test_torch_is_left_as_it_was(kernels: str) -> None:
    before = "triton" in sys.modules
    with virtual_gpu("rtx4090"):
        importlib.import_module(kernels)
        assert "triton" in sys.modules
    assert ("triton" in sys.modules) == before
    assert torch.utils._triton.has_triton_package() == before


def test_a_function_may_return_what_a_kernel_wrote() -> None:
    """Zeros are known until a kernel has written into them; then a gradient can flow."""
    with virtual_gpu("rtx4090"):
        fill = importlib.import_module("triton").jit(lambda out: None)

        class Filled(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx, x):  # type: ignore[no-untyped-def]
                sums = torch.zeros(len(x), device=x.device)
                fill[(1,)](sums[:2])
                return sums

            @staticmethod
            def backward(ctx, upstream):  # type: ignore[no-untyped-def]
                return upstream.unsqueeze(-1).expand(-1, 4).contiguous()

        x = torch.zeros(3, 4, device="cuda", requires_grad=True)
        Filled.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == (3, 4)


TRL_LOSS = """
    import torch
    import trl.kernels.chunked_logprob as tiles
    from vramcast.virtual import virtual_gpu

    TOKENS, WIDTH, VOCABULARY, CHUNK = 5000, 64, 50000, 32768
    with virtual_gpu("rtx4090"):
        hidden = torch.zeros(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        weight = torch.zeros(VOCABULARY, WIDTH, device="cuda", dtype=torch.bfloat16)
        labels = torch.zeros(TOKENS, device="cuda", dtype=torch.int64)
        before = torch.cuda.memory_allocated()
        tiles.ChunkedLogProbFunction.apply(hidden, weight, None, labels, 1.0, CHUNK)[0].sum().backward()
        tile, rows = 4096 * CHUNK * 2, TOKENS * WIDTH * 4
        print(torch.cuda.max_memory_allocated() - before - tile - rows)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_trls_loss_runs_as_on_a_card(when: str) -> None:
    """One tile of logits in bf16 and the gradient of the hidden states in fp32, not torch's detour in fp32, whether
    TRL was imported before the virtual GPU began or after."""
    script = textwrap.dedent(TRL_LOSS)
    if when == "after":
        line = "import trl.kernels.chunked_logprob as tiles\n"
        script = script.replace(line, "").replace("    hidden =", f"    {line}    hidden =")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 <= int(done.stdout) < 5000 * 64 * 2 + (1 << 18)  # the bf16 gradient, vectors


def test_a_kernel_in_cuda_cpp_is_launched_for_nothing() -> None:
    source = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }"
    with virtual_gpu("rtx4090"):
        kernel = torch.cuda._compile_kernel(source, "twice")
        x = torch.ones(32, device="cuda")
        before = torch.cuda.memory_allocated()
        kernel.set_shared_memory_config(1 << 16)
        kernel((1, 1, 1), (32, 1, 1), (x,))
        assert torch.cuda.memory_allocated() == before
