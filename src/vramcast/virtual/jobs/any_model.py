"""A job with any model that transformers can build: two training steps with inputs of the model's own kind.

In come a Job and a Config, out comes what the virtual GPU saw, as data: the lines, every allocation, the parameters.
A class that does not take the labels that its name suggests is run without: the loss is then the mean of its outputs.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from vramcast.errors import UnsupportedError, VramcastError
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.virtual.accounting.cards import Lifting
from vramcast.virtual.gpu import VirtualGpu, virtual_gpu
from vramcast.virtual.jobs import input_sizes as sizes
from vramcast.virtual.jobs.adapters import DTYPES
from vramcast.virtual.jobs.classes import built_config, missing_package, model_class
from vramcast.virtual.jobs.inputs import Batch, loss_of
from vramcast.virtual.jobs.model import bare_model
from vramcast.virtual.jobs.run import Loop, refuse_what_has_no_loop, trace_job

# What makes vectors of other inputs, and the names under which configs keep their token.
FEATURES = {
    "get_image_features": sizes.IMAGE_TOKEN,
    "get_audio_features": sizes.AUDIO_TOKEN,
}
# Qwen2-Audio makes no vectors on request; it says how many.
LENGTHS_OF_SOUND = "_get_feat_extract_output_lengths"
MAIN_INPUTS = (
    "pixel_values",
    "input_features",
    "input_values",
    "image_pixel_values",
    "audio_input_features",
)
LARGE_IMAGE = 640  # pixels: what detection models are trained with (RT-DETR, RF-DETR)
LARGEST_IMAGE = 1536  # Depth Pro's
TEXT_BESIDE = 32  # tokens of text, where pictures take the whole length


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way of feeding a model. Classes differ in what they take, and only running them tells."""

    with_labels: bool = True
    with_pictures: bool = True
    with_cache: bool = True  # as the class has it
    with_text: bool | None = None  # ids of a text; None: where they are the class's main input
    most_tokens: int | None = None
    least_image: int = 0  # pixels, where the class takes pictures of any size


@dataclass
class AnyFeed:
    """Batches for whatever the model turns out to be; remembers what it fed."""

    job: Job
    attempt: Attempt
    dtype: torch.dtype | None  # of inputs; None: autocast casts them
    placeholders: dict[int, int]
    made: Batch | None = None
    params_total: int = 0
    params_trained: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    has_own_loss: bool = False
    stored_as: dict[str, str] = field(default_factory=dict)  # of every weight: "trained, bf16"

    @property
    def left_out(self) -> list[str]:
        """Inputs that the class takes and that were not made for it."""
        if self.attempt.with_pictures or self.made is None:
            return []
        return [name for name in MAIN_INPUTS if self.made.has(name)]

    @property
    def seq(self) -> int:
        return self.made.seq if self.made is not None else self.job.seq or 1

    def meet(self, model: Any) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        assert self.job.seq is not None
        self.made = Batch(
            model=base,
            job=self.job,
            seq=sizes.only_length(base.config) or self._length(),
            placeholders=self.placeholders,
            with_labels=self.attempt.with_labels,
            with_pictures=self.attempt.with_pictures,
            with_text=self.attempt.with_text,
            least_image=self.attempt.least_image,
        )
        if not self.attempt.with_cache:
            base.config.use_cache = False
        parameters = list(model.parameters())
        self.params_total = sum(p.numel() for p in parameters)
        self.params_trained = sum(p.numel() for p in parameters if p.requires_grad)
        self.stored_as = {name: _stored_as(p) for name, p in model.named_parameters()}

    def _length(self) -> int:
        """The job's, or more where the placeholders alone take it, or less where the model's positions end."""
        length = self.job.seq if self.attempt.most_tokens is None else self.attempt.most_tokens
        assert length is not None
        least = sum(self.placeholders.values())
        return max(length, least + TEXT_BESIDE) if least else length

    def batch(self, device: torch.device) -> dict[str, Any]:
        assert self.made is not None
        found = self.made.tensors()
        self.shapes = {
            name: tuple(value.shape)
            for name, value in found.items()
            if isinstance(value, torch.Tensor)
        }
        return {
            name: self._cast(value).to(device) if isinstance(value, torch.Tensor) else value
            for name, value in found.items()
        }

    def _cast(self, value: torch.Tensor) -> torch.Tensor:
        """Without autocast a model takes numbers of its own dtype alone."""
        return value.to(self.dtype) if self.dtype and value.is_floating_point() else value

    def loss(self, outputs: Any) -> torch.Tensor:
        own = getattr(outputs, "loss", None)
        self.has_own_loss = isinstance(own, torch.Tensor)
        return loss_of(outputs)


