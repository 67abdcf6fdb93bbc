"""A model that no family describes, built by transformers on the meta device: in a config, out its parameters.

Only classes that ship with transformers are built; code that comes with a checkpoint is never run.
"""

from __future__ import annotations

from vramcast.models.read.config import Config
from vramcast.models.read.module import module_params
from vramcast.models.record.tape import Param
from vramcast.virtual.jobs.classes import built_config, cannot_build, model_class


def build_params(config: Config) -> tuple[Param, ...]:
    """The parameter table of the class that the config names, or of one that transformers has for its model type."""
    import torch

    built = built_config(config)
    kind = model_class(config, built)
    try:
        with torch.device("meta"):
            model = kind._from_config(built)
    except Exception as error:  # a stranger's config in a library's constructor: anything may rise
        raise cannot_build(config, error) from error
    return tuple(module_params(model))
