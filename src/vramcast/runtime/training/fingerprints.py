"""Fingerprints of models and tokenizers: different if log-probabilities computed with one are wrong for the other.

In: a module, or a tokenizer of transformers. Out: SHA-256 as text, and the settings of a model as JSON can hold them,
to say what differs. Every weight and setting counts, except names, training options and the choice of kernels. Does not
know what the fingerprints are compared for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

# Settings that do not decide the log-probabilities of a model in eval mode: names of things, and what is for training,
# for generating or for how results are returned. Kernels (attention by SDPA or eager) differ by rounding only.
_BOOKKEEPING = (
    "_*",
    "transformers_version",
    "architectures",
    "auto_map",
    "auto_mapping",
    "dtype",
    "torch_dtype",
    "use_cache",
    "return_dict",
    "output_*",
    "id2label",
    "label2id",
    "problem_type",
    "initializer_*",
    "*dropout*",
    "*pdrop*",
    "*_token_id",
    "*aux_loss_coef*",
    "router_z_loss_coef",
    "gradient_checkpointing",
    "base_model_name_or_path",
    "inference_mode",
    "revision",
    "peft_version",
    "task_type",
    "init_lora_weights",
)


def model_fingerprint(model: nn.Module | str) -> str:
    """SHA-256 over every parameter and buffer (name, shape, dtype, bytes) and the model's settings. A string is a
    fingerprint taken earlier.
    """
    if isinstance(model, str):
        return model
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors(model).items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().contiguous().reshape(-1).cpu()
        digest.update(memoryview(flat.view(torch.uint8).numpy()))
    digest.update(json.dumps(model_settings(model), sort_keys=True).encode())
    return digest.hexdigest()


def model_settings(model: nn.Module) -> dict[str, Any]:
    """What decides a model's numbers in addition to its tensors: its config and its adapters', or, if it has none, the
    `repr` of its modules.
    """
    settings = _as_json_value(getattr(model, "config", None))
    if not isinstance(settings, dict) or not settings:
        settings = {"modules": repr(model)}
    adapters = _as_json_value(getattr(model, "peft_config", None))
    if adapters:
        settings = settings | {"adapters": adapters}
    return settings


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; without a config also the buffers that are not saved, as tables of angles often are."""
    saved: dict[str, Tensor] = {
        name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)
    }
    if _as_json_value(getattr(model, "config", None)):
        return saved
    return dict(model.named_buffers()) | saved


def _as_json_value(value: Any) -> Any:
    """Settings as JSON can hold them, without bookkeeping. Of other objects only the name of the type is kept."""
    value = _as_mapping(value)
    if isinstance(value, Mapping):
        kept = [key for key in value if not _is_bookkeeping(str(key))]
        return {str(key): _as_json_value(value[key]) for key in kept}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_as_json_value(part) for part in value]
    if isinstance(value, (bool, int, float, str, NoneType)):
        return value
    if isinstance(value, (torch.dtype, Enum)):
        return str(value)
    return type(value).__name__


def _as_mapping(value: Any) -> Any:
    """A config or a dataclass as a mapping; any other value as it is."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return value


def _is_bookkeeping(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _BOOKKEEPING)


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Vocabulary, merges, special tokens and chat template; a string is a fingerprint taken earlier, None is no
    tokenizer.
    """
    if tokenizer is None or isinstance(tokenizer, str):
        return tokenizer or "none"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else _vocabulary_text(tokenizer)
    special = json.dumps(getattr(tokenizer, "special_tokens_map", {}), sort_keys=True, default=str)
    template = str(getattr(tokenizer, "chat_template", None))
    return hashlib.sha256("\n".join((vocabulary, special, template)).encode()).hexdigest()


def _vocabulary_text(tokenizer: Any) -> str:
    return json.dumps(sorted(tokenizer.get_vocab().items()))
