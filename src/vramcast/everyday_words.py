"""Words that people type, as the Job's own: `--batch-size 4`, `--qlora`, `--gpu 8xh100`, `--seq 8k`, `adamw_torch`.

`translate` takes keys and values from flags or a job file and gives them back in the Job's words, before anything is
parsed or checked. Only words with one meaning are known here; what is left is refused where it is parsed, with the
values that exist.

    translate({"batch-size": "4", "qlora": True, "gpu": "8xh100"})
    → {"batch": "4", "tuning": "qlora", "gpu": "h100", "gpus": 8}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramcast.errors import InputError

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
    "adapter-dtype": "lora-dtype",
    "adapter-rank": "lora-rank",
    "peft-type": "adapter",
    "num-virtual-tokens": "virtual-tokens",
    "oft-block-size": "adapter-block",
    "boft-block-size": "adapter-block",
    "encoder-hidden-size": "prompt-hidden",
    "gradient-dtype": "grad-dtype",
    "grad-accum-dtype": "grad-dtype",
    "main-grads-dtype": "grad-dtype",
    "main-params-dtype": "master-dtype",
    "optimizer-dtype": "state-dtype",
    "num-labels": "labels",
    "mem-fraction-static": "gpu-memory-utilization",
    "cuda-memory-fraction": "gpu-memory-utilization",
    "ctx-size": "max-model-len",
    "n-ctx": "max-model-len",
    "max-total-tokens": "max-model-len",
    "max-running-requests": "max-num-seqs",
    "parallel": "max-num-seqs",
    "chunked-prefill-size": "max-num-batched-tokens",
    "max-batch-prefill-tokens": "max-num-batched-tokens",
    "ubatch-size": "max-num-batched-tokens",
    "cache-type": "kv-cache-dtype",
    "n-gpu-layers": "gpu-layers",
    "ngl": "gpu-layers",
    "n-cpu-moe": "cpu-moe-layers",
    "tp-size": "tp",
    "pp-size": "pp",
}

# Switches that say several keys at once. A key that is said beside them wins.
SWITCHES: dict[str, dict[str, Any]] = {
    "lora": {"tuning": "lora"},
    "qlora": {"tuning": "qlora"},
    "load-in-4bit": {"tuning": "qlora"},
    "load-in-8bit": {"tuning": "lora", "quantize": "int8"},
    "gradient-checkpointing": {"checkpointing": "full"},
    "use-liger-kernel": {"loss": "fused", "kernels": ("norm", "rope", "mlp")},
    "liger": {"loss": "fused", "kernels": ("norm", "rope", "mlp")},
    "flash-attn": {"attention": "flash"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fsdp": {"strategy": "fsdp2"},
    "grad-reduce-in-bf16": {"grad-dtype": "bf16"},
    "fp8-param-gather": {"fp8-gather": True},
    "disable-cuda-graph": {"enforce-eager": True},
}
SWITCH_HELP = {
    "lora": "LoRA, of the framework's usual rank",
    "qlora": "LoRA over 4-bit weights",
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
    "adapter": {
        "rslora": "lora",
        "dora": "lora",
        "qlora": "lora",
        "pissa": "lora",
        "prompt-tuning": "prompt",
        "prefix-tuning": "prefix",
        "prompt-encoder": "p-tuning",
        "ptuning": "p-tuning",
        "lntuning": "ln-tuning",
        "layernorm": "ln-tuning",
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
        "adamw-torch-8bit": "adamw-torchao-8bit",
        "adamw-torch-4bit": "adamw-torchao-4bit",
        "ao-adamw-8bit": "adamw-torchao-8bit",
        "ao-adamw-4bit": "adamw-torchao-4bit",
        "lion8bit": "lion-8bit",
        "paged-lion-32bit": "paged-lion",
        "paged-ademamix-32bit": "paged-ademamix",
        "schedule-free": "schedule-free-adamw",
        "apollo-adamw": "apollo",
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
    "quantize": {
        "4bit": "nf4",
        "4-bit": "nf4",
        "8bit": "int8",
        "8-bit": "int8",
        "bitsandbytes": "nf4",
        "awq-marlin": "awq",
        "gptq-marlin": "gptq",
    },
    "engine": {"llama-cpp": "llama.cpp", "llamacpp": "llama.cpp", "llama-server": "llama.cpp"},
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
    ("adapter", "dora"): {"dora": True},
    ("adapter", "qlora"): {"tuning": "qlora"},
}
LENGTHS = ("seq", "target-seq", "longest-seq", "mean-seq", "rollout-tokens", "max-model-len")
CARD_SIZE = re.compile(r"(\d+)\s*[gG]")  # a card of "24 GB" has 24 GiB
GGUF_TYPE = re.compile(r"i?q[1-8](_\w+)?|tq[12]_0|mxfp4_moe|b?f16|f32")
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
    return _with_values(_with_gguf(said))


def _with_gguf(said: dict[str, Any]) -> dict[str, Any]:
    """`--quantize Q4_K_M` names a file of llama.cpp."""
    word = str(said.get("quantize", "")).lower()
    if GGUF_TYPE.fullmatch(word):
        rest = {key: value for key, value in said.items() if key != "quantize"}
        return {"gguf": word, **rest}
    if isinstance(said.get("gguf"), str):
        return {**said, "gguf": said["gguf"].lower()}
    return said


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
    if isinstance(said.get("gpu"), str):
        beside |= _count_cards(said)
    size = CARD_SIZE.fullmatch(str(said.get("gpu", "")).strip())
    if size is not None:
        said["gpu"] = f"{size[1]}GiB"
    return {**beside, **said}


def _count_cards(said: dict[str, Any]) -> dict[str, Any]:
    """How many cards the name says, beside which one. Of a machine some may be used, or several machines."""
    # Upward and here: a machine's name is two of the Job's words, and the catalog is read only when a card is named.
    from vramcast.catalog.hardware import count_cards

    text = said["gpu"]
    cards = count_cards(text)
    said["gpu"] = cards.card
    if cards.count is None:
        return {}
    gpus = str(said.get("gpus", cards.count))
    per_node = cards.per_node or cards.count
    is_part = cards.per_node is not None and gpus.isdecimal() and 0 < int(gpus) < per_node
    is_several = cards.per_node is not None and gpus.isdecimal() and int(gpus) % per_node == 0
    if gpus != str(cards.count) and not is_part and not is_several:
        raise InputError(f"gpu {text} and gpus {gpus} differ: give one of them")
    beside: dict[str, Any] = {"gpus": cards.count}
    if cards.per_node is not None and int(gpus) > cards.per_node:
        beside["gpus-per-node"] = cards.per_node
    return beside


def _tokens(text: str) -> str | int:
    """8k tokens are 8,192."""
    thousands = THOUSANDS.fullmatch(text.strip())
    return text if thousands is None else int(thousands[1]) * 1024
