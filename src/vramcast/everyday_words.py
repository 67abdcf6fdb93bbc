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

from vramcast.errors import InputError, UnsupportedError

ZERO_STAGE = "zero-stage"
# Other names of a key, as the frameworks call it.
KEYS = {
    "model-name-or-path": "model",
    "pretrained-model-name-or-path": "model",
    "model-name": "model",
    "model-id": "model",
    "base-model": "model",
    "rlhf-type": "task",
    "batch-size": "batch",
    "micro-batch-size": "batch",
    "per-device-train-batch-size": "batch",
    "train-batch-size": "batch",
    "per-device-batch-size": "batch",
    "per-gpu-train-batch-size": "batch",
    "per-gpu-batch-size": "batch",
    "train-micro-batch-size-per-gpu": "batch",
    "bsz": "batch",
    "bs": "batch",
    "seq-len": "seq",
    "seq-length": "seq",
    "seqlen": "seq",
    "sequence-length": "seq",
    "sequence-len": "seq",
    "context-length": "seq",
    "context-len": "seq",
    "context-window": "seq",
    "ctx-len": "seq",
    "max-len": "seq",
    "max-seqlen": "seq",
    "max-context-length": "seq",
    "model-max-length": "seq",
    "cutoff-len": "seq",
    "max-length": "seq",
    "max-seq-len": "seq",
    "max-seq-length": "seq",
    "gradient-accumulation-steps": "accumulate",
    "gradient-accumulation": "accumulate",
    "grad-accum": "accumulate",
    "grad-accum-steps": "accumulate",
    "grad-accumulation-steps": "accumulate",
    "accumulation-steps": "accumulate",
    "accumulate-grad-batches": "accumulate",
    "optim": "optimizer",
    "attn": "attention",
    "attn-implementation": "attention",
    "lora-r": "lora-rank",
    "lora-dim": "lora-rank",
    "r": "lora-rank",
    "lora-target": "lora-targets",
    "lora-modules": "lora-targets",
    "lora-target-modules": "lora-targets",
    "target-modules": "lora-targets",
    "quantization": "quantize",
    "quantization-bit": "quantize",
    "quant-bits": "quantize",
    "bits": "quantize",
    "finetuning-type": "tuning",
    "tuning-type": "tuning",
    "tuner-type": "tuning",
    "train-type": "tuning",
    "sft-type": "tuning",
    "max-prompt-length": "prompt-tokens",
    "max-completion-length": "rollout-tokens",
    "max-response-length": "rollout-tokens",
    "deepspeed": "strategy",
    "gpu-type": "gpu",
    "gpu-name": "gpu",
    "nproc-per-node": "gpus",
    "num-processes": "gpus",
    "num-devices": "gpus",
    "world-size": "gpus",
    "devices": "gpus",
    "n-gpu": "gpus",
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
    "use-lora": {"tuning": "lora"},
    "use-peft": {"tuning": "lora"},
    "use-qlora": {"tuning": "qlora"},
    "load-4bit": {"tuning": "qlora"},
    "use-4bit": {"tuning": "qlora"},
    "load-8bit": {"tuning": "lora", "quantize": "int8"},
    "use-8bit": {"tuning": "lora", "quantize": "int8"},
    "use-dora": {"dora": True},
    "use-gradient-checkpointing": {"checkpointing": "full"},
    "grad-checkpointing": {"checkpointing": "full"},
    "activation-checkpointing": {"checkpointing": "full"},
    "enable-activation-checkpointing": {"checkpointing": "full"},
    "torch-compile": {"compile": True},
    "use-liger-kernel": {"loss": "fused", "kernels": ("norm", "rope", "mlp")},
    "liger": {"loss": "fused", "kernels": ("norm", "rope", "mlp")},
    "flash-attn": {"attention": "flash"},
    "flash-attention": {"attention": "flash"},
    "flash-attention-2": {"attention": "flash"},
    "use-flash-attn": {"attention": "flash"},
    "use-flash-attention-2": {"attention": "flash"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fsdp": {"strategy": "fsdp2"},
    "grad-reduce-in-bf16": {"grad-dtype": "bf16"},
    "fp8-param-gather": {"fp8-gather": True},
    "disable-cuda-graph": {"enforce-eager": True},
}
# What a switch says that is switched off, where that is more than nothing: a framework may have it on.
OFF: dict[str, dict[str, Any]] = {
    **{name: {"tuning": "full"} for name in ("lora", "use-lora", "use-peft")},
    **{
        name: {"checkpointing": "none"}
        for name, said in SWITCHES.items()
        if "checkpointing" in said
    },
}
DOUBLE_QUANT = ("double-quant", "use-bnb-nested-quant", "bnb-4bit-use-double-quant")
SWITCHES |= {name: {"quantize": "nf4-double"} for name in DOUBLE_QUANT}
SWITCH_HELP = {
    "lora": "LoRA, of the framework's usual rank",
    "qlora": "LoRA over 4-bit weights",
    "gradient-checkpointing": "checkpointing full",
    "liger": "Liger's kernels: loss fused, kernels norm,rope,mlp",
}

# Other names of a value.
VALUES: dict[str, dict[str, str | None]] = {
    "framework": {
        "transformers": "hf",
        "huggingface": "hf",
        "hugging-face": "hf",
        "trainer": "hf",
        "hf-trainer": "hf",
        "peft": "hf",
        "pytorch": "plain",
        "torch": "plain",
        "pytorch-lightning": "lightning",
        "llamafactory": "llama-factory",
        "llama-factory-cli": "llama-factory",
        "swift": "ms-swift",
        "megatron-lm": "megatron",
        "lit-gpt": "litgpt",
        "nemo-automodel": "nemo",
    },
    "task": {
        "finetune": "sft",
        "fine-tune": "sft",
        "finetuning": "sft",
        "fine-tuning": "sft",
        "instruction-tuning": "sft",
        "pt": "pretrain",
        "pretraining": "pretrain",
        "pre-training": "pretrain",
        "continued-pretraining": "pretrain",
        "cpt": "pretrain",
        "mlm": "pretrain",
        "masked-lm": "pretrain",
        "classification": "classify",
        "text-classification": "classify",
        "sequence-classification": "classify",
        "seq-cls": "classify",
        "seq-classification": "classify",
        "ner": "classify-tokens",
        "token-cls": "classify-tokens",
        "token-classification": "classify-tokens",
        "ipo": "dpo",
        "rm": "reward",
        "reward-model": "reward",
        "reward-modeling": "reward",
        "distillation": "distill",
        "embedding": "embed",
        "embeddings": "embed",
        "inference": "generate",
        "generation": "generate",
    },
    "tuning": {"full-finetune": "full", "full-finetuning": "full", "full-parameter": "full"},
    "lora-targets": {"all": "all-linear"},
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
        "adam8bit": "adamw-8bit",
        "8bit-adam": "adamw-8bit",
        "8bit-adamw": "adamw-8bit",
        "adamw-8-bit": "adamw-8bit",
        "fused-adamw": "adamw",
        "adamw-fused": "adamw",
        "fusedadam": "adamw",
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
        "paged-adam-8bit": "paged-adamw-8bit",
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
        "4": "nf4",
        "8": "int8",
        "bnb": "nf4",
        "bnb-4bit": "nf4",
        "bnb-8bit": "int8",
        "bnb.nf4": "nf4",
        "bnb.nf4-dq": "nf4-double",
        "nf4-dq": "nf4-double",
        "bitsandbytes": "nf4",
        "awq-marlin": "awq",
        "gptq-marlin": "gptq",
    },
    "engine": {"llama-cpp": "llama.cpp", "llamacpp": "llama.cpp", "llama-server": "llama.cpp"},
    "strategy": {
        "fsdp": "fsdp2",
        "full-shard": "fsdp2",
        "fsdp-v2": "fsdp2",
        "fsdp-v1": "fsdp1",
        "dp": "ddp",
        "data-parallel": "ddp",
        "distributed-data-parallel": "ddp",
        "zero-1": "zero1",
        "zero-2": "zero2",
        "zero-3": "zero3",
        "stage-1": "zero1",
        "stage-2": "zero2",
        "stage-3": "zero3",
        "deepspeed-zero1": "zero1",
        "deepspeed-zero2": "zero2",
        "deepspeed-zero3": "zero3",
        "stage1": "zero1",
        "stage2": "zero2",
        "stage3": "zero3",
        "deepspeed-stage-1": "zero1",
        "deepspeed-stage-2": "zero2",
        "deepspeed-stage-3": "zero3",
        "zero2-offload": "zero2",
        "zero3-offload": "zero3",
        "deepspeed-stage-2-offload": "zero2",
        "deepspeed-stage-3-offload": "zero3",
    },
}  # fmt: skip
# What a value says beside its own key.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("optimizer", "adamw-torch-fused"): {"optimizer-impl": "fused"},
    ("optimizer", "fused-adamw"): {"optimizer-impl": "fused"},
    ("optimizer", "adamw-fused"): {"optimizer-impl": "fused"},
    ("optimizer", "fusedadam"): {"optimizer-impl": "fused"},
    ("optimizer", "adamw-torch"): {"optimizer-impl": "foreach"},
    ("strategy", "zero2-offload"): {"offload": "optimizer"},
    ("strategy", "zero3-offload"): {"offload": "all"},
    ("strategy", "deepspeed-stage-2-offload"): {"offload": "optimizer"},
    ("strategy", "deepspeed-stage-3-offload"): {"offload": "all"},
    ("adapter", "dora"): {"dora": True},
    ("adapter", "qlora"): {"tuning": "qlora"},
}
# Words with more than one meaning, or none as they stand, and what to say instead.
ADAPTED = "--qlora (adapters over 4-bit weights) or --load-in-8bit"
ZERO_STAGES = "zero1, zero2 or zero3"
INSTEAD: dict[tuple[str, str], str] = {
    **dict.fromkeys((("strategy", word) for word in ("deepspeed", "zero")), ZERO_STAGES),
    **dict.fromkeys((("strategy", word) for word in ("tp", "tensor-parallel")), "--tp N"),
    **dict.fromkeys((("strategy", word) for word in ("pp", "pipeline-parallel")), "--pp N"),
    **dict.fromkeys(
        (("precision", word) for word in ("int4", "nf4", "4bit", "int8", "8bit")), ADAPTED
    ),
    **dict.fromkeys((("precision", word) for word in ("mixed", "amp")), "bf16-mixed or fp16-mixed"),
    ("offload", "cpu"): "optimizer, params, activations or all",
    ("task", "rlhf"): "dpo, grpo or ppo",
    ("task", "simpo"): "orpo (pairs without a reference, too)",
    ("task", "cpo"): "orpo (pairs without a reference, too)",
}
# Flags of other tools that no field stands for, and what to say instead.
DTYPES = "--precision, or --weights-dtype (--frozen-dtype beside adapters)"
WHOLE_BATCH = "--batch, which is per card, and --accumulate"
OFFLOADS = "--offload optimizer, params, activations or all"
NODES = "--gpus (of all nodes together) and --gpus-per-node"
SIZE = "--gpu with a size, such as --gpu 24GiB"
FLAGS_INSTEAD = {
    **dict.fromkeys(("dtype", "torch-dtype", "model-dtype"), DTYPES),
    **dict.fromkeys(("global-batch-size", "total-batch-size", "effective-batch-size"), WHOLE_BATCH),
    **dict.fromkeys(
        ("cpu-offload", "offload-optimizer", "offload-optimizer-device", "offload-param"), OFFLOADS
    ),
    **dict.fromkeys(("nnodes", "nodes", "num-nodes", "num-machines"), NODES),
    **dict.fromkeys(("vram", "vram-gb", "gpu-memory", "gpu-ram", "memory"), SIZE),
    **dict.fromkeys(("method", "peft", "peft-method"), "--tuning full, lora or qlora"),
    **dict.fromkeys(("stage", "trainer"), "--task"),
    **dict.fromkeys(
        ("packing", "sample-packing", "packed"), "--batch 1 and the length of a packed row as --seq"
    ),
    "bnb-4bit-compute-dtype": "--precision",
    "num-generations": "--batch, which counts completions",
    "scheduler": "--strategy",
}
NO_MEMORY = frozenset({
    "epochs", "num-epochs", "num-train-epochs", "max-steps", "lr", "learning-rate", "lr-scheduler",
    "lr-scheduler-type", "warmup-ratio", "warmup-steps", "weight-decay", "lora-alpha", "use-rslora", "seed",
    "logging-steps", "logging-dir", "save-steps", "eval-steps", "save-strategy", "save-total-limit",
    "output-dir", "overwrite-output-dir", "run-name", "report-to", "push-to-hub", "adam-beta1", "adam-beta2",
    "adam-epsilon", "beta", "temperature", "template",
})  # fmt: skip
LENGTHS = ("seq", "target-seq", "longest-seq", "mean-seq", "rollout-tokens", "max-model-len")
CARD_SIZE = re.compile(r"(\d+)\s*[gG]")  # a card of "24 GB" has 24 GiB
GGUF_TYPE = re.compile(r"i?q[1-8](_\w+)?|tq[12]_0|mxfp4_moe|b?f16|f32")
THOUSANDS = re.compile(r"(\d+)[kK]")


