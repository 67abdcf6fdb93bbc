"""A model-editing job run for real: this package's own FunctionalEdit and Mend, two steps, on one card or two.

In come a Job with `edit` and a Config; memory is what counts, so batches are random. Per step, as MEND is trained: two
forwards of the unedited model, one with gradients for the editor's input, and the edited forwards, in one graph or cut
one by one. Does not know an inner backward that gives gradients to more than the inner parameters.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.runtime.training.edit import FunctionalEdit
from vramcast.runtime.training.graph_cut import GraphCut
from vramcast.runtime.training.mend import Mend
from vramcast.runtime.training.preference import kl_to_reference
from vramcast.virtual.jobs.model import frozen_model
from vramcast.virtual.jobs.optimizer import optimizer_of

BASE_FORWARDS = 2  # texts and pictures that must stay as they are
PICTURES = ("qwen2_vl", "qwen2_5_vl")
IMAGE_TOKENS = 256  # where the job does not say, as the formulas take it


class EditRun:
    def __init__(self, job: Job, config: Config, dtype: torch.dtype, how: str) -> None:
        self.job = job
        model = frozen_model(config, job, dtype)
        self.config = model.config
        names = [name for name, _ in model.named_parameters() if _is_inner(name, job)]
        self.edit = FunctionalEdit(model, names).place("cuda:0", _second(job))
        self.editor = Mend(self.edit, rank=job.edit_rank, num_hidden=job.edit_hidden)
        self.optimizer = optimizer_of(list(self.editor.parameters()), job, how, [])

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _step(self) -> None:
        batches = [self._batch() for _ in range(self.job.edit_forwards)]
        prefixes = [self.edit.prefix(batch) for batch in batches]
        with torch.no_grad():
            bases = [self.edit(prefix) for prefix in prefixes[-BASE_FORWARDS:]]
        labels = batches[0]["input_ids"].flatten().to("cuda:0")
        edited = self.edit.edited(
            self.editor(self.edit.factors(prefixes[0], lambda logits: _nll(logits, labels)))
        )
        if self.job.edit_graph == "cut":
            with GraphCut(edited) as cut:
                for index in range(len(prefixes)):
                    self._loss(index, prefixes, bases, cut.leaves, labels).backward()
                cut.replay()
        else:
            losses = [
                self._loss(index, prefixes, bases, edited, labels) for index in range(len(prefixes))
            ]
            torch.stack(losses).sum().backward()

    def _loss(
        self, index: int, prefixes: list[Any], bases: list[Tensor], weights: Any, labels: Tensor
    ) -> Tensor:
        """The edit and its paraphrases by their labels, the last ones by how far they moved."""
        logits = self.edit(prefixes[index], weights)
        stays = index - (len(prefixes) - len(bases))
        if stays < 0:
            return _nll(logits, labels)
        return kl_to_reference(logits, bases[stays], torch.ones(logits.shape[:2], dtype=torch.bool))

    def _batch(self) -> dict[str, Tensor]:
        job = self.job
        assert job.seq is not None
        ids = torch.randint(3, 1000, (job.batch, job.seq))
        pictures = _pictures(self.config, job)
        if pictures:
            tokens = (job.image_tokens or IMAGE_TOKENS) * (job.images or 1)
            ids[:, :tokens] = self.config.image_token_id
            pictures["mm_token_type_ids"] = (ids == self.config.image_token_id).int()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pictures}


def _pictures(config: Any, job: Job) -> dict[str, Tensor]:
    """Patches of as many pictures as the job has; a square one if its tokens allow."""
    if config.model_type not in PICTURES:
        if job.images:
            raise UnsupportedError(
                f"images of {config.model_type} cannot be traced from a job: trace your own script"
            )
        return {}
    count = job.batch * (1 if job.images is None else job.images)
    if count == 0:
        return {}
    vision, tokens = config.vision_config, job.image_tokens or IMAGE_TOKENS
    rows = int(tokens**0.5) if int(tokens**0.5) ** 2 == tokens else 1
    merge = vision.spatial_merge_size
    grid = torch.tensor([[1, rows * merge, tokens // rows * merge]] * count)
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {"pixel_values": torch.randn(count * tokens * merge**2, width), "image_grid_thw": grid}


def _nll(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), labels)


def _is_inner(name: str, job: Job) -> bool:
    weight = name.removesuffix(".weight")
    wanted = [pattern.removesuffix(".weight") for pattern in job.edit]
    return name.endswith(".weight") and any(
        fnmatch.fnmatchcase(weight, pattern) or fnmatch.fnmatchcase(weight, f"*.{pattern}")
        for pattern in wanted
    )


def _second(job: Job) -> str | None:
    return None if job.sub_device is None else f"cuda:{number_of(job.sub_device)}"


def number_of(device: str) -> int:
    return int(device.lower().removeprefix("cuda:"))
