"""A traced step → Forecast: the same bill, with lines that the virtual GPU saw instead of lines that formulas made.

What a trace does not see is added here as for every other job: the CUDA context, and the host's memory. Names are made
the formulas' own where they mean the same: all weights of one kind are one line, and so are the layers of a stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.assumptions import list_assumptions
from vramcast.engine.bill import Bill, Remarks, job_phases
from vramcast.engine.lines.host import host_side
from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.lines.states import from_count
from vramcast.engine.no_effect import needless_options
from vramcast.forecast import Forecast, ModelSummary
from vramcast.job import Job
from vramcast.ledger import PHASES, Category, Entry, Level
from vramcast.models.read.config import Config
from vramcast.models.read.source import ModelSource
from vramcast.models.record.program import Sizes
from vramcast.setup import complete, resolve

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """Two steps of a job on the virtual GPU, as numbers and words."""

    entries: tuple[Entry, ...]
    params_total: int
    params_trainable: int
    stored_as: Mapping[str, str]  # of every weight: "trained, bf16"
    seq: int


def bill_traced_step(
    said: Job, source: ModelSource, gpu: Gpu | None, step: TracedStep, remarks: Remarks
) -> Forecast:
    """The forecast of a job whose step was traced. `remarks`: what the trace has to say."""
    job = complete(said)
    setup, config = resolve(job), source.config or Config({})
    states = from_count(step.params_total, setup)
    sizes = Sizes(batch=job.batch, seq=step.seq, target_seq=job.target_seq or step.seq)
    places = dict.fromkeys(entry.place for entry in step.entries if entry.is_device_memory())
    entries = [*_name_lines(step, setup.optimizer.name)]
    traced = {phase for entry in entries for phase in entry.phases}
    for place in places:
        entries += context_entries(setup.versions, gpu, place)
    entries += host_side(setup, config, states, sizes)
    bill = Bill(
        job=job,
        gpu=gpu,
        model=ModelSummary(
            name=source.name,
            params_total=step.params_total,
            params_trainable=step.params_trainable,
            family=config.model_type,
            num_layers=_count_layers(config),
        ),
        entries=entries,
        phases=tuple(phase for phase in job_phases(setup) if phase in traced),
        remarks=Remarks(
            assumptions=(*remarks.assumptions, *list_assumptions(said, None, says_versions=False)),
            warnings=(
                *source.notes,
                *source.warnings,
                *remarks.warnings,
                *needless_options(said, job),
            ),
            notes=remarks.notes,
        ),
    )
    return bill.forecast()


def _name_lines(step: TracedStep, optimizer: str) -> Iterable[Entry]:
    """Lines of the card: alike ones added up. The trace's own context and host lines are left to the bill."""
    sums: dict[Entry, tuple[int, int, int]] = {}
    for entry in step.entries:
        if entry.level == Level.PROCESS or not entry.is_device_memory():
            continue
        phases = tuple(phase for phase in PHASES if phase in entry.phases)
        low, high = entry.range_bytes or (entry.nbytes, entry.nbytes)
        key = replace(
            entry,
            component=_name_line(entry, step, optimizer),
            source="" if entry.category in _OWNED else entry.source,
            phases=phases,
            nbytes=0,
            range_bytes=(0, 0) if entry.range_bytes else None,
        )
        nbytes, lowest, highest = sums.get(key, (0, 0, 0))
        sums[key] = (nbytes + entry.nbytes, lowest + low, highest + high)
    for key, (nbytes, low, high) in sums.items():
        yield replace(key, nbytes=nbytes, range_bytes=(low, high) if key.range_bytes else None)


_OWNED = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER, Category.COMPANION)


def _name_line(entry: Entry, step: TracedStep, optimizer: str) -> str:
    if entry.category == Category.WEIGHTS:
        return step.stored_as.get(entry.component, "trained")
    if entry.category == Category.GRADIENTS:
        return "of trained parameters"
    if entry.category == Category.OPTIMIZER:
        return f"{optimizer} {entry.component}"
    return _NUMBER.sub(".*", entry.component)


def _count_layers(config: Config) -> int | None:
    for data in (config.data, config.data.get("text_config")):
        found = data.get("num_hidden_layers") if isinstance(data, dict) else None
        if isinstance(found, int):
            return found
    return None
