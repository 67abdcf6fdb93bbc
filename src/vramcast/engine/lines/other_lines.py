"""All lines of a job other than its states and the step: inputs, buffers, companions, between steps, offloaded inputs.

Sweeps and single estimates share it.
"""

from __future__ import annotations

from vramcast.engine.lines.batch import input_lines
from vramcast.engine.lines.between_steps import between
from vramcast.engine.lines.companions import companions
from vramcast.engine.lines.model_buffers import buffers
from vramcast.engine.lines.setting import OtherLines, Setting
from vramcast.engine.stream.checkpointing import pinned_line


def other_lines(setting: Setting) -> OtherLines:
    found = input_lines(setting) + buffers(setting) + companions(setting) + between(setting)
    if setting.setup.checkpointing.how == "offload" and isinstance(
        setting.sizes.seq, int
    ):  # a sweep counts device memory only
        found += OtherLines(lines=(pinned_line(setting.setup.checkpointing, setting.program),))
    return found
