"""A state of Slurm says that a process was killed; the same words as a name in code do not."""

from __future__ import annotations

import pytest

from vramcast.diagnose.readers.log import read_text


def kinds(text: str) -> set[str]:
    return {str(seen.kind) for seen in read_text(text).observations}


@pytest.mark.parametrize(
    "line",
    [
        "    raise self.out_of_memory_error(record, requested_bytes, error) from None",
        "    if torch.cuda.is_out_of_memory(error):",
        "    handlers.out_of_memory(error)",
        "OUT_OF_MEMORY_RETRIES = 3",
    ],
)
def test_a_name_in_code_is_no_kill(line: str) -> None:
    assert "host_oom_kill" not in kinds(f"Traceback (most recent call last):\n{line}\n")


@pytest.mark.parametrize(
    "line", ["123456.batch  train  OUT_OF_MEMORY  0:125", "123456  train  OUT_OF_ME+  0:125"]
)
def test_a_state_of_slurm_is_a_kill(line: str) -> None:
    assert "host_oom_kill" in kinds(f"{line}\n")
