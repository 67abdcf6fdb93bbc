"""Everything of a job's bill that is neither states nor the step itself, in one list. Sweeps and bills share it."""

from __future__ import annotations

from vramcast.engine.lines.batch import input_lines
from vramcast.engine.lines.between_steps import between
from vramcast.engine.lines.companions import companions
from vramcast.engine.lines.model_buffers import buffers
from vramcast.engine.lines.setting import Beside, Setting
from vramcast.engine.stream.checkpointing import pinned_line


def beside(setting: Setting) -> Beside:
    found = input_lines(setting) + buffers(setting) + companions(setting) + between(setting)
    if setting.setup.checkpointing.how == "offload" and isinstance(
        setting.sizes.seq, int
    ):  # sweeps are about the device
        found += Beside(lines=(pinned_line(setting.setup.checkpointing, setting.program),))
    return found
