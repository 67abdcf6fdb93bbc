"""One description for one job and for a grid of jobs: arrays of batches and lengths give what single numbers give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from configs import config, shallow

from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.dims import choose
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import BF16, Regime

BATCHES, LENGTHS, TARGETS = np.array([1, 3, 8]), np.array([100, 250, 512]), np.array([7, 64, 128])
NAMES = (
    "gpt2", "gpt-neo-125m", "gpt-j-6b", "codegen-350m", "starcoderbase-1b", "opt-350m", "pythia-70m", "phi-2",
    "stablelm-2-12b", "starcoder2-3b", "bloom-560m", "falcon-7b", "falcon-40b", "falcon-rw-1b", "bert-base-uncased",
    "roberta-base", "electra-small", "distilbert-base", "t5-small", "umt5-small", "bart-large", "mbart-large",
    "pegasus-large", "opus-mt-en-de", "whisper-tiny", "llama-3.2-1b",
)  # fmt: skip


def kept_by_section(name: str, regime: Regime, sizes: Sizes) -> list[object]:
    """Of a grid: a list of bytes by point. One sample and several are recorded on their own where the model asks."""
    program = record(Config(shallow(config(name), 2)), regime, sizes)
    found: list[object] = [
        kept_bytes(placed.section, weight_copies=True) for placed in program.sections
    ]
    points = program.tape.points_of_one_sample
    if points is None:
        return found
    single = kept_by_section(name, regime, replace(sizes, one_sample=True))
    return [choose(points, one, several) for one, several in zip(single, found, strict=True)]


@pytest.mark.parametrize("attention", ["eager", "math", "efficient", "flash"])
@pytest.mark.parametrize("name", NAMES)
def test_a_grid_gives_what_its_points_give(name: str, attention: str) -> None:
    regime = Regime(autocast=BF16, attention=attention, mask=True)
    grid = kept_by_section(name, regime, Sizes(batch=BATCHES, seq=LENGTHS, target_seq=TARGETS))
    for i, (b, s, t) in enumerate(
        zip(BATCHES.tolist(), LENGTHS.tolist(), TARGETS.tolist(), strict=True)
    ):
        point = kept_by_section(name, regime, Sizes.named(batch=b, seq=s, target_seq=t, images=1))
        assert [int(np.broadcast_to(kept, 3)[i]) for kept in grid] == point
