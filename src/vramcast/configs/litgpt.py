"""litgpt's YAML (jsonargparse).

Sources: litgpt/finetune/*.py, litgpt/pretrain.py: LoRA on query and value unless said, precision bf16-true in the
configs.
"""

from __future__ import annotations

from vramcast.configs.framework import Framework, words
from vramcast.configs.model_parts import config_of
from vramcast.configs.records import Draft, Settings

# Which switch adds adapters to which modules.
TARGETS = {
    "lora_query": ("query", True),
    "lora_key": ("key", False),
    "lora_value": ("value", True),
    "lora_projection": ("projection", False),
    "lora_mlp": ("mlp", False),
    "lora_head": ("head", False),
}
QUANTIZE = {
    "bnb.nf4": "nf4",
    "bnb.nf4-dq": "nf4-double",
    "bnb.int8-training": "int8",
    "bnb.int8": "int8",
}


def _read_model(settings: Settings, draft: Draft) -> None:
    model = settings.record("model_name", "checkpoint_dir")
    if model is not None:
        draft.say("model", str(model.value).rstrip("/").rpartition("/")[2], model)
    rank = settings.record("lora_r")
    if rank is not None:
        draft.say("lora-rank", rank.value, rank)
        named = [
            module
            for key, (module, default) in TARGETS.items()
            if settings.is_on(key, default=default)
        ]
        draft.say("lora-targets", tuple(named), settings.record("lora_query", "lora_r"))
        dropout = settings.record("lora_dropout")
        draft.say(
            "lora-dropout",
            dropout.value if dropout else 0.05,
            dropout or "litgpt's lora_dropout is 0.05 by default",
        )
    quantize = settings.record("quantize")
    if quantize is not None:
        word = QUANTIZE.get(str(quantize.value))
        draft.say("quantize", word or "nf4", quantize)
        if word is None:
            draft.gap(quantize, "counted as nf4")


def _read_training(settings: Settings, draft: Draft) -> None:
    precision = settings.record("precision")
    words_of = {"16-true": "fp16-true", "16-mixed": "fp16-mixed", "32-true": "fp32", "32": "fp32"}
    if precision is not None:
        draft.say("precision", words_of.get(str(precision.value), str(precision.value)), precision)
    micro, total = (
        settings.record("train.micro_batch_size"),
        settings.number("train.global_batch_size"),
    )
    batch = settings.number("train.micro_batch_size", default=1) or 1
    draft.say("batch", batch, micro or "litgpt's micro_batch_size is 1 by default")
    gpus = settings.record("devices")
    count = settings.number("devices") if gpus is not None and str(gpus.value) != "auto" else None
    if count is not None:
        draft.say("gpus", count * (settings.number("num_nodes", default=1) or 1), gpus)
        if count > 1:
            draft.say("strategy", "fsdp1", "litgpt shards over several devices with FSDP")
            draft.say("checkpointing", "full", "litgpt checkpoints blocks on several devices")
    if total is not None and count is not None and total % (batch * count) == 0:
        draft.say(
            "accumulate",
            max(total // (batch * count), 1),
            settings.record("train.global_batch_size"),
        )
    length = settings.record("train.max_seq_length")
    if length is not None:
        draft.say("seq", length.value, length)
    else:
        _read_open_length(settings, draft)
    _read_optimizer(settings, draft)


def _read_open_length(settings: Settings, draft: Draft) -> None:
    """litgpt/pretrain.py fills rows to the model's block size; finetuning takes samples as they are."""
    pretrains = settings.record("train.max_tokens", "tokenizer_dir", "initial_checkpoint_dir")
    config = config_of(draft) if pretrains is not None else None
    size = None if config is None else config.get("max_position_embeddings")
    if type(size) is int:
        draft.say("seq", size, "litgpt pretrains with rows of the model's block size")
    else:
        draft.assume(
            "train.max_seq_length is not set: samples are as long as they are; say it with --seq"
        )


def _read_optimizer(settings: Settings, draft: Draft) -> None:
    record = settings.record("optimizer.class_path", "optimizer")
    if record is None:
        return
    name = str(record.value).rpartition(".")[2].lower()
    known = {
        "adamw": "adamw",
        "adam": "adam",
        "sgd": "sgd",
        "pagedadamw8bit": "paged-adamw-8bit",
        "adamw8bit": "adamw-8bit",
    }
    draft.say("optimizer", known.get(name), record)
    if name not in known:
        draft.gap(record, "no such optimizer is known; counted as AdamW")


LITGPT = Framework(
    name="litgpt",
    title="litgpt",
    rules=(_read_model, _read_training),
    gaps={"model_config*": "the model's sizes: MODEL must be one with the same"},
    no_effect=words(
        """
        out_dir data* train.* eval.* logger_name seed optimizer.* optimizer lora_* num_nodes access_token resume
        initial_checkpoint_dir tokenizer_dir log.* checkpoint_dir model_name devices
        """
    ),
    marks={
        "train.micro_batch_size": 5,
        "train.global_batch_size": 2,
        "lora_query": 3,
        "checkpoint_dir": 1,
        "out_dir": 1,
        "eval.interval": 2,
        "train.max_seq_length": 2,
    },
)
