"""What a block of litgpt's and torchtune's own code keeps for backward, in bytes.

The expected numbers were read with saved-tensor hooks from litgpt 0.4.2 (`litgpt/model.py`, `lora.py`) and torchtune
0.5.0 (`torchtune/modules`) on the CPU: bf16, batch 2, 64 tokens, hidden size 64, 4 heads, rotary tables in fp32;
parameters, the block's input, rotary tables and int64 indices left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.engine.recording.lora_targets import lora_matches
from vramcast.engine.stream.saved_tensors import kept
from vramcast.errors import UnsupportedError
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import BF16, Lora, Regime

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4,
    "num_hidden_layers": 3, "vocab_size": 512, "tie_word_embeddings": False,
}  # fmt: skip
GROUPED = {**LLAMA, "num_key_value_heads": 2}
NEOX = {**LLAMA, "model_type": "gpt_neox", "intermediate_size": 256, "rotary_pct": 0.25}
PHI = {**LLAMA, "model_type": "phi", "intermediate_size": 256, "partial_rotary_factor": 0.5}
FALCON = {**LLAMA, "model_type": "falcon"}
SOME = ("query", "value")
ALL = ("query", "key", "value", "projection", "mlp")


def block_bytes(
    code: str, config: dict[str, Any], targets: tuple[str, ...], dropout: float = 0.0
) -> int:
    lora = (
        Lora(rank=4, matches=lora_matches(targets), dtype=BF16, dropout=dropout)
        if targets
        else None
    )
    regime = Regime(weights=BF16, attention="flash", cuda=False, lora=lora, code=code)
    program = record(Config(config), regime, Sizes(batch=2, seq=64))
    block = [placed.section for placed in program.sections if placed.section.is_block][-1]
    return sum(
        int(k.value.nbytes) for k in kept(block) if not k.is_input and k.value.label != "cos, sin"
    )


@pytest.mark.parametrize(
    ("config", "targets", "dropout", "nbytes"),
    [
        (LLAMA, (), 0.0, 429_056), (LLAMA, SOME, 0.0, 353_280), (LLAMA, ALL, 0.0, 403_456),
        (GROUPED, (), 0.0, 396_288), (GROUPED, SOME, 0.0, 312_320), (GROUPED, ALL, 0.1, 497_664),
        (NEOX, (), 0.0, 281_600), (NEOX, SOME, 0.0, 218_112), (PHI, SOME, 0.0, 217_600), (FALCON, SOME, 0.0, 180_736),
    ],
)  # fmt: skip
def test_litgpt_keeps_these_bytes(
    config: dict[str, Any], targets: tuple[str, ...], dropout: float, nbytes: int
) -> None:
    assert block_bytes("litgpt", config, targets, dropout) == nbytes


@pytest.mark.parametrize(
    ("config", "targets", "nbytes"),
    [
        (LLAMA, (), 412_672),
        (GROUPED, (), 412_672),
        (GROUPED, ("q_proj", "v_proj", "output_proj", "mlp"), 353_280),
    ],
)
def test_torchtune_keeps_these_bytes(
    config: dict[str, Any], targets: tuple[str, ...], nbytes: int
) -> None:
    assert block_bytes("torchtune", config, targets) == nbytes


@pytest.mark.parametrize("code", ["litgpt", "torchtune"])
def test_a_model_whose_code_is_not_described_is_refused(code: str) -> None:
    with pytest.raises(UnsupportedError, match=f"how {code} runs model_type 'bert'"):
        record(Config({**LLAMA, "model_type": "bert"}), Regime(code=code), Sizes())


def test_compiled_blocks_keep_what_products_need_and_recompute_the_rest() -> None:
    """Per token: eight hidden-size tensors, three of the MLP's width, and fp32 row statistics (see `compiled`)."""
    regime = Regime(
        weights=BF16, attention="flash", cuda=False, code="torchtune", compiled="blocks"
    )
    program = record(Config(GROUPED), regime, Sizes(batch=2, seq=64))
    block = [placed.section for placed in program.sections if placed.section.is_block][-1]
    total = sum(int(k.value.nbytes) for k in kept(block) if k.value.label != "cos, sin")
    per_token = 2 * (8 * 64 + 3 * 176) + 4 * (2 + 4)  # bf16; two rstd and four logsumexp
    assert total == 2 * 64 * per_token
