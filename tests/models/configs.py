"""Configs for the tests: the catalog's, and the public ones (as on huggingface.co) of models it does not ship."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from further import FURTHER

import vramcast
from vramcast.catalog.models import all_models
from vramcast.models.families import MODULE_OF

CATALOG = Path(vramcast.__file__).parent / "catalog" / "data" / "models"
# The smallest model of each type that a family describes, and those with which the families were written.
FIRST = (Path(__file__).parents[1] / "frozen" / "models.txt").read_text(encoding="utf-8").split()
OF_TYPE = {
    model.config["model_type"]: model.name
    for model in sorted(all_models(), key=lambda model: -model.params)
    if model.config["model_type"] in MODULE_OF and model.name != "pixtral-12b"
}
CATALOG_NAMES = sorted({*FIRST, *OF_TYPE.values()})

OTHERS: dict[str, dict[str, Any]] = {
    "gpt-neo-125m": {
        "model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"], "activation_function": "gelu_new",
        "attention_types": [[["global", "local"], 6]], "hidden_size": 768, "intermediate_size": None,
        "max_position_embeddings": 2048, "num_heads": 12, "num_layers": 12, "vocab_size": 50257, "window_size": 256,
    },
    "gpt-j-6b": {
        "model_type": "gptj", "architectures": ["GPTJForCausalLM"], "activation_function": "gelu_new", "n_embd": 4096,
        "n_head": 16, "n_inner": None, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64, "vocab_size": 50400,
        "tie_word_embeddings": False,
    },
    "codegen-350m": {
        "model_type": "codegen", "architectures": ["CodeGenForCausalLM"], "activation_function": "gelu_new",
        "n_embd": 1024, "n_head": 16, "n_inner": None, "n_layer": 20, "n_positions": 2048, "rotary_dim": 32,
        "vocab_size": 51200, "tie_word_embeddings": False,
    },
    "opt-350m": {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "activation_function": "relu",
        "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024, "max_position_embeddings": 2048,
        "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512,
    },
    "starcoderbase-1b": {
        "model_type": "gpt_bigcode", "architectures": ["GPTBigCodeForCausalLM"], "n_embd": 2048, "n_head": 16,
        "activation_function": "gelu_pytorch_tanh", "n_inner": 8192, "n_layer": 24, "n_positions": 8192,
        "multi_query": True, "vocab_size": 49152,
    },
    "stablelm-2-12b": {
        "model_type": "stablelm", "architectures": ["StableLmForCausalLM"], "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 13824, "max_position_embeddings": 4096, "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "partial_rotary_factor": 0.25, "qk_layernorm": True,
        "tie_word_embeddings": False, "use_parallel_residual": True, "use_qkv_bias": False, "vocab_size": 100352,
    },
    "stablelm-2-1_6b": {
        "model_type": "stablelm", "architectures": ["StableLmForCausalLM"], "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 5632, "max_position_embeddings": 4096, "num_attention_heads": 32,
        "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
        "tie_word_embeddings": False, "use_qkv_bias": True, "vocab_size": 100352,
    },
    "starcoder2-3b": {
        "model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh",
        "attention_dropout": 0.1, "embedding_dropout": 0.1, "residual_dropout": 0.1, "hidden_size": 3072,
        "intermediate_size": 12288, "max_position_embeddings": 16384, "num_attention_heads": 24,
        "num_hidden_layers": 30, "num_key_value_heads": 2, "sliding_window": 4096, "use_bias": True,
        "vocab_size": 49152,
    },
    "falcon-7b": {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "alibi": False, "bias": False,
        "hidden_size": 4544, "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71,
        "num_hidden_layers": 32, "parallel_attn": True, "vocab_size": 65024,
    },
    "falcon-40b": {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "alibi": False, "bias": False,
        "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
        "num_kv_heads": 8, "parallel_attn": True, "vocab_size": 65024,
    },
    "falcon-rw-1b": {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "alibi": True, "bias": True,
        "hidden_size": 2048, "multi_query": False, "new_decoder_architecture": False, "num_attention_heads": 32,
        "num_hidden_layers": 24, "parallel_attn": False, "vocab_size": 50304,
    },
    "distilbert-base": {
        "model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], "activation": "gelu", "dim": 768,
        "attention_dropout": 0.1, "dropout": 0.1, "hidden_dim": 3072, "max_position_embeddings": 512, "n_heads": 12,
        "n_layers": 6, "vocab_size": 30522,
    },
    "xlm-roberta-base": {
        "model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"], "hidden_act": "gelu",
        "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 514, "num_attention_heads": 12,
        "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 250002,
    },
    "electra-small": {
        "model_type": "electra", "architectures": ["ElectraForPreTraining"], "embedding_size": 128,
        "hidden_act": "gelu", "hidden_size": 256, "intermediate_size": 1024, "max_position_embeddings": 512,
        "num_attention_heads": 4, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
    },
    "umt5-small": {
        "model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"], "d_ff": 1024, "d_kv": 64,
        "d_model": 512, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8,
        "tie_word_embeddings": False, "vocab_size": 256384,
    },
    "mbart-large": {
        "model_type": "mbart", "architectures": ["MBartForConditionalGeneration"], "activation_function": "gelu",
        "attention_dropout": 0.1, "d_model": 1024, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096,
        "decoder_layers": 12, "dropout": 0.1, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
        "encoder_layers": 12, "max_position_embeddings": 1024, "scale_embedding": True, "vocab_size": 250027,
    },
    "pegasus-large": {
        "model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"], "activation_dropout": 0.1,
        "activation_function": "relu", "attention_dropout": 0.1, "d_model": 1024, "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096, "decoder_layers": 16, "dropout": 0.1, "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096, "encoder_layers": 16, "max_position_embeddings": 1024, "scale_embedding": True,
        "vocab_size": 96103,
    },
    "opus-mt-en-de": {
        "model_type": "marian", "architectures": ["MarianMTModel"], "activation_function": "swish", "d_model": 512,
        "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layers": 6, "dropout": 0.1,
        "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layers": 6, "max_position_embeddings": 512,
        "pad_token_id": 58100, "decoder_start_token_id": 58100, "scale_embedding": True, "vocab_size": 58101,
    },
}  # fmt: skip
OTHERS.update(FURTHER)


def config(name: str, **changes: Any) -> dict[str, Any]:
    data: Mapping[str, Any] = OTHERS.get(name) or json.loads(
        (CATALOG / f"{name}.json").read_text(encoding="utf-8")
    )
    return {**data, **changes}


def shallow(data: Mapping[str, Any], layers: int = 1) -> dict[str, Any]:
    """The same model at full width with few layers and a small vocabulary."""
    depths = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
              "decoder_layers")  # fmt: skip
    small = {key: layers for key in depths if data.get(key) is not None}
    tokens = {key: 1 for key in data if key.endswith("_token_id") and isinstance(data[key], int)}
    if "attention_types" in data:  # GPT-Neo counts its layers twice
        small["attention_types"] = [[["global"], layers]]
    nested = {
        key: shallow(value, layers)
        for key, value in data.items()
        if key in ("text_config", "vision_config")
    }
    vocab = {"vocab_size": 1000} if "vocab_size" in data else {}
    return {**data, **small, **tokens, **vocab, **nested}
