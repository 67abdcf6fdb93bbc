"""Sums over kinds of parameters are sums over parameters."""

from __future__ import annotations

import pytest

from vramcast.engine.program import record_job
from vramcast.job import job_from
from vramcast.models.params import Params
from vramcast.models.read.model import read_model
from vramcast.models.record.program import Sizes
from vramcast.setup import resolve

CHANGES = (
    {},
    {"lora-rank": 8},
    {"lora-rank": 8, "quantize": "nf4"},
    {"freeze": "*wte*,*embed*,*shared*"},
)


@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b", "qwen2-vl-2b", "t5-small"])
@pytest.mark.parametrize("changes", CHANGES)
def test_what_is_asked_of_one_holds_for_its_kind(model: str, changes: dict[str, object]) -> None:
    config = read_model(model).config
    assert config is not None
    job = job_from({"model": model, "seq": 64, **changes})
    params = Params(
        record_job(
            resolve(job), config, None, Sizes(batch=1, seq=64, target_seq=64, images=1)
        ).params()
    )
    assert len(params.kinds) < len(params) / 3
    assert params.numel == sum(param.numel for param in params)
    assert params.nbytes == sum(param.nbytes for param in params)
    assert tuple(params.trained) == tuple(param for param in params if param.trainable)
    rows = params.trained.total(lambda param: int(param.shape[0]))
    assert rows == sum(int(param.shape[0]) for param in params if param.trainable)
