"""One job's training step on one GPU, as lines of the breakdown: what is alive at the peak of every phase."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.optimizers import temporaries
from vramcast.engine.lines.states import States
from vramcast.engine.stream.checkpointing import recompute_rule, stops_early
from vramcast.engine.stream.events import Event, kept_ids
from vramcast.engine.stream.fold import Fold, fold
from vramcast.engine.stream.gate_loops import changes_of
from vramcast.engine.stream.saved_tensors import kept
from vramcast.engine.stream.timeline import (
    Chunk,
    Mode,
    PhasePeak,
    Stamped,
    alive_at,
    phase_peaks,
    step_events,
)
from vramcast.errors import InputError
from vramcast.ledger import (
    BACKWARD,
    EVAL,
    FORWARD,
    GATING,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    ROLLOUT,
    SAVE,
    STEP,
    Category,
    Entry,
)
from vramcast.models.record.dims import product_text
from vramcast.models.record.loss import CACHE_HANDED_ON, hands_on_cache
from vramcast.models.record.program import Program
from vramcast.models.record.tape import PlacedSection, Section
from vramcast.setup import Setup
from vramcast.setup.records import Checkpointing

NEXT = {FORWARD: NEXT_FORWARD, LOSS: NEXT_LOSS, BACKWARD: NEXT_BACKWARD}


LOGITS = (Category.LOGITS, "logits")
ACROSS = {  # what many GPUs add to the stream (see `parallel`)
    **dict.fromkeys(
        (
            "gathered",
            "gather input",
            "gather buffer",
            "reduce buffer",
            "reduce output",
            "unsharded gradient",
            "whole gradient",
        ),
        Category.COMMUNICATION,
    ),
    "in flight": Category.ACTIVATIONS,
}
CACHE = (Category.CACHE, "past_key_values")
LEFTOVERS = {
    "": LOGITS,
    "kv cache": CACHE,
    "pinned": (Category.ACTIVATIONS, "inputs in the graph"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A recorded program and how the job runs it."""

    setup: Setup
    program: Program
    states: States
    place: str

    def mode(self, *, fresh: bool) -> Mode:
        fresh = (
            fresh
            and not self.accumulates_apart
            and self.setup.optimizer.implementation != "in-backward"
        )
        keeps_cache = self.setup.loop.keeps_outputs and not hands_on_cache(self.program)
        return Mode(
            recompute=recompute_rule(self.setup.checkpointing),
            fresh_grads=fresh,
            keep_logits=self.setup.loop.keeps_outputs,
            keep_cache=keeps_cache,
            stops_early=stops_early(self.setup),
            changes=(
                *changes_of(self.setup),
                *((held_cache,) if keeps_cache else ()),
            ),
        )

    def fold(self, *, fresh: bool) -> Fold:
        """Cached for all jobs of a search that run the same passes."""
        setup, mode = self.setup, self.mode(fresh=fresh)
        key = (setup.checkpointing, setup.kernels, setup.versions, setup.loop, mode.fresh_grads)
        return self.program.once((fold, *key, mode.keep_logits), lambda: fold(self.program, mode))

    @property
    def accumulates_apart(self) -> bool:
        """Are gradients added to buffers that exist from the start (Megatron's main_grad)?"""
        return self.states.recipe.main_gradients

    @property
    def grads_in_forward(self) -> bool:
        """Are the last step's gradients alive in the next forward? Lightning's closure zeroes them only after it."""
        return self.setup.loop.zero_grad == "after-forward" or self.zeroed_in_place

    @property
    def zeroed_in_place(self) -> bool:
        """Does zero_grad fill gradients with zeros and keep them? Before torch 2.0 set_to_none was not the default."""
        asked = self.setup.loop.zero_grad == "in-place" or self.setup.versions.torch < (2, 0)
        return asked and self.setup.optimizer.implementation != "in-backward"

    def stream(self, *, fresh: bool = True) -> list[Stamped]:
        return list(step_events(self.program, self.mode(fresh=fresh)))

    def later(self, first: list[Stamped]) -> list[Stamped]:
        """The stream of a later step or micro-batch, in which gradients of the one before exist already."""
        return first if self.repeats else self.stream(fresh=False)

    @property
    def repeats(self) -> bool:
        """Does every step and every micro-batch start with the same tensors as the first?"""
        return (
            self.setup.data.accumulate == 1 or self.gradients_leave
        ) and not self.zeroed_in_place

    @property
    def gradients_leave(self) -> bool:
        """Are a micro-batch's gradients always freed or moved away before the next one?"""
        return False

    def lines(self, first: list[Stamped], later: list[Stamped]) -> list[Amounts]:
        """All lines of the step, from its stream and from that of a later micro-batch."""
        bill = StepBill(self.place, self.program)
        peaks = phase_peaks(first, self.program.sections)
        gradients = self._gradient_line()
        for peak in peaks:
            bill.add(peak, dict.fromkeys((peak.phase, NEXT.get(peak.phase, peak.phase))), gradients)
        if self.setup.data.accumulate > 1 or self.zeroed_in_place:
            again = peaks if later is first else phase_peaks(later, self.program.sections)
            self._accumulating(
                bill, gradients, tuple(NEXT) if self.setup.data.accumulate > 1 else (), again
            )
        self._leftovers(bill, first)
        return [*bill.lines.values(), gradients, self._step_temporaries()]

    def _gradient_line(self) -> Amounts:
        total, recipe = self.states.gradient_bytes, self.states.recipe
        numel = self.states.trained.numel
        line = Amounts(
            category=Category.GRADIENTS,
            place=self.place,
            component=f"of trained parameters, {_gradient_dtype(self.states)}",
            formula=f"{numel:,} parameters × {total / max(numel, 1):.4g} B",
            source=recipe.whose,
        )
        if self.setup.optimizer.implementation == "in-backward":
            return line
        for phase in (STEP, NEXT_STEP):
            line.add(phase, total)
        always = self.accumulates_apart
        between = self.grads_in_forward or always  # Lightning evaluates before it zeroes
        line.add(EVAL, total if between else 0)
        for phase in (ROLLOUT, GATING, SAVE):
            line.add(phase, total if always else 0)
        for phase in (FORWARD, LOSS, BACKWARD, NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD):
            forward = phase in (NEXT_FORWARD, NEXT_LOSS) and self.grads_in_forward
            line.add(phase, total if always or forward else 0)
        return line

    def _accumulating(
        self, bill: StepBill, gradients: Amounts, first: tuple[str, ...], later: list[PhasePeak]
    ) -> None:
        """From the second micro-batch on all gradients exist in every phase. If that gives a higher peak, it replaces
        the phase's lines, for the `first` step's phases too."""
        total = self.states.gradient_bytes
        if self.setup.optimizer.implementation == "in-backward":
            raise InputError(
                "accumulate cannot be combined with an optimizer that steps inside backward"
            )
        for peak in later:
            for phase in (
                *(name for name in first if name == peak.phase),
                NEXT.get(peak.phase, peak.phase),
            ):
                before = bill.total(phase) + gradients.by_phase.get(phase, 0)
                if peak.nbytes + total > before:
                    bill.clear(phase)
                    gradients.by_phase[phase] = total
                    bill.add(peak, (phase,), None)

    def _leftovers(self, bill: StepBill, stream: list[Stamped]) -> None:
        """What `outputs` still holds stays alive through the optimizer step, between steps, and until the next forward
        has returned."""
        if not self.setup.loop.keeps_outputs:
            return
        held, apart = dict.fromkeys(LEFTOVERS.values(), 0), loss_apart(self.setup)
        for item in alive_at(stream, len(stream) - 1):
            if item.event.kind != "gradient":
                held[_leftover(item.event)] += int(item.event.nbytes)
        held[LEFTOVERS["pinned"]] += _returned_leaf_bytes(self.program)
        for (category, what), nbytes in held.items():
            line = bill.line(category, f"{what} that `outputs` still holds")
            for phase in (
                STEP,
                NEXT_STEP,
                ROLLOUT,
                EVAL,
                SAVE,
                NEXT_FORWARD,
                *(() if apart else (NEXT_LOSS,)),
            ):
                line.add(phase, nbytes)

    def _step_temporaries(self) -> Amounts:
        item = self.states.recipe.states.nbytes if self.states.recipe.states else None
        nbytes, why = temporaries(self.states.trained, self.setup, item)
        line = Amounts(
            category=Category.TEMPORARY,
            component=f"{self.setup.optimizer.name} step ({self.setup.optimizer.implementation})",
            place=self.place,
            formula=why,
            source="torch/optim: _multi_tensor, _single_tensor and _fused functions",
        )
        phases = (
            (STEP, NEXT_STEP)
            if self.setup.optimizer.implementation != "in-backward"
            else (BACKWARD, NEXT_BACKWARD)
        )
        for phase in phases:
            line.add(phase, nbytes)
        return line


