"""The formula engine: a Job in, a Forecast out. Other packages import from here, never from the modules inside.

For everyone: `estimate`, `sweep`, `list_saved_tensors`, `record_timeline`, `search_divisions`.
For searches (`plan`), which evaluate thousands of jobs and share what these have in common: `estimate_if_it_may_fit`
with `Drafts`, and peaks without a breakdown from `Recording` (one GPU) and `RankPrices` (many).
For jobs whose model no formula describes (`forecasting`): `bill_traced_step` makes the forecast of a traced step.
For time models: the recorded `Program`, its `Rank`s, its FSDP units.
For comparisons with a trace, tensor by tensor: the stream of a draft, and its `phase_peaks` and `alive_at`.

What `estimate` needs is imported with the package. The rest is imported on first use, since some of it needs NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramcast.engine.bill import Remarks, TooLarge
from vramcast.engine.estimate import (
    context_bytes,
    estimate,
    estimate_if_it_may_fit,
    least_left,
    record_model,
    reserved_bytes,
)

if TYPE_CHECKING:
    from vramcast.engine.explain import LayerTensors, SavedTensor, list_saved_tensors
    from vramcast.engine.generation import resolve_generation
    from vramcast.engine.lines.optimizers import is_paged, state_bytes
    from vramcast.engine.lines.states import States, unique
    from vramcast.engine.parallel.divisions import RECOMPUTE, Division, search_divisions
    from vramcast.engine.parallel.fsdp_units import accumulates_unsharded, units_of
    from vramcast.engine.parallel.host import offloads_optimizer, offloads_params
    from vramcast.engine.parallel.ranks import Rank
    from vramcast.engine.parallel.topology import GATHERING, Topology, topology_of
    from vramcast.engine.prices.peaks import MOMENTS, ByPhase, Recording
    from vramcast.engine.prices.rank_prices import RankPrices, Resting
    from vramcast.engine.prices.sweep import Sweep, peak_grid, sweep
    from vramcast.engine.recording.record import DEVICE, sizes_of
    from vramcast.engine.recording.regime import (
        STORED,
        describes_adapters,
        kv_cache,
        needs_input_grads,
    )
    from vramcast.engine.recording.sequence_limits import DEFAULT_SEQ
    from vramcast.engine.replay.drafts import Drafts
    from vramcast.engine.replay.varying_lengths import has_many_lengths
    from vramcast.engine.rl_phases import update_job
    from vramcast.engine.serving.sweep import ServingSweep, sweep_serving
    from vramcast.engine.stream.checkpointing import recompute_rule
    from vramcast.engine.stream.gate_loops import TWO_PASSES
    from vramcast.engine.stream.timeline import Stamped, alive_at, phase_peaks
    from vramcast.engine.timeline import record_timeline
    from vramcast.engine.traced import TracedStep, bill_traced_step
    from vramcast.engine.traced_generation import TracedGeneration, bill_traced_generation

_HOME = {
    "explain": ("LayerTensors", "SavedTensor", "list_saved_tensors"),
    "generation": ("resolve_generation",),
    "lines.optimizers": ("is_paged", "state_bytes"),
    "lines.states": ("States", "unique"),
    "parallel.divisions": ("RECOMPUTE", "Division", "search_divisions"),
    "parallel.fsdp_units": ("accumulates_unsharded", "units_of"),
    "parallel.host": ("offloads_optimizer", "offloads_params"),
    "parallel.ranks": ("Rank",),
    "parallel.topology": ("GATHERING", "Topology", "topology_of"),
    "prices.peaks": ("MOMENTS", "ByPhase", "Recording"),
    "prices.rank_prices": ("RankPrices", "Resting"),
    "prices.sweep": ("Sweep", "peak_grid", "sweep"),
    "recording.record": ("DEVICE", "sizes_of"),
    "recording.regime": ("STORED", "describes_adapters", "kv_cache", "needs_input_grads"),
    "recording.sequence_limits": ("DEFAULT_SEQ",),
    "replay.drafts": ("Drafts",),
    "replay.varying_lengths": ("has_many_lengths",),
    "rl_phases": ("update_job",),
    "serving.sweep": ("ServingSweep", "sweep_serving"),
    "stream.checkpointing": ("recompute_rule",),
    "stream.gate_loops": ("TWO_PASSES",),
    "stream.timeline": ("Stamped", "alive_at", "phase_peaks"),
    "timeline": ("record_timeline",),
    "traced": ("TracedStep", "bill_traced_step"),
    "traced_generation": ("TracedGeneration", "bill_traced_generation"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "DEFAULT_SEQ",
    "DEVICE",
    "GATHERING",
    "MOMENTS",
    "RECOMPUTE",
    "STORED",
    "TWO_PASSES",
    "ByPhase",
    "Division",
    "Drafts",
    "LayerTensors",
    "Rank",
    "RankPrices",
    "Recording",
    "Remarks",
    "Resting",
    "SavedTensor",
    "ServingSweep",
    "Stamped",
    "States",
    "Sweep",
    "TooLarge",
    "Topology",
    "TracedGeneration",
    "TracedStep",
    "accumulates_unsharded",
    "alive_at",
    "bill_traced_generation",
    "bill_traced_step",
    "context_bytes",
    "describes_adapters",
    "estimate",
    "estimate_if_it_may_fit",
    "has_many_lengths",
    "is_paged",
    "kv_cache",
    "least_left",
    "list_saved_tensors",
    "needs_input_grads",
    "offloads_optimizer",
    "offloads_params",
    "peak_grid",
    "phase_peaks",
    "recompute_rule",
    "record_model",
    "record_timeline",
    "reserved_bytes",
    "resolve_generation",
    "search_divisions",
    "sizes_of",
    "state_bytes",
    "sweep",
    "sweep_serving",
    "topology_of",
    "unique",
    "units_of",
    "update_job",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
