"""Tasks: what fine-tuning on labels, preferences or rewards means for the rows, the head, and the models beside.

Example: DPO puts the chosen and the rejected answer of each sample into one batch, two rows each, and compares with a
reference, which is the model without its adapters where it has some, and a copy of it otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.models.read.expansion import expanded
from vramcast.models.read.model import read_model
from vramcast.models.read.source import ModelSource
from vramcast.models.read.tasks import TASK_OF_SUFFIX
from vramcast.setup.checkpoint import config_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a task decides."""

    rows: int = 1  # of the model's input, per sample
    head: str | None = None  # ending of transformers' class; None: as the checkpoint has it
    labels: int | None = None  # of a classifier; None: as the config says
    scores_tokens: bool = (
        True  # its loss needs log-probabilities of tokens, which TRL computes in tiles
    )
    loss: str | None = None  # a form of its own
    # trl/trainer/dpo_config.py until 0.28: max_prompt_length 512 of max_length 1024.
    halves_prompt: bool = False
    # trl/experimental: whoever is given a name loads it as from_pretrained does, and PEFT's preparation is called.
    is_experimental: bool = False
    has_reference: bool = False
    generates: bool = False  # samples are completed before each step
    beside: tuple[tuple[str, str], ...] = ()  # other models, by field
    source: str


TASKS = {
    "sft": Task(source="one row per sample"),
    "pretrain": Task(source="one row per sample; encoders predict masked tokens"),
    "classify": Task(
        head="ForSequenceClassification",
        scores_tokens=False,
        source="transformers AutoModelForSequenceClassification",
    ),
    "classify-tokens": Task(
        head="ForTokenClassification",
        scores_tokens=False,
        source="transformers AutoModelForTokenClassification",
    ),
    "dpo": Task(
        rows=2,
        halves_prompt=True,
        has_reference=True,
        source="trl/trainer/dpo_trainer.py: chosen and rejected in one batch"
    ),
    "kto": Task(
        halves_prompt=True,
        has_reference=True,
        source="trl/trainer/kto_trainer.py: a row per sample; its mismatched pairs run without graph",
    ),
    "orpo": Task(
        rows=2,
        is_experimental=True,
        loss="pairs",
        scores_tokens=False,
        source="trl/experimental/orpo: chosen and rejected in one batch, whole logits, no reference",
    ),
    "reward": Task(
        rows=2,
        head="ForSequenceClassification",
        labels=1,
        scores_tokens=False,
        source="trl/trainer/reward_trainer.py: chosen and rejected in one batch, one score each",
    ),
    "grpo": Task(generates=True, source="trl/trainer/grpo_trainer.py: beta 0, so no reference"),
    "ppo": Task(
        has_reference=True,
        generates=True,
        beside=(("critic", "same"), ("reward", "same")),
        source="a policy, its reference, a critic and a reward model",
    ),
    "distill": Task(
        scores_tokens=False,
        beside=(("teacher", "same"),),
        source="logits compared with a teacher's",
    ),
    "embed": Task(
        rows=2,
        head="Model",
        scores_tokens=False,
        source="an anchor and its positive per sample, no head",
    ),
}  # fmt: skip
ONE_PASS = ("score", "encode")  # tasks that are one forward without a graph
AS_IT_IS = Task(source="the model as its config names it")
COMPLETION = 512  # trl/trainer/grpo_config.py max_completion_length
ENCODERS = ("ForMaskedLM",)  # whose checkpoints are fine-tuned as classifiers


def task_of_job(job: Job) -> Task:
    return AS_IT_IS if job.task is None else TASKS[job.task]


def with_task(job: Job) -> Job:
    """The job with what its task brings, where the user said nothing else."""
    changes: dict[str, Any] = {}
    if job.task is None and _is_encoder(job):
        changes["task"] = "classify"
    task = task_of_job(replace(job, **changes) if changes else job)
    if job.reference is None:
        copied = "adapter" if job.has_adapters else "same"
        changes["reference"] = copied if task.has_reference else "none"
    if task.generates and job.rollout_tokens is None:
        changes["rollout_tokens"] = min(COMPLETION, (job.seq or 2 * COMPLETION) // 2) or 1
    changes |= {name: place for name, place in task.beside if getattr(job, name) == "none"}
    return replace(job, **changes) if changes else job


def has_rl_phases(job: Job) -> bool:
    """Is there an engine on the training cards, or a critic or rollouts on many of them?"""
    if job.rollout_engine is not None:
        return True
    if job.gpus == 1 or job.model is None:
        return False
    said = with_task(job)
    return said.critic != "none" or said.rollout_tokens is not None


def _is_encoder(job: Job) -> bool:
    """A checkpoint that predicts masked tokens is fine-tuned as a classifier unless the user says otherwise."""
    if job.edit:
        return False
    config = config_of(job)
    return config is not None and (config.architecture or "").endswith(ENCODERS)


def with_head(config: Config, job: Job) -> Config:
    """The model's config with the head that the task puts on it."""
    task = task_of_job(job)
    labels = job.labels or task.labels
    changes: dict[str, Any] = {}
    if task.head is not None:
        changes["architectures"] = [f"{_stem(config)}{task.head}"]
    if labels is not None:
        changes |= {"num_labels": labels, "id2label": None}
    return config.with_values(**changes) if changes else config


def _stem(config: Config) -> str:
    """Qwen2ForCausalLM → Qwen2"""
    name = config.architecture or ""
    endings = sorted(TASK_OF_SUFFIX, key=len, reverse=True)
    return next((name.removesuffix(end) for end in endings if name.endswith(end)), name)


def model_of(job: Job) -> ModelSource:
    """The job's model with the head of its task. `job`: complete."""
    assert job.model is not None
    source = read_model(job.model)
    if job.expand_blocks is not None and source.config is not None:
        source = replace(source, config=expanded(source.config, job.expand_blocks))
    if source.config is None or (job.task is None and job.labels is None):
        return source
    return replace(source, config=with_head(source.config, job))