def count_placeholders(config: Config, job: Job, gpu: str) -> dict[int, int]:
    """How many tokens of a text stand for its pictures and sounds, by their id: as many as the model makes of them.

    The model is asked on a virtual GPU of its own, which leaves no mark in the trace.
    """
    kind = model_class(config, built_config(config))
    asked = [name for name in FEATURES if hasattr(kind, name)]
    if not asked or "input_ids" not in inspect.signature(kind.forward).parameters:
        return {}
    found: dict[int, int] = {}
    with virtual_gpu(gpu, protect=False, lifts_limit=Lifting.ALWAYS), torch.no_grad():
        model = bare_model(config, job, torch.float32).to("cuda").eval()
        batch = Batch(model=model, job=job, seq=job.seq or 1, with_labels=False)
        given = batch.tensors()
        for name in asked:
            token = sizes.find(model.config, *FEATURES[name])
            wanted = inspect.signature(getattr(model, name)).parameters
            inputs = {key: value.to("cuda") for key, value in given.items() if key in wanted}
            if isinstance(token, int) and any(key in MAIN_INPUTS for key in inputs):
                with contextlib.suppress(Exception):  # the step itself tells what is wrong
                    rows = _count_rows(getattr(model, name)(**inputs))
                    found[token] = rows // batch.size
        lengths = getattr(getattr(model, "audio_tower", None), LENGTHS_OF_SOUND, None)
        token = sizes.find(model.config, *sizes.AUDIO_TOKEN)
        if lengths is not None and isinstance(token, int) and "input_features" in given:
            found.setdefault(token, int(lengths(given["input_features"].shape[-1])[-1]))
    return {token: count for token, count in found.items() if count}


def _count_rows(features: Any) -> int:
    """Vectors of the text model's width, in whatever they are wrapped."""
    pooled = getattr(features, "pooler_output", None)
    if pooled is None:
        pooled = getattr(features, "last_hidden_state", features)
    if isinstance(pooled, torch.Tensor):
        return int(pooled.numel()) // int(pooled.shape[-1])
    return sum(_count_rows(part) for part in pooled)


def _attempts(config: Config, job: Job) -> Iterator[Attempt]:
    """The job as it is; without labels; on text alone; and with what some classes need to run at all."""
    built = built_config(config)
    taken = inspect.signature(model_class(config, built).forward).parameters
    yield Attempt()
    yield Attempt(with_labels=False)
    if "input_ids" in taken:
        yield Attempt(with_text=True)
        yield Attempt(with_text=True, with_labels=False)
    if "pixel_values" in taken:
        yield Attempt(least_image=LARGE_IMAGE)
        yield Attempt(least_image=LARGEST_IMAGE)
    yield Attempt(with_pictures=False)
    yield Attempt(with_pictures=False, with_cache=False)
    yield Attempt(with_pictures=False, with_labels=False)
    longest = sizes.longest(built)
    shorter = longest if longest is not None and longest < (job.seq or 1) else None
    for most in dict.fromkeys((None, shorter)):
        yield Attempt(with_cache=False, most_tokens=most)
        yield Attempt(with_labels=False, with_cache=False, most_tokens=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A job that went through."""

    gpu: VirtualGpu
    feed: AnyFeed
    kind: str  # the class


def run_any(job: Job, loop: Loop, config: Config, gpu: str, *, keeps_sizes: bool) -> Ran:
    """Two steps without the card's limit. `job`: complete, with a length."""
    if job.loss == "chunked":
        raise UnsupportedError(
            "loss chunked cannot be traced for a model that no formula describes: give --loss full or fused"
        )
    refuse_what_has_no_loop(job)
    _refuse_what_has_no_forward(config)
    first: Exception | None = None
    placeholders = count_placeholders(config, job, gpu)
    dtype = None if loop.autocast else DTYPES[loop.weights]
    for attempt in _attempts(config, job):
        feed = AnyFeed(job, attempt, dtype, placeholders if attempt.with_pictures else {})
        try:
            traced = trace_job(
                job,
                loop,
                config,
                gpu,
                feed=feed,
                lifts_limit=Lifting.ALWAYS,
                keeps_sizes=keeps_sizes,
            )
        except VramcastError:
            raise
        except Exception as error:  # other people's code: with other inputs it may run
            first = first or error
            if feed.made is None or missing_package(error):
                break
            continue
        assert feed.made is not None
        return Ran(gpu=traced, feed=feed, kind=feed.made.kind)
    assert first is not None
    raise _not_run(config, first) from first


def _refuse_what_has_no_forward(config: Config) -> None:
    """Whole systems of models (Bark, Qwen2.5-Omni with its talker) only generate; their parts are trained."""
    kind = model_class(config, built_config(config))
    if kind.forward is torch.nn.Module.forward:
        raise UnsupportedError(
            f"{kind.__name__} has no forward: transformers generates with it and trains its parts. Give the config of "
            "a part, or run your own script with vramcast trace"
        )


_SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _stored_as(parameter: torch.nn.Parameter) -> str:
    """In the words of the formulas' lines."""
    kind = "trained" if parameter.requires_grad else "frozen"
    if type(parameter).__name__ == "Params4bit":
        return f"{kind}, nf4"
    return f"{kind}, {_SHORT.get(parameter.dtype, str(parameter.dtype).removeprefix('torch.'))}"


def _not_run(config: Config, error: Exception) -> UnsupportedError:
    missing = missing_package(error)
    if missing:
        return UnsupportedError(
            f"{config.where}: transformers needs {missing} to run it: pip install {missing}"
        )
    line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return UnsupportedError(
        f"{config.where}: a training step of {config.architecture or config.model_type} cannot be run from a job "
        f"({line}): run your own script with vramcast trace"
    )
