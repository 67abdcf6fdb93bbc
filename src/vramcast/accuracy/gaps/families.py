"""Small configs with realistic ratios, one function per shape of config: no checkpoint is downloaded.

In comes a random generator, out comes what config.json would hold. Sizes are small so that a model is made in a second;
ratios (grouped heads, width of the MLP, vocabulary) are those of published models.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Version = tuple[int, int]
Config = dict[str, Any]

MOST_EMBEDDED = 80_000_000  # elements of an embedding: made for real on the host
VOCABULARIES = (32000, 32064, 50272, 65024, 100352, 128256, 151936)
MOST_POSITIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    make: Callable[[random.Random], Config]
    since: Version = (4, 40)  # the first transformers of the grid that has it
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers that all transformers share."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocabulary: int
    intermediate: int


def _shape(rng: random.Random, *, ratio: float, grouped: bool = True) -> Shape:
    head_dim = rng.choice((64, 64, 80, 96, 128))
    heads = rng.choice((4, 6, 8, 12, 16))
    hidden = heads * head_dim
    divisors = [each for each in (1, 2, 3, 4) if heads % each == 0]
    affordable = [each for each in VOCABULARIES if each * hidden <= MOST_EMBEDDED]
    return Shape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads // rng.choice(divisors) if grouped else heads,
        head_dim=head_dim,
        layers=rng.randint(2, 5),
        vocabulary=rng.choice(affordable),
        intermediate=int(hidden * ratio) // 32 * 32,
    )


def _llama_like(model_type: str, architecture: str, **more: Any) -> Callable[..., Config]:
    def make(rng: random.Random) -> Config:
        shape = _shape(rng, ratio=rng.choice((2.67, 3.5, 4.0, 5.3)))
        return {
            "model_type": model_type,
            "architectures": [architecture],
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "num_hidden_layers": shape.layers,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": MOST_POSITIONS,
            "tie_word_embeddings": rng.random() < 0.4,
            **_special_tokens(),
            **more,
        }

    return make


def _special_tokens() -> Config:
    """Inside every vocabulary: some defaults (phi3's 32000) are not."""
    return {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def _gemma2(rng: random.Random) -> Config:
    config = _llama_like("gemma2", "Gemma2ForCausalLM", head_dim=128)(rng)
    return {**config, "tie_word_embeddings": True, "sliding_window": 4096}


def _qwen3(rng: random.Random) -> Config:
    return _llama_like("qwen3", "Qwen3ForCausalLM", head_dim=128)(rng)


def _mixtral(rng: random.Random) -> Config:
    config = _llama_like("mixtral", "MixtralForCausalLM")(rng)
    narrow = config["intermediate_size"] // 4 // 32 * 32
    experts = {"num_local_experts": rng.choice((4, 8)), "num_experts_per_tok": 2}
    return {**config, "intermediate_size": narrow, **experts}


def _gpt2(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=4, grouped=False)
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": shape.hidden,
        "n_head": shape.heads,
        "n_layer": shape.layers,
        "n_positions": MOST_POSITIONS,
        "vocab_size": 50257,
        **_special_tokens(),
    }


def _gpt_neox(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=4, grouped=False)
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_size": shape.hidden,
        "intermediate_size": 4 * shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "vocab_size": 50304,
        "max_position_embeddings": MOST_POSITIONS,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        **_special_tokens(),
    }


def _opt(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=4, grouped=False)
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "hidden_size": shape.hidden,
        "word_embed_proj_dim": shape.hidden,
        "ffn_dim": 4 * shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "vocab_size": 50272,
        "max_position_embeddings": MOST_POSITIONS,
        **_special_tokens(),
    }


def _bloom(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=4, grouped=False)
    return {
        "model_type": "bloom",
        "architectures": ["BloomForCausalLM"],
        "hidden_size": shape.hidden,
        "n_head": shape.heads,
        "n_layer": shape.layers,
        "vocab_size": shape.vocabulary,
        **_special_tokens(),
    }


def _falcon(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=4, grouped=False)
    return {
        "model_type": "falcon",
        "architectures": ["FalconForCausalLM"],
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "vocab_size": 65024,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "new_decoder_architecture": False,
        **_special_tokens(),
    }


def _t5(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=2.67, grouped=False)
    gated = rng.random() < 0.5
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": shape.hidden,
        "d_kv": shape.head_dim,
        "d_ff": shape.intermediate,
        "num_heads": shape.heads,
        "num_layers": shape.layers,
        "num_decoder_layers": shape.layers,
        "vocab_size": 32128,
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": not gated,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _bert(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=4, grouped=False)
    classifies = rng.random() < 0.7
    return {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification" if classifies else "BertForMaskedLM"],
        "hidden_size": shape.hidden,
        "intermediate_size": 4 * shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "vocab_size": 30522,
        "max_position_embeddings": MOST_POSITIONS,
        "pad_token_id": 0,
    }


def _vit(rng: random.Random) -> Config:
    shape = _shape(rng, ratio=4, grouped=False)
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": shape.hidden,
        "intermediate_size": 4 * shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
    }


FAMILIES: dict[str, Family] = {
    "llama": Family(make=_llama_like("llama", "LlamaForCausalLM"), weight=4),
    "qwen2": Family(make=_llama_like("qwen2", "Qwen2ForCausalLM"), weight=4),
    "qwen3": Family(make=_qwen3, since=(4, 51), weight=3),
    "mistral": Family(
        make=_llama_like("mistral", "MistralForCausalLM", sliding_window=None), weight=2
    ),
    "gemma2": Family(make=_gemma2, since=(4, 42), weight=2),
    "phi3": Family(make=_llama_like("phi3", "Phi3ForCausalLM"), since=(4, 41), weight=2),
    "mixtral": Family(make=_mixtral),
    "gpt2": Family(make=_gpt2, weight=2),
    "gpt_neox": Family(make=_gpt_neox),
    "opt": Family(make=_opt),
    "bloom": Family(make=_bloom),
    "falcon": Family(make=_falcon),
    "t5": Family(make=_t5, weight=2),
    "bert": Family(make=_bert, weight=2),
    "vit": Family(make=_vit),
}
