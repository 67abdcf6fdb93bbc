"""Predictions now beside those last written down: what a change of the engine did to every row.

The predictions of the last `vramcast accuracy --write` lie in a JSON file, row id → bytes. Rows that are new since have
nothing to be compared with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vramcast.accuracy.rows import MOST_FILE_BYTES
from vramcast.accuracy.run import Outcome
from vramcast.errors import InputError
from vramcast.files import read_text

NOTICED = 0.0005  # of the measured bytes: half a tenth of a percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The last predictions that were written down, and when."""

    written: str
    predicted_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    before: Outcome
    after: Outcome

    @property
    def worse(self) -> float:
        """By how much the error grew; negative where it shrank."""
        return abs(self.after.error) - abs(self.before.error)


def load_written(path: Path) -> Written | None:
    """None where nothing has been written yet."""
    if not path.is_file():
        return None
    try:
        return Written(**json.loads(read_text(path, MOST_FILE_BYTES)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not what `vramcast accuracy --write` writes ({error})") from None


def written_text(written: str, outcomes: Sequence[Outcome]) -> str:
    predicted = {outcome.row.id: outcome.predicted_bytes for outcome in outcomes}
    return json.dumps({"written": written, "predicted_bytes": predicted}, indent=1) + "\n"


def changes(outcomes: Sequence[Outcome], last: Written) -> list[Change]:
    """Rows whose prediction moved, those that became worse first."""
    known = last.predicted_bytes
    pairs = [
        Change(before=replace(each, predicted_bytes=known[each.row.id]), after=each)
        for each in outcomes
        if each.row.id in known
    ]
    moved = [pair for pair in pairs if abs(pair.after.error - pair.before.error) >= NOTICED]
    return sorted(moved, key=lambda pair: -pair.worse)
