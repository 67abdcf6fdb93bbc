"""Families by `model_type`. Each module has `FAMILIES`: model_type → function(Tape, Config, Sizes) → Program.

A family is one kind of architecture, written as a function that runs its forward pass on a Tape, op by op, as the
library's own code does: `llama` describes Llama, Mistral, Qwen 2 and 3. `record` runs the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import ModuleType

from vramcast.errors import UndescribedModelError, UnsupportedError
from vramcast.models.read.config import Config
from vramcast.models.record.adapters import shared_buffers
from vramcast.models.record.compiled import compile_program
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Regime, Tape

Family = Callable[[Tape, Config, Sizes], Program]

# Module → the model types that it describes.
MODEL_TYPES = {
    "llama": "llama mistral qwen2 qwen3 phi3 ministral",
    "gemma": "gemma gemma2 gemma3_text vaultgemma",
    "dense": "olmo olmo2 olmo3 glm glm4 granite smollm3 cohere cohere2",
    "variants": "arcee cwm ernie4_5 exaone4 helium hunyuan_v1_dense hyperclovax jais2 ministral3 nemotron seed_oss",
    "moe": "mixtral qwen2_moe qwen3_moe phimoe olmoe gpt_oss",
    "deepseek": "deepseek_v2 deepseek_v3",
    "vision": "vit deit dinov2 clip clip_text_model clip_vision_model siglip siglip_text_model siglip_vision_model",
    "multimodal": "gemma3 llava qwen2_vl qwen2_5_vl",
    "remote": "internlm internlm2 internlm3 baichuan chatglm qwen",
    "cnn": "resnet convnext",
    "gpt": "gpt2 gpt_bigcode gpt_neo gptj codegen opt",
    "neox": "gpt_neox phi stablelm starcoder2 bloom",
    "falcon": "falcon",
    "encoder": "bert roberta xlm-roberta camembert electra distilbert",
    "t5": "t5 mt5 umt5",
    "bart": "bart mbart pegasus marian whisper",
}
MODULE_OF = {
    model_type: module for module, types in MODEL_TYPES.items() for model_type in types.split()
}


def record(config: Config, regime: Regime, sizes: Sizes) -> Program:
    """Run the config's family, or the framework's own code for it."""
    family = family_of(config) if regime.code == "transformers" else own_code(regime.code)
    if regime.virtual_tokens is not None:
        _check_virtual_tokens(config)
        sizes = replace(sizes, seq=sizes.seq + regime.virtual_tokens.count)
    program = family(Tape(regime, one_sample=sizes.one_sample), config, sizes)
    add_shared_buffers(program)
    compile_program(program)
    return program


def add_shared_buffers(program: Program) -> None:
    """VeRA's matrices exist once, in front of all layers that read them."""
    lora = program.regime.lora
    buffers = shared_buffers(list(program.params()), lora) if lora is not None else []
    program.sections[0].section.params.extend(buffers)


# Families of one stack of tokens.
WITH_VIRTUAL_TOKENS = (
    "llama",
    "gemma",
    "dense",
    "variants",
    "moe",
    "deepseek",
    "gpt",
    "neox",
    "falcon",
    "encoder",
)


TASKS_WITH_VIRTUAL_TOKENS = (
    "ForCausalLM",
    "LMHeadModel",
    "ForSequenceClassification",
    "ForTokenClassification",
)


def _check_virtual_tokens(config: Config) -> None:
    is_known = not config.architecture or config.architecture.endswith(TASKS_WITH_VIRTUAL_TOKENS)
    if MODULE_OF.get(config.model_type) not in WITH_VIRTUAL_TOKENS or not is_known:
        raise UndescribedModelError(
            f"{config.where}: virtual tokens in a {config.model_type} are described by no formula"
        )


def own_code(name: str) -> Family:
    """The one function with which a framework describes every model it knows."""
    family: Family = getattr(_import_family(name), name)
    return family


def own_targets(name: str) -> tuple[str, ...]:
    """The framework's names for the linears that can have adapters."""
    targets: tuple[str, ...] | None = getattr(_import_family(name), "TARGETS", None)
    if targets is None:
        raise UnsupportedError(
            f"adapters in {name}'s own models are not described: name another framework, or leave lora-rank out"
        )
    return targets


def family_of(config: Config) -> Family:
    model_type = config.model_type
    if model_type not in MODULE_OF:
        raise UndescribedModelError(
            f"{config.where}: model_type {model_type!r} is not supported by the formula engine. "
            f"Known: {', '.join(sorted(MODULE_OF))}. "
            "vramcast trace runs a script with it on a virtual GPU and gives the full breakdown. "
            "For weights and optimizer states alone: install torch and transformers, which can build it without data, "
            "or give --params."
        )
    families: dict[str, Family] = _import_family(MODULE_OF[model_type]).FAMILIES
    return families[model_type]


def _import_family(module: str) -> ModuleType:
    """Loaded on first use: an estimate needs one family of twenty."""
    return import_module(f"vramcast.models.families.{module}")
