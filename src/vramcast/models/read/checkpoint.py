"""A safetensors file or sharded folder, by its headers alone: names, shapes and dtypes; weights are never read.

The format is a little-endian u64 length, that many bytes of JSON, then the data. The length is held against the file's
size and a limit before anything is read, because a stranger's file may claim terabytes. A header does not say which
tensors are parameters and which are buffers.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from vramcast.errors import InputError
from vramcast.files import open_file, read_bytes
from vramcast.models.record.tape import BF16, BOOL, F16, F32, I32, I64, Dtype, Param

# JSON takes up to twenty times as much memory as its text. A header of this size names 100,000 tensors, an index twice
# as many.
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_INDEX_BYTES = 32 * 1024 * 1024
MAX_DIMENSIONS = 64

# The name in the header → bits per element and what the tensor is called here.
BITS: dict[str, tuple[int, Dtype]] = {
    "F64": (64, Dtype("fp64", 8)),
    "F32": (32, F32),
    "F16": (16, F16),
    "BF16": (16, BF16),
    "F8_E4M3": (8, Dtype("fp8 e4m3", 1)),
    "F8_E5M2": (8, Dtype("fp8 e5m2", 1)),
    "F8_E8M0": (8, Dtype("fp8 e8m0", 1)),
    "F6_E2M3": (6, Dtype("fp6 e2m3", 1)),
    "F6_E3M2": (6, Dtype("fp6 e3m2", 1)),
    "F4": (4, Dtype("fp4", 1)),
    "I64": (64, I64),
    "U64": (64, Dtype("uint64", 8, False)),
    "I32": (32, I32),
    "U32": (32, Dtype("uint32", 4, False)),
    "I16": (16, Dtype("int16", 2, False)),
    "U16": (16, Dtype("uint16", 2, False)),
    "I8": (8, Dtype("int8", 1, False)),
    "U8": (8, Dtype("uint8", 1, False)),
    "BOOL": (8, BOOL),
    "C64": (64, Dtype("complex64", 8)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a header, with its position in the data."""

    param: Param
    begin: int
    end: int


def read_checkpoint(path: Path) -> tuple[Param, ...]:
    """Every tensor of a file, an index or a folder of shards."""
    tensors: dict[str, Param] = {}
    for shard in shards_of(path):
        for param in read_header(shard):
            if tensors.setdefault(param.name, param) is not param:
                raise InputError(f"{shard}: {param.name} is also in another shard")
    return tuple(tensors.values())


def shards_of(path: Path) -> tuple[Path, ...]:
    """The safetensors files to read: the file itself, those an index names, or all in a folder."""
    if path.is_dir():
        index = next(iter(sorted(path.glob("*.safetensors.index.json"))), None)
        if index:
            return _shards_of_index(index)
        # Next to it there may be an adapter, or the same weights in another layout.
        whole = path / "model.safetensors"
        return (whole,) if whole.is_file() else tuple(sorted(path.glob("*.safetensors")))
    return _shards_of_index(path) if path.name.endswith(".index.json") else (path,)


def _shards_of_index(index: Path) -> tuple[Path, ...]:
    listed = _read_weight_map(index).values()
    for name in listed:
        _check_shard_name(index, name)
    names = sorted(set(listed))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        shown = ", ".join(missing[:3])
        if len(missing) > 3:
            shown += f" and {len(missing) - 3} more"
        raise InputError(f"{index}: {len(missing)} of {len(names)} shards are missing: {shown}")
    return tuple(index.parent / name for name in names)


def _check_shard_name(index: Path, name: Any) -> None:
    """An index from a stranger must not point outside of its folder."""
    if not isinstance(name, str) or not _is_shard_name(name):
        shown = repr(name[:80]) if isinstance(name, str) else type(name).__name__
        raise InputError(
            f"{index}: {shown} is not the name of a safetensors file next to the index"
        )


def _is_shard_name(name: str) -> bool:
    return (
        len(name) <= 255
        and name.isprintable()
        and name.endswith(".safetensors")
        and Path(name).name == name
    )


