"""PEFT's kinds of adapters: the formulas' parameters against those of `get_peft_model`, name by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vramcast.engine import sizes_of
from vramcast.engine.program import record_job
from vramcast.job import Job, job_from
from vramcast.setup import complete, model_of, resolve
from vramcast.virtual.jobs.adapters import adapted_model
from vramcast.virtual.jobs.model import bare_model

DENSE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "vocab_size": 200, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**DENSE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "tied": {
        **DENSE,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": True,
    },
    "qwen2": {**DENSE, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "mixtral": {
        **DENSE,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 3, "n_head": 4,
        "vocab_size": 200, "n_positions": 128, "torch_dtype": "bfloat16",
    },
    "bert": {
        "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 64,
        "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 200,
        "torch_dtype": "bfloat16",
    },
    "t5": {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_ff": 96, "d_kv": 16,
        "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 200, "decoder_start_token_id": 0,
        "feed_forward_proj": "gated-gelu", "pad_token_id": 0, "torch_dtype": "bfloat16",
    },
}  # fmt: skip
PROMPT = {"virtual-tokens": 5}
EVERY = tuple(name for name in FAMILIES if name != "tied")
# What is asked for, and the families for which PEFT knows it.
ASKED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"adapter": "lora"}, EVERY),
    ({"adapter": "ia3"}, EVERY),
    ({"adapter": "vera", "lora-rank": 16}, EVERY),
    ({"adapter": "loha"}, ("llama", "qwen2", "mixtral", "bert", "t5")),
    ({"adapter": "lokr"}, ("llama", "qwen2", "mixtral", "bert", "t5")),
    ({"adapter": "lokr", "lora-rank": 3, "lora-targets": "all-linear"}, ("llama", "t5")),
    ({"adapter": "oft"}, ("llama", "qwen2", "mixtral", "bert", "t5")),
    ({"adapter": "oft", "adapter-block": 24, "lora-targets": "down_proj"}, ("llama",)),
    ({"adapter": "boft"}, ("llama", "qwen2", "mixtral", "bert", "t5")),
    ({"adapter": "adalora"}, ("llama", "qwen2", "gpt2", "bert", "t5")),
    ({"adapter": "ln-tuning"}, ("llama", "qwen2", "gpt2", "t5")),
    ({"adapter": "ln-tuning", "lora-targets": "LayerNorm"}, ("bert",)),
    ({"adapter": "prompt", **PROMPT}, ("llama", "qwen2", "mixtral", "gpt2", "bert")),
    ({"adapter": "p-tuning", **PROMPT}, ("llama", "qwen2", "mixtral", "gpt2", "bert")),
    ({"adapter": "p-tuning", "prompt-hidden": 24, **PROMPT}, ("llama",)),
    ({"lora-rank": 4, "modules-to-save": "lm_head"}, ("llama", "tied")),
    ({"lora-rank": 4, "modules-to-save": "embed_tokens,lm_head"}, ("llama", "tied", "qwen2")),
    ({"lora-rank": 4, "modules-to-save": "classifier"}, ("bert",)),
    ({"adapter": "ia3", "modules-to-save": "norm"}, ("llama",)),
    ({"lora-rank": 4, "layers-to-transform": "0,2"}, ("llama", "gpt2", "bert")),
    ({"adapter": "loha", "layers-to-transform": "1"}, ("llama",)),
    ({"lora-rank": 4, "lora-targets": r".*layers\.[0-1]\..*(q|v)_proj"}, ("llama", "qwen2")),
    ({"adapter": "ia3", "lora-targets": r".*\.2\..*down_proj"}, ("llama",)),
    ({"lora-rank": 4, "lora-targets": "model.layers.1.self_attn.q_proj,o_proj"}, ("llama",)),
]  # fmt: skip
CASES = [(name, values) for values, names in ASKED for name in names]
WRAPPED = re.compile(r"^base_model\.(?:model\.)?")  # PEFT's own modules around the model
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def job_of(folder: Path, name: str, values: dict[str, Any]) -> Job:
    path = folder / "config.json"
    path.write_text(json.dumps(FAMILIES[name]), encoding="utf-8")
    said = {"model": str(path), "batch": 2, "seq": 16, "precision": "bf16-autocast", **values}
    return complete(job_from({"checkpointing": "none", **said}))


@pytest.mark.parametrize(("name", "values"), CASES, ids=str)
def test_trained_parameters_are_those_of_peft(
    tmp_path: Path, name: str, values: dict[str, Any]
) -> None:
    job = job_of(tmp_path, name, values)
    config, setup = model_of(job).config, resolve(job)
    assert config is not None
    program = record_job(setup, config, None, sizes_of(setup.data, config))
    ours = {
        p.name: (tuple(map(int, p.shape)), p.dtype.name) for p in program.params() if p.trainable
    }
    model = adapted_model(bare_model(config, job, torch.bfloat16), job)
    real = {
        WRAPPED.sub("", name): (tuple(p.shape), SHORT[p.dtype])
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    assert ours == real


@pytest.mark.parametrize("kind", ["loha", "lokr", "oft", "boft"])
def test_kinds_that_take_no_conv1d_say_so(tmp_path: Path, kind: str) -> None:
    from vramcast.errors import InputError, UnsupportedError

    job = job_of(tmp_path, "gpt2", {"adapter": kind})
    config, setup = model_of(job).config, resolve(job)
    assert config is not None
    with pytest.raises(InputError, match="Conv1D"):
        record_job(setup, config, None, sizes_of(setup.data, config))
    with pytest.raises(UnsupportedError, match="PEFT refuses it"):
        adapted_model(bare_model(config, job, torch.bfloat16), job)
