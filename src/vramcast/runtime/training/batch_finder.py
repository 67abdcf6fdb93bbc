"""Find the largest batch that fits: predicted, confirmed by one real trial, agreed by all ranks.

In: a function that runs one training step at a batch size, the job, a prediction in bytes per batch size, and the
budget. Out: the batch, the job with that batch, and what was tried. An out-of-memory error in a probe is caught and
counts as a result. The prediction is corrected by what a probe measured: a wrong one costs probes, never the run.
With several ranks the step must not communicate while probing (DDP: model.no_sync()): a rank that runs out would
leave the others waiting. Does not know how the prediction is made.

Example: a budget of 10 GiB and a prediction of 1 GiB per sample. Batch 10 is tried first. If it fits, that is the
answer. If it ran with a peak of 12.5 GiB, a sample takes 1.25 times the prediction, and 10 / 1.25 = 8 is tried next. If
it ran out of memory, nothing was measured, and the middle between 0 and 10 is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from vramcast.errors import InputError
from vramcast.runtime.monitor.monitor import Counters, TorchCounters
from vramcast.runtime.ranks import largest, smallest
from vramcast.runtime.training.placement import normalise_device
from vramcast.units import format_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One real trial of two steps. `peak_bytes` is None where the device has no counters."""

    batch: int
    predicted_bytes: int
    fits: bool
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """The agreed batch, the job with it, and the probes that led there."""

    batch: int
    job: Any
    probes: tuple[Probe, ...]


def find_batch_size(
    step_fn: Callable[[int], object],
    job: Any = None,
    *,
    predict: Callable[[int], int],
    budget_bytes: int,
    device: int | str | torch.device = "cuda:0",
    max_batch: int = 4096,
    counters: Counters | None = None,
    group: dist.ProcessGroup | None = None,
) -> BatchChoice:
    """Predict and confirm with one real trial; if that fails, search below it by more trials, to an eighth.

    A prediction that was too high is not corrected: compare the probe's peak with the budget to see what is left.
    """
    where, read = normalise_device(device), counters or TorchCounters()
    probes: list[Probe] = []
    batch: int | None = _agreed(_largest_fitting(predict, budget_bytes, max_batch), group)
    while batch:
        probes.append(_probe(step_fn, batch, predict(batch), budget_bytes, where, read, group))
        batch = _next_batch(probes, predict, budget_bytes)
    fitting = [probe.batch for probe in probes if probe.fits]
    if not fitting:
        raise InputError(_nothing_fits(probes, predict(1), budget_bytes))
    return BatchChoice(batch=max(fitting), job=_with_batch(job, max(fitting)), probes=tuple(probes))


def _next_batch(
    probes: list[Probe], predict: Callable[[int], int], budget_bytes: int
) -> int | None:
    """None if no further probe is needed. All ranks see the same probes, so all decide the same."""
    failed = [probe.batch for probe in probes if not probe.fits]
    if not failed:
        return None
    failing = min(failed)
    fitting = max([probe.batch for probe in probes if probe.fits], default=0)
    last = probes[-1]
    if failing - fitting <= max(1, fitting // 8):
        return None
    if last.fits:
        was_measured = probes[-2].peak_bytes is not None
        return None if was_measured else (fitting + failing) // 2
    if last.peak_bytes is None:
        return (fitting + failing) // 2
    # It ran, but above the budget: believe the measured ratio to the prediction.
    scaled = int(budget_bytes * last.predicted_bytes / last.peak_bytes)
    predicted = _largest_fitting(predict, scaled, failing - 1)
    return min(max(predicted, fitting + 1), failing - 1)


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA's own class, Python's, and the words of torch's CPU allocator."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error)
        for words in ("not enough memory", "can't allocate memory", "out of memory")
    )


def _largest_fitting(predict: Callable[[int], int], budget_bytes: int, limit: int) -> int:
    """Bisection: predictions grow with the batch. 0 if not even one fits."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if predict(middle) <= budget_bytes else (low, middle - 1)
    return low


def _probe(
    step_fn: Callable[[int], object],
    batch: int,
    predicted_bytes: int,
    budget_bytes: int,
    device: torch.device,
    counters: Counters,
    group: dist.ProcessGroup | None,
) -> Probe:
    counters.reset(device)
    ran_out = _ran_out(step_fn, batch)
    seen = counters.peak(device)
    _release(device)
    reserved = seen[1] if seen is not None and not ran_out else -1
    failed, peak = largest([int(ran_out), reserved], group)
    peak_bytes = peak if peak >= 0 and not failed else None
    fits = not failed and (peak_bytes is None or peak_bytes <= budget_bytes)
    return Probe(batch=batch, predicted_bytes=predicted_bytes, fits=fits, peak_bytes=peak_bytes)


def _ran_out(step_fn: Callable[[int], object], batch: int) -> bool:
    """Nothing of the failed step survives this function: its traceback would keep the tensors alive."""
    try:
        step_fn(batch)
        # The first optimizer step makes the states, so only the second step has them together with activations.
        step_fn(batch)
    except Exception as error:
        if is_out_of_memory(error):
            return True
        raise
    return False


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _agreed(batch: int, group: dist.ProcessGroup | None) -> int:
    return smallest([batch], group)[0]


def _with_batch(job: Any, batch: int) -> Any:
    return None if job is None else replace(job, batch=batch)


def _nothing_fits(probes: list[Probe], one_bytes: int, budget_bytes: int) -> str:
    tried = f" Tried: {', '.join(str(probe.batch) for probe in probes)}." if probes else ""
    return (
        f"no batch fits {format_gib(budget_bytes)}: one sample is predicted at {format_gib(one_bytes)}.{tried} "
        "Shorten the sequence, turn on checkpointing, or ask `vramcast plan` for the cheapest change."
    )
