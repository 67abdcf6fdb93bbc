"""The job that a log tells about itself, as far as it does: for a failure that nobody described further.

In: a Reading. Out: a LoggedJob: the Job that its words make, and which of them were said. A model is looked up in the
catalog only: a path in somebody's log is never opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from vramcast.catalog.gpus import find_gpu
from vramcast.catalog.models import lookup_model
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.readers.logged_words import IN_PASSING, words_of_job
from vramcast.errors import VramcastError
from vramcast.job import Job, job_from

# In the name of a model: `-7b`, `_0.5B`, `13b-chat`.
_SIZE_IN_NAME = re.compile(r"(?<![\w.])(\d{1,4}(?:\.\d{1,2})?)[bB](?![a-zA-Z])")
_CARD_SIZE = re.compile(r"\s*\b\d{1,3} ?G(?:i?B)?$")
_STRATEGIES = {"1": "zero1", "2": "zero2", "3": "zero3"}
_TRAINING_WORDS = (
    "batch",
    "seq",
    "lora-rank",
    "lora",
    "load-in-4bit",
    "load-in-8bit",
    "gradient-checkpointing",
    "gpus",
    "gpu",
)
_BYTES_OF_DTYPE = {"float": 4.0, "float32": 4.0}
_BYTES_OF_QUANTIZATION = (
    ("awq", 0.57),
    ("gptq", 0.57),
    ("bitsandbytes", 0.57),
    ("fp8", 1.0),
    ("int8", 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """`job` is None where no model is named that is known; `said` are the words, by key."""

    job: Job | None
    said: Mapping[str, str]
    model: str | None = None  # its name as printed
    params: int | None = None  # from the catalog, or from the size in its name

    def is_whole(self) -> bool:
        """Are batch and length known as well?"""
        return self.job is not None and "batch" in self.said and "seq" in self.said

    def says_adapters(self) -> bool:
        return "lora" in self.said or "lora-rank" in self.said

    def serving_weights_bytes(self) -> int | None:
        """What one card of a server holds of the weights."""
        if self.params is None:
            return None
        per_param = _BYTES_OF_DTYPE.get(self.said.get("dtype", "").removeprefix("torch."), 2.0)
        quantized = f"{self.said.get('quantization', '')} {self.model}".lower()
        per_param = next(
            (size for name, size in _BYTES_OF_QUANTIZATION if name in quantized), per_param
        )
        return int(self.params * per_param) // int(self.said.get("tensor-parallel-size", "1"))


def logged_job(reading: Reading) -> LoggedJob:
    said = dict(words_of_job(reading.surroundings))
    passing = said.pop(IN_PASSING, "")
    name = said.get("model", passing).rstrip("/\\").replace("\\", "/")
    known = lookup_model(name) if name else None
    params = known.params if known else size_in_name(name)
    job = _job(said, known.name) if known else None
    return LoggedJob(job=job, said=said, model=name or None, params=params)


def size_in_name(name: str) -> int | None:
    """Parameters, where a model's name says how many: `7b`, `0.5B`."""
    sizes = _SIZE_IN_NAME.findall(name.rpartition("/")[2])
    return int(float(sizes[0]) * 1e9) if sizes and float(sizes[0]) < 2000 else None


def _known_card(said: Mapping[str, str]) -> dict[str, str]:
    """The card that is named, if it is one of the catalog: with its size, or without one that it does not have."""
    name = said.get("gpu", "")
    for spelling in (name, _CARD_SIZE.sub("", name)):
        with suppress(VramcastError):
            return {"gpu": find_gpu(spelling).name}
    return {}


def _job(said: Mapping[str, str], model: str) -> Job | None:
    """As much of what was said as makes a Job; at least its model."""
    words: dict[str, object] = {key: said[key] for key in _TRAINING_WORDS if key in said}
    words.pop("gpu", None)
    words.update(_known_card(said))
    if said.get("zero-stage") in _STRATEGIES and int(said.get("gpus", "1")) > 1:
        words["strategy"] = _STRATEGIES[said["zero-stage"]]
    for attempt in (
        {**words, "optim": said.get("optim")},
        words,
        {**_known_card(said), **{key: said.get(key) for key in ("batch", "seq")}},
    ):
        try:
            return job_from({"model": model, **attempt})
        except VramcastError:
            continue
    return None
