"""Compare what was predicted for a phase with what was observed in it.

In: a Ledger and the peaks of steps. Out: one line per device and phase, and one per device for whole steps. Does not
know what holds the bytes.

Which predicted phase belongs to an observed one:
- The optimizer has no states until the end of the first step. The first step is compared with the ledger's "forward",
  "backward" and "step", later steps with "next forward" and so on; a ledger without "next" phases counts for all steps.
- A phase that nobody marks is part of another: the loss of the forward, a forward (as under transformers' Trainer) of
  the backward. The prediction is then the largest of them.
- Loading, evaluating and saving are no part of a step, unless such a phase was marked.
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
    """A prediction and the largest observation so far. The phase is the ledger's; None is the whole step."""

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
        if abs(percent) < 0.05:
            return "as predicted"
        return f"{abs(percent):.1f} % {'more' if percent > 0 else 'less'}"


class Comparison(tuple[Compared, ...]):
    """Lines that print as text; if there are none, the reason."""

    reason: str

    def __new__(cls, lines: Iterable[Compared], reason: str = "") -> Comparison:
        made = super().__new__(cls, lines)
        made.reason = reason
        return made

    def __str__(self) -> str:
        if not self:
            return f"nothing to compare: {self.reason}"
        return "\n".join(str(line) for line in self)


Peaks = dict[tuple[str, str | None], int]  # bytes by device and phase; None: whole steps


class Observed:
    """The largest peaks so far, of the first step and of those after it.

    The first step ends with the first optimizer step that is marked: a loop that accumulates may close a step per
    micro-batch. If none is ever marked, the first step is the first that was closed.
    """

    def __init__(self) -> None:
        self._first_closed: Peaks = {}
        self._before_optimizer: Peaks = {}  # closed after the first, before any optimizer step
        self._after_optimizer: Peaks = {}
        self._num_closed = 0
        self._has_stepped = False

    def add(self, peaks: Sequence[Peak]) -> None:
        """The peaks of a step that was closed."""
        group = self._current_group()
        for peak in peaks:
            for key in ((peak.device, peak.phase), (peak.device, None)):
                group[key] = max(group.get(key, 0), peak.allocated_bytes)
        self._num_closed += 1
        self._has_stepped = self._has_stepped or any(peak.phase == STEP for peak in peaks)

    def _current_group(self) -> Peaks:
        if self._has_stepped:
            return self._after_optimizer
        return self._before_optimizer if self._num_closed else self._first_closed

    def groups(self) -> dict[str, Peaks]:
        """The peaks of the first step and of later ones."""
        if not self._has_stepped:
            return {FIRST: self._first_closed, LATER: self._before_optimizer}
        first = dict(self._first_closed)
        for key, nbytes in self._before_optimizer.items():
            first[key] = max(first.get(key, 0), nbytes)
        return {FIRST: first, LATER: self._after_optimizer}


def compare(
    ledger: Ledger | None, observed: Observed, devices: Sequence[str], phases: Sequence[str]
) -> Comparison:
    """All lines for the devices that both sides know."""
    if ledger is None:
        return Comparison(
            (),
            "the monitor has no prediction. Give it one: MemoryMonitor(..., ledger=forecast.ledger).",
        )
    groups = observed.groups()
    if not any(groups.values()):
        return Comparison(
            (), "no step was seen on a device that is counted. Call monitor.end_step() after each."
        )
    known = [device for device in devices if device in ledger.places()]
    if not known:
        predicted = ", ".join(ledger.places()) or "no place"
        return Comparison(
            (), f"the prediction is for {predicted}, the monitor watches {', '.join(devices)}."
        )
    lines: list[Compared] = []
    for device in known:
        lines += _phase_lines(ledger, groups, device, phases)
        lines += _whole_step_line(ledger, groups, device)
    return Comparison(lines)


def _phase_lines(
    ledger: Ledger, groups: dict[str, Peaks], device: str, phases: Sequence[str]
) -> Iterator[Compared]:
    marked = _marked_phases(groups)
    for steps, group in groups.items():
        for phase in phases:
            if (device, phase) not in group:
                continue
            parts = _parts_of(phase, marked)
            names = _predicted_names(ledger, device, parts, later=steps == LATER)
            if names:
                yield _line(ledger, device, names, steps, group[device, phase], shown=names[-1])


def _whole_step_line(ledger: Ledger, groups: dict[str, Peaks], device: str) -> Iterator[Compared]:
    """One line, or none if nothing was observed or predicted."""
    observed = [group[device, None] for group in groups.values() if (device, None) in group]
    names = _phases_of_steps(ledger.phases(device), _marked_phases(groups))
    if not groups[LATER]:
        names = [name for name in names if not name.startswith(_NEXT)]
    if observed and names:
        steps = ALL if groups[LATER] else FIRST
        yield _line(ledger, device, names, steps, max(observed), shown=None)


def _phases_of_steps(names: Iterable[str], marked: set[str | None]) -> list[str]:
    """Without loading, evaluating and saving, unless they were marked."""
    return [name for name in names if name not in _OUTSIDE_STEPS or name in marked]


def _marked_phases(groups: dict[str, Peaks]) -> set[str | None]:
    return {phase for group in groups.values() for _, phase in group}


def _line(
    ledger: Ledger,
    device: str,
    names: Sequence[str],
    steps: str,
    observed_bytes: int,
    *,
    shown: str | None,
) -> Compared:
    predicted = max(ledger.moment(name, device).allocated_bytes for name in names)
    return Compared(
        device=device,
        phase=shown,
        steps=steps,
        predicted_bytes=predicted,
        observed_bytes=observed_bytes,
    )


def _parts_of(phase: str, marked: set[str | None]) -> list[str]:
    """The phases that a marked one includes, itself last."""
    if phase == FORWARD:
        return [FORWARD] if LOSS in marked else [LOSS, FORWARD]
    if phase == BACKWARD and FORWARD not in marked:
        return [LOSS, FORWARD, BACKWARD]
    return [phase]


def _predicted_names(
    ledger: Ledger, device: str, phases: Sequence[str], *, later: bool
) -> list[str]:
    """Their names in the ledger, the marked one last; none if the ledger does not know that one."""
    known = ledger.phases(device)
    names = []
    for phase in phases:
        next_name = f"{_NEXT}{phase}"
        names.append(next_name if later and next_name in known else phase)
    if names[-1] not in known:
        return []
    return [name for name in names if name in known]
