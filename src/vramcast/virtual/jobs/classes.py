"""The class that a config is built with: the one it names, else one that transformers has for its model type.

Only classes that ship with transformers are built; code that comes with a checkpoint is never run.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from vramcast.errors import UnsupportedError
from vramcast.models.families import MODULE_OF
from vramcast.models.read.config import Config

# transformers' tables in the order in which they are asked: what is trained first, the bare model last.
TABLES = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "MASKED_LM",  # encoders, some of which can be built as decoders too
    "CAUSAL_LM",
    "CTC",
)
# Of our own, and of files: no sizes of the model.
NOT_KEYS = ("model_type", "auto_map", "torch_dtype", "dtype", "quantization_config")
_REQUIRES = re.compile(r"requires the (\S+) library")


def built_config(config: Config) -> Any:
    """transformers' own config object."""
    import transformers

    if config.model_type not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        raise UnsupportedError(
            f"{config.where}: model_type {config.model_type!r} is known neither here nor to transformers "
            f"{transformers.__version__}. Known here: {', '.join(sorted(MODULE_OF))}. Give --params for its states."
        )
    keys = {key: plain_numbers(value) for key, value in config.data.items() if key not in NOT_KEYS}
    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[config.model_type]
    try:
        return kind.from_dict(keys)
    except Exception as error:  # a stranger's config in someone else's class: anything may rise
        raise cannot_build(config, error) from error


def model_class(config: Config, built: Any) -> Any:
    """The class that `architectures` names; else the first of transformers' tables; else any class of this config."""
    import transformers

    named = _class_named(transformers, config.architecture)
    if named is not None:
        return named
    from transformers.models.auto import modeling_auto

    tables = [getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {}) for name in TABLES]
    tables.append(modeling_auto.MODEL_MAPPING_NAMES)
    listed = [
        found
        for table in tables
        for name in _names(table.get(config.model_type, ()))
        if (found := _class_named(transformers, name)) is not None and _has_its_sizes(name, built)
    ]
    made_for_it = [found for found in listed if isinstance(built, found.config_class)]
    # Last those of another type: transformers builds InternLM3 with Llama's classes.
    own = next(chain(made_for_it, _classes_of(built), listed), None)
    if own is None:
        raise UnsupportedError(
            f"{config.where}: transformers {transformers.__version__} has a config of type {config.model_type!r} and "
            f"no model class for it{_whole_of(built)}"
        )
    return own


def _has_its_sizes(name: str, built: Any) -> bool:
    """A head for letters needs to know how many; speech encoders that were only pretrained do not say."""
    return not name.endswith("ForCTC") or getattr(built, "vocab_size", 0) is not None


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _whole_of(built: Any) -> str:
    """Whose part it is, by the configs of its package that hold it."""
    module = importlib.import_module(type(built).__module__)
    kinds: list[Any] = [kind for kind in vars(module).values() if inspect.isclass(kind)]
    wholes = [
        kind.model_type
        for kind in kinds
        if type(built) in (getattr(kind, "sub_configs", None) or {}).values()
    ]
    if not wholes:
        return ": it has no class of its own. Give the config of the model that it is used with."
    names = " or ".join(map(repr, dict.fromkeys(wholes)))
    return f": it is a part of {names}. Give that model's config."


def plain_numbers(value: Any) -> Any:
    """transformers 5 writes an infinity as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(str(value["__float__"]).replace("Infinity", "inf"))
        return {key: plain_numbers(inner) for key, inner in value.items()}
    return [plain_numbers(inner) for inner in value] if isinstance(value, list) else value


def _class_named(transformers: Any, name: str) -> Any:
    found = getattr(transformers, name, None) if name else None
    return found if hasattr(found, "_from_config") or hasattr(found, "config_class") else None


def _classes_of(built: Any) -> Iterator[Any]:
    """Model classes of the package that defines this config, those made for it; whole models before their parts."""
    from transformers import PreTrainedModel

    package = importlib.import_module(type(built).__module__.rpartition(".")[0])
    names = [
        f"{package.__name__}.{found.name}"
        for found in pkgutil.iter_modules(package.__path__)
        if found.name.startswith("modeling_")
    ]
    found: list[Any] = [
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if inspect.isclass(value)
        and issubclass(value, PreTrainedModel)
        and getattr(value, "config_class", None) is type(built)
        and value.__module__ == name
        and not value.__name__.endswith("PreTrainedModel")
    ]
    yield from sorted(found, key=lambda value: not value.__name__.endswith("Model"))


def cannot_build(config: Config, error: Exception) -> UnsupportedError:
    """One line that names the missing package, if that is what is missing."""
    text = " ".join(str(error).split())
    missing = missing_package(error)
    if missing:
        return UnsupportedError(
            f"{config.where}: transformers needs {missing} to build and run it: pip install {missing}"
        )
    line = f"{type(error).__name__}: {text[:200]}"
    return UnsupportedError(f"{config.where}: transformers cannot build it ({line})")


def missing_package(error: BaseException) -> str:
    """The package that an ImportError, or one behind it, asks for; empty if it asks for none."""
    found = _REQUIRES.search(" ".join(str(error).split()))
    if found:
        return found[1]
    name = getattr(error, "name", None)
    return str(name).partition(".")[0] if isinstance(error, ImportError) and name else ""
