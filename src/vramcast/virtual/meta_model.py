"""A model that no family describes, built by transformers on the meta device: in a config, out its parameters.

Only classes that ship with transformers are built; code that comes with a checkpoint is never run.
"""

from __future__ import annotations

from typing import Any

from vramcast.errors import UnsupportedError
from vramcast.models.families import MODULE_OF
from vramcast.models.read.config import Config
from vramcast.models.read.module import module_params
from vramcast.models.record.tape import Param


def build_params(config: Config) -> tuple[Param, ...]:
    """The parameter table of the class that the config names, or of its bare model."""
    import torch
    import transformers

    if config.model_type not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        raise UnsupportedError(
            f"{config.where}: model_type {config.model_type!r} is known neither here nor to transformers "
            f"{transformers.__version__}. Known here: {', '.join(sorted(MODULE_OF))}. Give --params for its states."
        )
    keys = {
        key: value
        for key, value in config.data.items()
        if key not in ("model_type", "auto_map", "torch_dtype")
    }
    try:
        built = transformers.AutoConfig.for_model(config.model_type, **keys)
        with torch.device("meta"):
            model = _model_class(transformers, config)._from_config(built)
    except (
        Exception
    ) as error:  # a stranger's config in someone else's constructor: anything may rise
        raise UnsupportedError(
            f"{config.where}: transformers cannot build it ({_line(error)})"
        ) from error
    return tuple(module_params(model))


def _model_class(transformers: Any, config: Config) -> Any:
    named = getattr(transformers, config.architecture, None) if config.architecture else None
    return named if hasattr(named, "_from_config") else transformers.AutoModel


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
