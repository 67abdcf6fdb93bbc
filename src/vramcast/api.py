"""What Python users call. A job is given as a Job, or as a model and options in the words of the flags.

    >>> import vramcast
    >>> forecast = vramcast.estimate("gpt2", batch=4, seq=512, gpu="rtx4090")
    >>> str(forecast.verdict().answer)
    'fits'

Each function imports what it needs when it is called, so that `import vramcast` stays instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vramcast.job import Job, job_from

if TYPE_CHECKING:
    from vramcast.diagnose.diagnosis import Diagnosis
    from vramcast.engine import Sweep
    from vramcast.forecast import Forecast
    from vramcast.plan.cards import Card
    from vramcast.plan.plans import Plans


def estimate(job: Job | str | None = None, **options: Any) -> Forecast:
    """How much memory a job takes: a Forecast, with `verdict()`, `ledger`, `to_dict()`.

    >>> estimate("gpt2", batch=4, seq=512, gpu="rtx4090").verdict().fits
    True
    """
    from vramcast.forecasting import estimate as estimate_job

    return estimate_job(_job(job, options))


def plan(job: Job | str | None = None, **options: Any) -> Plans:
    """The cheapest changes that make a job fit on its card: Plans, with `fitting`, cheapest first.

    >>> found = plan("gpt2", batch=32, seq=512, gpu="8GiB")
    >>> found.fitting[0].fits
    True
    """
    from vramcast.plan.search import plan as search

    return search(_job(job, options))


def fit(
    job: Job | str | None = None,
    *,
    most_gpus: int = 1,
    prices: Mapping[str, float] | None = None,
    **options: Any,
) -> list[Card]:
    """The cards on which a job fits, smallest first; up to `most_gpus` of them, sharded.

    >>> [card.fits for card in fit("gpt2", seq=512, prices={"rtx4090": 0.5})]
    [True]
    """
    from vramcast.catalog.gpus import find_gpu
    from vramcast.plan.cards import cards_for

    known = None if prices is None else {find_gpu(name).name: prices[name] for name in prices}
    return cards_for(_job(job, options), most_gpus, known)


def sweep(
    job: Job | str | None = None,
    *,
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32),
    seqs: Sequence[int] = (512, 1024, 2048, 4096),
    **options: Any,
) -> Sweep:
    """Peaks for many batch sizes and lengths, and the largest batch that fits at each length.

    >>> sweep("gpt2", batches=[1, 2, 4], seqs=[512], gpu="8GiB").largest
    (4,)
    """
    from vramcast.forecasting import sweep as sweep_job

    return sweep_job(_job(job, {"batch": batches[0], "seq": seqs[0], **options}), batches, seqs)


def diagnose(text: str, job: Job | str | None = None, **options: Any) -> Diagnosis:
    """Why memory ran out, from what was printed; with a job, also how that job differs from what was seen.

    >>> diagnose("CUDA out of memory. Tried to allocate 2.00 GiB.").reading.observations != ()
    True
    """
    from vramcast.diagnose.diagnosis import diagnose as diagnose_reading
    from vramcast.diagnose.readers.log import read_text

    known = None if job is None and not options else _job(job, options)
    return diagnose_reading(read_text(text), known)


def _job(job: Job | str | None, options: Mapping[str, Any]) -> Job:
    """Options are the flags' names with underscores: `lora_rank=8`, `qlora=True`."""
    said = {name.replace("_", "-"): value for name, value in options.items()}
    if isinstance(job, Job):
        if not said:
            return job
        from dataclasses import replace

        changed = job_from({"model": job.model, "params": job.params, **said})
        fields = {name: getattr(changed, name) for name in _fields_of(said)}
        return replace(job, **fields)
    return job_from({**said, "model": job} if job is not None else said)


def _fields_of(said: Mapping[str, Any]) -> list[str]:
    from vramcast.everyday_words import translate

    return [name.replace("-", "_") for name in translate(said)]
