"""The batch on the device: ids, masks, labels and pixels."""

from __future__ import annotations

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.setting import Beside, Setting
from vramcast.ledger import FORWARD, PHASES, ROLLOUT, Category
from vramcast.models.record.dims import product_text
from vramcast.models.record.program import Program
from vramcast.models.record.tape import I64, Value
from vramcast.setup.records import Versions

PACKED = ("torchtune", "torchtitan", "litgpt", "megatron")  # loops that pass no padding mask
MADE_BY_MODEL = "decoder input ids"  # the labels, shifted by the model itself


def batch_values(program: Program, versions: Versions) -> list[Value]:
    """The tensors that a data loader yields: the model's inputs and, with token ids, the tokenizer's attention mask."""
    values = [
        value
        for value in program.tape.inputs
        if not (value.label == MADE_BY_MODEL and program.labels)
    ]
    ids = values[0]
    if len(ids.shape) == 2 and ids.dtype == I64 and versions.framework not in PACKED:
        values.insert(1, Value(ids.shape, I64, label="attention mask"))
    return values


def input_lines(setting: Setting) -> Beside:
    alive = [phase for phase in PHASES[PHASES.index(FORWARD) :] if phase != ROLLOUT]
    lines = []
    for value in batch_values(setting.program, setting.setup.versions):
        line = Amounts(
            category=Category.INPUT,
            component=f"{value.label} ({value.dtype.name})",
            place=setting.device,
            formula=product_text(value.shape, value.dtype.nbytes),
            source="the batch, as the loop's variable holds it",
        )
        for phase in alive:
            line.add(phase, value.nbytes)
        lines.append(line)
    return Beside(lines=tuple(lines))
