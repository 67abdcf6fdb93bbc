"""What each activation of transformers saves for backward, against our expression of it."""

from __future__ import annotations

import pytest
import torch
from real import saved_bytes
from transformers.activations import ACT2CLS, ACT2FN

from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.errors import UnsupportedError
from vramcast.models.record.activations import EXPRESSIONS, KEEP_INPUT, KEEP_OUTPUT
from vramcast.models.record.tape import BF16, F32, Regime, Section, Tape, Value

KNOWN = sorted(
    {*KEEP_INPUT, *KEEP_OUTPUT, *EXPRESSIONS} - {"bloom_gelu"}
)  # BLOOM brings its own, in its layer's test


def described(kind: str, regime: Regime) -> Section:
    tape = Tape(regime)
    x = Value((3, 5), regime.autocast or regime.weights, requires_grad=True)
    with tape.section("activation", x) as section:
        section.outputs = (tape.activation(x, kind),)
    return section


@pytest.mark.parametrize("dtype", [F32, BF16], ids=lambda dtype: str(dtype.name))
@pytest.mark.parametrize("kind", KNOWN)
def test_an_activation_saves_what_its_expression_says(kind: str, dtype: object) -> None:
    x = torch.randn(
        3, 5, dtype=torch.float32 if dtype is F32 else torch.bfloat16, requires_grad=True
    )
    act = ACT2FN[kind]
    ours = kept_bytes(described(kind, Regime(weights=F32 if dtype is F32 else BF16, cuda=False)))
    assert ours == saved_bytes(act, lambda: act(x))


def test_only_known_activations_are_described() -> None:
    for kind in {*ACT2CLS, "gelu_of_my_own"} - set(KNOWN):
        with pytest.raises(UnsupportedError, match=kind):
            described(kind, Regime())


def test_autocast_on_cuda_takes_the_cube_in_fp32() -> None:
    """bf16 x: the half (2 B), x raised for pow, tanh and 1 + tanh (4 B each)."""
    section = described("gelu_new", Regime(autocast=BF16))
    assert kept_bytes(section) == 3 * 5 * (2 + 4 + 4 + 4)
