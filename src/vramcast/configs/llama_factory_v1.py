"""LLaMA-Factory's second schema (`examples/v1`): groups for adapters, kernels, distribution and quantisation.

Source: llamafactory/v1/config/*.py.
"""

from __future__ import annotations

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import read_attention, targets_of
from vramcast.configs.records import Draft, Settings


def _read_model(settings: Settings, draft: Draft) -> None:
    model = settings.record("model")
    draft.say("model", model.value if model else None, model)
    kind = settings.text("peft_config.name")
    rank = settings.record("peft_config.r", "peft_config.rank")
    if kind == "lora":
        draft.say(
            "lora-rank",
            8 if rank is None else rank.value,
            rank or settings.record("peft_config.name"),
        )
        targets = settings.record("peft_config.target_modules")
        draft.say("lora-targets", targets_of(targets.value) if targets else None, targets)
        dropout = settings.record("peft_config.lora_dropout")
        draft.say("lora-dropout", dropout.value if dropout else None, dropout)
    elif kind == "freeze":
        draft.gap(
            settings.record("peft_config.name"), "which layers stay frozen: say it with --freeze"
        )
    bits = settings.record("quant_config.quantization_bit")
    if bits is not None:
        draft.say("quantize", "int8" if str(bits.value) == "8" else "nf4-double", bits)


def _read_training(settings: Settings, draft: Draft) -> None:
    micro, length = settings.record("micro_batch_size"), settings.record("cutoff_len")
    draft.say(
        "batch",
        1 if micro is None else micro.value,
        micro or "LLaMA-Factory's micro_batch_size is 1 by default",
    )
    draft.say(
        "seq",
        2048 if length is None else length.value,
        length or "LLaMA-Factory's cutoff_len is 2048 by default",
    )
    bf16 = settings.record("bf16")
    checkpointing = settings.record("enable_activation_checkpointing")
    is_on = checkpointing is None or settings.is_on(checkpointing.key)
    source = checkpointing or "LLaMA-Factory v1 checkpoints by default"
    draft.say("checkpointing", "full" if is_on else "none", source)
    is_bf16 = bf16 is None or settings.is_on("bf16")
    draft.facts["compute"] = (
        "bf16" if is_bf16 else "no",
        bf16 or "LLaMA-Factory v1's bf16 is on by default",
    )
    draft.facts["weights"] = (
        "bf16" if is_bf16 else "fp32",
        bf16 or "LLaMA-Factory v1's bf16 is on by default",
    )
    draft.say("optimizer-impl", "foreach", "LLaMA-Factory v1: AdamW of torch")
    read_attention(settings, draft, "flash_attn")
    strategy = settings.record("dist_config.name")
    if strategy is not None and str(strategy.value) == "fsdp2":
        draft.say("strategy", "fsdp2", strategy)
    size = settings.record("dist_config.cp_size", "cp_size")
    if size is not None:
        draft.say("cp", size.value, size)
        draft.say(
            "cp-style", settings.text("dist_config.cp_mode", "cp_mode", default="ulysses"), size
        )


LLAMA_FACTORY_V1 = Framework(
    name="llama-factory-v1",
    title="LLaMA-Factory v1",
    rules=(_read_model, _read_training),
    gaps={
        "batching_strategy": "a batch by tokens: say it with --batch 1 --seq",
        "kernel_config.include_kernels": "kernels: say them with --kernels",
        "optim_config.name": "another optimizer: say it with --optimizer",
        "dist_config.ep_size": "expert parallelism: say it with --ep",
    },
    no_effect=words(
        """
        peft_config.lora_alpha peft_config.adapter_name_or_path model_class trust_remote_code output_dir
        train_dataset eval_dataset learning_rate max_steps
        num_train_epochs global_batch_size sample_backend max_new_tokens kernel_config* dist_config*
        quant_config* peft_config* init_config* optim_config* lr_scheduler_config* warmup_ratio weight_decay
        max_grad_norm template save_* logging_* seed report_to adapter_name_or_path num_workers batching_workers
        rlhf* *_dataset data_*
        """
    ),
    marks={
        "model_class": 4,
        "train_dataset": 3,
        "dist_config.name": 5,
        "peft_config.name": 4,
        "kernel_config.name": 4,
        "micro_batch_size": 1,
        "cutoff_len": 1,
        "batching_strategy": 3,
    },
)