def _read_weight_map(index: Path) -> dict[str, Any]:
    text = read_bytes(index, MAX_INDEX_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{index}: not a readable index of shards ({error})") from None
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: has no weight_map")
    return weight_map


def read_header(path: Path) -> tuple[Param, ...]:
    """The tensors of one file, in the order of their data."""
    header, data_bytes = _read_header_json(path)
    header.pop("__metadata__", None)
    tensors = [_read_tensor(path, name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_layout(path, tensors, data_bytes)
    return tuple(tensor.param for tensor in tensors)


def _read_header_json(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON of a header and the bytes of data that follow it."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise InputError(
                f"{path}: truncated or not safetensors (header of {length} bytes, file of {size})"
            )
        if length > MAX_HEADER_BYTES:
            raise InputError(
                f"{path}: a header of {length} bytes is above the {MAX_HEADER_BYTES} that are allowed"
            )
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable safetensors header ({error})") from None
    if not isinstance(header, dict):
        raise InputError(
            f"{path}: a safetensors header must be a JSON object, not {type(header).__name__}"
        )
    return header, size - 8 - length


def _read_tensor(path: Path, name: str, entry: Any) -> StoredTensor:
    where = f"{path}: tensor {name[:80]!r}"
    if not isinstance(entry, dict) or not name.isprintable():
        raise InputError(f"{where} must be a printable name with an object")
    dtype_name = entry.get("dtype")
    if not isinstance(dtype_name, str) or dtype_name not in BITS:
        raise InputError(f"{where} has dtype {str(dtype_name)[:80]!r}. Known: {', '.join(BITS)}.")
    shape = _sizes(entry.get("shape"), f"{where} has shape")
    offsets = _sizes(entry.get("data_offsets"), f"{where} has data_offsets")
    if len(offsets) != 2:
        raise InputError(f"{where} has {len(offsets)} data_offsets, not 2")
    begin, end = offsets
    bits, dtype = BITS[dtype_name]
    stored_bytes = end - begin
    if stored_bytes * 8 != prod(shape) * bits:
        raise InputError(f"{where}: {stored_bytes} bytes do not hold {dtype_name} of shape {shape}")
    param = Param(
        name=name,
        shape=tuple(shape),
        kind=kind_of(name, len(shape)),
        dtype=dtype,
        trainable=dtype.floating,
        stored_bytes=None if bits == dtype.nbytes * 8 else stored_bytes,
    )
    return StoredTensor(param=param, begin=begin, end=end)


def _sizes(value: Any, what: str) -> list[int]:
    if not isinstance(value, list) or len(value) > MAX_DIMENSIONS:
        raise InputError(f"{what} {str(value)[:80]!r}, which is not a list of sizes")
    for size in value:
        if type(size) is not int or not 0 <= size < 2**63:
            raise InputError(f"{what} {str(value)[:80]!r}, which are not all sizes")
    return value


def _check_layout(path: Path, tensors: list[StoredTensor], data_bytes: int) -> None:
    """The data has neither holes nor overlaps and is all there."""
    expected = 0
    for tensor in tensors:
        if tensor.begin != expected:
            name = tensor.param.name[:80]
            raise InputError(f"{path}: tensor {name!r} starts at {tensor.begin}, not at {expected}")
        expected = tensor.end
    if expected != data_bytes:
        raise InputError(
            f"{path}: truncated or damaged (the header describes {expected} bytes, the file has {data_bytes})"
        )


EMBEDDINGS = ("embed", "wte", "wpe", "shared", "embd")


def kind_of(name: str, num_dims: int) -> str:
    """The kind of a parameter as far as its name and rank tell."""
    owner, _, last = name.rpartition(".")
    if last == "bias":
        return "bias"
    if num_dims <= 1:
        return "norm"
    if num_dims > 2:
        return "experts" if "expert" in owner else "conv"
    module = owner.rpartition(".")[2]
    is_embedding = any(word in module for word in EMBEDDINGS)
    return "embedding" if is_embedding else "linear"
