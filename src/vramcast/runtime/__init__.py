"""Pieces used inside a training job. Names load their module when first used, so none pays for another."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULE_OF = {
    "LowMemDataset": "dataset",
    "rewrite_row_groups": "rewrite",
    "RowGroupSampler": "sampling",
    "PromptResponse": "text",
    "TokenizeCollate": "text",
    "LoaderNeeds": "loader",
    "LoaderPolicy": "loader",
    "loader_policy": "loader",
    "return_large_blocks": "loader",
    "GraphCut": "graph_cut",
    "as_leaf": "graph_cut",
    "AuxCollector": "moe",
    "Routing": "moe",
    "find_routers": "moe",
    "held_between_phases": "moe",
    "SurpriseTracker": "surprise",
    "TwoPhaseStep": "two_phase",
    "OnePassStep": "two_phase",
    "RetainGraphStep": "two_phase",
    "JointStep": "two_phase",
    "ReferenceModel": "reference",
    "precompute_reference": "reference",
    "trl_columns": "reference",
    "ReferenceCache": "reference_cache",
    "SequenceLogprobs": "preference",
    "sequence_logprobs": "preference",
    "npo_loss": "preference",
    "dpo_loss": "preference",
    "kl_to_reference": "preference",
    "FunctionalEdit": "edit",
    "Factors": "edit",
    "label_positions": "edit",
    "Mend": "mend",
    "MemoryMonitor": "monitor",
    "StepPeaks": "monitor",
    "JsonLines": "memory_log",
    "Csv": "memory_log",
    "to_tensorboard": "memory_log",
    "to_wandb": "memory_log",
    "to_accelerate": "memory_log",
    "trainer_callback": "callbacks",
    "lightning_callback": "callbacks",
    "BatchChoice": "batch_finder",
    "find_batch_size": "batch_finder",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
