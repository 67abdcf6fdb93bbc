"""DeepSpeed's JSON. "auto" is what the Trainer fills in: its own batch, accumulation and precision.

Sources: deepspeed/runtime/zero/config.py, runtime/precision_config.py; transformers/integrations/deepspeed.py.
"""

from __future__ import annotations

import re

from vramcast.configs.framework import Framework, is_off, words
from vramcast.configs.hf_words import dtype_word
from vramcast.configs.model_parts import config_of
from vramcast.configs.records import Draft, Record, Settings, truth

STAGE_IN_NAME = re.compile(r"(?:zero[-_]?|z|stage[-_]?)([0-3])(?![0-9])", re.IGNORECASE)
WITHOUT_OFFLOAD = re.compile(r"(no|without|non)[-_]?(cpu[-_]?)?offload", re.IGNORECASE)
OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "lion": "lion",
    "sgd": "sgd",
    "muon": "muon",
    "adagrad": "adagrad",
}


def _read_zero(settings: Settings, draft: Draft) -> None:
    stage = settings.record("zero_optimization.stage")
    number = settings.number("zero_optimization.stage", default=0) or 0
    if not 0 <= number <= 3:
        draft.gap(stage, "ZeRO has the stages 0 to 3")
        return
    source: Record | str = stage or "DeepSpeed's zero_optimization.stage is 0 by default"
    draft.say("strategy", f"zero{number}" if number else "ddp", source)
    draft.facts["is_deepspeed"] = True
    for part, word in (("offload_optimizer", "optimizer"), ("offload_param", "all")):
        device = settings.record(f"zero_optimization.{part}.device")
        if device is not None and str(device.value).lower() in ("cpu", "nvme"):
            draft.replace("offload", word, device)
            draft.say("offload-device", str(device.value).lower(), device)
    bucket = settings.record("zero_optimization.reduce_bucket_size")
    if bucket is not None and str(bucket.value) != "auto":
        draft.say("reduce-bucket", int(float(bucket.value)), bucket)
    elif bucket is not None:
        hidden = hidden_size(draft)
        if hidden is not None:
            draft.say(
                "reduce-bucket",
                hidden**2,
                f'{bucket.place} "auto": hidden size {hidden}² as the Trainer fills in',
            )


def _read_defaults(settings: Settings, draft: Draft) -> None:
    """Limits that are not DeepSpeed's own are named; "auto" is the Trainer's."""
    for key, (default, text) in LIMITS.items():
        record = settings.record(f"zero_optimization.{key}")
        if record is None or str(record.value).lower() in ("auto", "none"):
            continue
        if _is_other(record.value, default):
            draft.gap(record, text)
    overlap = settings.record("zero_optimization.overlap_comm")
    if overlap is not None and not is_off(overlap.value) and draft.value("strategy") == "zero2":
        draft.gap(overlap, "the second bucket of overlapped communication is not counted")


def _is_other(value: object, default: float) -> bool:
    try:
        return float(str(value)) != default
    except ValueError:
        return True


COUNTED = "counted with DeepSpeed's default"
# deepspeed/runtime/zero/config.py. allgather_bucket_size cuts the gathering of weights that are there already.
LIMITS = {
    "zero_hpz_partition_size": (1, "ZeRO++'s second copy per node is not counted"),
    "mics_shard_size": (-1, "MiCS shards over part of the GPUs: say it with --shard-size"),
    "stage3_prefetch_bucket_size": (5e7, COUNTED),
    "stage3_param_persistence_threshold": (1e5, COUNTED),
    "stage3_max_live_parameters": (1e9, COUNTED),
    "stage3_max_reuse_distance": (1e9, COUNTED),
    "sub_group_size": (1e9, COUNTED),
    "offload_optimizer.ratio": (1.0, "the share that stays on the GPU is not counted: too little"),
}


def hidden_size(draft: Draft) -> int | None:
    config = config_of(draft)
    if config is None:
        return None
    inner = config.get("text_config")
    for data in (config, inner if isinstance(inner, dict) else {}):
        if isinstance(data.get("hidden_size"), int):
            return int(data["hidden_size"])
    return None


def _read_precision(settings: Settings, draft: Draft) -> None:
    for dtype in ("bf16", "fp16"):
        record = settings.record(
            f"{dtype}.enabled", "bfloat16.enabled" if dtype == "bf16" else f"{dtype}.enabled"
        )
        if record is not None and str(record.value).lower() != "auto" and truth(record):
            draft.facts["deepspeed"] = (dtype, record)
    settings.used.update(
        ("fp16.auto_cast", "bf16.check_grad_overflow", "bf16.immediate_grad_update")
    )
    for dtype in ("bf16", "fp16"):
        master = settings.record(f"{dtype}.{dtype}_master_weights_and_grads")
        if master is not None and not is_off(master.value):
            draft.say("master-dtype", "none", master)
        states = settings.record(f"{dtype}.{dtype}_optimizer_states")
        if states is not None and not is_off(states.value):
            draft.say("state-dtype", dtype, states)
    grads = settings.record("data_types.grad_accum_dtype")
    if grads is not None and dtype_word(grads.value) is not None:
        draft.say("grad-dtype", dtype_word(grads.value), grads)


