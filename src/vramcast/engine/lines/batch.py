"""The batch on the device: ids, masks, labels and pixels."""

from __future__ import annotations

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.setting import OtherLines, Setting
from vramcast.engine.recording.library_versions import TRAINER_FETCHES_STEP_FROM
from vramcast.ledger import FORWARD, PHASES, ROLLOUT, Category
from vramcast.models.record.dims import product_text
from vramcast.models.record.program import Program
from vramcast.models.record.tape import I64, Value
from vramcast.setup import Setup

PACKED = ("torchtune", "torchtitan", "litgpt", "megatron")  # loops that pass no padding mask
MADE_BY_MODEL = "decoder input ids"  # the labels, shifted by the model itself


def batch_values(program: Program, setup: Setup) -> list[Value]:
    """The tensors that a data loader yields: the model's inputs and, with token ids, the tokenizer's attention mask."""
    values = [
        value
        for value in program.tape.inputs
        if not (value.label == MADE_BY_MODEL and program.labels)
    ]
    ids = values[0]
    has_mask = setup.loop.has_attention_mask and setup.versions.framework not in PACKED
    if len(ids.shape) == 2 and ids.dtype == I64 and has_mask:
        values.insert(1, Value(ids.shape, I64, label="attention mask"))
    return values


def batch_sizes(program: Program, setup: Setup) -> tuple[int, ...]:
    """Bytes of every tensor that data loaders have put on the device by the time a step runs."""
    sizes = tuple(int(value.nbytes) for value in batch_values(program, setup))
    return sizes * num_fetched(setup)


def num_fetched(setup: Setup) -> int:
    """How many micro-batches are on the device at a time."""
    is_trainer = setup.versions.framework in ("hf", "trl")
    fetches_step = is_trainer and setup.versions.transformers >= TRAINER_FETCHES_STEP_FROM
    return setup.data.accumulate if fetches_step else 1


def input_lines(setting: Setting) -> OtherLines:
    alive = [phase for phase in PHASES[PHASES.index(FORWARD) :] if phase != ROLLOUT]
    fetched = num_fetched(setting.setup)
    lines = []
    for value in batch_values(setting.program, setting.setup):
        line = Amounts(
            category=Category.INPUT,
            component=f"{value.label} ({value.dtype.name})",
            place=setting.device,
            formula=product_text(value.shape, value.dtype.nbytes)
            + (f" × {fetched} micro-batches" if fetched > 1 else ""),
            source="the batch, as the loop's variable holds it"
            if fetched == 1
            else "transformers' trainer.py get_batch_samples: all micro-batches of a step are fetched before the first",
        )
        for phase in alive:
            line.add(phase, fetched * value.nbytes)
        lines.append(line)
    return OtherLines(lines=tuple(lines))
