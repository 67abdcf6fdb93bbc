"""Learned tables of positions bound the length; rotary ones do not."""

from __future__ import annotations

import pytest

from vramcast import Job, estimate
from vramcast.errors import InputError


@pytest.mark.parametrize(
    ("model", "longest"),
    [("gpt2", 1024), ("bert-base", 512), ("roberta-base", 512), ("opt-125m", 2048), ("bart-large", 1024),
     ("whisper-tiny", 448), ("clip", 77)],
)  # fmt: skip
def test_the_longest_sequence_is_the_tables(model: str, longest: int) -> None:
    estimate(Job(model=model, seq=longest))
    with pytest.raises(InputError, match=f"{longest:,} learned positions"):
        estimate(Job(model=model, seq=longest + 1))


def test_rotary_positions_have_no_table() -> None:
    short, long = (
        estimate(Job(model="smollm2-135m", seq=seq)).ledger.peak("cuda:0") for seq in (8192, 16384)
    )
    assert long.allocated_bytes > short.allocated_bytes


@pytest.mark.parametrize(
    ("model", "seq"), [("whisper-tiny", 448), ("clip", 77), ("roberta-base", 512), ("phi-2", 2048)]
)
def test_the_assumed_length_is_one_the_model_can_take(model: str, seq: int) -> None:
    assert f"seq {seq} (not given)" in estimate(Job(model=model)).assumptions
