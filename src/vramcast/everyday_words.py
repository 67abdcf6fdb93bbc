"""Words that people type, as the Job's own: `--batch-size 4`, `--qlora`, `--gpu 8xh100`, `--seq 8k`, `adamw_torch`.

`translate` takes keys and values from flags or a job file and gives them back in the Job's words, before anything is
parsed or checked. Only words with one meaning are known here; what is left is refused where it is parsed, with the
values that exist.

    translate({"batch-size": "4", "qlora": True, "gpu": "8xh100"})
    → {"batch": "4", "quantize": "nf4", "lora-rank": 16, "gpu": "h100", "gpus": 8}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramcast.errors import InputError

RANK = 16  # PEFT's examples, TRL's ModelConfig.lora_r, unsloth's notebooks

# Other names of a key, as the frameworks call it.
KEYS = {
    "batch-size": "batch",
    "micro-batch-size": "batch",
    "per-device-train-batch-size": "batch",
    "train-batch-size": "batch",
    "seq-len": "seq",
    "seq-length": "seq",
    "seqlen": "seq",
    "sequence-length": "seq",
    "sequence-len": "seq",
    "context-length": "seq",
    "cutoff-len": "seq",
    "max-length": "seq",
    "max-seq-len": "seq",
    "max-seq-length": "seq",
    "gradient-accumulation-steps": "accumulate",
    "gradient-accumulation": "accumulate",
    "grad-accum": "accumulate",
    "optim": "optimizer",
    "attn": "attention",
    "attn-implementation": "attention",
    "lora-r": "lora-rank",
    "lora-target-modules": "lora-targets",
    "target-modules": "lora-targets",
    "quantization": "quantize",
    "num-gpus": "gpus",
    "n-gpus": "gpus",
    "ngpus": "gpus",
    "gpu-count": "gpus",
    "tensor-parallel": "tp",
    "tensor-parallel-size": "tp",
    "tensor-model-parallel-size": "tp",
    "pipeline-parallel": "pp",
    "pipeline-parallel-size": "pp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-parallel-size": "ep",
    "expert-model-parallel-size": "ep",
    "ref-model": "reference",
}

# Switches that say several keys at once. A key that is said beside them wins.
SWITCHES: dict[str, dict[str, Any]] = {
    "lora": {"lora-rank": RANK},
    "qlora": {"quantize": "nf4", "lora-rank": RANK},
    "load-in-4bit": {"quantize": "nf4", "lora-rank": RANK},
    "load-in-8bit": {"quantize": "int8", "lora-rank": RANK},
    "gradient-checkpointing": {"checkpointing": "full"},
    "use-liger-kernel": {"loss": "fused", "kernels": ("norm", "rope", "mlp")},
    "liger": {"loss": "fused", "kernels": ("norm", "rope", "mlp")},
    "flash-attn": {"attention": "flash"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fsdp": {"strategy": "fsdp2"},
}
SWITCH_HELP = {
    "lora": f"LoRA of rank {RANK}",
    "qlora": f"LoRA of rank {RANK} over 4-bit weights",
    "gradient-checkpointing": "checkpointing full",
    "liger": "Liger's kernels: loss fused, kernels norm,rope,mlp",
}

# Other names of a value.
VALUES: dict[str, dict[str, str | None]] = {
    "attention": {
        "flash-attention": "flash",
        "flash-attention-2": "flash",
        "flash-attention-3": "flash",
        "flash-attn": "flash",
        "fa2": "flash",
        "fa3": "flash",
        "xformers": "efficient",
        "mem-efficient": "efficient",
    },
    "checkpointing": {"true": "full", "on": "full", "false": "none", "off": "none", "unsloth": "offload"},
    "loss": {"liger": "fused"},
    "optimizer": {
        "adamw-torch": "adamw",
        "adamw-torch-fused": "adamw",
        "adamw-hf": "adamw",
        "adamw-bnb-8bit": "adamw-8bit",
        "adam-8bit": "adamw-8bit",
        "adamw8bit": "adamw-8bit",
        "paged-adamw-32bit": "paged-adamw",
        "paged-adamw8bit": "paged-adamw-8bit",
        "lion-32bit": "lion",
        "galore-adamw": "galore",
    },
    "precision": {
        "float32": "fp32",
        "32": "fp32",
        "32-true": "fp32",
        "16-mixed": "fp16-mixed",
        "16-true": "fp16-true",
        "float16": "fp16-mixed",
        "fp16": "fp16-mixed",
        "half": "fp16-mixed",
        "bf16": None,
        "bfloat16": None,
    },
    "quantize": {"4bit": "nf4", "4-bit": "nf4", "8bit": "int8", "8-bit": "int8"},
    "strategy": {
        "fsdp": "fsdp2",
        "full-shard": "fsdp2",
        "zero-1": "zero1",
        "zero-2": "zero2",
        "zero-3": "zero3",
        "stage-1": "zero1",
        "stage-2": "zero2",
        "stage-3": "zero3",
        "deepspeed-zero1": "zero1",
        "deepspeed-zero2": "zero2",
        "deepspeed-zero3": "zero3",
    },
}  # fmt: skip
# What a value says beside its own key.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("optimizer", "adamw-torch-fused"): {"optimizer-impl": "fused"},
    ("optimizer", "adamw-torch"): {"optimizer-impl": "foreach"},
}
LENGTHS = ("seq", "target-seq", "longest-seq", "mean-seq", "rollout-tokens")
CARD_SIZE = re.compile(r"(\d+)\s*[gG]")  # a card of "24 GB" has 24 GiB
MANY_GPUS = re.compile(r"(\d+)\s*[x×*]\s*([A-Za-z].*)")
THOUSANDS = re.compile(r"(\d+)[kK]")


def translate(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the Job's own words. Two names of one key are an error, unless they say the same."""
    said: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in values.items():
        if name in SWITCHES:
            continue
        key = KEYS.get(name, name)
        if key in said and said[key] != value:
            raise InputError(f"{names[key]} and {name} mean the same: leave out one")
        said[key], names[key] = value, name
    for name in SWITCHES:
        if _is_on(values.get(name)):
            said = {**SWITCHES[name], **said}
    return _with_values(said)


def _is_on(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "yes", "on", "1")


def _with_values(said: dict[str, Any]) -> dict[str, Any]:
    beside: dict[str, Any] = {}
    for key, value in said.items():
        if isinstance(value, str | bool):
            word = str(value).lower().replace("_", "-")
            said[key] = VALUES.get(key, {}).get(word, value)
            beside |= BESIDE.get((key, word), {})
        if key in LENGTHS and isinstance(value, str):
            said[key] = _tokens(value)
    many = MANY_GPUS.fullmatch(str(said.get("gpu", "")).strip())
    if many is not None:
        if str(said.get("gpus", many[1])) != many[1]:
            raise InputError(f"gpu {said['gpu']} and gpus {said['gpus']} differ: give one of them")
        beside["gpus"] = int(many[1])
        said["gpu"] = many[2]
    size = CARD_SIZE.fullmatch(str(said.get("gpu", "")).strip())
    if size is not None:
        said["gpu"] = f"{size[1]}GiB"
    return {**beside, **said}


def _tokens(text: str) -> str | int:
    """8k tokens are 8,192."""
    thousands = THOUSANDS.fullmatch(text.strip())
    return text if thousands is None else int(thousands[1]) * 1024
