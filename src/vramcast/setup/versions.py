"""Versions as tuples of numbers, and the versions in which libraries changed what a setup means by default."""

from __future__ import annotations

Version = tuple[int, int]

# torch/optim/optimizer.py: foreach became the default where all parameters are on CUDA.
FOREACH_FROM: Version = (2, 0)
# transformers training_args.py takes the fused AdamW only where torch is at least 2.8.
FUSED_NEEDS_TORCH: Version = (2, 8)

# The TRL that was new when that transformers was: release dates on PyPI, and of the files in both wheels.
TRL_BESIDE: tuple[tuple[Version, Version], ...] = (
    ((5, 20), (1, 16)),
    ((5, 18), (1, 14)),
    ((5, 16), (1, 12)),
    ((5, 15), (1, 9)),
    ((5, 14), (1, 8)),
    ((5, 13), (1, 7)),
    ((5, 12), (1, 6)),
    ((5, 10), (1, 5)),
    ((5, 9), (1, 4)),
    ((5, 7), (1, 3)),
    ((5, 6), (1, 2)),
    ((5, 5), (1, 0)),
    ((5, 3), (0, 29)),
    ((5, 2), (0, 28)),
    ((5, 0), (0, 27)),
    ((4, 57), (0, 26)),
    ((4, 56), (0, 23)),
    ((4, 54), (0, 21)),
    ((4, 53), (0, 19)),
    ((4, 52), (0, 18)),
    ((4, 51), (0, 17)),
    ((4, 50), (0, 16)),
    ((4, 49), (0, 15)),
    ((4, 48), (0, 14)),
    ((4, 46), (0, 12)),
)
OLD_TRL: Version = (0, 9)
# PEFT 0.12 was released in July 2024, as transformers 4.43.
NEW_PEFT_FROM: Version = (4, 43)


def parse_version(text: str) -> Version:
    """The first two numbers: a patch release of torch or transformers changes no memory."""
    major, minor, *_ = (*parse_numbers(text), 0)
    return (major, minor)


def parse_numbers(text: str) -> tuple[int, ...]:
    """All numbers: "0.8.5" is (0, 8, 5); letters are passed over, so "2.8.0a1" is (2, 8, 1)."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in text.split("."))


def trl_version(asked: str | None, transformers: Version) -> Version:
    """The TRL beside that transformers, where it is not said."""
    if asked is not None:
        return parse_version(asked)
    return next((trl for first, trl in TRL_BESIDE if transformers >= first), OLD_TRL)


def peft_version(asked: str | None, transformers: Version) -> Version:
    """The PEFT beside that transformers, where it is not said."""
    if asked is not None:
        return parse_version(asked)
    return (0, 21) if transformers >= NEW_PEFT_FROM else (0, 11)
