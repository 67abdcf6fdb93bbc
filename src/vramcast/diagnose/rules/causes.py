"""The table of causes: which evidence speaks for which cause, and how strongly.

In: a Case. Out: Hypotheses. Most causes are rows: findings (the numbers prove it), code (the failing line says it) and
clues (the words around it say it). Where evidence has to be weighed the row is a small function. No rule needs a job.
"""

from __future__ import annotations

from vramcast.diagnose.rules import host_causes, job_causes, other_owners
from vramcast.diagnose.rules.case import (
    LIKELY,
    POSSIBLE,
    PROVEN,
    SEEN,
    TOO_LARGE,
    ClueRule,
    Rule,
    from_code,
    from_findings,
)
from vramcast.diagnose.rules.code_patterns import CODE_OF_CAUSES
from vramcast.diagnose.rules.host_causes import HOST_RULES, SURELY_HOST

# Words around the failure.
SAID_BY_SERVER = ("vllm_no_room", "vllm_warm_up", "vllm_share")
# An engine's cache is sized when it starts: what it calls a cache says nothing about a generation.
NOT_BESIDE = {
    "generation_cache": ("vllm", "sglang", "local_llm", "image_generation", "upscaling", "folding")
}
CLUE_RULES: tuple[ClueRule, ...] = (
    ClueRule(name="vllm_share", plausibility=SEEN - 5, clues=("wakes_up",)),
    ClueRule(
        name="vllm_share",
        plausibility=SEEN - 8,
        clues=("vllm",),
        without=("server_weights", "engine_elsewhere", "trainers_turn"),
        unless=SAID_BY_SERVER,
    ),
    ClueRule(
        name="vllm_share",
        plausibility=SEEN - 8,
        clues=("sglang",),
        without=("server_weights",),
        unless=SAID_BY_SERVER,
    ),
    ClueRule(
        name="vllm_share",
        plausibility=POSSIBLE + 11,
        clues=("vllm", "trainers_turn"),
        without=("engine_elsewhere",),
    ),
    ClueRule(
        name="activations",
        plausibility=LIKELY + 2,
        clues=("beside_a_trainer", "trainers_turn"),
    ),
    ClueRule(name="server_buffers", plausibility=SEEN - 4, clues=("graph_capture",)),
    ClueRule(name="server_buffers", plausibility=SEEN - 6, clues=("vllm", "profiling_run")),
    ClueRule(
        name="kv_cache", plausibility=LIKELY - 8, clues=("vllm",), without=("beside_a_trainer",)
    ),
    ClueRule(name="kv_cache", plausibility=LIKELY - 8, clues=("sglang",)),
    ClueRule(
        name="kv_cache", plausibility=LIKELY + 10, clues=("local_llm",), without=("server_weights",)
    ),
    ClueRule(name="kv_cache", plausibility=LIKELY + 18, clues=("local_llm", "context_buffers")),
    ClueRule(
        name="kv_cache",
        plausibility=PROVEN + 1,
        clues=("local_llm", "context_buffers"),
        findings=HOST_RULES,
        on_host=True,
    ),
    ClueRule(name="loading_the_model", plausibility=SEEN, clues=("local_llm", "server_weights")),
    ClueRule(name="loading_the_model", plausibility=LIKELY - 10, clues=("local_llm",)),
    ClueRule(name="input_too_large", plausibility=LIKELY + 12, clues=("length_named",)),
    ClueRule(
        name="input_too_large",
        plausibility=LIKELY + 10,
        clues=("image_generation",),
        without=("trains",),
    ),
    ClueRule(
        name="input_too_large", plausibility=LIKELY + 10, clues=("upscaling",), without=("trains",)
    ),
    ClueRule(
        name="input_too_large", plausibility=LIKELY + 10, clues=("folding",), without=("trains",)
    ),
    ClueRule(name="loading_the_model", plausibility=LIKELY + 2, clues=("not_loaded",)),
    ClueRule(name="all_ranks_on_one_card", plausibility=LIKELY, clues=("first_card_fuller",)),
    ClueRule(name="many_boxes", plausibility=LIKELY + 10, clues=("many_boxes",)),
    ClueRule(name="dataset_on_gpu", plausibility=LIKELY + 15, clues=("dataset_on_gpu",)),
    ClueRule(name="evaluation_gathers", plausibility=LIKELY - 3, clues=("evaluates",)),
    ClueRule(name="evaluation_gathers", plausibility=LIKELY + 8, clues=("evaluates", "grows")),
    ClueRule(name="memory_grows", plausibility=LIKELY + 4, clues=("grows",)),
    ClueRule(name="memory_grows", plausibility=POSSIBLE + 16, clues=("loops",)),
    # What every step needs is there from the first one on: this says more than a frame of some layer.
    ClueRule(name="long_sample", plausibility=POSSIBLE + 26, clues=("after_steps",)),
    ClueRule(
        name="memory_grows",
        plausibility=POSSIBLE + 27,
        clues=("after_steps",),
        without=("skips_batches", "counts_numbers"),
    ),
    # A trainer that drops the batch and goes on has room for the others.
    ClueRule(name="long_sample", plausibility=LIKELY + 4, clues=("skips_batches",)),
    ClueRule(
        name="long_sample",
        plausibility=POSSIBLE + 29,
        clues=("uneven_samples", "after_steps"),
    ),
    ClueRule(name="long_sample", plausibility=POSSIBLE + 11, clues=("uneven_samples",)),
    ClueRule(name="long_sample", plausibility=POSSIBLE + 16, clues=("at_random",)),
    ClueRule(name="activations", plausibility=LIKELY + 6, clues=("batch_matters",)),
    ClueRule(
        name="evaluation_keeps_graph",
        plausibility=LIKELY - 2,
        clues=("runs_a_model", "even_one_input"),
        without=("trains",),
    ),
    ClueRule(name="memory_grows", plausibility=POSSIBLE + 18, clues=("runs_again",)),
    ClueRule(
        name="memory_grows",
        plausibility=LIKELY + 8,
        clues=("runs_again", "image_generation"),
        without=("trains",),
    ),
    ClueRule(name="image_tokens", plausibility=POSSIBLE + 16, clues=("sees_images",)),
    ClueRule(name="image_tokens", plausibility=LIKELY + 5, clues=("sees_images", "grows")),
    ClueRule(name="resuming_loads_twice", plausibility=LIKELY + 4, clues=("resumes",)),
    ClueRule(name="saving_gathers", plausibility=LIKELY + 2, clues=("saves",)),
    ClueRule(name="evaluation_keeps_graph", plausibility=LIKELY + 3, clues=("says_no_grad",)),
    ClueRule(
        name="evaluation_keeps_graph",
        plausibility=LIKELY + 6,
        clues=("runs_a_model", "grows"),
        without=("trains",),
    ),
    ClueRule(
        name="evaluation_keeps_graph",
        plausibility=LIKELY + 2,
        clues=("after_items",),
        without=("trains",),
    ),
    ClueRule(
        name="kv_cache",
        plausibility=LIKELY + 2,
        clues=("chats",),
        without=("trains", "vllm", "sglang"),
    ),
    ClueRule(name="long_sample", plausibility=POSSIBLE + 14, findings=("ran_before",)),
    ClueRule(name="activations", plausibility=LIKELY + 5, clues=("subdivisions",)),
    ClueRule(
        name="host_offload",
        plausibility=PROVEN + 1,
        clues=("offload",),
        findings=HOST_RULES,
        on_host=True,
    ),
    ClueRule(
        name="host_workers",
        plausibility=SEEN,
        clues=("workers",),
        findings=("killed",),
        on_host=True,
    ),
)

