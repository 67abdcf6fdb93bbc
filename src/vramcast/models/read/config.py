"""A Hugging Face config.json, read with care: named dimensions out, clear errors for what is missing or absurd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.errors import InputError
from vramcast.files import read_text
from vramcast.models.record.dims import Dim

MAX_CONFIG_BYTES = 16 * 1024 * 1024
# No width, depth or vocabulary is near this; beyond it a config is hostile or broken.
LARGEST_DIM = 2**40
LARGEST_NUMBER = 1e12
# An explicit null of these is worked out from the other sizes; where they are absent, the class has a number.
NULL_IS_DERIVED = ("num_key_value_heads", "head_dim")


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one config, with typed access. `where` names the file in errors."""

    data: Mapping[str, Any]
    where: str = "config"

    def dim(
        self, name: str, text: str, *others: str, default: int | None = None, least: int = 1
    ) -> Dim:
        """A size under its name or one of the other names it goes by; `text` is its symbol in formulas."""
        for key in (name, *others):
            value = self.data.get(key)
            if value is not None:
                return Dim(_check_size(value, f"{self.where}: {key}", least), text)
        if default is None:
            raise InputError(
                f"{self.where}: {name} is missing. A {self.model_type} config must have it."
            )
        return Dim(default, text)

    def number(self, name: str, default: float) -> float:
        value = self.data.get(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < LARGEST_NUMBER:
            raise InputError(f"{self.where}: {name} must be a non-negative number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {name} must be true or false, not {value!r}")
        return value

    def word(self, name: str, default: str, *others: str) -> str:
        for key in (name, *others):
            value = self.data.get(key)
            if value is not None:
                if not isinstance(value, str):
                    raise InputError(f"{self.where}: {key} must be a string, not {value!r}")
                return value
        return default

    def list(self, name: str) -> list[Any]:
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError(f"{self.where}: {name} must be a list, not {value!r}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, such as those of layers."""
        values = self.list(name)
        if not all(type(value) is int for value in values):
            raise InputError(f"{self.where}: {name} must be a list of whole numbers")
        return tuple(values)

    def per_layer(self, name: str, layers: int) -> tuple[Any, ...]:
        """A word or number for every layer; empty when absent. A model cut short has fewer layers than the list."""
        values = self.list(name)
        if values and len(values) < layers:
            raise InputError(f"{self.where}: {name} has {len(values)} entries for {layers} layers")
        if not all(isinstance(value, str | int | float) for value in values):
            raise InputError(f"{self.where}: {name} must be a list of words or numbers")
        return tuple(values[:layers])

    def sub(self, name: str) -> Config:
        """A nested config such as `text_config`; empty when absent."""
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise InputError(f"{self.where}: {name} must be an object, not {value!r}")
        return Config(value, f"{self.where}: {name}")

    def with_defaults(self, **defaults: Any) -> Config:
        """The config, with values for keys that are absent or null, unless null means something of its own."""
        given = {
            key: value
            for key, value in self.data.items()
            if value is not None or key in NULL_IS_DERIVED
        }
        return Config({**defaults, **given}, self.where)

    def with_values(self, **values: Any) -> Config:
        """The config with these values, whatever it says."""
        return Config({**self.data, **values}, self.where)

    @property
    def model_type(self) -> str:
        return self.word("model_type", "")

    @property
    def architecture(self) -> str:
        names = self.list("architectures")
        return names[0] if names and isinstance(names[0], str) else ""


# One setting under two names: transformers 4 and 5, or its own classes among each other (`attribute_map`).
# model types: name name, …
_SPELLINGS = """
gpt2 gpt_bigcode gptj codegen: hidden_size n_embd, num_attention_heads n_head, num_hidden_layers n_layer
t5 mt5 umt5: hidden_size d_model, num_attention_heads num_heads, num_hidden_layers num_layers, head_dim d_kv
bart mbart pegasus marian whisper: hidden_size d_model, num_hidden_layers encoder_layers
mixtral qwen2_moe qwen3_moe phimoe olmoe gpt_oss: num_experts num_local_experts
deepseek_v2 deepseek_v3: num_experts n_routed_experts, num_local_experts n_routed_experts
bloom: hidden_size n_embed, num_attention_heads n_head, num_hidden_layers n_layer
distilbert: hidden_size dim, num_attention_heads n_heads, num_hidden_layers n_layers
falcon: num_attention_heads n_head, num_hidden_layers n_layer
gpt_neo: num_attention_heads num_heads, num_hidden_layers num_layers
internlm3: qkv_bias attention_bias, bias mlp_bias
"""
SPELLINGS = {
    model_type: tuple(tuple(pair.split()) for pair in pairs.split(","))
    for types, _, pairs in (line.partition(":") for line in _SPELLINGS.split("\n") if line)
    for model_type in types.split()
}


# Numbers of transformers' config classes for sizes that a config.json leaves out.
_LLAMA_LINE: dict[str, dict[str, int]] = {
    "mistral": {"num_key_value_heads": 8},
    "ministral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen2_moe": {"num_key_value_heads": 16},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "cwm": {"num_key_value_heads": 8, "head_dim": 128},
    "exaone4": {"num_key_value_heads": 32},
    "internlm3": {"num_key_value_heads": 2, "head_dim": 128},
}


# Sizes that only some architectures have. In a config of another they would be passed over, as transformers does.
_MOE = "mixtral qwen2_moe qwen3_moe phimoe olmoe gpt_oss deepseek_v2 deepseek_v3"
_LATENT = "deepseek_v2 deepseek_v3"
FOREIGN_SIZES = {
    "num_experts": f"{_MOE} gpt2",  # a GPT of Megatron-LM may have experts
    "num_local_experts": _MOE,
    "n_routed_experts": _MOE,
    "n_shared_experts": _LATENT,
    "moe_intermediate_size": f"{_MOE} gpt2",
    "shared_expert_intermediate_size": "qwen2_moe gpt2",
    "kv_lora_rank": _LATENT,
    "qk_rope_head_dim": _LATENT,
    "hidden_size_per_layer_input": "",
    "num_kv_shared_layers": "",
    "laurel_rank": "",
    "linear_num_value_heads": "",
    "mamba_d_state": "",
    "mamba_n_heads": "",
    "state_size": "",
    "multi_query_group_num": "chatglm",
    "n_head_kv": "falcon",
}


def check_sizes(config: Config) -> None:
    """Refuse a config that gives sizes of another architecture than the one it names."""
    for key, types in FOREIGN_SIZES.items():
        value = config.data.get(key)
        if type(value) is int and value > 1 and config.model_type not in types.split():
            raise InputError(
                f"{config.where}: {key} {value} is no size of a {config.model_type}: the config is of another "
                "model, or the key is left over. Correct model_type, or remove the key"
            )


def normalise(config: Config) -> Config:
    """The config, and the text config inside, with each setting under both of its names and its class's numbers for
    what it leaves out."""
    inner = config.data.get("text_config")
    data = dict(config.data)
    if isinstance(inner, dict):
        data["text_config"] = normalise(Config(inner, f"{config.where}: text_config")).data
    data = {**_LLAMA_LINE.get(config.model_type, {}), **data}
    for one, other in SPELLINGS.get(config.model_type, ()):
        given = {name: data[name] for name in (one, other) if data.get(name) is not None}
        if len(given) == 2 and data[one] != data[other]:
            raise InputError(
                f"{config.where}: {one} {data[one]!r} and {other} {data[other]!r} are two names of one setting"
            )
        for value in given.values():
            data[one] = data[other] = value
    return Config(data, config.where)


def _check_size(value: Any, what: str, least: int) -> int:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not least <= value <= LARGEST_DIM:
        raise InputError(f"{what} must be an integer of at least {least}, not {value!r}")
    return int(value)


def exact_division(whole: int, parts: int, what: str) -> int:
    """whole // parts, refused when it does not come out even."""
    if int(whole) % int(parts):
        raise InputError(f"{what}: {int(whole)} does not divide by {int(parts)}")
    return whole // parts


def read_config(path: Path) -> Config:
    """A config.json, or the one in a folder."""
    path = path / "config.json" if path.is_dir() else path
    text = read_text(path, MAX_CONFIG_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable JSON config ({error})") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: a config must be a JSON object, not {type(data).__name__}")
    return Config(data, str(path))
