"""Requests whose tensor is known from the public thread, matched by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.diagnose.job_gap.fingerprint import (
    Candidate,
    legacy_segment_bytes,
    match_request,
    torch_segment_bytes,
)
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers.log import read_stream, read_text
from vramcast.diagnose.readers.quantity import printed_range, to_bytes

SAMPLES = Path(__file__).parent / "samples"
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The numbers that the usual large tensors of a decoder are made of."""

    batch: int
    seq: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    num_params: int | None = None


def decoder_candidates(
    sizes: Dimensions, *, shards: Sequence[int] = (2, 4, 8, 16, 32, 64)
) -> tuple[Candidate, ...]:
    """Logits, attention scores, weight matrices and flat optimizer shards, in 16 and 32 bit."""
    tokens = (sizes.batch, sizes.seq)
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("logits", (*tokens, sizes.vocab)),
        ("shifted logits", (sizes.batch, max(1, sizes.seq - 1), sizes.vocab)),
        ("attention scores", (sizes.batch, sizes.heads, sizes.seq, sizes.seq)),
        ("hidden states", (*tokens, sizes.hidden)),
        ("MLP activations", (*tokens, sizes.intermediate)),
        ("MLP matrix", (sizes.intermediate, sizes.hidden)),
        ("gate and up matrix", (2 * sizes.intermediate, sizes.hidden)),
        ("attention matrix", (sizes.hidden, sizes.hidden)),
        ("embedding or head", (sizes.vocab, sizes.hidden)),
    ]
    if sizes.num_params is not None:
        shapes.append(("all parameters, flat", (sizes.num_params,)))
        shapes += [
            (f"one of {count} shards of all parameters", (-(-sizes.num_params // count),))
            for count in shards
        ]
    widths = ((2, "16 bit"), (4, "32 bit"))
    return tuple(
        Candidate(name=f"{name}, {word}", shape=shape, itemsize=itemsize)
        for name, shape in shapes
        for itemsize, word in widths
    )


QWEN_7B = Dimensions(
    batch=1,
    seq=1024,
    hidden=3584,
    intermediate=18944,
    vocab=152064,
    heads=28,
    num_params=7_615_616_512,
)
LLAMA_7B = Dimensions(
    batch=1,
    seq=1024,
    hidden=4096,
    intermediate=11008,
    vocab=32000,
    heads=32,
    num_params=6_738_415_616,
)


def failure(number: str) -> Observation:
    (path,) = SAMPLES.glob(f"{number}_*.txt")
    with path.open("rb") as stream:
        return next(item for item in read_stream(stream).observations if item.is_failure())


def test_foreach_asked_for_one_mlp_matrix_in_bf16() -> None:
    # huggingface/trl#2776: 130 MiB = 3584 × 18944 × 2 B = 129.5 MiB, rounded up to 2 MiB
    (match,) = match_request(failure("14"), decoder_candidates(QWEN_7B))
    assert match.candidate.name == "MLP matrix, 16 bit"
    assert match.segment_bytes == 130 * MIB


def test_adam_asked_for_a_temporary_of_an_eighth_of_the_parameters() -> None:
    # hiyouga/LlamaFactory#1221: 3.14 GiB = 6.74e9 / 8 × 4 B
    names = [
        match.candidate.name for match in match_request(failure("09"), decoder_candidates(LLAMA_7B))
    ]
    assert "one of 8 shards of all parameters, 32 bit" in names
    assert not any("logits" in name for name in names)


def test_cross_entropy_asked_for_fp32_logits() -> None:
    # 18.84 GiB in cross_entropy with the 151,936 words of Qwen2.5: 33,280 tokens × 4 B are 18.836 GiB
    sizes = Dimensions(batch=13, seq=2560, hidden=3584, intermediate=18944, vocab=151936, heads=28)
    names = [
        match.candidate.name for match in match_request(failure("20"), decoder_candidates(sizes))
    ]
    assert names == ["logits, 32 bit"]


def test_the_cpu_allocator_prints_the_tensor_to_the_byte() -> None:
    observation = failure("42")  # 35,896,320,000 bytes
    exact = Candidate(name="batch", shape=(8_974_080_000,), itemsize=4)
    near = Candidate(name="near", shape=(8_974_080_001,), itemsize=4)
    assert [match.candidate.name for match in match_request(observation, (exact, near))] == [
        "batch"
    ]


def test_a_small_request_fits_anything_small_and_says_so_by_its_width() -> None:
    observation = failure("05")  # 2.00 MiB
    candidates = [
        Candidate(name=str(size), shape=(size,), itemsize=1) for size in (1, 1000, MIB, MIB + 1)
    ]
    matches = match_request(observation, candidates)
    assert [match.candidate.name for match in matches] == [str(MIB), "1000", "1"]
    assert matches[0].width_bytes >= MIB


def test_without_a_request_nothing_matches() -> None:
    assert match_request(failure("39"), decoder_candidates(LLAMA_7B)) == ()


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_segments_are_what_the_caching_allocator_asks_the_driver_for(
    nbytes: int, segment: int
) -> None:
    assert torch_segment_bytes(nbytes) == segment


def test_torch_1_0_rounded_to_128_kib() -> None:
    # 25.00 MiB, as in cherubicXN/afm_cvpr2019#8, is no multiple of 2 MiB
    assert legacy_segment_bytes(25 * MIB - 1) == 25 * MIB
    (observation,) = read_text(
        "CUDA out of memory. Tried to allocate 25.00 MiB (GPU 0; 3.94 GiB total capacity; 3.14 GiB already allocated; "
        "21.56 MiB free; 634.00 KiB cached)"
    ).observations
    assert match_request(observation, [Candidate(name="x", shape=(25 * MIB - 7,), itemsize=1)])


@given(nbytes=st.integers(1, 2**44))
def test_a_printed_size_always_covers_the_size_it_was_printed_from(nbytes: int) -> None:
    for unit, scale in (("bytes", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30)):
        number = str(nbytes) if scale == 1 else f"{nbytes / scale:.2f}"
        low, high = printed_range(number, unit)
        assert low - 1 <= nbytes <= high + 1
        value = to_bytes(number, unit)
        assert value is not None
        assert low <= value <= high
