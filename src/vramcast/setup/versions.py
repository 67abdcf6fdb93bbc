"""Versions as tuples of numbers, and the versions in which libraries changed what a setup means by default."""

from __future__ import annotations

Version = tuple[int, int]

# torch/optim/optimizer.py: foreach became the default where all parameters are on CUDA.
FOREACH_FROM: Version = (2, 0)
# transformers training_args.py: `optim` is adamw_torch_fused since 4.54, where torch is at least 2.8.
FUSED_FROM: Version = (4, 54)
FUSED_NEEDS_TORCH: Version = (2, 8)
# transformers modeling_utils.py gradient_checkpointing_enable: use_reentrant was True unless asked otherwise.
REENTRANT_BEFORE: Version = (5, 0)
# transformers modeling_utils.py from_pretrained: without a dtype, the checkpoint's own instead of fp32.
LOADS_STORED_DTYPE_FROM: Version = (5, 0)
# torchtitan `del pred` after the loss (its PR 391), dated by the torch nightly of the day.
TITAN_DROPS_OUTPUTS_FROM: Version = (2, 5)
# torchtitan splits the loss over tensor-parallel ranks by default.
TITAN_LOSS_PARALLEL_FROM: Version = (2, 4)
# trl/trainer/utils.py add_fused_lm_head: SFT, DPO, KTO, GRPO and RLOO compute log-probabilities in tiles.
TRL_TILES_LOSS_FROM: Version = (1, 15)


def parse_version(text: str) -> Version:
    """The first two numbers: a patch release of torch or transformers changes no memory."""
    major, minor, *_ = (*parse_numbers(text), 0)
    return (major, minor)


def parse_numbers(text: str) -> tuple[int, ...]:
    """All numbers: "0.8.5" is (0, 8, 5); letters are passed over, so "2.8.0a1" is (2, 8, 1)."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in text.split("."))