CAUSES: tuple[Rule, ...] = (
    other_owners.other_process,
    other_owners.unlisted_holder,
    other_owners.left_over_process,
    other_owners.full_at_first_touch,
    other_owners.full_beside_free,
    from_findings("another_process", LIKELY + 8, "dead_process"),
    job_causes.fragmented,
    from_findings("cap_by_fraction", PROVEN, "capped"),
    from_findings("one_tensor_larger_than_card", PROVEN, *TOO_LARGE),
    from_findings("windows_spill", SEEN, "spilled"),
    from_findings("all_ranks_on_one_card", LIKELY + 5, "shared_card", "stray_contexts"),
    from_findings("driver_or_runtime_limit", SEEN, "free_yet_refused", "block_limit"),
    from_findings("loading_the_model", PROVEN, "weights_offloaded"),
    from_findings("loading_the_model", PROVEN - 1, "weights_exceed_card"),
    from_findings("model_states", PROVEN - 2, "states_exceed_card"),
    from_findings("model_states", LIKELY + 8, "states_exceed_card_if_full"),
    from_findings("model_states", SEEN + 6, "states_fill_card_of_one"),
    from_findings("model_states", LIKELY + 6, "states_fill_card"),
    from_findings("model_states", LIKELY - 6, "states_fill_card_if_full"),
    from_findings("activations", LIKELY + 2, "states_leave_room"),
    from_findings("activations", LIKELY, "long_sequence"),
    from_findings("desktop_and_context", POSSIBLE + 22, "small_card_shared"),
    host_causes.killed_on_host,
    host_causes.killed_while_loading,
    host_causes.grown_on_host,
    host_causes.array_in_code,
    host_causes.fork_refused,
    host_causes.not_a_lack_of_memory,
    from_findings("host_memory", LIKELY + 20, *SURELY_HOST),
    host_causes.small_shm,
    host_causes.workers_beside_roomy_shm,
    from_findings("host_workers", POSSIBLE + 23, "worker_gone"),
    from_findings("host_memory", POSSIBLE + 25, "kernel_gone"),
    from_findings("model_states", LIKELY, "no_batch_fits"),
    from_findings("no_room_for_cache", SEEN, "vllm_no_room"),
    from_findings("server_buffers", SEEN, "vllm_warm_up"),
    from_findings("open_files", PROVEN, "open_files", "shared_file_gone"),
    from_findings("open_files", LIKELY + 10, "shared_file_not_opened"),
    from_findings("shared_memory", POSSIBLE + 5, "shared_file_not_opened"),
    from_findings("card_full_elsewhere", LIKELY, "outside_jax_pool"),
    ClueRule(
        name="activations",
        plausibility=POSSIBLE + 24,
        findings=("runtime_error_bare",),
        unless=("full_beside_free",),
    ),
    from_findings("card_full_elsewhere", POSSIBLE + 23, "runtime_error_bare"),
    from_findings("all_ranks_on_one_card", PROVEN, "failing_together"),
    from_findings(
        "card_full_elsewhere",
        LIKELY + 10,
        "masked",
        "masked_nccl",
        "runtime_error",
        "masked_uncertain",
    ),
    from_findings("vllm_share", SEEN, "vllm_share"),
    other_owners.outside_pytorch,
    other_owners.beside_metal,
    from_findings("mps_limit", LIKELY - 1, "mps_limit"),
    from_findings("outside_pytorch", LIKELY, "outside_async_pool"),
    from_findings("memory_grows", LIKELY, "growing"),
    job_causes.growth_over_steps,
    from_findings("loading_the_model", LIKELY, "as_much_again"),
    from_findings("optimizer_flat_copy", LIKELY + 3, "flat_copy"),
    from_findings("optimizer_flat_copy", SEEN, "partition"),
    job_causes.dense_attention,
    job_causes.evaluation_keeps_graph,
    job_causes.evaluation_of_results,
    job_causes.tensor_of_tensorflow,
    from_findings("logits", LIKELY + 4, "logits_sized"),
    from_findings("one_large_tensor", LIKELY - 5, "one_large_tensor"),
    from_findings("one_large_tensor", LIKELY + 2, "half_the_card"),
    job_causes.failing_in_step,
    *(
        from_code(name, pattern, plausibility, NOT_BESIDE.get(name, ()))
        for name, plausibility, pattern in CODE_OF_CAUSES
    ),
    *CLUE_RULES,
    job_causes.too_much_per_step,
    job_causes.too_much_at_rest,
)
