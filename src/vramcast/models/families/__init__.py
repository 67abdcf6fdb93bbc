"""Families by `model_type`. Each module has `FAMILIES`: model_type → function(Tape, Config, Sizes) → Program."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from vramcast.errors import UnsupportedError
from vramcast.models.read.config import Config
from vramcast.models.record.compiled import compile_program
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Regime, Tape

Family = Callable[[Tape, Config, Sizes], Program]

MODULE_OF = {
    "llama": "llama", "mistral": "llama", "qwen2": "llama", "qwen3": "llama", "phi3": "llama",
    "gemma": "gemma", "gemma2": "gemma", "gemma3_text": "gemma",
    "olmo": "dense", "olmo2": "dense", "olmo3": "dense", "glm": "dense", "glm4": "dense", "granite": "dense",
    "smollm3": "dense", "cohere": "dense", "cohere2": "dense", "ministral": "llama",
    "arcee": "variants", "cwm": "variants", "ernie4_5": "variants", "exaone4": "variants", "helium": "variants",
    "hunyuan_v1_dense": "variants", "hyperclovax": "variants", "jais2": "variants", "ministral3": "variants",
    "nemotron": "variants", "seed_oss": "variants", "vaultgemma": "gemma",
    "mixtral": "moe", "qwen2_moe": "moe", "qwen3_moe": "moe", "phimoe": "moe", "olmoe": "moe", "gpt_oss": "moe",
    "deepseek_v2": "deepseek", "deepseek_v3": "deepseek",
    "vit": "vision", "deit": "vision", "dinov2": "vision", "clip": "vision", "clip_text_model": "vision",
    "clip_vision_model": "vision", "siglip": "vision", "siglip_text_model": "vision", "siglip_vision_model": "vision",
    "gemma3": "multimodal", "llava": "multimodal", "qwen2_vl": "multimodal", "qwen2_5_vl": "multimodal",
    "internlm": "remote", "internlm2": "remote", "internlm3": "remote", "baichuan": "remote",
    "chatglm": "remote", "qwen": "remote",
    "resnet": "cnn", "convnext": "cnn",
    "gpt2": "gpt", "gpt_bigcode": "gpt", "gpt_neo": "gpt", "gptj": "gpt", "codegen": "gpt", "opt": "gpt",
    "gpt_neox": "neox", "phi": "neox", "stablelm": "neox", "starcoder2": "neox", "bloom": "neox", "falcon": "falcon",
    "bert": "encoder", "roberta": "encoder", "xlm-roberta": "encoder", "camembert": "encoder", "electra": "encoder",
    "distilbert": "encoder", "t5": "t5", "mt5": "t5", "umt5": "t5",
    "bart": "bart", "mbart": "bart", "pegasus": "bart", "marian": "bart", "whisper": "bart",
}  # fmt: skip


def record(config: Config, regime: Regime, sizes: Sizes) -> Program:
    """Run the config's family, or the framework's own code for it."""
    family = family_of(config) if regime.code == "transformers" else own_code(regime.code)
    program = family(Tape(regime), config, sizes)
    compile_program(program)
    return program


def own_code(name: str) -> Family:
    """The one function with which a framework describes every model it knows."""
    family: Family = getattr(import_module(f"vramcast.models.families.{name}"), name)
    return family


def own_targets(name: str) -> tuple[str, ...]:
    """The framework's words for the places that can have adapters."""
    targets: tuple[str, ...] | None = getattr(import_module(f"vramcast.models.families.{name}"), "TARGETS", None)
    if targets is None:
        raise UnsupportedError(
            f"adapters in {name}'s own models are not described: name another framework, or leave lora-rank out"
        )
    return targets


def family_of(config: Config) -> Family:
    model_type = config.model_type
    if model_type not in MODULE_OF:
        raise UnsupportedError(
            f"{config.where}: model_type {model_type!r} has no description here. "
            f"Known: {', '.join(sorted(MODULE_OF))}. "
            "vramcast trace runs a script with it on a virtual GPU and gives the whole bill. Weights and states alone: "
            "install torch and transformers, which can build it without data, or give --params."
        )
    families: dict[str, Family] = import_module(f"vramcast.models.families.{MODULE_OF[model_type]}").FAMILIES
    return families[model_type]
