"""Tables that frameworks publish, with as few words as their users say."""

from __future__ import annotations

import pytest

from vramcast.engine import estimate
from vramcast.job import job_from

# github.com/hiyouga/LLaMA-Factory/wiki/Performance-comparison: LLaMA-2-7B, 4 bit, batch 1, in whole GB.
LLAMA_FACTORY = {1024: 6, 2048: 7, 4096: 9, 8192: 12, 16384: 19, 32768: 32}


@pytest.mark.parametrize(("seq", "published"), LLAMA_FACTORY.items())
def test_llama_factorys_table_of_lengths(seq: int, published: int) -> None:
    said = {"model": "llama-2-7b", "framework": "llama-factory", "tuning": "qlora", "attention": "flash",
            "gpu": "a100-40gb", "transformers-version": "4.39", "torch-version": "2.2", "seq": seq}  # fmt: skip
    peak = estimate(job_from(said), with_scaling=False).verdict().peak
    assert peak.process_bytes is not None
    assert peak.process_bytes / 2**30 == pytest.approx(published, abs=0.75)
