"""How long a sequence may be: a model with a learned table of positions has no row for a longer one."""

from __future__ import annotations

from vramcast.errors import InputError
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Op

DEFAULT_SEQ = 2048
LENGTH_KEYS = ("max_target_positions", "n_positions", "n_ctx")
LABELS = ("position embeddings", "positions")  # of the look-ups in such a table
SHIFTED = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "opt",
    "bart",
    "mbart",
)  # rows before the first position
ROWS_IN_FRONT = (
    2  # `padding_idx + 1` where RoBERTa counts; the learned embedding's `offset` in OPT and BART
)


def default_seq(config: Config, usual: int | None = None) -> int:
    """What is assumed where no length is given: the framework's usual one or 2048, or as far as the model's positions
    reach."""
    nested = config.sub("text_config").dim("max_position_embeddings", "", default=DEFAULT_SEQ)
    longest = config.dim("max_position_embeddings", "", *LENGTH_KEYS, default=int(nested))
    return max(1, min(usual or DEFAULT_SEQ, int(longest) - _rows_counted_in(config)))


def has_tokens(config: Config) -> bool:
    """A model of images only (ViT, ResNet) has no vocabulary, and a sequence length says nothing about it."""
    return (
        "vocab_size" in config.data
        or "text_config" in config.data
        or "num_channels" not in config.data
    )


def trained_positions(config: Config) -> int | None:
    """How far the model's positions reach, by its config; None where the config does not say."""
    nested = config.sub("text_config").data.get("max_position_embeddings")
    given = (config.data.get(key) for key in ("max_position_embeddings", *LENGTH_KEYS))
    found = next(
        (value for value in (*given, nested) if isinstance(value, int) and value > 0), None
    )
    return None if found is None else max(1, found - _rows_counted_in(config))


def learned_positions(program: Program, config: Config) -> int | None:
    """Rows of the model's learned table of positions: no sequence can be longer. None: it has no such table."""
    for placed in program.sections:
        for op in placed.section.ops:
            if op.name == "embedding" and op.output.label in LABELS and op.inputs[0].param:
                shift = ROWS_IN_FRONT if config.model_type in SHIFTED else 0
                return int(op.inputs[0].shape[0]) - shift
    return None


def _rows_counted_in(config: Config) -> int:
    """RoBERTa's `max_position_embeddings` counts the rows in front; OPT's and BART's does not."""
    return (
        ROWS_IN_FRONT if "roberta" in config.model_type or config.model_type == "camembert" else 0
    )


def check_positions(program: Program, config: Config) -> None:
    for placed in program.sections:
        for op in placed.section.ops:
            if op.name == "embedding" and op.output.label in LABELS:
                _check(op, config)


def _check(op: Op, config: Config) -> None:
    table, length = op.inputs[0], op.output.shape[1]
    rows = int(table.shape[0]) - (ROWS_IN_FRONT if config.model_type in SHIFTED else 0)
    if table.param is not None and isinstance(length, int) and length > rows:
        raise InputError(
            f"a sequence of {int(length):,} is longer than the {rows:,} learned positions of this model "
            f"({table.param.name}): the look-up would fail. Give at most {rows:,}, or a config with more positions."
        )