def _returned_leaf_bytes(program: Program) -> int:
    """Embeddings that are a leaf of the graph, with their gradient, where checkpointing holds them during the step and
    the graph of `outputs` after it."""
    first = program.sections[0].section
    out = first.outputs[0]
    return 2 * int(out.nbytes) if out.is_leaf else 0


def _leftover(event: Event) -> tuple[Category, str]:
    """The line of what `outputs` still holds after backward."""
    if event.label == CACHE_HANDED_ON:
        return CACHE
    return LEFTOVERS.get(event.kind, LOGITS)


def _gradient_dtype(states: States) -> str:
    names = {param.dtype.name for param in states.trained}
    apart = states.recipe.main_gradients
    return (
        states.recipe.gradients.name
        if apart
        else "/".join(sorted(names)) or states.recipe.gradients.name
    )


def held_cache(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
    """A variable that holds `outputs` also holds past_key_values, whether or not backward needs those tensors."""
    made: dict[
        int, tuple[list[Event], list[Event]]
    ] = {}  # by id of the list, which is kept with it
    for chunk in stream:
        if chunk.phase == BACKWARD:
            yield chunk
            continue
        if id(chunk.events) not in made:
            stays = [event for event in chunk.events if event.kind != "kv cache" or event.sign > 0]
            made[id(chunk.events)] = (
                chunk.events,
                stays if len(stays) < len(chunk.events) else chunk.events,
            )
        events = made[id(chunk.events)][1]
        yield chunk if events is chunk.events else chunk._replace(events=events)


def loss_apart(setup: Setup) -> bool:
    """Is the loss computed after the model has returned? The last step's outputs are freed by then."""
    return setup.versions.framework in ("litgpt", "torchtitan") or setup.kernels.loss == "chunked"


class StepBill:
    """Collects what is alive at the peaks into lines by category and by position in the model."""

    def __init__(self, place: str, program: Program) -> None:
        self.place, self.program = place, program
        self.lines: dict[tuple[Category, str], Amounts] = {}

    def line(self, category: Category, component: str) -> Amounts:
        key = (category, component)
        if key not in self.lines:
            self.lines[key] = Amounts(category=category, component=component, place=self.place)
        return self.lines[key]

    def add(self, peak: PhasePeak, phases: Iterable[str], gradients: Amounts | None) -> None:
        """Add what is alive at a peak to each of the phases. Gradients go to the line `gradients`; None: not
        counted."""
        sums: dict[tuple[Category, str], int] = {}
        known: dict[Hashable, tuple[Category, str]] = {}  # identical layers share their events
        left = 0
        for item in peak.alive:
            event = item.event
            if event.kind == "gradient":
                left += int(event.nbytes)
                continue
            kind = (
                event.kind,
                event.label,
                id(self.program.sections[item.section].section),
                _is_output(item),
            )
            if kind not in known:
                known[kind] = self._where(item, peak)
            where = known[kind]
            sums[where] = sums.get(where, 0) + int(event.nbytes)
        for phase in phases:
            if gradients is not None and left:
                gradients.add(phase, left)
            for where, nbytes in sums.items():
                self.line(*where).add(phase, nbytes)

    def total(self, phase: str) -> int:
        return sum(line.by_phase.get(phase, 0) for line in self.lines.values())

    def clear(self, phase: str) -> None:
        for line in self.lines.values():
            line.by_phase.pop(phase, None)

    def _where(self, item: Stamped, peak: PhasePeak) -> tuple[Category, str]:
        return line_of(self.program.sections[item.section], item, peak.phase)


def line_of(placed: PlacedSection, item: Stamped, phase: str) -> tuple[Category, str]:
    """The line of the bill that a tensor of a pass belongs to, gradients of parameters excepted."""
    if item.event.kind in ACROSS:
        return ACROSS[item.event.kind], item.event.label
    if item.event.kind == "weight copy":
        return Category.COPIES, "16-bit copies of weights (autocast)"
    if item.event.kind == "kv cache":
        return Category.CACHE, "keys and values of this step (use_cache)"
    if placed.name in ("loss", "head") and ("logits" in item.event.label or placed.name == "loss"):
        return Category.LOGITS, f"{item.event.label}"
    if phase == GATING and item.event.kind == "activation":
        return Category.ACTIVATIONS, "held for the gate's backward"
    if item.event.kind in ("activation", "pinned") or _is_output(item):
        return Category.ACTIVATIONS, stack_name(placed)
    return (
        Category.TEMPORARY,
        "working memory of backward" if phase == BACKWARD else "working memory of forward",
    )


def _is_output(item: Stamped) -> bool:
    return item.key == ("border", item.section + 1)


def stack_name(placed: PlacedSection) -> str:
    name = placed.section.name.removesuffix(".{i}")
    return f"{name} (kept for backward)"


def describe_activations(
    program: Program, checkpointing: Checkpointing
) -> Iterator[tuple[str, str]]:
    """For each stack of layers: the name of its line, and a formula for its bytes."""
    rule = recompute_rule(checkpointing)
    stacks: dict[str, dict[tuple[int, str], list[PlacedSection]]] = {}
    for placed in program.sections:
        kinds = stacks.setdefault(stack_name(placed), {})
        kinds.setdefault((id(placed.section), rule(placed)), []).append(placed)
    for name, kinds in stacks.items():
        yield (
            name,
            " + ".join(
                _kept_text(alike[0].section, how, len(alike)) for (_, how), alike in kinds.items()
            ),
        )


def _kept_text(section: Section, how: str, count: int) -> str:
    """`32 × block input b·s·h·4`, or the bytes that one layer saves."""
    times = f"{count} × " if count > 1 else ""
    if how == "full":
        entry = section.inputs[0]
        return f"{times}block input {product_text(entry.shape, entry.dtype.nbytes)}"
    if how == "selective":
        ids = kept_ids(section, "products")
        results = sum(int(op.output.nbytes) for op in section.ops if id(op.output) in ids)
        return f"{times}block input and results of products, {results:,} B"
    return f"{times}{sum(int(item.value.nbytes) for item in kept(section) if not item.is_weight_copy):,} B"


def entries_of(lines: Iterable[Amounts]) -> Iterator[Entry]:
    for line in lines:
        yield from line.entries()
