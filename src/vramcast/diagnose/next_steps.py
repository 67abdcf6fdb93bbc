"""What to do, as far as the printed text decides it: the steps against each cause, the most plausible cause first.

In: the Case and its ranked hypotheses. Out: Advice by name. Does not know how much a step would free: that takes the
job and the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.diagnose.rules.hypotheses import Case, Hypothesis

MAX_STEPS = 4

# Cause → steps against it, the cheapest first.
STEPS: dict[str, tuple[str, ...]] = {
    "another_process": ("free_the_card",),
    "fragmentation": ("expandable_segments",),
    "cap_by_fraction": ("raise_the_cap",),
    "one_tensor_larger_than_card": ("shrink_that_tensor",),
    "one_large_tensor": ("chunked_loss", "flash_attention"),
    "windows_spill": ("turn_off_spill",),
    "all_ranks_on_one_card": ("pin_ranks",),
    "driver_or_runtime_limit": ("look_below_pytorch",),
    "host_memory": ("less_host_memory",),
    "shared_memory": ("more_shm",),
    "open_files": ("share_through_files",),
    "card_full_elsewhere": ("leave_room_for_libraries",),
    "vllm_share": ("lower_vllm_share",),
    "outside_pytorch": ("fewer_libraries",),
    "memory_grows": ("stop_keeping_graphs",),
    "optimizer_foreach": ("fused_optimizer",),
    "optimizer_temporary": ("fused_optimizer", "smaller_optimizer"),
    "optimizer_states": ("smaller_optimizer",),
    "gradients": ("fewer_trained", "smaller_optimizer"),
    "companion_models": ("companions_elsewhere",),
    "logits": ("chunked_loss",),
    "attention_scores": ("flash_attention",),
    "evaluation_gathers": ("eval_accumulation",),
    "evaluation_keeps_graph": ("no_grad",),
    "saving_gathers": ("sharded_save",),
    "resuming_loads_twice": ("load_on_cpu",),
    "allocator_warmup": ("skip_warmup",),
    "gathered_parameters": ("smaller_units",),
    "loading_the_model": ("smaller_weights",),
    "generation_cache": ("shorter_generation",),
    "dequantised_weight": ("checkpointing",),
    "image_tokens": ("fewer_image_tokens",),
    "activations": ("checkpointing", "smaller_batch"),
    "needs_more_than_the_card": ("smaller_batch", "checkpointing"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A step by name, and the cause that it is meant for."""

    step: str
    because: str


def advise(case: Case, hypotheses: Sequence[Hypothesis]) -> tuple[Advice, ...]:
    steps: dict[str, Advice] = {}
    hint_is_useless = case.has("hint_cannot_help", "hint_beside_the_point")
    for hypothesis in hypotheses:
        if hypothesis.name == "fragmentation" and hint_is_useless:
            continue
        for step in STEPS[hypothesis.name]:
            steps.setdefault(step, Advice(step=step, because=hypothesis.name))
    return tuple(steps.values())[:MAX_STEPS]
