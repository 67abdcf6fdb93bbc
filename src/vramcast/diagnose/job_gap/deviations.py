"""How a job may differ from its owner's description: small functions Job → Job, each with the way it comes about.

In: a Job. Out: the changed Job, or None where a deviation changes nothing. Nobody has counted how often each of them
happens. Only the mechanism is known, and it gives one of three grades: what a library does unless told otherwise,
what it does silently when something is missing, and what takes a mistake. Each grade is half as plausible as the one
before. Grades only order explanations that agree equally well with the numbers. Two deviations of one name are two
ways to the same fact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vramcast.diagnose.job_gap.job_facts import has_fp32_weights
from vramcast.job import Job, Precision
from vramcast.setup import resolve
from vramcast.setup.versions import parse_version

BY_DEFAULT, IN_SILENCE, BY_MISTAKE = 0.4, 0.2, 0.1

SMALL_OPTIMIZERS = (
    "adamw-8bit",
    "paged-adamw-8bit",
    "paged-adamw",
    "adafactor",
    "lion",
    "adam-mini",
    "galore",
)
MIXED = (Precision.BF16_MIXED, Precision.FP16_MIXED)
SHARDING = ("fsdp1", "fsdp2", "zero1", "zero2", "zero3")
# Axes that change loading and the optimizer step; all others change what a pass over the model allocates.
AXES_OF_STATES = (
    "precision",
    "reference",
    "reference dtype",
    "optimizer",
    "adapter",
    "sharding",
    "offload",
)

Change = Callable[[Job], Job | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One way to differ. Deviations of one axis exclude each other."""

    name: str
    axis: str
    prior: float
    apply: Change
    why: str = ""  # the mechanism, which is the reason for the grade


def _deviation(name: str, *, axis: str, prior: float, why: str) -> Callable[[Change], Deviation]:
    """Turns the decorated function into a Deviation."""

    def decorate(apply: Change) -> Deviation:
        return Deviation(name=name, axis=axis, prior=prior, apply=apply, why=why)

    return decorate


# ---- precision


@_deviation(
    "weights_fp32",
    axis="precision",
    prior=BY_DEFAULT,
    why="from_pretrained made fp32 weights before transformers 5, and bf16=True only autocasts",
)
def weights_fp32_autocast(job: Job) -> Job | None:
    if has_fp32_weights(job):
        return None
    is_fp16 = job.precision in (Precision.FP16_TRUE, Precision.FP16_MASTER)
    return replace(job, precision=Precision.FP16_MIXED if is_fp16 else Precision.BF16_MIXED)


@_deviation(
    "weights_fp32",
    axis="precision",
    prior=BY_DEFAULT,
    why="the same without autocast",
)
def weights_fp32(job: Job) -> Job | None:
    if has_fp32_weights(job):
        return None
    return replace(job, precision=Precision.FP32)


@_deviation(
    "computes_in_fp32",
    axis="precision",
    prior=IN_SILENCE,
    why="nothing warns where autocast is not entered",
)
def computes_in_fp32(job: Job) -> Job | None:
    if job.precision not in MIXED:
        return None
    return replace(job, precision=Precision.FP32)


@_deviation(
    "weights_16bit",
    axis="precision",
    prior=IN_SILENCE,
    why="transformers 5 loads in the checkpoint's dtype",
)
def weights_16bit(job: Job) -> Job | None:
    if job.precision not in MIXED:
        return None
    return replace(job, precision=Precision.BF16_AUTOCAST)


# ---- reference model


@_deviation(
    "reference_on_gpu",
    axis="reference",
    prior=BY_DEFAULT,
    why="trainers move a reference to their device",
)
def reference_on_gpu(job: Job) -> Job | None:
    if job.reference not in ("cpu", "cuda:1", "precomputed"):
        return None
    return replace(job, reference="same")


@_deviation(
    "second_model",
    axis="reference",
    prior=BY_MISTAKE,
    why="a copy that somebody made",
)
def second_model(job: Job) -> Job | None:
    """A copy nobody mentioned: a trainer's reference, an average, the model of an earlier notebook cell."""
    if job.reference != "none" or job.has_adapters:
        return None
    return replace(job, reference="same")


@_deviation(
    "reference_fp32",
    axis="reference dtype",
    prior=IN_SILENCE,
    why="loaded separately, without the dtype",
)
def reference_fp32(job: Job) -> Job | None:
    if job.reference != "same" or has_fp32_weights(job) or job.reference_dtype == "fp32":
        return None
    return replace(job, reference_dtype="fp32")


# ---- optimizer


@_deviation(
    "foreach_step",
    axis="optimizer",
    prior=BY_DEFAULT,
    why="torch's default since 2.0",
)
def foreach_step(job: Job) -> Job | None:
    has_foreach = job.optimizer in ("adamw", "adam", "adagrad", "rmsprop")
    if not has_foreach or resolve(job).optimizer.implementation == "foreach":
        return None
    return replace(job, optimizer_impl="foreach")


