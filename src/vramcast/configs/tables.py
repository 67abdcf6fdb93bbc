"""All frameworks that are read, by name."""

from __future__ import annotations

from vramcast.configs import llama_factory, megatron
from vramcast.configs.accelerate import ACCELERATE
from vramcast.configs.axolotl import AXOLOTL
from vramcast.configs.deepspeed import DEEPSPEED
from vramcast.configs.framework import Framework
from vramcast.configs.huggingface import ADAPTER_CONFIG, TRAINING_ARGUMENTS, TRL
from vramcast.configs.litgpt import LITGPT
from vramcast.configs.llama_factory_v1 import LLAMA_FACTORY_V1
from vramcast.configs.ms_swift import MS_SWIFT, MS_SWIFT_MEGATRON
from vramcast.configs.nemo import NEMO
from vramcast.configs.openrlhf import OPENRLHF
from vramcast.configs.other_yaml import FOUNDRY, NANOTRON
from vramcast.configs.torchtune import TORCHTUNE
from vramcast.configs.unsloth import UNSLOTH
from vramcast.configs.verl import VERL

ALL = (
    llama_factory.LLAMA_FACTORY,
    AXOLOTL,
    TRL,
    TRAINING_ARGUMENTS,
    ADAPTER_CONFIG,
    ACCELERATE,
    DEEPSPEED,
    MS_SWIFT,
    MS_SWIFT_MEGATRON,
    megatron.MEGATRON,
    OPENRLHF,
    VERL,
    UNSLOTH,
    LLAMA_FACTORY_V1,
    TORCHTUNE,
    LITGPT,
    NEMO,
    FOUNDRY,
    NANOTRON,
)
BY_NAME: dict[str, Framework] = {each.name: each for each in ALL}
# Files that say how a job is run, beside the one that says what is trained.
PARTNERS = ("deepspeed", "accelerate", "launcher")
LEAST_LIKENESS = 4
# What a framework decides after all its files were read.
AFTER = {
    "llama-factory": llama_factory.AFTER,
    "megatron": (megatron.after,),
    "ms-swift-megatron": (megatron.after,),
    "openrlhf": (megatron.after,),
    "nemo": (megatron.after,),
}
