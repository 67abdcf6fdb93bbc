"""What a job's checkpoint says of itself, where that decides a default."""

from __future__ import annotations

from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model


def config_of(job: Job) -> Config | None:
    """The checkpoint's config; None where there is none. An unknown name is refused where the model itself is read, so
    that a job in which all is said can be resolved without it."""
    if job.model is None:
        return None
    try:
        return read_model(job.model).config
    except UnsupportedError:
        return None
