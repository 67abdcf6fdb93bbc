"""How many positions a model was made for, where its config leaves out what its class takes by default."""

from __future__ import annotations

from vramcast.models.read.config import Config

KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
# Defaults of transformers' config classes; composite configs write down what differs from them alone.
OF_CLASS = {
    "cohere": 8192,
    "cohere2": 8192,
    "deepseek_v3": 4096,
    "gemma": 8192,
    "gemma2": 8192,
    "gemma3_text": 131072,
    "gemma3n_text": 32768,
    "gemma4_text": 131072,
    "glm4": 131072,
    "gpt_oss": 131072,
    "jamba": 262144,
    "ministral": 131072,
    "mistral": 131072,
    "mixtral": 131072,
    "nemotron_h": 4096,
    "phi3": 4096,
    "qwen2": 32768,
    "qwen2_moe": 32768,
    "qwen3": 32768,
    "qwen3_moe": 32768,
    "qwen3_5_text": 32768,
    "qwen3_next": 32768,
    "stablelm": 4096,
    "starcoder2": 4096,
}
ELSE = 2048  # Llama's, and of most older classes


def positions_of(config: Config) -> int:
    found = (config.data.get(key) for key in KEYS)
    said = next((value for value in found if isinstance(value, int) and value > 0), None)
    return said or OF_CLASS.get(config.model_type, ELSE)
