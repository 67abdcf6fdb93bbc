"""A job's births and deaths through the allocator, without a bill: what would torch reserve?

The engine's own steps on plain numbers, where `estimate` names each of them for its formulas.
"""

from __future__ import annotations

from vramcast.catalog.gpus import Gpu
from vramcast.formulas.alongside import played_with
from vramcast.formulas.beside import beside
from vramcast.formulas.estimate import DEVICE, _after_others, plain, recorded, sizes_of
from vramcast.formulas.on_card import replayed_on_card, step_script
from vramcast.formulas.replay import Replayed, Script
from vramcast.formulas.setting import Setting
from vramcast.formulas.states import States, unique
from vramcast.formulas.step import Step
from vramcast.job import Job
from vramcast.models.config import Config


def replayed(job: Job, config: Config, gpu: Gpu) -> Replayed:
    """On the card, or on one without limit where that is too small."""
    return replayed_on_card(script_of(job, config, gpu), gpu, job)


def script_of(job: Job, config: Config, gpu: Gpu) -> Script:
    sizes = plain(sizes_of(job, config))
    program = recorded(job, config, gpu, sizes)
    states = States(params=unique(program.params()), job=job)
    step = Step(job=job, program=program, states=states, place=DEVICE)
    extra = beside(Setting(job=job, config=config, gpu=gpu, sizes=sizes, program=program, states=states, device=DEVICE))
    script = _after_others(step_script(step, step.stream(), extra.resident, gpu), job, config, gpu, program)
    return played_with(script, extra, DEVICE)
