"""Which options of a job do nothing unless it says something else, too, and which ones a job without training reads.

Data for engine/no_effect.py, which makes warnings of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.job import FIELDS, Job

Applies = Callable[[Job], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Options that do nothing unless the job says something else, too."""

    names: tuple[str, ...]
    needs: str
    is_met: Applies


def _has_adapters(job: Job) -> bool:
    return job.has_adapters


def _has_lengths(job: Job) -> bool:
    return job.mean_seq is not None or job.lengths is not None


def _has_liger(job: Job) -> bool:
    return job.loss == "fused" or bool(job.kernels)


def _is_8bit(job: Job) -> bool:
    return "8bit" in (job.optimizer or "")


def _is_quantised(job: Job) -> bool:
    return job.quantize != "none" or _is_8bit(job) or (job.optimizer or "").startswith("paged")


def _shards(job: Job) -> bool:
    return job.gpus > 1 and job.strategy not in ("none", "ddp")


def _is_fsdp(job: Job) -> bool:
    if job.strategy is None:
        return job.gpus > 1
    return job.strategy.startswith("fsdp")


def _freezes(job: Job) -> bool:
    return job.has_adapters or job.adapter is not None or bool(job.freeze or job.edit)


def _generates(job: Job) -> bool:
    return job.rollout_tokens is not None or job.rollout_engine is not None


def _group(name: str) -> tuple[str, ...]:
    """The names of a group of options."""
    return tuple(field.name for field in FIELDS.values() if field.metadata["group"] == name)


# What an engine that serves is told; `engine` itself asks for it.
SERVING = tuple(name for name in _group("serving") if name != "engine")


NEEDS = (
    Need(
        names=("lora_targets", "lora_dropout", "lora_dtype"),
        needs="lora-rank",
        is_met=_has_adapters,
    ),
    Need(names=("samples",), needs="mean-seq or lengths", is_met=_has_lengths),
    Need(
        names=("optimizer_rank",),
        needs="optimizer galore",
        is_met=lambda job: job.optimizer == "galore",
    ),
    Need(names=("optimizer_block",), needs="an 8-bit optimizer", is_met=_is_8bit),
    Need(
        names=("reentrant",),
        needs="checkpointing",
        is_met=lambda job: job.checkpointing != "none",
    ),
    Need(
        names=("reference_dtype",),
        needs="a reference model",
        is_met=lambda job: job.reference != "none",
    ),
    Need(names=("reward_model",), needs="reward", is_met=lambda job: job.reward != "none"),
    Need(names=("critic_model",), needs="critic", is_met=lambda job: job.critic != "none"),
    Need(names=("teacher_model",), needs="teacher", is_met=lambda job: job.teacher != "none"),
    Need(
        names=("companion_dtype",),
        needs="reward or teacher",
        is_met=lambda job: job.reward != "none" or job.teacher != "none",
    ),
    Need(
        names=("edit_rank", "edit_hidden", "edit_forwards", "edit_gradients", "edit_graph"),
        needs="edit",
        is_met=lambda job: bool(job.edit),
    ),
    Need(names=("shard_size",), needs="several GPUs that share one sharded copy", is_met=_shards),
    Need(
        names=("virtual_stages",),
        needs="pp and schedule interleaved",
        is_met=lambda job: job.pp > 1 and job.schedule == "interleaved",
    ),
    Need(
        names=("schedule", "stage_layers", "first_stage_layers", "last_stage_layers"),
        needs="pp",
        is_met=lambda job: job.pp > 1,
    ),
    Need(names=("sequence_parallel", "loss_parallel"), needs="tp", is_met=lambda job: job.tp > 1),
    Need(names=("cp_style",), needs="cp", is_met=lambda job: job.cp > 1),
    Need(names=("gpus_per_node",), needs="gpus", is_met=lambda job: job.gpus > 1),
    Need(names=("offload_device",), needs="offload", is_met=lambda job: job.offload != "none"),
    Need(names=("units", "reshard"), needs="strategy fsdp1 or fsdp2", is_met=_is_fsdp),
    Need(names=SERVING, needs="engine", is_met=lambda job: job.engine is not None),
    Need(
        names=_group("inference"),
        needs="task generate",
        is_met=lambda job: job.task == "generate",
    ),
    Need(names=("rollout_batch",), needs="rollout-tokens", is_met=_generates),
    Need(
        names=("rollout_share", "rollout_tp", "rollout_sleep"),
        needs="rollout-engine",
        is_met=lambda job: job.rollout_engine is not None,
    ),
    Need(names=("rollout_offload",), needs="rollout-tokens or rollout-engine", is_met=_generates),
    Need(names=("eval_batch", "eval_kept"), needs="evaluate", is_met=lambda job: job.evaluate),
    Need(
        names=("bucket_view",),
        needs="several GPUs and strategy ddp",
        is_met=lambda job: job.gpus > 1 and job.strategy in (None, "ddp"),
    ),
    Need(
        names=("reduce_bucket",),
        needs="strategy zero1, zero2 or zero3",
        is_met=lambda job: (job.strategy or "").startswith("zero"),
    ),
    Need(names=("vocab_multiple",), needs="several GPUs", is_met=lambda job: job.gpus > 1),
    Need(
        names=("grad_fusion",),
        needs="framework megatron",
        is_met=lambda job: job.framework == "megatron",
    ),
    Need(
        names=("prompt_tokens",),
        needs="framework trl",
        is_met=lambda job: job.framework == "trl",
    ),
    Need(names=("frozen_dtype",), needs="lora-rank or freeze", is_met=_freezes),
    Need(names=("module_loading",), needs="gpu", is_met=lambda job: job.gpu is not None),
    Need(names=("prefetch",), needs="workers", is_met=lambda job: job.workers > 0),
    Need(names=("dataset_mode",), needs="dataset", is_met=lambda job: job.dataset is not None),
    Need(names=("trl_version",), needs="framework trl", is_met=lambda job: job.framework == "trl"),
    Need(names=("peft_version",), needs="lora-rank", is_met=_has_adapters),
    Need(names=("liger_version",), needs="Liger's loss or kernels", is_met=_has_liger),
    Need(
        names=("bitsandbytes_version",),
        needs="quantize or an 8-bit optimizer",
        is_met=_is_quantised,
    ),
)

# What jobs without training read. Versions and switches of libraries are facts, not wishes: they are never too much.
_ALWAYS = frozenset(
    (
        *_group("model"),
        *_group("hardware"),
        *_group("versions"),
        "precision",
        "weights_dtype",
        "frozen_dtype",
        "quantize",
        "framework",
        "compile",
        "offload",
    )
)
OF_GENERATION = _ALWAYS | frozenset(
    (
        *_group("inference"),
        *_group("host"),
        "batch",
        "attention",
        "adapter",
        "target_seq",
        "use_cache",
    )
)
OF_ONE_PASS = _ALWAYS | frozenset(
    (
        "batch",
        "seq",
        "mean_seq",
        "target_seq",
        "attention",
        "adapter",
        "loss",
        "use_cache",
        "attention_mask",
    )
)
OF_SERVING = _ALWAYS - {"weights_dtype", "frozen_dtype", "compile", "framework"} | frozenset(
    (*_group("serving"), "gpus", "tp", "pp", "gpus_per_node")
)
# llama.cpp also fills what -fa chooses; it knows neither a share of the card nor CUDA graphs to be switched off.
OF_LLAMA_CPP = OF_SERVING - {"gpu_memory_utilization", "enforce_eager"} | {"attention"}
