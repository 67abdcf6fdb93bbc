"""A GGUF file by its header alone: what llama.cpp reads of a model. Weights are never read.

The header is `GGUF`, a version, two counts, then named values and a line per tensor: name, sizes, type, offset. All
counts and lengths are held against limits before anything is read, because a stranger's file may claim terabytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from vramcast.errors import InputError
from vramcast.files import open_file
from vramcast.models.read.config import Config

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 512 * 1024 * 1024
MAX_TENSORS = 100_000
MAX_KEYS = 10_000
MAX_ITEMS = 10_000_000
MAX_TEXT_BYTES = 1024 * 1024
MAX_DIMENSIONS = 8
KEPT_ITEMS = 4096  # longer arrays (the vocabulary) are counted and not kept

# Value types of the format: number → how `struct` reads it; 8 is text, 9 an array.
SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
TEXT, ARRAY = 8, 9
# ggml.h enum ggml_type: number → name.
TYPES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
}
# llama.cpp's name of an architecture, where transformers' model_type is another.
MODEL_TYPES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "gemma3": "gemma3_text",
    "deepseek2": "deepseek_v3",
    "gpt-oss": "gpt_oss",
    "command-r": "cohere",
    "starcoder2": "starcoder2",
    "phi2": "phi",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # the fastest-running dimension first, as the file has it
    kind: str  # a type of ggml

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    path: str
    values: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    def value(self, name: str) -> Any:
        """A value under the architecture's own prefix."""
        return self.values.get(f"{self.architecture}.{name}")


def read_gguf(path: Path) -> GgufFile:
    """The header of a file; of a model in several files, this one's part."""
    with open_file(path) as file:
        reader = _Reader(path, file)
        if reader.take(4) != MAGIC:
            raise InputError(f"{path}: not a GGUF file")
        version = reader.number("<I")
        if version not in (2, 3):
            raise InputError(f"{path}: GGUF version {version} is not known; known are 2 and 3")
        num_tensors = reader.count(MAX_TENSORS, "tensors")
        num_keys = reader.count(MAX_KEYS, "values")
        values = dict(reader.pair() for _ in range(num_keys))
        tensors = tuple(reader.tensor() for _ in range(num_tensors))
    return GgufFile(path=str(path), values=values, tensors=tensors)


class _Reader:
    """Reads the header piece by piece, and never more than the limits allow."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file, self.read_bytes = path, file, 0

    def take(self, size: int) -> bytes:
        self.read_bytes += size
        if self.read_bytes > MAX_HEADER_BYTES:
            raise InputError(f"{self.path}: a header above {MAX_HEADER_BYTES} bytes is not read")
        data = self.file.read(size)
        if len(data) != size:
            raise InputError(f"{self.path}: truncated (the header ends early)")
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        found = int(self.number("<Q"))
        if found > most:
            raise InputError(f"{self.path}: claims {found} {what}, more than the {most} allowed")
        return found

    def text(self) -> str:
        length = self.count(MAX_TEXT_BYTES, "bytes of a text")
        return self.take(length).decode("utf-8", errors="replace")

    def pair(self) -> tuple[str, Any]:
        name = self.text()
        return name, self.value(self.number("<I"))

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise InputError(f"{self.path}: value type {kind} is not known")
        inner = self.number("<I")
        if inner == ARRAY:
            raise InputError(f"{self.path}: arrays of arrays are not read")
        length = self.count(MAX_ITEMS, "items of an array")
        if length <= KEPT_ITEMS:
            return [self.value(inner) for _ in range(length)]
        self._skip(inner, length)
        return length

    def _skip(self, kind: int, length: int) -> None:
        if kind in SCALARS:
            self.take(length * struct.calcsize(SCALARS[kind]))
            return
        for _ in range(length):
            self.value(kind)

    def tensor(self) -> GgufTensor:
        name = self.text()
        dimensions = int(self.number("<I"))
        if dimensions > MAX_DIMENSIONS:
            raise InputError(f"{self.path}: tensor {name[:80]!r} has {dimensions} dimensions")
        shape = tuple(int(self.number("<Q")) for _ in range(dimensions))
        kind, _ = self.number("<I"), self.number("<Q")
        if kind not in TYPES:
            known = ", ".join(TYPES.values())
            raise InputError(f"{self.path}: tensor {name[:80]!r} has type {kind}. Known: {known}.")
        if prod(shape) > 2**50:
            raise InputError(f"{self.path}: tensor {name[:80]!r} has impossible sizes {shape}")
        return GgufTensor(name=name, shape=shape, kind=TYPES[kind])


def config_of_gguf(gguf: GgufFile) -> Config:
    """The header's values in the words of a config.json."""
    if not gguf.architecture:
        raise InputError(f"{gguf.path}: does not name its architecture")
    heads = _largest(gguf.value("attention.head_count"))
    width = gguf.value("attention.key_length")
    embedding = gguf.value("embedding_length")
    if width is None and heads and embedding:
        width = embedding // heads
    vocabulary = gguf.value("vocab_size") or _length(gguf.values.get("tokenizer.ggml.tokens"))
    is_latent = gguf.value("attention.kv_lora_rank") is not None
    named = {
        "model_type": MODEL_TYPES.get(gguf.architecture, gguf.architecture.replace("-", "_")),
        "num_hidden_layers": gguf.value("block_count"),
        "hidden_size": embedding,
        "intermediate_size": _largest(gguf.value("feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": _largest(gguf.value("attention.head_count_kv")),
        "head_dim": width,
        "v_head_dim": gguf.value("attention.value_length"),
        "max_position_embeddings": gguf.value("context_length"),
        "vocab_size": vocabulary,
        "sliding_window": gguf.value("attention.sliding_window") or None,
        "kv_lora_rank": gguf.value("attention.kv_lora_rank"),
        "qk_rope_head_dim": gguf.value("rope.dimension_count") if is_latent else None,
        "num_experts": gguf.value("expert_count") or None,
        "num_experts_per_tok": gguf.value("expert_used_count"),
        "moe_intermediate_size": gguf.value("expert_feed_forward_length"),
    }
    return Config({key: value for key, value in named.items() if value}, gguf.path)


def _largest(value: Any) -> Any:
    """A number for all layers, or the largest of a list of one for each."""
    if isinstance(value, list):
        return max((item for item in value if isinstance(item, int)), default=None)
    return value


def _length(value: Any) -> int | None:
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, int) else None