@_deviation(
    "fused_step",
    axis="optimizer",
    prior=BY_DEFAULT,
    why="the Trainer's default since transformers 4.54",
)
def fused_step(job: Job) -> Job | None:
    has_fused = job.optimizer in ("adamw", "adam")
    if not has_fused or resolve(job).optimizer.implementation == "fused":
        return None
    return replace(job, optimizer_impl="fused")


@_deviation(
    "plain_adamw",
    axis="optimizer",
    prior=BY_MISTAKE,
    why="another optimizer than the one meant",
)
def plain_adamw(job: Job) -> Job | None:
    if job.optimizer not in SMALL_OPTIMIZERS:
        return None
    return replace(job, optimizer="adamw", optimizer_impl=None)


# ---- what a pass over the model allocates


@_deviation(
    "eager_attention",
    axis="attention",
    prior=IN_SILENCE,
    why="under output_attentions, or the model knows no other",
)
def eager_attention(job: Job) -> Job | None:
    if job.attention in ("eager", "math"):
        return None
    return replace(job, attention="eager")


@_deviation(
    "math_attention",
    axis="attention",
    prior=IN_SILENCE,
    why="where no fused kernel takes the mask, head size or dtype",
)
def math_attention(job: Job) -> Job | None:
    if job.attention != "sdpa":
        return None
    return replace(job, attention="math")


@_deviation(
    "no_checkpointing",
    axis="checkpointing",
    prior=IN_SILENCE,
    why="the flag did not reach the model",
)
def no_checkpointing(job: Job) -> Job | None:
    if job.checkpointing == "none":
        return None
    return replace(job, checkpointing="none")


@_deviation(
    "twice_the_tokens",
    axis="tokens",
    prior=IN_SILENCE,
    why="padded to the longest; DPO stacks pairs",
)
def twice_the_tokens(job: Job) -> Job | None:
    return _multiply_length(job, 2)


@_deviation(
    "four_times_the_tokens",
    axis="tokens",
    prior=BY_MISTAKE,
    why="no truncation",
)
def four_times_the_tokens(job: Job) -> Job | None:
    return _multiply_length(job, 4)


def _multiply_length(job: Job, factor: int) -> Job | None:
    if job.longest_seq is not None:
        return replace(job, longest_seq=job.longest_seq * factor)
    if job.seq is not None:
        return replace(job, seq=job.seq * factor)
    return None


@_deviation(
    "outputs_held",
    axis="outputs",
    prior=BY_DEFAULT,
    why="a loop's variable lives until it is assigned again",
)
def outputs_held(job: Job) -> Job | None:
    if resolve(job).loop.keeps_outputs:
        return None
    return replace(job, keep_outputs=True)


@_deviation(
    "gradients_in_forward",
    axis="gradients",
    prior=IN_SILENCE,
    why="zero_grad stands after the forward",
)
def gradients_in_forward(job: Job) -> Job | None:
    """zero_grad after the forward, as in Lightning's closure."""
    if job.framework not in ("plain", "accelerate", "hf", "trl"):
        return None
    keeps_them_anyway = parse_version(job.torch_version) < (2, 0) or job.accumulate > 1
    if keeps_them_anyway:
        return None
    return replace(
        job,
        framework="lightning",
        optimizer_impl=resolve(job).optimizer.implementation,
        keep_outputs=resolve(job).loop.keeps_outputs,
    )


@_deviation(
    "older_transformers",
    axis="version",
    prior=IN_SILENCE,
    why="another version than believed",
)
def older_transformers(job: Job) -> Job | None:
    """transformers 4.45 made an fp32 copy of the logits and a shifted one."""
    if job.framework not in ("plain", "hf", "trl", "lightning", "accelerate", "deepspeed"):
        return None
    if resolve(job).kernels.loss != "full" or parse_version(job.transformers_version) < (4, 49):
        return None
    return replace(
        job,
        transformers_version="4.45",
        optimizer_impl=job.optimizer_impl or resolve(job).optimizer.implementation,
        reentrant=job.reentrant,
    )


@_deviation(
    "loss_not_fused",
    axis="loss",
    prior=IN_SILENCE,
    why="a patch that does not know the model does nothing",
)
def loss_not_fused(job: Job) -> Job | None:
    if resolve(job).kernels.loss == "full":
        return None
    return replace(job, loss="full")


# ---- adapters and quantisation


@_deviation(
    "trains_everything",
    axis="adapter",
    prior=BY_MISTAKE,
    why="the adapters were not put in",
)
def trains_everything(job: Job) -> Job | None:
    if not job.has_adapters:
        return None
    return replace(job, adapter=None, lora_rank=None, quantize="none", dora=False)


@_deviation(
    "not_quantised",
    axis="adapter",
    prior=BY_MISTAKE,
    why="the quantisation config was not passed",
)
def not_quantised(job: Job) -> Job | None:
    if job.quantize == "none":
        return None
    return replace(job, quantize="none")


