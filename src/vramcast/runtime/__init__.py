"""Pieces used inside a training job. Names load their module when first used, so none pays for another."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULE_OF = {
    "LowMemDataset": "data.dataset",
    "rewrite_row_groups": "data.rewrite",
    "RowGroupSampler": "data.sampling",
    "PromptResponse": "data.text",
    "TokenizeCollate": "data.text",
    "LoaderNeeds": "data.loader",
    "LoaderPolicy": "data.loader",
    "loader_policy": "data.loader",
    "return_large_blocks": "data.loader",
    "GraphCut": "training.graph_cut",
    "as_leaf": "training.graph_cut",
    "AuxCollector": "training.moe",
    "Routing": "training.routers",
    "find_routers": "training.routers",
    "held_between_phases": "training.moe",
    "SurpriseTracker": "training.surprise",
    "TwoPhaseStep": "training.two_phase",
    "OnePassStep": "training.two_phase",
    "RetainGraphStep": "training.two_phase",
    "JointStep": "training.two_phase",
    "ReferenceModel": "training.reference",
    "precompute_reference": "training.reference",
    "trl_columns": "training.reference",
    "ReferenceCache": "training.reference_cache",
    "SequenceLogprobs": "training.preference",
    "sequence_logprobs": "training.preference",
    "npo_loss": "training.preference",
    "dpo_loss": "training.preference",
    "kl_to_reference": "training.preference",
    "FunctionalEdit": "training.edit",
    "Factors": "training.edit",
    "label_positions": "training.edit",
    "Mend": "training.mend",
    "MemoryMonitor": "monitor.monitor",
    "StepPeaks": "monitor.monitor",
    "JsonLines": "monitor.memory_log",
    "Csv": "monitor.memory_log",
    "to_tensorboard": "monitor.memory_log",
    "to_wandb": "monitor.memory_log",
    "to_accelerate": "monitor.memory_log",
    "trainer_callback": "monitor.callbacks",
    "lightning_callback": "monitor.callbacks",
    "BatchChoice": "training.batch_finder",
    "find_batch_size": "training.batch_finder",
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
