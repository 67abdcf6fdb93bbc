"""torchtune's YAML: everything in one dtype, models named by the function that builds them.

Source: torchtune/recipes/*.py and configs/ of its last version.
"""

from __future__ import annotations

import os
import re

from vramcast.catalog.models import lookup_model
from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import dtype_word
from vramcast.configs.records import Draft, Settings
from vramcast.configs.tasks import say_reference
from vramcast.errors import InputError

KIND = re.compile(r"^(?:q?lora|dora|qdora)_")
MINOR = re.compile(r"^([a-z_]+\d)_(\d)_(?=\d)")  # llama3_1_8b, qwen2_5_0_5b
OPTIMIZERS = {
    "adamw": "adamw",
    "adam": "adam",
    "sgd": "sgd",
    "pagedadamw8bit": "paged-adamw-8bit",
    "pagedadamw": "paged-adamw",
    "adamw8bit": "adamw-8bit",
}


def _refuse_generation(settings: Settings, _draft: Draft) -> None:
    """Its recipes that generate, evaluate and quantise have the same words, and no optimizer."""
    trains = any(record.key.partition(".")[0] in TRAINS for record in settings)
    other = None if trains else settings.record(*OTHERS)
    if other is not None:
        raise InputError(
            f"{other.place}: {other.key} generates, evaluates or quantises; the file trains nothing"
        )


TRAINS = ("optimizer", "loss", "epochs")
OTHERS = ("max_new_tokens", "prompt", "prompt.user", "tasks", "quantizer._component_", "quantizer")


def _read_model(settings: Settings, draft: Draft) -> None:
    """The size stands in the function's name; the folder of the checkpoint has the model's own."""
    folder, component = (
        settings.record(key) for key in ("checkpointer.checkpoint_dir", "model._component_")
    )
    built = None if component is None else _built_by(str(component.value))
    if built is not None and (folder is None or not _is_model(str(folder.value))):
        draft.say("model", built, component)
    elif folder is not None:
        draft.say("model", folder.value, folder)
    is_quantised = "qlora" in settings.text("model._component_") or settings.is_on(
        "model.quantize_base"
    )
    rank = settings.record("model.lora_rank")
    if rank is None:
        return
    draft.say("lora-rank", rank.value, rank)
    targets = settings.value("model.lora_attn_modules", default=[])
    named = [str(name) for name in targets]
    named += ["mlp"] if settings.is_on("model.apply_lora_to_mlp") else []
    named += ["output"] if settings.is_on("model.apply_lora_to_output") else []
    if named:
        draft.say("lora-targets", tuple(named), settings.record("model.lora_attn_modules") or rank)
    dropout = settings.record("model.lora_dropout")
    draft.say("lora-dropout", dropout.value if dropout else None, dropout)
    if settings.is_on("model.use_dora"):
        draft.say("dora", True, settings.record("model.use_dora"))
    if is_quantised:
        draft.say("quantize", "nf4-double", component)


def _is_model(folder: str) -> bool:
    name = folder.rstrip("/").rpartition("/")[2]
    # os.path says no where a name is too long for a file; Path raises.
    is_folder = os.path.exists(os.path.join(folder, "config.json"))
    return is_folder or lookup_model(name) is not None


def _built_by(component: str) -> str | None:
    """`torchtune.models.llama3_1.qlora_llama3_1_8b` → llama-3.1-8b, where the catalog has it."""
    name = KIND.sub("", component.rpartition(".")[2])
    tried = (MINOR.sub(r"\1.\2_", name), name)
    spelled = (re.sub(r"_(\d)_(\d)b", r"-\1.\2b", each) for each in tried)
    found = (lookup_model(each) for each in (*spelled, name))
    return next((model.name for model in found if model is not None), None)


def _read_training(settings: Settings, draft: Draft) -> None:
    dtype = settings.record("dtype")
    word = None if dtype is None else dtype_word(dtype.value)
    if word is not None:
        draft.say("precision", "fp32" if word == "fp32" else f"{word}-true", dtype)
        if draft.value("lora-rank") is not None:
            draft.say("lora-dtype", word, dtype)
    checkpointing = settings.record("enable_activation_checkpointing")
    draft.say(
        "checkpointing",
        "full" if settings.is_on("enable_activation_checkpointing") else "none",
        checkpointing,
    )
    if settings.is_on("enable_activation_offloading"):
        draft.say("offload", "activations", settings.record("enable_activation_offloading"))
    length = settings.record("tokenizer.max_seq_len", "dataset.max_seq_len")
    if length is not None:
        draft.say("seq", length.value, length)
    else:
        draft.assume(
            "tokenizer.max_seq_len is not set: samples are as long as they are; say it with --seq"
        )
    loss = settings.record("loss._component_")
    if loss is not None:
        in_chunks = "Chunked" in str(loss.value) or "LinearCrossEntropy" in str(loss.value)
        draft.say("loss", "chunked" if in_chunks else "full", loss)
    if loss is not None and "DPO" in str(loss.value):
        draft.say("task", "dpo", loss)
        adapts = draft.value("lora-rank") is not None
        say_reference(draft, loss, adapts=adapts)
    if settings.is_on("compile"):
        draft.say("compile", True, settings.record("compile"))
    _read_optimizer(settings, draft)
    _read_parallel(settings, draft)


