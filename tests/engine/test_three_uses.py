"""One description, three uses: ints give bytes, NumPy arrays give grids, names give the text. They must agree."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from vramcast.catalog.models import all_models
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.saved_tensors import kept
from vramcast.engine.stream.timeline import Mode, chunks, phase_peaks, step_events
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.dims import product_text, symbols_of
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import BF16, PlacedSection, Regime

NAMES = (Path(__file__).parents[1] / "frozen" / "models.txt").read_text("utf-8").split()
SOME = [
    "llama-3.2-1b",
    "gpt2",
    "t5-small",
    "bert-base-uncased",
    "mixtral-8x7b",
    "qwen2-vl-2b",
    "gemma-2-2b",
    "whisper-tiny",
]


def recorded(name: str, sizes: Sizes, regime: Regime | None = None) -> Program:
    config = next(model.config for model in all_models() if model.name == name)
    program = record(Config(config), regime or Regime(weights=BF16), sizes)
    add_loss(program, transformers=(5, 0))
    return program


def mode(how: str) -> Mode:
    def rule(placed: PlacedSection) -> str:
        return how if placed.section.is_block else "none"

    return Mode(recompute=rule, keep_logits=True)


@pytest.mark.parametrize("how", ["none", "full", "selective"])
@pytest.mark.parametrize("name", NAMES)
def test_every_birth_has_one_death_and_only_gradients_and_outputs_stay(name: str, how: str) -> None:
    program = recorded(name, Sizes(batch=2, seq=64, target_seq=32), Regime(autocast=BF16))
    alive = {}
    for item in step_events(program, mode(how)):
        if item.event.sign > 0:
            assert item.key not in alive, f"{item.event.label} is born twice"
            alive[item.key] = item
        else:
            assert alive.pop(item.key).event.nbytes == item.event.nbytes, item.event.label
    gradients = sum(
        int(item.event.nbytes) for item in alive.values() if item.event.kind == "gradient"
    )
    used = {
        id(v.param)
        for p in program.sections
        for op in p.section.ops
        for v in op.inputs
        if v.param and v.requires_grad
    }
    expected = sum(
        param.nbytes
        for place in program.sections
        for param, own in zip(place.params(), place.section.params, strict=True)
        if param.tied_to is None and id(own) in used
    )
    assert gradients == expected
    left = {item.event.label for item in alive.values() if item.event.kind != "gradient"}
    assert left <= {
        program.output.label,
        program.output.storage.label,
        "loss",
        "gradient of loss",
    }, left


@pytest.mark.parametrize("how", ["none", "full", "selective"])
@pytest.mark.parametrize("name", SOME)
def test_the_fold_and_the_stream_find_the_same_peaks(name: str, how: str) -> None:
    program = recorded(name, Sizes(batch=2, seq=64, target_seq=32))
    stream = list(step_events(program, mode(how)))
    by_stream = {peak.phase: peak.nbytes for peak in phase_peaks(stream, program.sections)}
    assert {
        phase: int(nbytes) for phase, nbytes in peak_by_phase(program, mode(how)).items()
    } == by_stream


@pytest.mark.parametrize("name", SOME)
def test_a_grid_agrees_with_each_of_its_points(name: str) -> None:
    b, s = numpy.array([1, 2, 5, 8]), numpy.array([32, 64, 96, 128])
    grid = peak_by_phase(recorded(name, Sizes(batch=b, seq=s, target_seq=s)), mode("none"))
    for index in range(4):
        sizes = Sizes(batch=int(b[index]), seq=int(s[index]), target_seq=int(s[index]))
        point = peak_by_phase(recorded(name, sizes), mode("none"))
        assert {phase: int(numpy.broadcast_to(grid[phase], 4)[index]) for phase in grid} == {
            phase: int(nbytes) for phase, nbytes in point.items()
        }


@pytest.mark.parametrize("name", SOME)
def test_the_text_of_every_kept_tensor_gives_its_bytes(name: str) -> None:
    program = recorded(name, Sizes.named(3, 96, 48, 1))
    symbols: dict[str, int] = {}
    texts = []
    for placed in program.sections:
        for item in kept(placed.section):
            for dim in item.value.shape:
                _collect(dim, symbols)
            texts.append(
                (product_text(item.value.shape, item.value.dtype.nbytes), int(item.value.nbytes))
            )
    assert len(texts) > 10
    for text, nbytes in texts:
        assert _evaluated(text, symbols) == nbytes, text


def _collect(dim: object, symbols: dict[str, int]) -> None:
    for name, value in symbols_of(dim).items():
        assert symbols.setdefault(name, value) == value, f"{name} means two things"


def _evaluated(text: str, symbols: dict[str, int]) -> int:
    known = {"b": 3, "s": 96, "t": 48, "n_img": 1, **symbols}
    python = text.replace("·", "*").replace("/", "//")
    return int(eval(python, {"__builtins__": {}}, known))


def test_layers_of_one_kind_share_their_events() -> None:
    program = recorded("llama-3.1-405b", Sizes(batch=1, seq=128))
    assert len({id(chunk.events) for chunk in chunks(program, mode("none"))}) < 20
