"""Buffers that a model registers in addition to its parameters and moves to the GPU: causal masks, rotary tables.

The versions are read from the released wheels of transformers. Small buffers (frequencies, position ids) are left out.
"""

from __future__ import annotations

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.setting import OtherLines, Setting
from vramcast.ledger import PHASES, Category
from vramcast.models.read.config import Config
from vramcast.models.read.positions import positions_of

ALWAYS = (99, 0)
# `bias = torch.tril(torch.ones((max_positions, max_positions), dtype=torch.bool))`, gone since.
MASKED_BEFORE = {
    "gpt2": (5, 2),
    "gpt_neo": ALWAYS,
    "gpt_neox": (4, 49),
    "gptj": (4, 45),
    "codegen": (4, 45),
    "gpt_bigcode": ALWAYS,
}
POSITIONS = {"gpt2": 1024, "gpt_bigcode": 1024}  # defaults of the config class, if not 2048
ONE_MASK = ("gpt_bigcode",)  # one mask for the model, not one per attention layer
# Every layer's `cos_cached` and `sin_cached` for max_position_embeddings in the dtype that the model is built in.
TABLES_BEFORE = {
    "llama": (4, 41),
    "olmo": (4, 41),
    "mistral": (4, 42),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "phi", "falcon", "persimmon", "stablelm", "gpt_neox", "starcoder2"),
        (4, 45),
    ),
    "mixtral": (4, 47),
}
TURNED = {
    "phi": 0.5,
    "persimmon": 0.5,
    "stablelm": 0.25,
    "gpt_neox": 0.25,
}  # default share of a head that rotary positions apply to


def buffers(setting: Setting) -> OtherLines:
    if setting.program.regime.code != "transformers":
        return OtherLines()
    found = (_masks(setting), _tables(setting))
    lines = tuple(_line(setting, *each) for each in found if each[2])
    return OtherLines(
        lines=lines, resident=tuple(size for _, size, count in found for _ in range(count))
    )


def _line(setting: Setting, name: str, nbytes: int, count: int) -> Amounts:
    line = Amounts(
        category=Category.WEIGHTS,
        component=f"buffers: {name}",
        place=setting.device,
        formula=f"{count} × {nbytes:,} B",
        source=f"modeling_{setting.config.model_type}.py, register_buffer",
    )
    for phase in PHASES:
        line.add(phase, count * nbytes)
    return line


def _is_before(setting: Setting, ends: dict[str, tuple[int, int]]) -> bool:
    return setting.setup.versions.transformers < ends.get(setting.config.model_type, (0, 0))


def _layers(setting: Setting) -> int:
    return sum(placed.section.is_block for placed in setting.program.sections)


def _masks(setting: Setting) -> tuple[str, int, int]:
    """Name, bytes of one buffer, number of buffers."""
    if not _is_before(setting, MASKED_BEFORE):
        return "causal masks", 0, 0
    kind = setting.config.model_type
    rows = int(
        setting.config.dim(
            "n_positions", "", "max_position_embeddings", default=POSITIONS.get(kind, 2048)
        )
    )
    return "causal masks", rows * rows, 1 if kind in ONE_MASK else _layers(setting)


def _tables(setting: Setting) -> tuple[str, int, int]:
    config, regime = setting.config, setting.program.regime
    if not _is_before(setting, TABLES_BEFORE) or config.flag("alibi", False):
        return "rotary tables", 0, 0
    rows = positions_of(config)
    return "rotary tables", rows * _turned(config) * regime.weights.nbytes, 2 * _layers(setting)


def _turned(config: Config) -> int:
    width = int(config.dim("hidden_size", "", default=0)) // int(
        config.dim("num_attention_heads", "", default=1)
    )
    width = int(config.dim("head_dim", "", default=width))
    default = TURNED.get(config.model_type, 1.0)
    return int(width * config.number("partial_rotary_factor", config.number("rotary_pct", default)))
