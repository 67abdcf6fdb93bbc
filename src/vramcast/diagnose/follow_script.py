"""Runs the failing script on a virtual card of the observed size: does it run out of memory there too, and where?

In: a path, its arguments, a card. Out: a Finding. Needs torch, and says so if it is missing. Does not know what the
log says apart from the size of the card.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vramcast.diagnose.readers.log import Reading, read_text
from vramcast.diagnose.rules.evidence import evidence_of
from vramcast.diagnose.rules.findings import Finding, fact
from vramcast.errors import InputError
from vramcast.sandbox.process import Options, run_protected

if TYPE_CHECKING:
    from vramcast.sandbox.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Which script to run, and how."""

    script: str
    arguments: str = ""
    steps: int = 2
    empty_weights: bool = False


def card_for(reading: Reading, gpu: str | None) -> str:
    """The card that the user names, otherwise one of the size that the text says."""
    if gpu is not None:
        return gpu
    evidence = evidence_of(reading)
    if evidence is None or evidence.capacity_bytes is None:
        raise InputError(
            "--script: the text does not say how large the card is. Give --gpu, say a100-80gb or 24GiB."
        )
    return f"{evidence.capacity_bytes}B"


def follow(following: Following, card: str) -> Finding:
    """Runs the script in a process of its own, which cannot change the user's files."""
    ended = run_protected(
        "vramcast.diagnose.follow_script:follow_here",
        {"card": card, **asdict(following)},
        Options(),
    )
    return fact(**ended)


def follow_here(payload: dict[str, Any], session: Session) -> dict[str, Any]:
    """Runs the script in this process. In: the fields of Following and the card. Out: the values of a Finding."""
    try:
        from vramcast.virtual import virtual_gpu
        from vramcast.virtual.script import run_script
    except ImportError as error:
        raise InputError(
            f"--script needs torch ({error}). Install it: pip install 'vramcast[trace]'"
        ) from error
    gpu = virtual_gpu(
        payload["card"],
        steps=payload["steps"],
        empty_weights=payload["empty_weights"],
        protect=False,
    )
    ended = run_script(payload["script"], shlex.split(payload["arguments"]), gpu)
    ended.check()
    card_bytes = gpu.card.capacity_bytes()
    if ended.out_of_memory:
        return {
            "rule": "script_runs_out",
            "card_bytes": card_bytes,
            "line": ended.out_of_memory_line,
            "steps": ended.steps,
            "allocated_bytes": _allocated_bytes(ended.out_of_memory),
        }
    ledger = gpu.ledger()
    peaks = [ledger.peak(place).allocated_bytes for place in ledger.devices()]
    return {
        "rule": "script_fits",
        "card_bytes": card_bytes,
        "steps": ended.steps,
        "allocated_bytes": max(peaks, default=0),
    }


def _allocated_bytes(message: str) -> int:
    failure = evidence_of(read_text(message))
    if failure is None or failure.allocated_bytes is None:
        return 0
    return failure.allocated_bytes