def translate(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the Job's own words. Two names of one key are an error, unless they say the same."""
    said: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in _with_stage(values).items():
        if name in SWITCHES:
            continue
        key = KEYS.get(name, name)
        if key in said and said[key] != value:
            raise InputError(f"{names[key]} and {name} mean the same: leave out one")
        said[key], names[key] = value, name
    said = {**_switched_off(values), **_of_switches(values, said), **said}
    said = _with_values(_with_gguf(said))
    if said.get("quantize") == "nf4" and any(_is_on(values.get(name)) for name in DOUBLE_QUANT):
        said["quantize"] = "nf4-double"
    return said


def instead_of(flag: str) -> str | None:
    """What to say instead of another tool's flag, as words behind it; None where the flag is not known."""
    if flag in NO_MEMORY:
        return "changes no memory: leave it out"
    return f"here: {FLAGS_INSTEAD[flag]}" if flag in FLAGS_INSTEAD else None


def _with_stage(values: Mapping[str, Any]) -> dict[str, Any]:
    """`--zero-stage 3` as `--strategy zero3`."""
    said = {name: value for name, value in values.items() if name != ZERO_STAGE}
    if str(values.get("deepspeed", "")).lower().endswith(".json"):
        raise InputError(f"deepspeed {values['deepspeed']} is a file: give it with --from")
    if ZERO_STAGE in values:
        stage = str(values[ZERO_STAGE]).strip()
        if stage not in ("0", "1", "2", "3"):
            raise InputError(f"{ZERO_STAGE} must be 0, 1, 2 or 3, not {stage!r}")
        said.setdefault("strategy", "ddp" if stage == "0" else f"zero{stage}")
    return said


def _switched_off(values: Mapping[str, Any]) -> dict[str, Any]:
    """What switches say that are there and off, as launch scripts have them: `--lora false`."""
    off = [name for name in SWITCHES if name in values and not _is_on(values[name])]
    return {key: value for name in off for key, value in OFF.get(name, {}).items()}


def _of_switches(values: Mapping[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """What the switches that are on say together. QLoRA is LoRA, too: `--lora --load-in-4bit` says QLoRA."""
    on = [name for name in SWITCHES if _is_on(values.get(name))]
    together: dict[str, Any] = {}
    whose: dict[str, str] = {}
    for name in on:
        for key, value in SWITCHES[name].items():
            if (
                key in together
                and together[key] != value
                and not _is_qlora(key, together[key], value)
            ):
                raise InputError(f"{whose[key]} and {name} contradict each other: leave out one")
            together[key] = "qlora" if _is_qlora(key, together.get(key), value) else value
            whose[key] = name
    _check_tuning(together, whose, said)
    return together


def _is_qlora(key: str, one: Any, other: Any) -> bool:
    return key == "tuning" and {one, other} == {"lora", "qlora"}


def _check_tuning(together: dict[str, Any], whose: dict[str, str], said: dict[str, Any]) -> None:
    """A key that is said beside a switch wins, where it says how, and not the opposite."""
    tuning = str(said.get("tuning", "")).lower()
    if tuning == "full" and "tuning" in together:
        raise InputError(f"{whose['tuning']} and tuning full contradict each other: leave out one")
    if tuning and _is_qlora("tuning", tuning, together.get("tuning")):
        said["tuning"] = "qlora"
    if together.get("tuning") == "qlora" and together.get("quantize") == "int8":
        raise InputError("qlora and load-in-8bit contradict each other: leave out one")


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
        if isinstance(value, str | bool | int):
            word = str(value).lower().replace("_", "-")
            if (key, word) in INSTEAD:
                raise UnsupportedError(f"unknown {key} {value!r}: say {INSTEAD[key, word]}")
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
