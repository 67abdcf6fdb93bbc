"""bitsandbytes in scripts: paged optimizers, and versions that call a CUDA library by pointers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from vramcast.virtual import virtual_gpu

ELEMENTS = 1 << 20  # large enough to be paged


@pytest.mark.filterwarnings("ignore")
def test_states_of_a_paged_optimizer_are_outside_torchs_counters() -> None:
    with virtual_gpu("24GiB") as gpu:
        import bitsandbytes

        parameter = torch.nn.Parameter(torch.empty(ELEMENTS, device="cuda"))
        optimizer = bitsandbytes.optim.PagedAdamW([parameter])
        parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        assert {name for name, value in optimizer.state[parameter].items() if getattr(value, "is_paged", False)} == {
            "state1", "state2",
        }  # fmt: skip
        assert torch.cuda.memory_allocated() == 2 * 4 * ELEMENTS, "weight and gradient"
        paged = bitsandbytes.functional.get_paged
    assert any("unified memory" in note for note in gpu.notes)
    assert bitsandbytes.functional.get_paged is not paged, "as it was"


def test_outliers_of_an_8_bit_product_are_none() -> None:
    """How many columns have outliers depends on values, and bitsandbytes' op says so when it is asked for shapes."""
    with virtual_gpu("24GiB"):
        import bitsandbytes

        layer = bitsandbytes.nn.Linear8bitLt(
            256, 128, bias=False, has_fp16_weights=False, threshold=6.0
        ).cuda()
        inputs = torch.nn.Parameter(torch.empty(64, 256, dtype=torch.float16, device="cuda"))
        before = torch.cuda.memory_allocated()
        outputs = layer(inputs)
        assert outputs.shape == (64, 128)
        kept = torch.cuda.memory_allocated() - before
        assert kept >= 2 * 64 * 128, "the outputs"
        outputs.sum().backward()
        assert inputs.grad is not None


OLD_PACKAGE = {
    "bitsandbytes/__init__.py": "from .cextension import COMPILED_WITH_CUDA, lib",
    "bitsandbytes/cextension.py": "raise RuntimeError('CUDA Setup failed despite GPU being available.')",
    "bitsandbytes-0.42.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: bitsandbytes\nVersion: 0.42.0\n",
}


def test_an_old_version_finds_a_library_without_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 0.42 is laid out: its own extension looks for CUDA's libraries when it is imported, and gives up."""
    for name, text in OLD_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "bitsandbytes"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with virtual_gpu("24GiB"):
        import bitsandbytes

        assert Path(bitsandbytes.__file__).parent.parent == tmp_path
        assert bitsandbytes.COMPILED_WITH_CUDA
        assert bitsandbytes.lib.cdequantize_blockwise_fp16_nf4(None, 1, 2) == 0
    assert "bitsandbytes" not in sys.modules, "what was imported knows a library that is gone"
