"""Bytes of a weight and of a cached value in the formats that engines store them in.

A quantised format is blocks: `weights` values of `bits` each, and the scales that belong to a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.errors import InputError, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """`nbytes` bytes for every `weights` values."""

    name: str
    weights: int
    nbytes: float
    source: str

    def bytes_of(self, numel: int) -> int:
        return round(numel * self.nbytes / self.weights)


def _format(name: str, bits: int, group: int, per_group: float, source: str) -> Format:
    return Format(name=name, weights=group, nbytes=group * bits / 8 + per_group, source=source)


# Scales are 16 bit, zero points as wide as the weights.
FORMATS = {
    "fp8": _format("fp8", 8, 4096, 4, "one fp32 scale per output channel or tensor"),
    "fp8-block": _format("fp8-block", 8, 128 * 128, 4, "fp32 scales of 128 × 128 blocks"),
    "w8a8": _format("w8a8", 8, 4096, 4, "one fp32 scale per output channel"),
    "int8": _format("int8", 8, 4096, 4, "bitsandbytes: one fp32 scale per row"),
    "awq": _format("awq", 4, 128, 2 + 0.5, "fp16 scale and 4-bit zero point per 128 weights"),
    "gptq": _format("gptq", 4, 128, 2 + 0.5, "fp16 scale and 4-bit zero point per 128 weights"),
    "gptq-int8": _format("gptq-int8", 8, 128, 2 + 1, "fp16 scale and 8-bit zero point per 128"),
    "mxfp4": _format("mxfp4", 4, 32, 1, "one 8-bit exponent per 32 weights"),
    "nvfp4": _format("nvfp4", 4, 16, 1, "one fp8 scale per 16 weights"),
    "nf4": _format("nf4", 4, 64, 4, "bitsandbytes: fp32 absmax per 64 weights"),
    "nf4-double": _format(
        "nf4-double",
        4,
        64 * 256,
        256 + 4,
        "bitsandbytes: 8-bit absmax per 64, fp32 per 256 of them",
    ),
}

# ggml-common.h: block sizes and the bytes of a block.
GGML = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "q8_k": (256, 292),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "iq3_s": (256, 110),
    "iq3_xxs": (256, 98),
    "iq2_s": (256, 82),
    "iq2_xs": (256, 74),
    "iq2_xxs": (256, 66),
    "iq1_m": (256, 56),
    "iq1_s": (256, 50),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
    "mxfp4": (32, 17),
    "nvfp4": (64, 36),
}


def ggml_bytes(kind: str, numel: int) -> int:
    block, nbytes = GGML[kind]
    return -(-numel // block) * nbytes


# Bytes of a cached value; vLLM's and SGLang's words.
CACHE_BYTES = {
    "fp32": 4.0,
    "float32": 4.0,
    "bf16": 2.0,
    "bfloat16": 2.0,
    "fp16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
}
LLAMA_CPP_CACHE = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


def cache_value_bytes(said: str | None, dtype: str) -> float:
    """Bytes of one cached value in vLLM, SGLang and TGI; auto is the model's own dtype."""
    name = (said or "auto").lower()
    if name == "auto":
        return CACHE_BYTES[dtype]
    if name not in CACHE_BYTES:
        raise unknown("kv-cache-dtype", name, ("auto", *CACHE_BYTES))
    return CACHE_BYTES[name]


def llama_cpp_cache_types(said: str | None) -> tuple[str, str]:
    """Types of keys and of values: `q8_0` is both, `q8_0/q4_0` one each; f16 where nothing is said."""
    words = {"auto": "f16", "fp16": "f16", "float16": "f16", "fp32": "f32", "bfloat16": "bf16"}
    parts = [words.get(part, part) for part in (said or "f16").lower().split("/")]
    if len(parts) > 2:
        raise InputError(
            f"kv-cache-dtype names one type, or two with a slash (q8_0/q4_0), not {said!r}"
        )
    for part in parts:
        if part not in LLAMA_CPP_CACHE:
            raise unknown("kv-cache-dtype of llama.cpp", part, LLAMA_CPP_CACHE)
    return parts[0], parts[-1]
