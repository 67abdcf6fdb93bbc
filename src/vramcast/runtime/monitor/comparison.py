"""What was predicted for a phase beside what was seen in it, like beside like.

In: a Ledger and the peaks of steps. Out: lines. The first step differs from those after it: its optimizer has no states
until the end. So its phases stand beside the ledger's "forward", "backward", "step", later ones beside "next forward"
and so on; a ledger that knows no "next" speaks for all steps. A phase that nobody marks lies within another: the loss
within the forward, a forward (as under transformers' Trainer) within the backward. Only what steps do is compared:
what loading, evaluating and saving take is no part of a step, unless such a phase was marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vramcast.ledger import BACKWARD, EVAL, FORWARD, LOAD, LOSS, RESUME, ROLLOUT, SAVE, STEP, Ledger
from vramcast.units import format_bytes

FIRST, LATER, ALL = "first step", "later steps", "all steps"
_NEXT = "next "
_OUTSIDE_STEPS = (LOAD, RESUME, ROLLOUT, EVAL, SAVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most one device held in one phase."""

    device: str
    phase: str
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A prediction beside the largest observation so far. The phase is the ledger's; None is the whole step."""

    device: str
    phase: str | None
    steps: str
    predicted_bytes: int
    observed_bytes: int

    def __str__(self) -> str:
        what = "the whole step" if self.phase is None else self.phase.removeprefix(_NEXT)
        return (
            f"{self.device}, {what}, {self.steps}: predicted {format_bytes(self.predicted_bytes)}, "
            f"observed {format_bytes(self.observed_bytes)} ({self._difference()})"
        )

    def _difference(self) -> str:
        if not self.predicted_bytes:
            return "nothing was predicted"
        percent = 100 * (self.observed_bytes / self.predicted_bytes - 1)
        return "as predicted" if abs(percent) < 0.05 else f"{abs(percent):.1f} % {'more' if percent > 0 else 'less'}"


class Comparison(tuple[Compared, ...]):
    """Lines that print as text; where there are none, the reason."""

    reason: str

    def __new__(cls, lines: Iterable[Compared], reason: str = "") -> Comparison:
        made = super().__new__(cls, lines)
        made.reason = reason
        return made

    def __str__(self) -> str:
        return "\n".join(str(line) for line in self) if self else f"nothing to compare: {self.reason}"


class Observed:
    """The largest peaks so far, of the first step and of those after it.

    The first step ends with the first optimizer step that is marked: a loop that accumulates may close a step per
    micro-batch. Where none is ever marked, the first step is the first that was closed.
    """

    def __init__(self) -> None:
        self._opening: dict[tuple[str, str | None], int] = {}
        self._unstepped: dict[tuple[str, str | None], int] = {}
        self._stepped: dict[tuple[str, str | None], int] = {}
        self._num_closed = 0
        self._has_stepped = False

    def add(self, peaks: Sequence[Peak]) -> None:
        """The peaks of a step that was closed."""
        group = self._stepped if self._has_stepped else self._unstepped if self._num_closed else self._opening
        for peak in peaks:
            for key in ((peak.device, peak.phase), (peak.device, None)):
                group[key] = max(group.get(key, 0), peak.allocated_bytes)
        self._num_closed += 1
        self._has_stepped = self._has_stepped or any(peak.phase == STEP for peak in peaks)

    def groups(self) -> dict[str, dict[tuple[str, str | None], int]]:
        """Bytes by device and phase (None: whole steps), of the first step and of later ones."""
        if not self._has_stepped:
            return {FIRST: self._opening, LATER: self._unstepped}
        first = {
            key: max(self._opening.get(key, 0), self._unstepped.get(key, 0))
            for key in (*self._opening, *self._unstepped)
        }
        return {FIRST: first, LATER: self._stepped}


def compare(ledger: Ledger | None, observed: Observed, devices: Sequence[str], phases: Sequence[str]) -> Comparison:
    """All lines for the devices that both sides know."""
    if ledger is None:
        return Comparison((), "the monitor has no prediction. Give it one: MemoryMonitor(..., ledger=forecast.ledger).")
    groups = observed.groups()
    if not any(groups.values()):
        return Comparison((), "no step was seen on a device that is counted. Call monitor.end_step() after each.")
    known = [device for device in devices if device in ledger.places()]
    if not known:
        predicted = ", ".join(ledger.places()) or "no place"
        return Comparison((), f"the prediction is for {predicted}, the monitor watches {', '.join(devices)}.")
    return Comparison(line for device in known for line in _lines(ledger, groups, device, phases))


def _lines(
    ledger: Ledger, groups: dict[str, dict[tuple[str, str | None], int]], device: str, phases: Sequence[str]
) -> Iterator[Compared]:
    marked = {phase for group in groups.values() for _, phase in group}
    for steps, group in groups.items():
        for phase in phases:
            names = _predicted_names(ledger, device, _within(phase, marked), later=steps == LATER)
            if (device, phase) in group and names:
                yield _line(ledger, device, names, steps, group[device, phase], shown=names[-1])
    whole = [group[device, None] for group in groups.values() if (device, None) in group]
    names = [
        name
        for name in ledger.phases(device)
        if (name not in _OUTSIDE_STEPS or name in marked) and (groups[LATER] or not name.startswith(_NEXT))
    ]
    if whole and names:
        yield _line(ledger, device, names, ALL if groups[LATER] else FIRST, max(whole), shown=None)


def _line(
    ledger: Ledger, device: str, names: Sequence[str], steps: str, observed_bytes: int, *, shown: str | None
) -> Compared:
    predicted = max(ledger.moment(name, device).allocated_bytes for name in names)
    return Compared(device=device, phase=shown, steps=steps, predicted_bytes=predicted, observed_bytes=observed_bytes)


def _within(phase: str, marked: set[str | None]) -> list[str]:
    """The phases that lie in a marked one, itself last."""
    if phase == FORWARD:
        return [FORWARD] if LOSS in marked else [LOSS, FORWARD]
    if phase == BACKWARD and FORWARD not in marked:
        return [LOSS, FORWARD, BACKWARD]
    return [phase]


def _predicted_names(ledger: Ledger, device: str, phases: Sequence[str], *, later: bool) -> list[str]:
    """Their names in the ledger, the marked one last; none where the ledger does not know that one."""
    known = ledger.phases(device)
    named = [f"{_NEXT}{phase}" if later and f"{_NEXT}{phase}" in known else phase for phase in phases]
    return [name for name in named if name in known] if named[-1] in known else []
