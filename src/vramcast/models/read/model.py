"""What a user types as MODEL → ModelSource: a catalog name, a config.json or folder, safetensors headers.

Never runs what it reads and never loads weights. A bare count of parameters is not a model and is not read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from vramcast.catalog.model_names import read_name
from vramcast.catalog.models import CatalogModel, find_model, is_known_owner, lookup_model
from vramcast.errors import InputError, UnsupportedError
from vramcast.models.compare import differences
from vramcast.models.families import MODULE_OF, family_of
from vramcast.models.read.checkpoint import read_checkpoint
from vramcast.models.read.config import Config, check_sizes, normalise, read_config
from vramcast.models.read.gguf import GgufFile, config_of_gguf, read_gguf
from vramcast.models.read.hub import Fetched, fetched, find_cached
from vramcast.models.read.source import COUNTED, ModelSource
from vramcast.models.record.tape import F32, Param

# More are a typing mistake or an attack: each is described one by one.
MAX_LAYERS = 1024
MAX_EXPERTS = 4096
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def read_model(text: str) -> ModelSource:
    """The model behind a name or a path. A local folder with a config wins over a catalog name."""
    from_hub = fetched(text)
    if from_hub is not None:
        return _from_hub(text, from_hub)
    path = _existing_path(text)
    if path is None and not _is_published(text):
        cached = find_cached(text)
        if cached is not None:
            return _with_note(_from_snapshot(cached, text), f"{text} was read from {cached}.")
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


def read_served(text: str) -> tuple[ModelSource, GgufFile | None]:
    """The model behind a name or a path, for an engine: a GGUF file says all that llama.cpp knows."""
    path = _existing_path(text)
    if path is None or not path.is_file() or path.suffix != ".gguf":
        return read_model(text), None
    gguf = read_gguf(path)
    return ModelSource(name=path.stem, config=config_of_gguf(gguf), params=()), gguf


def _is_published(text: str) -> bool:
    """Does the catalog hold exactly what is asked for? Then the answer is the same on every machine."""
    model, name = lookup_model(text), read_name(text)
    return (
        model is not None
        and not name.stored
        and (not name.owner or is_known_owner(name.owner, model))
    )


def _from_hub(text: str, found: Fetched) -> ModelSource:
    source = _from_config(found.folder / "config.json", text.partition("@")[0].rpartition("/")[2])
    difference = _difference(source, found.stored or ())
    source = _with_note(source, f"{text} was read from the Hub.")
    return source if difference is None else _with_warning(source, difference)


def _from_snapshot(folder: Path, text: str) -> ModelSource:
    """A cache often holds a config without the weights, or some of the shards."""
    source = _from_config(folder / "config.json", text.partition("@")[0].rpartition("/")[2])
    try:
        stored = read_checkpoint(folder) if _has_weights(folder) else ()
    except InputError:
        return source
    difference = _difference(source, stored)
    return source if difference is None else _with_warning(source, difference)


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
    name = read_name(asked)
    config = Config(_as_stored(model.config, name.stored), model.name)
    notes: list[str] = []
    warnings: list[str] = []
    is_fine_tune = lookup_model(asked) is None
    if is_fine_tune or (name.owner and not is_known_owner(name.owner, model)):
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


# What the end of a name says of the checkpoint, as its config.json would.
QUANTISED: dict[str, dict[str, Any]] = {
    "bnb-4bit": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_use_double_quant": True,
    },
    "bnb-8bit": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "4bit": {"quant_method": "4-bit"},
    "8bit": {"quant_method": "8-bit"},
    "w4a16": {"quant_method": "int4"},
    "w8a8": {"quant_method": "int8"},
}
QUANTISED["unsloth-bnb-4bit"] = {**QUANTISED["bnb-4bit"], "llm_int8_skip_modules": "dynamic"}


def _as_stored(config: dict[str, Any], stored: str) -> dict[str, Any]:
    if not stored:
        return config
    return {**config, "quantization_config": QUANTISED.get(stored, {"quant_method": stored})}


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
            f"{path}: GGUF is an inference format: vramcast estimate {path.name} --engine llama.cpp reads it. To "
            "train, give the config.json of the model it came from."
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
    is_described = config.model_type in MODULE_OF
    _check_counts(config.data, config.where, MAX_EXPERTS if is_described else inf)
    if not config.model_type:
        raise InputError(f"{path}: model_type is missing, so this is no Hugging Face model config")
    return _describe(name, config, [], [])


def _check_counts(data: Any, where: str, most_experts: float) -> None:
    """Layers and experts are few enough to be described one by one."""
    for key, value in data.items():
        if isinstance(value, dict):
            _check_counts(value, f"{where}: {key}", most_experts)
        limit = most_experts if EXPERTS.fullmatch(key) else _limit_of(key)
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if type(number) is int and number > limit:
                raise InputError(f"{where}: {key} must be at most {limit}, not {number}")


# Keys that count layers and experts, in any class's words.
LAYERS = re.compile(r"(n|num)_(\w+_)?(layers?|blocks|stages)|(encoder|decoder)_layers|depths?")
EXPERTS = re.compile(r"(n|num)_(\w+_)?experts")


def _limit_of(key: str) -> float:
    return MAX_LAYERS if LAYERS.fullmatch(key) else inf


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
    """By its family if there is one. Otherwise transformers can build it, as soon as somebody asks for its table."""
    config = normalise(config)
    warnings.extend(quantisation_warnings(config))
    if config.model_type in MODULE_OF:
        check_sizes(config)
        return ModelSource(
            name=name,
            config=config,
            rescue=partial(_build_if_possible, config, name),
            notes=tuple(notes),
            warnings=tuple(warnings),
        )
    return ModelSource(
        name=name,
        config=config,
        build=partial(_build_with_transformers, config, name),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def quantisation_warnings(config: Config) -> list[str]:
    """What a bill does not say of a checkpoint that is stored in fewer bits."""
    quantisation = config.sub("quantization_config")
    method = quantisation.word("quant_method", "")
    if not method:
        return []
    if method in ("gguf", "mlx"):
        return [
            f"{method.upper()} is an inference format: this is the bill of the model it was made from."
        ]
    if method != "bitsandbytes":
        return [
            f"the checkpoint is stored in fewer bits ({method}): its weights are billed here as those of the model in "
            "16 or 32 bit that it was made from; loaded as stored they take less."
        ]
    if quantisation.data.get("llm_int8_skip_modules") == "dynamic":
        return [
            "unsloth's dynamic 4-bit checkpoints leave some linear layers in 16 bit, which ones their config says: "
            "billed here with all of them in 4 bit."
        ]
    return []


def _build_if_possible(config: Config, name: str) -> tuple[Param, ...] | None:
    if find_spec("torch") is None or find_spec("transformers") is None:
        return None
    return _build_with_transformers(config, name)


def _build_with_transformers(config: Config, name: str) -> tuple[Param, ...]:
    if find_spec("torch") is None or find_spec("transformers") is None:
        known = lookup_model(name)
        if known is not None:  # the catalog knows how many there are
            return (Param(name=COUNTED, shape=(known.params,), kind="linear", dtype=F32),)
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
    difference = _difference(source, stored)
    return source if difference is None else _with_warning(source, difference)


def _difference(source: ModelSource, stored: Sequence[Param]) -> str | None:
    """Where a checkpoint departs from its config; packed tensors of a quantised one do not say how many they hold."""
    is_packed = source.config is not None and bool(source.config.data.get("quantization_config"))
    return None if is_packed or not stored else differences(source.table(), stored)


def _with_note(source: ModelSource, note: str) -> ModelSource:
    return replace(source, notes=(*source.notes, note))


def _with_warning(source: ModelSource, warning: str) -> ModelSource:
    return replace(source, warnings=(*source.warnings, warning))