def _read_optimizer(settings: Settings, draft: Draft) -> None:
    record = settings.record("optimizer._component_")
    if record is not None:
        word = OPTIMIZERS.get(str(record.value).rpartition(".")[2].lower())
        draft.say("optimizer", word, record)
        if word is None:
            draft.gap(record, "no such optimizer is known; counted as AdamW")
    fused = settings.record("optimizer.fused")
    is_adamw = draft.value("optimizer") == "adamw" or (record is None and fused is not None)
    if settings.is_on("optimizer_in_bwd"):
        draft.say("optimizer-impl", "in-backward", settings.record("optimizer_in_bwd"))
    elif is_adamw:
        how = "fused" if settings.is_on("optimizer.fused") else "foreach"
        draft.say("optimizer-impl", how, fused or "torch's AdamW runs as foreach by default")


def _read_parallel(settings: Settings, draft: Draft) -> None:
    for key, word in (
        ("tensor_parallel_dim", "tp"),
        ("context_parallel_dim", "cp"),
        ("data_parallel_shard_dim", "shard-size"),
    ):
        record = settings.record(key)
        if record is not None and (settings.number(key) or -1) > 1:
            draft.say(word, record.value, record)
    gpus = settings.record("nproc_per_node")
    if gpus is not None:
        nodes = settings.number("nnodes", default=1) or 1
        draft.say("gpus", (settings.number("nproc_per_node") or 1) * nodes, gpus)
        draft.say("strategy", "fsdp2", gpus)
    reshard = settings.record("fsdp_reshard_after_forward")
    if reshard is not None and not settings.is_on(reshard.key):
        draft.say("reshard", False, reshard)
    layers = settings.record("custom_sharded_layers")
    if layers is not None and layers.value:
        draft.say("units", "ends", layers)
    if settings.record("run_val_every_n_steps") is not None:
        draft.say("evaluate", True, settings.record("run_val_every_n_steps"))
        batch = settings.record("batch_size_val")
        draft.say("eval-batch", batch.value if batch else None, batch)
    if settings.is_on("fsdp_cpu_offload"):
        draft.say("offload", "all", settings.record("fsdp_cpu_offload"))


TORCHTUNE = Framework(
    name="torchtune",
    title="torchtune",
    direct={"batch_size": "batch", "gradient_accumulation_steps": "accumulate"},
    rules=(_refuse_generation, _read_model, _read_training),
    gaps={
        "dataset.packed": "packed rows are filled to max_seq_len: say the length with --seq",
        "quantizer*": "quantisation-aware training is not described",
        "teacher_model*": "the teacher: say it with --teacher",
        "ac_mode": "selective checkpointing: say it with --checkpointing selective or every-N",
        "enable_fp8_training": "torchao's fp8 is counted as bf16",
        "model.decoder_trainable": "which part is frozen: say it with --freeze",
        "num_generations": "rollouts are not counted: say --rollout-tokens",
    },
    no_effect=words(
        """
        model.lora_alpha output_dir tokenizer* model.* checkpointer* resume_from_checkpoint
        save_adapter_weights_only dataset*
        seed shuffle run_val_every_n_steps batch_size_val optimizer.* lr_scheduler* loss* epochs
        max_steps_per_epoch clip_grad_norm metric_logger* log_* device profiler* custom_sharded_layers
        fsdp_reshard_after_forward low_cpu_ram cudnn_* nproc_* num_output_chunks parallelize_plan*
        tensor_parallel_plan* packed kd_ratio kd_loss* ref_checkpointer* data_parallel_* context_parallel_*
        save_every* load_* config memory_efficient_fsdp_wrap use_loss_parallel_ctx_manager nnodes lr_* ac_*
        embed_* enable_async_checkpointing inference* generate* test* async_* orchestration* training* value_*
        """
    ),
    apart=("teacher_checkpointer.", "checkpointer.", "metric_logger.", "profiler."),
    marks={
        "model._component_": 5,
        "tokenizer._component_": 3,
        "checkpointer._component_": 4,
        "enable_activation_checkpointing": 1,
    },
)
