"""What a user types as MODEL → ModelSource: a catalog name, a config.json or folder, safetensors headers.

Never runs what it reads and never loads weights. A bare count of parameters is not a model and is not read here.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from vramcast.catalog.models import CatalogModel, find_model, lookup_model
from vramcast.errors import InputError, UnsupportedError
from vramcast.models.compare import differences
from vramcast.models.families import MODULE_OF, family_of
from vramcast.models.read.checkpoint import read_checkpoint
from vramcast.models.read.config import Config, read_config
from vramcast.models.read.source import ModelSource
from vramcast.models.record.tape import Param

# More are a typing mistake or an attack: each is described one by one.
MAX_LAYERS = 1024
MAX_EXPERTS = 4096
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def read_model(text: str) -> ModelSource:
    """The model behind a name or a path. A local folder with a config wins over a catalog name."""
    path = _existing_path(text)
    if path is None:
        if _looks_like_path(text):
            raise InputError(
                f"{text}: no such file or folder. A model is a catalog name, a config.json or its folder."
            )
        return _from_catalog(find_model(text), text)
    if path.is_file():
        return _from_file(path)
    if _is_model_folder(path) or lookup_model(text) is None:
        return _from_folder(path)
    return _from_catalog(find_model(text), text)


def _existing_path(text: str) -> Path | None:
    """The path, if it can be one and exists as a file or folder."""
    try:
        path = Path(text).expanduser()
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{text}: neither a file nor a folder")
        return path if path.exists() and text.strip() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith((".json", ".safetensors", *PICKLES))


# ---- catalog


def _from_catalog(model: CatalogModel, asked: str) -> ModelSource:
    config = Config(model.config, model.name)
    notes: list[str] = []
    warnings: list[str] = []
    organisation = asked.rpartition("/")[0].strip()
    if organisation and organisation.lower() != model.hf_id.partition("/")[0].lower():
        notes.append(
            f"{asked} was taken for {model.hf_id} by its name; give its config.json if it differs."
        )
    if model.params_untied is not None:
        warnings.append(
            f"transformers 5 ties the head when it builds this model ({model.params:,} parameters); the published "
            f"checkpoint is untied and stays so when loaded ({model.params_untied:,})."
        )
    if model.notes.startswith("STAND-IN"):
        notes.append(model.notes.removeprefix("STAND-IN: "))
    return _describe(model.name, config, notes, warnings)


# ---- files


def _from_file(path: Path) -> ModelSource:
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        if (path.parent / "config.json").is_file():
            return _from_folder(path.parent)
        return _from_checkpoint(path, path.name.partition(".")[0])
    if path.suffix in PICKLES:
        raise UnsupportedError(
            f"{path}: a torch pickle runs code when it is read, so it is not. Give the config.json next to it, or "
            "convert it: safetensors.torch.save_model(model, 'model.safetensors')."
        )
    if path.suffix == ".gguf":
        raise UnsupportedError(
            f"{path}: GGUF is an inference format. Give the config.json of the model it came from."
        )
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _from_config(path, name)


def _is_model_folder(folder: Path) -> bool:
    return (folder / "config.json").is_file() or any(folder.glob("*.safetensors"))


def _from_folder(folder: Path) -> ModelSource:
    name = folder.resolve().name
    if (folder / "config.json").is_file():
        return _compare_with_weights(_from_config(folder / "config.json", name), folder)
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder}: holds a PEFT adapter, not a model. Give its base model"
            f"{_base_model(folder / 'adapter_config.json')} and --lora-rank."
        )
    if _has_weights(folder):
        return _from_checkpoint(folder, name)
    raise InputError(f"{folder}: holds neither a config.json nor safetensors files")


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors.index.json"))


def _base_model(path: Path) -> str:
    name = read_config(path).data.get("base_model_name_or_path")
    return f" ({name})" if isinstance(name, str) and name.isprintable() else ""


def _from_config(path: Path, name: str) -> ModelSource:
    config = read_config(path)
    _check_counts(config.data, config.where)
    if not config.model_type:
        raise InputError(f"{path}: model_type is missing, so this is no Hugging Face model config")
    return _describe(name, config, [], [])


def _check_counts(data: Any, where: str) -> None:
    """Layers and experts are few enough to be described one by one."""
    for key, value in data.items():
        if isinstance(value, dict):
            _check_counts(value, f"{where}: {key}")
        limit = _limit_of(key)
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if type(number) is int and number > limit:
                raise InputError(f"{where}: {key} must be at most {limit}, not {number}")


def _limit_of(key: str) -> float:
    if "size" in key:
        return inf
    if "expert" in key:
        return MAX_EXPERTS
    return MAX_LAYERS if "layer" in key or key in ("depth", "depths") else inf


def _from_checkpoint(path: Path, name: str) -> ModelSource:
    params = read_checkpoint(path)
    if not params:
        raise InputError(f"{path}: holds no tensors")
    warnings = [
        "no config.json: known by its tensors alone, so only weights, gradients and optimizer states count."
    ]
    integers = sum(not param.dtype.floating for param in params)
    if integers:
        warnings.append(
            f"{integers} tensors are not floating point (buffers or quantised weights); counted as stored."
        )
    return ModelSource(name=name, params=params, warnings=tuple(warnings))


# ---- the architecture


def _describe(name: str, config: Config, notes: list[str], warnings: list[str]) -> ModelSource:
    """By its family if there is one, else by building it with transformers, else not at all."""
    if config.model_type in MODULE_OF:
        return ModelSource(name=name, config=config, notes=tuple(notes), warnings=tuple(warnings))
    warnings.append(
        f"model_type {config.model_type!r} is not supported by the formula engine: parameters were read from a "
        "model that transformers built without weights; activations are not computed. `vramcast trace your_script.py` "
        "gives the full breakdown."
    )
    return ModelSource(
        name=name,
        config=config,
        params=_build_with_transformers(config),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _build_with_transformers(config: Config) -> tuple[Param, ...]:
    if find_spec("torch") is None or find_spec("transformers") is None:
        family_of(config)  # raises, with the list of what is known
    # Imports torch: only where nothing else knows the architecture.
    from vramcast.virtual.meta_model import build_params

    return build_params(config)


def _compare_with_weights(source: ModelSource, folder: Path) -> ModelSource:
    """The config gives the architecture; safetensors headers next to it must agree."""
    if not _has_weights(folder):
        return source
    try:
        stored = read_checkpoint(folder)
    except InputError as error:
        return _with_warning(source, f"the weights could not confirm the config: {error}")
    difference = differences(source.table(), stored)
    return source if difference is None else _with_warning(source, difference)


def _with_warning(source: ModelSource, warning: str) -> ModelSource:
    return replace(source, warnings=(*source.warnings, warning))