def _read_batch(settings: Settings, draft: Draft) -> None:
    """ "auto" is the Trainer's; a number here must agree with it."""
    for key, word in (
        ("train_micro_batch_size_per_gpu", "batch"),
        ("gradient_accumulation_steps", "accumulate"),
    ):
        record = settings.record(key)
        if record is not None and str(record.value) != "auto" and word not in draft.said:
            draft.say(word, record.value, record)
    settings.used.add("train_batch_size")


def _read_optimizer(settings: Settings, draft: Draft) -> None:
    record = settings.record("optimizer.type")
    if record is None or "optimizer" in draft.said:
        settings.used.update(each.key for each in settings if each.key.startswith("optimizer."))
        return
    word = OPTIMIZERS.get(str(record.value).lower())
    if word is None:
        draft.gap(record, "no such optimizer is known; counted as AdamW")
    else:
        draft.say("optimizer", word, record)
    settings.used.update(each.key for each in settings if each.key.startswith("optimizer."))


def _read_parallel(settings: Settings, draft: Draft) -> None:
    stages = settings.record("pipeline.stages")
    if stages is not None and str(stages.value) != "auto":
        draft.say("pp", stages.value, stages)
    size = settings.record("tensor_parallel.autotp_size")
    if size is not None and (settings.number(size.key) or 1) > 1:
        draft.say("tp", size.value, size)
    cpu = settings.record("activation_checkpointing.cpu_checkpointing")
    if cpu is not None and not is_off(cpu.value):
        draft.gap(
            cpu, "works only for models that call DeepSpeed's own checkpoint function: not counted"
        )


def stage_from_name(name: str, record: Record, draft: Draft) -> bool:
    """`ds_z3_offload_config.json` is not here, but its name says what it is."""
    stage = STAGE_IN_NAME.search(name)
    if stage is None:
        return False
    draft.say("strategy", f"zero{stage[1]}" if stage[1] != "0" else "ddp", record)
    draft.facts["is_deepspeed"] = True
    told = f"{record.text}: not here; taken by its name as ZeRO-{stage[1]}"
    if "offload" in name.lower() and not WITHOUT_OFFLOAD.search(name):
        draft.say("offload", "all" if stage[1] == "3" else "optimizer", record)
        told += " with offload to the CPU"
    draft.assume(f"{told}. Give the file as well to have it read.")
    return True


DEEPSPEED = Framework(
    name="deepspeed",
    title="DeepSpeed",
    rules=(
        _read_zero,
        _read_precision,
        _read_batch,
        _read_optimizer,
        _read_parallel,
        _read_defaults,
    ),
    gaps={
        "zero_optimization.zero_quantized*": "ZeRO++'s quantised buffers are not counted",
        "zero_optimization.zenflow*": "ZenFlow is not described",
        "pipeline.stages": "DeepSpeed's pipeline: say its stages with --pp",
        "compression_training*": "compression is not described",
        "sparse_attention*": "sparse attention is not described",
    },
    no_effect=words(
        """
        train_batch_size gradient_clipping steps_per_print wall_clock_breakdown zero_allow_untested_optimizer
        scheduler* pipeline* zero_optimization.overlap_comm zero_optimization.contiguous_gradients
        zero_optimization.allgather* zero_optimization.reduce_scatter zero_optimization.round_robin_gradients
        zero_optimization.sub_group_size zero_optimization.stage3_* zero_optimization.offload_*.pin_memory
        zero_optimization.offload_*.buffer* zero_optimization.offload_*.nvme_path
        zero_optimization.offload_*.fast_init zero_optimization.offload_*.max_in_cpu
        zero_optimization.offload_*.pipeline* zero_optimization.offload_*.ratio
        zero_optimization.memory_efficient_linear zero_optimization.load_from_fp32_weights
        zero_optimization.elastic_checkpoint zero_optimization.ignore_unused* zero_optimization.cpu_offload
        zero_force_ds_cpu_optimizer activation_checkpointing* aio* tensorboard* wandb* comms_config*
        csv_monitor* flops_profiler* comms_logger* communication_data_type prescale_gradients
        gradient_predivide_factor checkpoint* dump_state elasticity* autotuning* sparse_gradients
        memory_breakdown amp* seq_parallel* tensor_parallel* bf16 fp16 zero_optimization monitor_config*
        fp16.loss_scale* fp16.initial_scale* fp16.hysteresis fp16.min_loss* fp16.consecutive* bf16.loss_scale*
        bf16.initial_scale* bf16.hysteresis bf16.min_loss* bfloat16.loss* dataloader_drop_last
        use_data_before_expert* zero_optimization.gather_16bit* log.*
        """
    ),
    marks={
        "zero_optimization*": 6,
        "train_micro_batch_size_per_gpu": 3,
        "zero_allow_untested_optimizer": 2,
        "bf16.enabled": 1,
    },
)
