"""What to do, as far as the printed text decides it: the steps against each cause, the most plausible cause first.

In: the Case and its ranked hypotheses. Out: Advice by name. Does not know how much a step would free: that takes the
job and the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.diagnose.rules.case import LIKELY, Case, Hypothesis
from vramcast.diagnose.rules.job_causes import UNDECIDED

MAX_STEPS = 4
DISTANCE = 25  # a cause that is less plausible than the first by more than this gets no step

# Cause → steps against it, the cheapest first.
STEPS: dict[str, tuple[str, ...]] = {
    "another_process": ("free_the_card",),
    "fragmentation": ("expandable_segments",),
    "cap_by_fraction": ("raise_the_cap",),
    "one_tensor_larger_than_card": ("shrink_that_tensor",),
    "one_large_tensor": ("smaller_batch", "chunked_loss", "flash_attention"),
    "windows_spill": ("turn_off_spill", "smaller_batch"),
    "all_ranks_on_one_card": ("pin_ranks",),
    "driver_or_runtime_limit": ("look_below_pytorch",),
    "host_memory": ("less_host_memory",),
    "shared_memory": ("more_shm",),
    "open_files": ("share_through_files",),
    "card_full_elsewhere": ("leave_room_for_libraries", "smaller_batch", "look_who_holds"),
    "mps_limit": ("raise_the_watermark", "smaller_batch", "smaller_weights"),
    "vllm_share": ("lower_vllm_share",),
    "outside_pytorch": ("fewer_libraries",),
    "memory_grows": ("stop_keeping_graphs",),
    "optimizer_foreach": ("fused_optimizer",),
    "optimizer_temporary": ("fused_optimizer", "smaller_optimizer"),
    "optimizer_states": ("smaller_optimizer",),
    "gradients": ("fewer_trained", "smaller_optimizer"),
    "companion_models": ("companions_elsewhere",),
    "logits": ("chunked_loss", "smaller_batch"),
    "attention_scores": ("flash_attention",),
    "evaluation_gathers": ("eval_accumulation",),
    "evaluation_keeps_graph": ("no_grad",),
    "saving_gathers": ("sharded_save",),
    "resuming_loads_twice": ("load_on_cpu",),
    "allocator_warmup": ("skip_warmup",),
    "gathered_parameters": ("smaller_units",),
    "loading_the_model": ("smaller_weights", "one_copy"),
    "generation_cache": ("shorter_generation",),
    "dequantised_weight": ("checkpointing",),
    "image_tokens": ("fewer_image_tokens",),
    "activations": ("smaller_batch", "checkpointing"),
    "model_states": ("fewer_trained", "smaller_optimizer", "shard_or_offload"),
    "long_sample": ("cap_the_length", "checkpointing"),
    "input_too_large": ("tile_the_input", "smaller_input"),
    "many_boxes": ("fewer_boxes", "smaller_batch"),
    "dataset_on_gpu": ("data_on_cpu",),
    "kv_cache": ("shorter_context", "quantised_cache"),
    "no_room_for_cache": ("raise_the_share", "shorter_context", "smaller_weights"),
    "on_chip_memory": ("smaller_blocks",),
    "illegal_access": ("find_the_access",),
    "disk_full": ("free_the_disk",),
    "server_buffers": ("fewer_sequences", "no_graphs", "lower_vllm_share"),
    "optimizer_flat_copy": ("shard_or_offload", "smaller_optimizer"),
    "desktop_and_context": ("free_the_desktop", "smaller_batch"),
    "host_workers": ("fewer_workers", "less_host_memory"),
    "host_array": ("smaller_array",),
    "host_limit": ("raise_the_limit", "fewer_workers"),
    "host_offload": ("less_offload", "raise_the_limit"),
    "host_load": ("load_less_at_once", "raise_the_limit"),
    "host_growth": ("find_what_grows", "fewer_workers"),
    "page_file": ("larger_page_file", "fewer_workers"),
    "not_memory": ("keep_the_session",),
    "crashed": ("find_the_crash",),
}


# Where a model is only run, these steps take the place of those for training.
STEPS_OF_INFERENCE: dict[str, tuple[str, ...]] = {
    "one_large_tensor": ("tile_the_input", "smaller_input"),
    "one_tensor_larger_than_card": ("tile_the_input", "shrink_that_tensor"),
    "attention_scores": ("flash_attention", "tile_the_input"),
    "logits": ("fewer_sequences",),
    "activations": ("smaller_input",),
    "memory_grows": ("release_between_runs",),
    "card_full_elsewhere": ("smaller_input", "leave_room_for_libraries", "look_who_holds"),
}
# Where the allocator has no settings.
STEPS_OF_OLD_TORCH = {"fragmentation": ("smaller_batch", "newer_allocator")}
NOT_FOR_INFERENCE = (
    "checkpointing",
    "fewer_trained",
    "smaller_optimizer",
    "chunked_loss",
    "stop_keeping_graphs",
)

# Step → the finding that says what it gains, and its value.
_GAINS: tuple[tuple[str, str, str], ...] = (
    ("free_the_card", "other_processes_decide", "others_bytes"),
    ("free_the_card", "other_processes", "others_bytes"),
    ("free_the_card", "unlisted_processes", "unlisted_bytes"),
    ("free_the_card", "held_outside_pytorch", "rest_bytes"),
    ("free_the_card", "nobody_listed", "used_bytes"),
    ("expandable_segments", "fragmentation", "unallocated_bytes"),
    ("expandable_segments", "large_cache", "unallocated_bytes"),
    ("free_the_desktop", "small_card_shared", "rest_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A step by name, the cause that it is meant for, and how much it gives back at most, where that is known."""

    step: str
    because: str
    gain_bytes: int | None = None


def advise(case: Case, hypotheses: Sequence[Hypothesis]) -> tuple[Advice, ...]:
    steps: dict[str, Advice] = {}
    hint_is_useless = case.has("hint_cannot_help", "hint_beside_the_point")
    for hypothesis in _worth_acting_on(hypotheses):
        if hypothesis.name == "fragmentation" and hint_is_useless:
            continue
        for step in _steps_against(hypothesis.name, case):
            advice = Advice(step=step, because=hypothesis.name, gain_bytes=_gain_bytes(step, case))
            steps.setdefault(step, advice)
    return tuple(steps.values())[:MAX_STEPS]


def _worth_acting_on(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The first cause, and those nearly as plausible; next to a likely one, what only remains would distract."""
    if not hypotheses:
        return []
    first = hypotheses[0].plausibility
    return [
        item
        for item in hypotheses
        if item.plausibility >= first - DISTANCE
        and (first < LIKELY or item.evidence or item.name not in UNDECIDED or item.explanation)
    ]


def _steps_against(cause: str, case: Case) -> tuple[str, ...]:
    if case.has("fragmentation_of_old") and cause in STEPS_OF_OLD_TORCH:
        return STEPS_OF_OLD_TORCH[cause]
    if not case.is_inference():
        return STEPS[cause]
    steps = STEPS_OF_INFERENCE.get(cause, STEPS[cause])
    return tuple(step for step in steps if step not in NOT_FOR_INFERENCE)


def _gain_bytes(step: str, case: Case) -> int | None:
    for name, rule, value in _GAINS:
        found = next((item for item in case.findings if item.rule == rule), None)
        if name == step and found is not None:
            return int(dict(found.values)[value])
    return None
