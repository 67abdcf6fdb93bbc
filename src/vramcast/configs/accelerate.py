"""The YAML of `accelerate config`: how many processes, what they share, and in which precision.

Source: accelerate/commands/config/config_args.py, utils/dataclasses.py. Old files say FULL_SHARD as 1 and leave the
`fsdp_` out.
"""

from __future__ import annotations

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import checkpoint_by_fsdp
from vramcast.configs.records import Draft, Record, Settings

GRADIENTS_ONLY = ("shard_grad_op", "2", "false")
HYBRID = ("hybrid_shard", "hybrid_shard_zero2", "4", "5")
NO_SHARD = ("no_shard", "3")


def _read(settings: Settings, draft: Draft) -> None:
    kind = settings.text("distributed_type", default="no")
    processes = settings.record("num_processes")
    machines = settings.number("num_machines", default=1) or 1
    if processes is not None:
        draft.say("gpus", settings.number("num_processes"), processes)
        if machines > 1:
            draft.say(
                "gpus-per-node", (settings.number("num_processes") or 1) // machines, processes
            )
    _read_precision(settings, draft)
    if kind == "fsdp":
        read_fsdp(settings, draft)
    elif kind == "deepspeed":
        _read_deepspeed(settings, draft)
    elif kind == "multi_gpu" and (settings.number("num_processes") or 1) > 1:
        draft.say("strategy", "ddp", settings.record("distributed_type"))
    settings.under("parallelism_config") if kind == "no" else _read_sizes(settings, draft)
    if settings.text("dynamo_config.dynamo_backend", default="no") != "no":
        draft.say("compile", True, settings.record("dynamo_config.dynamo_backend"))
    settings.under("dynamo_config")


def _read_precision(settings: Settings, draft: Draft) -> None:
    record = settings.record("mixed_precision")
    if record is None:
        return
    word = str(record.value).lower()
    if word == "fp8":
        draft.gap(record, "accelerate's fp8 is counted as bf16")
        word = "bf16"
    draft.facts.setdefault("compute", (word if word in ("bf16", "fp16") else "no", record))


def read_fsdp(settings: Settings, draft: Draft) -> None:
    said = _fsdp(settings)
    version = said.get("version")
    is_second = version is not None and str(version.value) == "2"
    source = version or settings.record("distributed_type") or next(iter(said.values()), None)
    sharding = said.get("sharding_strategy") or said.get("reshard_after_forward")
    word = str(sharding.value).lower() if sharding is not None else "full_shard"
    if word in NO_SHARD:
        draft.say("strategy", "ddp", sharding)
        return
    draft.say("strategy", "fsdp2" if is_second else "fsdp1", source)
    if word in GRADIENTS_ONLY:
        draft.say("reshard", False, sharding)
    if word in HYBRID:
        draft.say("shard-size", draft.value("gpus-per-node", 8), sharding)
    offload = said.get("offload_params")
    if offload is not None and str(offload.value).lower() == "true":
        draft.say("offload", "all", offload)
    checkpointing = said.get("activation_checkpointing")
    if checkpointing is not None and str(checkpointing.value).lower() == "true":
        checkpoint_by_fsdp(checkpointing, draft)
        draft.say("reentrant", False, checkpointing)


def _fsdp(settings: Settings) -> dict[str, Record]:
    found = settings.under("fsdp_config")
    return {each.key.removeprefix("fsdp_config.").removeprefix("fsdp_"): each for each in found}


def _read_deepspeed(settings: Settings, draft: Draft) -> None:
    """DeepSpeed said inside the file; a `deepspeed_config_file` was followed before."""
    stage = settings.record("deepspeed_config.zero_stage")
    if stage is not None:
        number = settings.number("deepspeed_config.zero_stage") or 0
        draft.say("strategy", f"zero{number}" if number else "ddp", stage)
        draft.facts["is_deepspeed"] = True
    for key in ("offload_optimizer_device", "offload_param_device"):
        record = settings.record(f"deepspeed_config.{key}")
        if record is not None and str(record.value).lower() in ("cpu", "nvme"):
            draft.replace("offload", "all" if "param" in key else "optimizer", record)
            draft.say("offload-device", str(record.value).lower(), record)
    accumulate = settings.record("deepspeed_config.gradient_accumulation_steps")
    if (
        accumulate is not None
        and str(accumulate.value) != "auto"
        and "accumulate" not in draft.said
    ):
        draft.say("accumulate", accumulate.value, accumulate)
    settings.under("deepspeed_config")


def _read_sizes(settings: Settings, draft: Draft) -> None:
    """`parallelism_config`: sizes of the mesh."""
    for key, word in (
        ("tp_size", "tp"),
        ("cp_size", "cp"),
        ("dp_shard_size", "shard-size"),
        ("sp_size", "cp"),
    ):
        record = settings.record(
            f"parallelism_config.parallelism_config_{key}", f"parallelism_config.{key}"
        )
        if record is not None and (settings.number(record.key) or 1) > 1:
            draft.say(word, settings.number(record.key), record)
            if key == "sp_size":
                draft.say("cp-style", "ulysses", record)
    settings.under("parallelism_config")


ACCELERATE = Framework(
    name="accelerate",
    title="accelerate config",
    rules=(_read,),
    gaps={
        "megatron_lm_config*": "accelerate's Megatron-LM is not read; say its sizes with --tp and --pp",
        "fp8_config*": "accelerate's fp8 is counted as bf16",
        "tpu_*": "a TPU is not described",
    },
    no_effect=words(
        """
        compute_environment debug downcast_bf16 enable_cpu_affinity machine_rank main_process_ip
        main_process_port main_training_function rdzv_backend same_network tpu_* use_cpu gpu_ids ipex_config*
        mpirun_config* deepspeed_* fsdp_config deepspeed_config use_cpu_only commands command_file
        num_cpu_threads_per_process main_process_*
        """
    ),
    marks={
        "compute_environment": 6,
        "distributed_type": 5,
        "num_processes": 2,
        "mixed_precision": 1,
        "fsdp_config*": 1,
    },
)
