"""Everything of a job's bill that is neither states nor the step itself, in one list. Sweeps and bills share it."""

from __future__ import annotations

from vramcast.formulas.between import between
from vramcast.formulas.buffers import buffers
from vramcast.formulas.checkpointing import pinned_line
from vramcast.formulas.companions import companions
from vramcast.formulas.inputs import input_lines
from vramcast.formulas.setting import Beside, Setting


def beside(setting: Setting) -> Beside:
    found = input_lines(setting) + buffers(setting) + companions(setting) + between(setting)
    if setting.job.checkpointing == "offload" and isinstance(setting.sizes.seq, int):  # sweeps are about the device
        found += Beside(lines=(pinned_line(setting.job, setting.program),))
    return found
