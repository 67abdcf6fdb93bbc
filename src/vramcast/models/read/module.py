"""An nn.Module's parameters: any module, also a custom one, on any device, also meta.

Works on the object it is given and imports no torch. Buffers are not parameters and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramcast.errors import InputError
from vramcast.models.read.checkpoint import kind_of
from vramcast.models.read.source import ModelSource
from vramcast.models.record.tape import BF16, BOOL, F16, F32, I32, I64, Dtype, Param

NAMES = {"float32": F32, "bfloat16": BF16, "float16": F16, "int64": I64, "int32": I32, "bool": BOOL}
# The class of the module that holds a parameter, or of one of its bases → the kind of its `weight`.
KINDS = {
    "Embedding": "embedding",
    "Linear": "linear",
    "Conv1D": "linear",
    "_ConvNd": "conv",
    "LayerNorm": "norm",
    "_NormBase": "norm",
    "GroupNorm": "norm",
    "RMSNorm": "norm",
}


def read_module(module: Any, name: str = "") -> ModelSource:
    """A model given as an object: its parameters with names, shapes, dtypes, requires_grad and ties."""
    if not hasattr(module, "named_parameters") or not hasattr(module, "named_modules"):
        raise InputError(f"a torch.nn.Module is needed, not {type(module).__name__}")
    return ModelSource(name=name or type(module).__name__, params=tuple(module_params(module)))


def module_params(module: Any) -> Iterator[Param]:
    """Each parameter once under its first name; later names of the same storage are ties."""
    owners = dict(module.named_modules(remove_duplicate=False))
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        first_name = first.setdefault(_identity(tensor), name)
        yield Param(
            name=name,
            shape=tuple(tensor.shape),
            kind=_kind(name, tensor, owners),
            dtype=_dtype(tensor),
            trainable=bool(tensor.requires_grad),
            tied_to=None if first_name == name else first_name,
        )


def _identity(tensor: Any) -> tuple[Any, ...]:
    """Equal for two parameters that are the same bytes: `.data` may be shared between two Parameter objects."""
    storage = tensor.untyped_storage()
    return storage._cdata, tensor.storage_offset(), tuple(tensor.shape)


def _dtype(tensor: Any) -> Dtype:
    name = str(tensor.dtype).removeprefix("torch.")
    return NAMES.get(name) or Dtype(name, tensor.element_size(), tensor.is_floating_point())


def _kind(name: str, tensor: Any, owners: dict[str, Any]) -> str:
    """By the class of the module that owns the parameter, else by its name."""
    owner, _, last = name.rpartition(".")
    if last != "bias" and owner in owners:
        bases = [base.__name__ for base in type(owners[owner]).__mro__]
        known = [KINDS[base] for base in bases if base in KINDS]
        if known:
            return known[0]
    return kind_of(name, tensor.dim())
