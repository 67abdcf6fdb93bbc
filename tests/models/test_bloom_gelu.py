"""BLOOM's activation is a Function written in torch's ops: its temporaries, beside the real ones."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers.models.bloom.modeling_bloom import bloom_gelu_back, bloom_gelu_forward

from vramcast.models.record.activations import activate
from vramcast.models.record.regime import Regime
from vramcast.models.record.tape import Tape

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from live import Live


def test_temporaries_are_those_of_transformers() -> None:
    x, gradient = torch.randn(4, 256), torch.randn(4, 256)
    live = Live(x, gradient)
    with live:
        result = bloom_gelu_forward(x)
    forward, live = live.peak, Live(x, gradient)
    with live:
        back = bloom_gelu_back(gradient, (x,))
    assert back.shape == result.shape == x.shape
    tape = Tape(Regime())
    with tape.section("gelu", tape.input("x", (4, 256), tape.regime.weights)) as section:
        value = section.inputs[0]
        section.outputs = (activate(tape, value, "bloom_gelu", "gelu"),)
    op = section.ops[-1]
    assert op.forward_temp_bytes + op.output.nbytes == forward
    assert op.backward_temp_bytes == live.peak
