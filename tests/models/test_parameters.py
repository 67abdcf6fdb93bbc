"""Every tensor of every model: names and shapes against the model transformers builds on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from configs import CATALOG_NAMES, OTHERS, config
from real import meta_model

from vramcast.models.config import Config
from vramcast.models.families import record
from vramcast.models.program import Sizes
from vramcast.models.tape import Regime


def ours(data: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    program = record(Config(data), Regime(), Sizes())
    return {param.name: tuple(int(n) for n in param.shape) for param in program.params()}


def theirs(data: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(param.shape) for name, param in meta_model(data).named_parameters()}


@pytest.mark.parametrize("name", [*CATALOG_NAMES, *OTHERS])
def test_parameters_are_those_of_the_transformers_model(name: str) -> None:
    data = config(name)
    assert ours(data) == theirs(data)
