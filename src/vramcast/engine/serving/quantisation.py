"""In which format an engine holds which weights: what the job says, else what the checkpoint's config says.

Engines read quantised checkpoints as they are. Embedding, output head, norms, routers and vision towers stay in 16 bit
unless a recipe says otherwise, and that decides a good part of the size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vramcast.engine.serving.formats import FORMATS, Format
from vramcast.engine.serving.request import Request
from vramcast.errors import UnsupportedError
from vramcast.models.read.config import Config

# Checkpoints whose own release is quantised although the catalog's config, which training starts from, does not say it.
PUBLISHED_IN = {
    "gpt-oss-20b": "mxfp4",
    "gpt-oss-120b": "mxfp4",
    "deepseek-v3": "fp8-block",
    "deepseek-v3.2": "fp8-block",
}
# vllm/model_executor/layers/quantization/…: what else a method leaves alone.
EXPERTS_ONLY = ("mxfp4",)
NEVER = re.compile(
    r"(^|\.)(vision_tower|visual|vision_model|multi_modal_projector|audio_tower|mlp1|connector|lm_head|router|"
    r"embed_tokens|embed_vision|gate|shared_expert_gate)(\.|$)"
)
# vLLM 0.9.2 expands bitsandbytes' doubly quantised scales to fp32 when it loads them (dequantize_dq).
EXPANDS_SCALES_FROM = (0, 9, 2)
BY_WORD = {
    "4-bit": "awq",
    "int4": "awq",
    "8-bit": "gptq-int8",
    "int8": "w8a8",
    "awq": "awq",
    "awq_marlin": "awq",
    "auto-round": "gptq",
    "fbgemm_fp8": "fp8",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "w8a8": "w8a8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A format, and the weights that it does not hold for."""

    format: Format
    skipped: tuple[str, ...] = ()
    whose: str = ""  # what says so

    def applies(self, name: str, kind: str) -> bool:
        if kind not in ("linear", "experts", "expert") or NEVER.search(name):
            return False
        if self.format.name in EXPERTS_ONLY and "expert" not in name:
            return False
        return not any(_matches(pattern, name) for pattern in self.skipped)


def rule_of(request: Request) -> Rule | None:
    """None where weights are held in the model's dtype."""
    said = request.job.quantize
    if said != "none":
        return Rule(format=_named(said, request), whose="quantize")
    config = request.config.sub("quantization_config").data
    config = config or request.text.sub("quantization_config").data
    if config:
        return _read_rule(config, request)
    published = PUBLISHED_IN.get(request.source.name)
    if published is not None and request.job.precision is None:
        return Rule(format=FORMATS[published], whose="the published checkpoint")
    return None


def rule_of_format(name: str, config: Config) -> Rule | None:
    """For transformers, which reads the same checkpoints: what a job says, else what the config does. None where
    weights are in the model's dtype, or bitsandbytes packs them, which is recorded with the model."""
    said = config.sub("quantization_config").data
    if name in FORMATS and name not in ("int8", "nf4", "nf4-double"):
        return Rule(format=FORMATS[name], skipped=_skipped(said), whose="quantize")
    method = str(said.get("quant_method") or "").lower()
    if name != "none" or method in ("", "bitsandbytes", "mlx", "gguf"):
        return None
    return Rule(
        format=_format_of(method, said, None), skipped=_skipped(said), whose="the checkpoint"
    )


def _named(name: str, request: Request) -> Format:
    expands = request.engine == "vllm" and request.version >= EXPANDS_SCALES_FROM
    if name == "nf4-double" and expands:
        name = "nf4"
    if name == "nf4" and request.engine == "vllm" and not expands:
        name = "nf4-double"  # quantised while loading, compress_statistics=True
    return FORMATS[name]


def _read_rule(config: Any, request: Request) -> Rule:
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    if method in ("mlx", "gguf"):
        raise UnsupportedError(
            f"{request.source.name}: {method.upper()} checkpoints are not read by {request.engine}; say --engine "
            "llama.cpp with --quantize q4_k_m, or name the original model"
        )
    return Rule(
        format=_format_of(method, config, request),
        skipped=_skipped(config),
        whose="the checkpoint's quantization_config",
    )


def _format_of(method: str, config: Any, request: Request | None) -> Format:
    if method == "fp8":
        return FORMATS["fp8-block" if config.get("weight_block_size") else "fp8"]
    if method == "bitsandbytes" and request is not None:
        if config.get("load_in_8bit"):
            return FORMATS["int8"]
        return _named("nf4-double" if config.get("bnb_4bit_use_double_quant") else "nf4", request)
    if method == "gptq":
        return _grouped(
            "gptq", int(config.get("bits", 4)), config.get("group_size", 128), zeros=True
        )
    if method in ("awq", "awq_marlin", "auto-round"):
        return _grouped(
            "awq", int(config.get("bits", 4)), config.get("group_size", 128), zeros=True
        )
    if method == "compressed-tensors":
        return _compressed(config)
    if method.startswith("modelopt") or "quant_algo" in config:
        algorithm = str(config.get("quant_algo", method)).lower()
        return FORMATS["nvfp4" if "fp4" in algorithm else "fp8"]
    if method in BY_WORD:
        return FORMATS[BY_WORD[method]]
    known = "fp8, awq, gptq, bitsandbytes, compressed-tensors, modelopt, mxfp4"
    raise UnsupportedError(
        f"quantization_config: quant_method {method!r} is not described. Known: {known}. Give --quantize with a known "
        "format of the same size."
    )


def _grouped(name: str, bits: int, group: Any, *, zeros: bool) -> Format:
    size = group if isinstance(group, int) and group > 0 else 4096
    scales = 2 + (bits / 8 if zeros else 0)
    return Format(
        name=name,
        weights=size,
        nbytes=size * bits / 8 + scales,
        source=f"{bits} bit, 16-bit scale per {size} weights",
    )


def _compressed(config: Any) -> Format:
    groups = config.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return FORMATS["w8a8"]
    bits, is_float = int(weights.get("num_bits") or 8), weights.get("type") == "float"
    if bits == 8:
        is_block = weights.get("strategy") == "block"
        return FORMATS[("fp8-block" if is_block else "fp8") if is_float else "w8a8"]
    if is_float:
        return FORMATS["nvfp4" if weights.get("group_size") in (16, None) else "mxfp4"]
    is_asymmetric = weights.get("symmetric") is False
    return _grouped("awq", bits, weights.get("group_size"), zeros=is_asymmetric)


def _skipped(config: Any) -> tuple[str, ...]:
    names = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    lists = [config.get(name) for name in (*names, "llm_int8_skip_modules")]
    return tuple(
        item
        for found in lists
        if isinstance(found, list)
        for item in found
        if isinstance(item, str)
    )


def _matches(pattern: str, name: str) -> bool:
    """A name or a part of one, `re:` a regular expression, * anything. Patterns come from files: only * is kept."""
    text = pattern.removeprefix("re:").replace(".*", "*").strip("^$")
    parts = [part for part in text.replace("\\.", ".").split("*") if part]
    position = 0
    for part in parts:
        found = name.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return bool(parts)


def has_quantised_cache(config: Config) -> bool:
    """Checkpoints calibrated for an fp8 cache: kv_cache_scheme or kv_cache_quant_algo."""
    quantisation = config.sub("quantization_config").data
    scheme = quantisation.get("kv_cache_scheme")
    algorithm = str(quantisation.get("kv_cache_quant_algo") or "").lower()
    bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
    return bits == 8 or "fp8" in algorithm
