"""PEFT's adapter_config.json, and its configuration classes in Python code: the kind of adapter and its sizes.

Sources: peft 0.21 tuners/*/config.py, utils/peft_types.py. Kinds that the Job has no word for are refused by name.
"""

from __future__ import annotations

from typing import Any

from vramcast.configs.hf_words import targets_of
from vramcast.configs.records import Draft, Record, Settings
from vramcast.errors import unknown
from vramcast.setup.adapters import IA3_FEEDFORWARD

# peft_type → the Job's word
KINDS = {
    "LORA": "lora",
    "ADALORA": "adalora",
    "VERA": "vera",
    "LOHA": "loha",
    "LOKR": "lokr",
    "OFT": "oft",
    "BOFT": "boft",
    "IA3": "ia3",
    "LN_TUNING": "ln-tuning",
    "PROMPT_TUNING": "prompt",
    "PREFIX_TUNING": "prefix",
    "P_TUNING": "p-tuning",
}
# The class in Python code → peft_type
CLASSES = {
    "AdaLoraConfig": "ADALORA",
    "VeraConfig": "VERA",
    "LoHaConfig": "LOHA",
    "LoKrConfig": "LOKR",
    "OFTConfig": "OFT",
    "BOFTConfig": "BOFT",
    "IA3Config": "IA3",
    "LNTuningConfig": "LN_TUNING",
    "PromptTuningConfig": "PROMPT_TUNING",
    "PrefixTuningConfig": "PREFIX_TUNING",
    "PromptEncoderConfig": "P_TUNING",
}
# Keys that change what is trained or kept, their value where they change nothing, and what is not counted.
NOT_COUNTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "exclude_modules": ((), "modules that are left out of the targets are not counted as such"),
    "layers_pattern": (
        (),
        "layers are numbered by the first number in a name, whatever the pattern says",
    ),
    "vera_dropout": ((0, 0.0), "VeRA's dropout is not counted"),
    "module_dropout": ((0, 0.0), "dropout of whole adapters is not counted"),
    "rank_dropout": ((0, 0.0), "dropout of ranks is not counted"),
    "boft_dropout": ((0, 0.0), "BOFT's dropout is not counted"),
    "boft_block_num": (
        (0,),
        "a number of blocks is not counted: say their size with --adapter-block",
    ),
    "decompose_both": ((False,), "LoKr's first factor is counted whole"),
    "decompose_factor": ((-1,), "LoKr's factors are counted as PEFT chooses them"),
    "block_share": ((False,), "OFT's blocks are counted apart"),
    "use_cayley_neumann": ((True,), "OFT's rotations are counted as a series of five terms"),
    "num_cayley_neumann_terms": ((5,), "OFT's rotations are counted as a series of five terms"),
    "encoder_reparameterization_type": (("MLP", "mlp"), "the prompt encoder is counted as an MLP"),
    "num_transformer_submodules": ((1, 2), "virtual tokens are counted for one stack"),
}
# Sizes that PEFT derives from the model, initial values, and what only the checkpoint of an adapter knows.
NO_EFFECT = (
    "init_*", "coft", "eps", "fan_in_fan_out", "save_projection", "projection_prng_key", "d_initial",
    "rank_dropout_scale", "use_effective_conv2d", "alpha", "alpha_pattern*", "boft_n_butterfly_factor", "token_dim",
    "num_attention_heads", "num_layers", "prompt_tuning_init*", "tokenizer_*", "encoder_num_layers",
    "encoder_dropout", "target_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step",
)  # fmt: skip


def kind_record(settings: Settings) -> Record | None:
    """Where the files name a kind that is not LoRA."""
    record = settings.record("peft_type")
    is_lora = record is None or str(record.value).rpartition(".")[2].upper() == "LORA"
    return None if is_lora else record


def read_kind(settings: Settings, draft: Draft) -> None:
    """An adapter that is not LoRA."""
    record = kind_record(settings)
    assert record is not None
    name = str(record.value).rpartition(".")[2].upper()
    if name not in KINDS:
        raise unknown("peft_type", name, KINDS)
    draft.say("adapter", KINDS[name], record)
    for key, names in SIZES.items():
        found = settings.record(*names)
        if found is not None and _belongs(key, KINDS[name]):
            draft.say(key, found.value, found)
    read_modules(settings, draft)
    if name == "PREFIX_TUNING" and not settings.is_on("prefix_projection"):
        draft.said.pop("prompt-hidden", None)
    if name == "OFT" and (settings.number("r") or 0) > 0:
        draft.gap(
            settings.record("r"),
            "a number of blocks is not counted: say their size with --adapter-block",
        )
    _note_feedforward(settings, draft)


# The Job's key → what PEFT's classes call it
SIZES = {
    "lora-rank": ("init_r", "r"),
    "adapter-block": ("oft_block_size", "boft_block_size"),
    "virtual-tokens": ("num_virtual_tokens",),
    "prompt-hidden": ("encoder_hidden_size",),
    "lora-dropout": ("lora_dropout",),
}
OF_KINDS = {
    "lora-rank": ("adalora", "vera", "loha", "lokr"),
    "adapter-block": ("oft", "boft"),
    "virtual-tokens": ("prompt", "prefix", "p-tuning"),
    "prompt-hidden": ("prefix", "p-tuning"),
    "lora-dropout": ("adalora",),
}


def _belongs(key: str, kind: str) -> bool:
    """LoRA's `r` is in the files of AdaLoRA too, and OFT's `r` is a number of blocks."""
    return kind in OF_KINDS[key]


def read_modules(settings: Settings, draft: Draft) -> None:
    """Which modules get adapters, and which are trained in full beside them."""
    targets = settings.record(
        "lora_target_modules", "target_modules", "lora_target", "lora_targets"
    )
    if targets is not None and "lora-targets" not in draft.said:
        draft.say("lora-targets", targets_of(targets.value), targets)
    read_copies(settings, draft)
    for key, (harmless, text) in NOT_COUNTED.items():
        found = settings.record(key)
        if found is not None and found.value not in (*harmless, [], {}, ""):
            draft.gap(found, text)


def read_copies(settings: Settings, draft: Draft) -> None:
    """modules_to_save and layers_to_transform, which LoRA has as well."""
    saved = settings.record("modules_to_save", "lora_modules_to_save", "additional_target")
    if saved is not None and targets_of(saved.value):
        draft.say("modules-to-save", targets_of(saved.value), saved)
    layers = settings.record("layers_to_transform", "peft_layers_to_transform")
    if layers is not None:
        numbers = layers.value if isinstance(layers.value, list | tuple) else [layers.value]
        draft.say("layers-to-transform", tuple(str(number) for number in numbers), layers)


def _note_feedforward(settings: Settings, draft: Draft) -> None:
    """IA3's own table says them for every model that PEFT knows."""
    found = settings.record("feedforward_modules")
    if found is None:
        return
    names = set(targets_of(found.value))
    if not any(names == set(known.split()) for known in IA3_FEEDFORWARD):
        draft.gap(found, "feedforward modules are counted as PEFT's table has them")
