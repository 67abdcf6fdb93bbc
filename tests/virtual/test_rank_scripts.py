"""Scripts written for torchrun, unmodified, as one of 64 ranks. What each holds is worked out here by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.ledger import Category, Ledger
from vramcast.virtual import virtual_gpu
from vramcast.virtual.script import run_script

SCRIPTS = Path(__file__).parent / "rank_scripts"
WORLD_SIZE = 64


def traced(name: str, rank: int) -> tuple[Ledger, dict[str, int]]:
    gpu = virtual_gpu("a100-80gb", count=WORLD_SIZE, rank=rank)
    ended = run_script(str(SCRIPTS / f"{name}.py"), [], gpu)
    ended.check()
    assert not ended.out_of_memory
    assert ended.steps >= 1
    return gpu.ledger(), gpu.notes


def held(ledger: Ledger, place: str, *categories: Category) -> int:
    """The most that lines of these categories take in any phase."""
    phases = ledger.phases(place)
    return max(
        sum(e.nbytes for e in ledger.alive(phase, place) if e.category in categories)
        for phase in phases
    )


@pytest.mark.parametrize("rank", [0, 13])
def test_objects_groups_and_stores_of_other_backends(rank: int) -> None:
    ledger, notes = traced("objects", rank)
    assert ledger.devices() == (f"cuda:{rank % 8}",)
    assert any("this rank's own stand for them" in note for note in notes)
    assert any("only another rank has" in note for note in notes) == (rank != 0)


@pytest.mark.parametrize("rank", [0, 13])
def test_offloaded_shards_keep_states_off_the_card(rank: int) -> None:
    ledger, notes = traced("offloaded_shards", rank)
    (place,) = ledger.devices()
    assert held(ledger, place, Category.OPTIMIZER) == 0
    share = (
        4 * (512 // WORLD_SIZE * 512 + 512 // WORLD_SIZE) * 4
    )  # of four layers in fp32: rows of weights and biases
    assert held(ledger, "pinned", Category.WEIGHTS) >= share
    assert any("wrote and read no weights" in note for note in notes)


@pytest.mark.parametrize("rank", [0, 13])
def test_tensor_parallelism_inside_fsdp_over_a_mesh(rank: int) -> None:
    ledger, _ = traced("two_dimensions", rank)
    (place,) = ledger.devices()
    shared = 2 * 12 * 256 * 256 + 2 * 4000 * 256  # matrices of two blocks, embedding and head
    even = 2 * 4 * shared // WORLD_SIZE  # two moments in fp32, over tp and dp together
    assert even <= held(ledger, place, Category.OPTIMIZER) <= 1.2 * even + (64 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 13])
def test_accelerate_shards_trains_and_saves(rank: int) -> None:
    ledger, _ = traced("accelerated", rank)
    (place,) = ledger.devices()
    parameters = 2000 * 128 + 1024 * 128 + 2 * (12 * 128 * 128 + 13 * 128) + 2 * 128
    assert held(ledger, place, Category.OPTIMIZER) <= 1.2 * 2 * 4 * parameters / WORLD_SIZE + (
        64 << 10
    )


def test_accelerates_state_is_the_scripts_own() -> None:
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(cpu=True)
    before = dict(PartialState._shared_state)
    traced("accelerated", 0)
    assert dict(PartialState._shared_state) == before
    assert AcceleratorState._shared_state == {}
    PartialState._reset_state()