@_deviation(
    "evaluation",
    axis="phases",
    prior=BY_DEFAULT,
    why="only considered where the failing code evaluates",
)
def evaluation(job: Job) -> Job | None:
    if job.evaluate:
        return None
    return replace(job, evaluate=True)


# ---- many GPUs


@_deviation(
    "not_sharded",
    axis="sharding",
    prior=IN_SILENCE,
    why="started by another launcher, every rank keeps everything",
)
def not_sharded(job: Job) -> Job | None:
    if job.gpus < 2 or job.strategy not in SHARDING:
        return None
    return replace(job, strategy="ddp", offload="none")


@_deviation(
    "stays_gathered",
    axis="sharding",
    prior=IN_SILENCE,
    why="SHARD_GRAD_OP, or no reshard after forward",
)
def stays_gathered(job: Job) -> Job | None:
    """SHARD_GRAD_OP, or FSDP2 with reshard_after_forward=False."""
    if job.gpus < 2 or job.strategy not in ("fsdp1", "fsdp2") or not job.reshard:
        return None
    return replace(job, reshard=False)


@_deviation(
    "not_offloaded",
    axis="offload",
    prior=IN_SILENCE,
    why="an offload key of another backend is ignored",
)
def not_offloaded(job: Job) -> Job | None:
    if job.offload == "none":
        return None
    return replace(job, offload="none")


@_deviation(
    "residuals_on_every_rank",
    axis="tensor parallel",
    prior=IN_SILENCE,
    why="sequence parallelism is off unless asked for",
)
def residuals_on_every_rank(job: Job) -> Job | None:
    if job.tp < 2 or job.sequence_parallel is False:
        return None
    return replace(job, sequence_parallel=False)


@_deviation(
    "logits_on_every_rank",
    axis="tensor parallel",
    prior=IN_SILENCE,
    why="logits are gathered unless the loss is parallel",
)
def logits_on_every_rank(job: Job) -> Job | None:
    if job.tp < 2 or job.loss_parallel is False:
        return None
    return replace(job, loss_parallel=False)


# Equally plausible ones are tried in this order.
DEVIATIONS: tuple[Deviation, ...] = (
    weights_fp32_autocast,
    weights_fp32,
    computes_in_fp32,
    weights_16bit,
    reference_on_gpu,
    second_model,
    reference_fp32,
    foreach_step,
    fused_step,
    plain_adamw,
    eager_attention,
    math_attention,
    no_checkpointing,
    twice_the_tokens,
    four_times_the_tokens,
    outputs_held,
    gradients_in_forward,
    older_transformers,
    loss_not_fused,
    trains_everything,
    not_quantised,
    evaluation,
    not_sharded,
    stays_gathered,
    not_offloaded,
    residuals_on_every_rank,
    logits_on_every_rank,
)


# ---- deviations that the observation suggests

OTHER_LENGTH = "other_length"


def other_length(length: int, prior: float) -> Deviation:
    """The batch that failed was padded to another length. The length is part of the name: two of them differ."""

    def apply(job: Job) -> Job | None:
        if job.longest_seq is not None:
            return replace(job, longest_seq=length)
        if job.seq is None or job.seq == length:
            return None
        return replace(job, seq=length)

    return Deviation(name=f"{OTHER_LENGTH} {length}", axis="tokens", prior=prior, apply=apply)


@_deviation(
    "loop_step",
    axis="optimizer",
    prior=BY_DEFAULT,
    why="only considered where the failing code shows it",
)
def loop_step(job: Job) -> Job | None:
    if resolve(job).optimizer.implementation == "loop":
        return None
    return replace(job, optimizer_impl="loop")


# Code in the innermost frames that runs only under this deviation.
PROVED_BY_CODE: tuple[tuple[Deviation, str], ...] = (
    (foreach_step, r"_foreach_|_multi_tensor_"),
    (loop_step, r"_single_tensor_"),
    (eager_attention, r"eager_attention|attn_weights|attention_scores|attention_probs"),
)
PROOF_DEPTH = 2


def apply_proved(job: Job, traces: Sequence[str]) -> tuple[Job, tuple[str, ...]]:
    """The job with what the traceback proves about it, and the names of the deviations that changed it."""
    names: list[str] = []
    for deviation, pattern in PROVED_BY_CODE:
        if not any(re.search(pattern, text) for text in traces[:PROOF_DEPTH]):
            continue
        changed = deviation.apply(job)
        if changed is not None:
            job = changed
            names.append(deviation.name)
    return job, tuple(names)


_AXES = {item.name: item.axis for item in (*DEVIATIONS, loop_step)} | {OTHER_LENGTH: "tokens"}


def kind_of(name: str) -> str:
    """A deviation's name without its number."""
    return name.partition(" ")[0]


def axis_of(name: str) -> str:
    return _AXES[kind_of(name)]
