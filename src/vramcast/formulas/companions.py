"""Models beside the trained one: where their weights lie and what their forward passes need while they run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramcast.formulas.amounts import Amounts
from vramcast.formulas.timeline import Mode, phase_peaks, step_events
from vramcast.job import Job
from vramcast.ledger import FORWARD, HOST, LOSS, NEXT_LOSS, PHASES, Category, Entry, Origin
from vramcast.models.config import Config
from vramcast.models.families import record
from vramcast.models.program import Program, Sizes
from vramcast.models.tape import DTYPES, Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    entries: tuple[Entry, ...] = ()
    resident: tuple[int, ...] = ()  # sizes of weight tensors on the training device, for the allocator
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def reference_lines(job: Job, config: Config, program: Program, device: str) -> Companions:
    """A frozen copy for DPO, NPO or KL: weights where it is placed, and a forward without graph beside the policy's."""
    if job.reference in ("none", "precomputed"):
        note = ("reference log-probabilities are precomputed: the reference is not loaded",)
        return Companions(assumptions=note if job.reference == "precomputed" else ())
    place = {"same": device, "cpu": HOST}.get(job.reference, job.reference)
    dtype = DTYPES[job.reference_dtype] if job.reference_dtype else program.regime.weights
    sizes = tuple(param.numel * dtype.nbytes for param in program.params() if param.kind != "adapter")
    weights = Entry(
        category=Category.COMPANION, component=f"reference model, {dtype.name}", place=place, phases=PHASES,
        nbytes=sum(sizes), origin=Origin.FORMULA, source="a frozen copy; no gradients, no states",
        formula=f"{sum(sizes) // dtype.nbytes:,} parameters × {dtype.nbytes} B",
    )  # fmt: skip
    transient = _forward_line(config, program, dtype, place)
    return Companions(
        entries=(weights, *transient.entries()), resident=sizes if place == device else (),
        assumptions=("the reference runs after the policy's forward, while its graph is alive",),
    )  # fmt: skip


def _forward_line(config: Config, program: Program, dtype: Dtype, place: str) -> Amounts:
    regime = replace(program.regime, weights=dtype, grad=False, training=False, lora=None, quantized=None)
    sizes = _sizes(program)
    reference = record(config, regime, sizes)
    stream = list(step_events(reference, Mode(recompute=lambda placed: "none")))
    line = Amounts(
        category=Category.COMPANION, component="reference model's forward (no graph)", place=place,
        formula="one layer's tensors and the logits; nothing is kept", source="torch.no_grad",
    )  # fmt: skip
    for peak in phase_peaks(stream, reference.placed):
        if peak.phase == FORWARD:
            for phase in (LOSS, NEXT_LOSS):
                line.add(phase, peak.nbytes)
    return line


def _sizes(program: Program) -> Sizes:
    ids = program.tape.inputs[0]
    return Sizes(batch=ids.shape[0], seq=ids.shape[1], target_seq=ids.shape[1])
