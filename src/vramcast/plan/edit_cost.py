"""What a step of a model-editing job costs in time."""

from __future__ import annotations

from vramcast.catalog.gpus import Gpu
from vramcast.engine import States, record_model, sizes_of, unique
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program
from vramcast.plan.bandwidth import crossing_s, link_rates
from vramcast.plan.cost import StepCost, pass_seconds, step_flops, update_seconds, work_of
from vramcast.setup import resolve
from vramcast.setup.records import Editing

# Forwards of the unedited model in an editing step, on what must stay as it is: texts and images.
BASE_FORWARDS = 2


def edit_cost(job: Job, config: Config, gpu: Gpu) -> StepCost:
    """An editing step: forwards of the unedited model, one pass with gradients of the inner parameters, and the edited
    model's forwards, each with a backward. The hypernetwork's own products are small beside them and left out."""
    setup = resolve(job)
    sizes = sizes_of(setup.data, config)
    program = record_model(job, config, gpu)
    work = work_of(program)
    fast, slow = pass_seconds(program, work, setup, gpu)
    whole, forward = step_flops(program, setup.checkpointing), work.forward_flops
    times = 1 + setup.editing.forwards + BASE_FORWARDS * float(forward) / float(whole)
    across = _across(setup.editing, program) if setup.editing.sub_device else 0
    crossing = crossing_s(across, link_rates(gpu))
    update = update_seconds(
        States(params=unique(program.params()), setup=setup).trained, setup, gpu
    )
    return StepCost(
        pass_s=(float(fast) * times + crossing[0], float(slow) * times + crossing[1]),
        update_s=update,
        tokens=int(sizes.batch * sizes.seq),
        passes=setup.data.accumulate,
    )


def _across(editing: Editing, program: Program) -> int:
    """Hidden states go to the second device and their gradients come back, in every pass of the edited model."""
    block = next(placed for placed in reversed(program.sections) if placed.section.is_block)
    return 2 * (1 + editing.forwards) * int(block.section.inputs[0].nbytes)
