"""`vramcast trace --scale batch=--batch-size,seq=--max-length`: a few traces, and the answer for every other size."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from itertools import product
from typing import Any

from vramcast.cli.protection import protection_options
from vramcast.errors import InputError, TraceError
from vramcast.report.as_json import json_text
from vramcast.report.trace_scale import Prediction, Sweep, render_sweep, sweep_json
from vramcast.sandbox.process import run_protected
from vramcast.traces.record import Trace, from_json
from vramcast.traces.scaling import Point, Scaled

STEPS = 2  # the first makes the optimizer's states
_MOST = 1 << 22  # of a knob
EXACT_ENOUGH = 0.98  # of the allocations: a few kernels round up
_SWEPT = 4  # values of each knob in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    name: str
    flag: str
    value: int  # in the command as it was given


def run_scaled(args: argparse.Namespace, payload: dict[str, Any]) -> int:
    knobs = read_knobs(args.scale, args.command)
    tracer = _Tracer(args, payload, knobs)
    middle = tuple(knob.value for knob in knobs)
    scaled, checked, quadratic = _scale(tracer, knobs)
    exact, of = checked
    check = check_point(knobs)
    traced = tracer.at(check)
    sweep = Sweep(
        command=" ".join(args.command),
        card=traced.card,
        capacity_bytes=traced.capacity_bytes,
        knobs=scaled.knobs,
        traces=len(tracer.traces),
        is_quadratic=quadratic,
        check=check,
        check_exact=exact,
        check_allocations=of,
        check_predicted_bytes=scaled.replay(check).allocated_bytes,
        check_traced_bytes=_peak_bytes(traced, scaled.place),
        terms=tuple((category, tuple(terms.items())) for category, terms in scaled.terms(middle)),
        rows=tuple(_rows(scaled, knobs)),
        largest=tuple(_largest(scaled, knobs)),
    )
    print(json_text(sweep_json(sweep)) if args.json else render_sweep(sweep))
    return 0 if scaled.fits(middle) else 1


def read_knobs(spec: str, command: list[str]) -> list[Knob]:
    """`batch=--batch-size,seq=--max-length` and the command, which has a value for each."""
    knobs = []
    for part in spec.split(","):
        name, equals, flag = part.strip().partition("=")
        if not equals or not name or not flag:
            raise InputError(
                f"--scale {spec!r}: write NAME=FLAG, as in batch=--batch-size,seq=--max-length."
            )
        knobs.append(Knob(name=name, flag=flag, value=_value_of(flag, command)))
    if len(knobs) > 2:
        raise InputError("--scale takes one or two knobs: each doubles the number of traces.")
    return knobs


def _value_of(flag: str, command: list[str]) -> int:
    found = None
    for index, word in enumerate(command):
        if word == flag and index + 1 < len(command):
            found = command[index + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    if found is None:
        raise InputError(f"--scale {flag}: the command does not say it. Give it a value: {flag} 8.")
    if not found.isdigit() or int(found) < 1:
        raise InputError(f"--scale {flag}: {found!r} is not a positive whole number.")
    return int(found)


def with_values(command: list[str], knobs: list[Knob], point: Point) -> list[str]:
    words = list(command)
    for knob, value in zip(knobs, point, strict=True):
        for index, word in enumerate(words):
            if word == knob.flag and index + 1 < len(words):
                words[index + 1] = str(value)
            elif word.startswith(f"{knob.flag}="):
                words[index] = f"{knob.flag}={value}"
    return words


def traced_values(knob: Knob, *, is_first: bool, is_quadratic: bool) -> tuple[int, ...]:
    """The batch is doubled; a length is halved, since longer ones may be more than the model takes."""
    value = knob.value
    if is_first or value < 4:
        return (
            (value, 2 * value, 4 * value) if is_quadratic and not is_first else (value, 2 * value)
        )
    return (value, value // 2, value // 4) if is_quadratic else (value, value // 2)


def check_point(knobs: list[Knob]) -> Point:
    """A point that is none of the traced ones."""
    first = 3 * knobs[0].value
    return (first, *(_three_quarters(knob.value) for knob in knobs[1:]))


def _three_quarters(value: int) -> int:
    return 3 * value // 4 if value >= 4 else 3 * value


class _Tracer:
    """Traces each point once."""

    def __init__(
        self, args: argparse.Namespace, payload: dict[str, Any], knobs: list[Knob]
    ) -> None:
        self._args, self._knobs = args, knobs
        self._payload = {
            **payload,
            "lifts_limit": "always",
            "steps": args.steps or STEPS,
            "keeps": "sizes",
        }
        self.traces: dict[Point, Trace] = {}

    def at(self, point: Point) -> Trace:
        if point in self.traces:
            return self.traces[point]
        named = ", ".join(f"{k.name} {v}" for k, v in zip(self._knobs, point, strict=True))
        print(f"vramcast: trace {len(self.traces) + 1}: {named}", file=sys.stderr, flush=True)
        command = with_values(self._args.command, self._knobs, point)
        answer = run_protected(
            "vramcast.cli.trace:trace_here",
            {**self._payload, "command": command},
            protection_options(self._args),
        )
        if answer["error"] or answer["lost"]:
            raise TraceError(f"at {named}: {answer['error'] or answer['lost'][0]}")
        self.traces[point] = from_json(answer["trace"])
        return self.traces[point]


def _scale(tracer: _Tracer, knobs: list[Knob]) -> tuple[Scaled, tuple[int, int], bool]:
    """Linear in every knob, or quadratic in those after the first where a check says so."""
    check = check_point(knobs)
    for is_quadratic in (False, True):
        scaled = _traced_grid(tracer, knobs, is_quadratic)
        exact, of = scaled.count_exact(check, tracer.at(check).cards[scaled.place])
        if exact == of or (len(knobs) == 1 and knobs[0].value < 4):
            break
    return scaled, (exact, of), is_quadratic


def _traced_grid(tracer: _Tracer, knobs: list[Knob], is_quadratic: bool) -> Scaled:
    values = tuple(
        traced_values(knob, is_first=index == 0 and len(knobs) > 1, is_quadratic=is_quadratic)
        for index, knob in enumerate(knobs)
    )
    traces = {point: tracer.at(point) for point in product(*values)}
    middle = traces[tuple(knob.value for knob in knobs)]
    if not middle.cards:
        raise TraceError("the script put nothing on a GPU: no tensor was ever on cuda.")
    place = max(middle.cards, key=lambda place: _peak_bytes(middle, place))
    scaled = Scaled(
        knobs=tuple(knob.name for knob in knobs), values=values, traces=traces, place=place
    )
    scaled.check()
    return scaled


def _peak_bytes(trace: Trace, place: str) -> int:
    ledger = trace.ledger
    return max(ledger.moment(phase, place).allocated_bytes for phase in ledger.phases(place))


def _rows(scaled: Scaled, knobs: list[Knob]) -> list[Prediction]:
    """A table around the sizes that were given."""
    columns = [
        [max(1, knob.value * 2**power // 4) for power in range(1, _SWEPT + 1)] for knob in knobs
    ]
    rows = []
    for point in product(*(sorted(set(column)) for column in columns)):
        played = scaled.replay(point)
        trace = next(iter(scaled.traces.values()))
        rows.append(
            Prediction(
                point=point,
                allocated_bytes=played.allocated_bytes,
                process_bytes=played.reserved_bytes + trace.context_bytes,
                fits=scaled.fits(point),
            )
        )
    return rows


def _largest(scaled: Scaled, knobs: list[Knob]) -> list[tuple[str, str, int | None]]:
    """For every knob, with the others as given: name, what the others are, the largest value."""
    middle = tuple(knob.value for knob in knobs)
    found = []
    for index, knob in enumerate(knobs):
        others = ", ".join(f"{k.name} {k.value}" for k in knobs if k is not knob)
        step = 64 if knob.value % 64 == 0 else 1
        found.append((knob.name, others, scaled.largest_that_fits(middle, index, step, _MOST)))
    return found
