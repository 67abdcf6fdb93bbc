"""A Job's memory over time: load, two training steps, every tensor by category and module.

The same scripts that `estimate` replays, played by a run that keeps names. Where the card is too small, the run goes on
as on a card without limit, so that the whole need is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine.estimate import context_bytes
from vramcast.engine.generation import script_of_generation
from vramcast.engine.recording.record import DEVICE, is_divided
from vramcast.engine.replay.card import Held, states_of_params, tensors_from_start
from vramcast.engine.replay.drafts import Drafts
from vramcast.engine.replay.recorded import Names, RecordedRankRun, RecordedRun
from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.ledger import Category, Origin
from vramcast.models.read.config import Config
from vramcast.setup import Setup, complete, model_of, resolve
from vramcast.timelines.record import Timeline


def record_timeline(job: Job) -> Timeline:
    """`job` must say its strategy where copies of the model share the work: take it from a Forecast."""
    if job.task == "generate":
        return _of_generation(job)
    job = complete(job)
    setup, gpu = resolve(job), find_gpu(job.gpu) if job.gpu else None
    source = None if job.model is None else model_of(job)
    if source is None or source.config is None or source.params is not None:
        raise UnsupportedError("a timeline needs a model's layers: only its parameters are known")
    if setup.editing.parameters:
        raise UnsupportedError("the timeline of model editing is not shown; its phases are")
    if is_divided(setup):
        return _of_rank(setup, gpu, source.name, source.config)
    draft = Drafts(source.config, gpu).of(setup)
    names = Names(
        program=draft.step.program,
        extra=draft.extra,
        held={
            "weights": list(tensors_from_start(draft.step)),
            "states": list(states_of_params(draft.step)),
        },
    )
    run = Replay(play=RecordedRun, script=draft.script, names=names, conf=setup.alloc_conf)
    return run.timeline(source.name, gpu, context_bytes(job, gpu))


def _of_rank(setup: Setup, gpu: Gpu | None, name: str, config: Config) -> Timeline:
    from vramcast.engine.parallel.ranks import play_of_fullest_rank

    played = play_of_fullest_rank(setup, gpu, config)
    names = Names(program=played.rank.step.program, extra=played.extra)
    run = Replay(play=RecordedRankRun, script=played.script, names=names, conf=setup.alloc_conf)
    return run.timeline(name, gpu, played.outside_bytes)


def _of_generation(job: Job) -> Timeline:
    assert job.model is not None
    trained = replace(job, task=None)
    setup = resolve(trained)
    gpu = find_gpu(job.gpu) if job.gpu else None
    prefill, script, states = script_of_generation(job)
    weights = [Held(Category.WEIGHTS, param.name, param.nbytes) for param in states.params]
    run = Replay(
        play=RecordedRun,
        script=script,
        names=Names(program=prefill, held={"weights": weights}),
        conf=setup.alloc_conf,
    )
    return run.timeline(model_of(trained).name, gpu, context_bytes(trained, gpu))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A script, and who plays it."""

    play: type[RecordedRun]
    script: Any  # of the kind that `play` plays
    names: Names
    conf: str

    def timeline(self, name: str, gpu: Gpu | None, context: int) -> Timeline:
        capacity = gpu.total_bytes if gpu is not None else None
        room = None if capacity is None else capacity - context
        run = self._run(room)
        fits = run.played()
        if not fits:
            run = self._run(None)
            run.played()
        return run.recorder.timeline(
            name,
            DEVICE,
            str(Origin.FORMULA),
            capacity_bytes=capacity,
            context_bytes=context,
            is_unlimited=not fits,
        )

    def _run(self, room: int | None) -> RecordedRun:
        return self.play(self.script, capacity_bytes=room, conf=self.conf, names=self.names)
