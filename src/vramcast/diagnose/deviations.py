"""How a job may differ from what its owner believes: small functions Job → Job, each with how often that happens.

`prior` is a judgement, not a measurement: it only orders explanations that the numbers allow alike. `apply` gives None
where the deviation changes nothing. Two deviations of one name are two ways to the same fact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vramcast.formulas.optimizers import implementation, version
from vramcast.formulas.recipe import RECIPES
from vramcast.formulas.step import keeps_outputs
from vramcast.job import Job, Precision
from vramcast.models.tape import F32

SMALL_OPTIMIZERS = (
    "adamw-8bit", "paged-adamw-8bit", "paged-adamw", "adafactor", "lion", "adam-mini", "galore",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One way to differ. Deviations of one axis exclude each other."""

    name: str
    axis: str
    prior: float
    apply: Callable[[Job], Job | None]


def _weights_fp32(job: Job) -> Job | None:
    """from_pretrained without dtype makes fp32 weights before transformers 5; nothing else changes."""
    return replace(job, precision=Precision.FP32) if RECIPES[job.precision].weights != F32 else None


def _weights_fp32_autocast(job: Job) -> Job | None:
    """fp32 weights under autocast: what `bf16=True` comes to when the model was loaded in fp32."""
    half = (
        Precision.FP16_MIXED if job.precision in (Precision.FP16_TRUE, Precision.FP16_MASTER) else Precision.BF16_MIXED
    )
    return replace(job, precision=half) if RECIPES[job.precision].weights != F32 else None


def _computes_in_fp32(job: Job) -> Job | None:
    mixed = job.precision in (Precision.BF16_MIXED, Precision.FP16_MIXED)
    return replace(job, precision=Precision.FP32) if mixed else None


def _weights_16bit(job: Job) -> Job | None:
    """transformers 5 loads in the checkpoint's dtype."""
    mixed = job.precision in (Precision.BF16_MIXED, Precision.FP16_MIXED)
    return replace(job, precision=Precision.BF16_AUTOCAST) if mixed else None


def _reference_on_gpu(job: Job) -> Job | None:
    return replace(job, reference="same") if job.reference in ("cpu", "cuda:1", "precomputed") else None


def _second_model(job: Job) -> Job | None:
    """A copy nobody mentioned: a trainer's reference, an average, the model of a notebook cell that ran before."""
    return replace(job, reference="same") if job.reference == "none" and job.lora_rank is None else None


def _reference_fp32(job: Job) -> Job | None:
    present = job.reference == "same" and RECIPES[job.precision].weights != F32
    return replace(job, reference_dtype="fp32") if present and job.reference_dtype != "fp32" else None


def _foreach(job: Job) -> Job | None:
    known = job.optimizer in ("adamw", "adam", "adagrad", "rmsprop")
    return replace(job, optimizer_impl="foreach") if known and implementation(job) != "foreach" else None


def _plain_adamw(job: Job) -> Job | None:
    small = job.optimizer in SMALL_OPTIMIZERS
    return replace(job, optimizer="adamw", optimizer_impl=None) if small else None


def _eager(job: Job) -> Job | None:
    return replace(job, attention="eager") if job.attention not in ("eager", "math") else None


def _math(job: Job) -> Job | None:
    """torch's own fallback, where no fused kernel accepts the mask, the head size or the dtype."""
    return replace(job, attention="math") if job.attention == "sdpa" else None


def _no_checkpointing(job: Job) -> Job | None:
    return replace(job, checkpointing="none") if job.checkpointing != "none" else None


def _more_tokens(factor: int) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        if job.longest_seq is not None:
            return replace(job, longest_seq=job.longest_seq * factor)
        return replace(job, seq=job.seq * factor) if job.seq is not None else None

    return apply


def _outputs_held(job: Job) -> Job | None:
    return None if keeps_outputs(job) else replace(job, keep_outputs=True)


def _gradients_in_forward(job: Job) -> Job | None:
    """zero_grad after the forward, as in Lightning's closure."""
    already = job.framework == "lightning" or version(job.torch_version) < (2, 0) or job.accumulate > 1
    plain = job.framework in ("plain", "accelerate", "hf", "trl")
    if already or not plain:
        return None
    return replace(
        job, framework="lightning", optimizer_impl=implementation(job), keep_outputs=keeps_outputs(job),
    )  # fmt: skip


def _older_transformers(job: Job) -> Job | None:
    """4.45 made an fp32 copy of the logits and a shifted one."""
    plain = job.framework in ("plain", "hf", "trl", "lightning", "accelerate", "deepspeed")
    if not plain or job.loss != "full" or version(job.transformers_version) < (4, 49):
        return None
    return replace(
        job, transformers_version="4.45", optimizer_impl=job.optimizer_impl or implementation(job),
        reentrant=job.reentrant,
    )  # fmt: skip


def _loss_not_fused(job: Job) -> Job | None:
    return replace(job, loss="full") if job.loss != "full" else None


def _trains_everything(job: Job) -> Job | None:
    return replace(job, lora_rank=None, quantize="none", dora=False) if job.lora_rank is not None else None


def _not_quantised(job: Job) -> Job | None:
    return replace(job, quantize="none") if job.quantize != "none" else None


def _evaluates(job: Job) -> Job | None:
    return replace(job, evaluate=True) if not job.evaluate else None


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(name="weights_fp32", axis="precision", prior=0.4, apply=_weights_fp32_autocast),
    Deviation(name="weights_fp32", axis="precision", prior=0.35, apply=_weights_fp32),
    Deviation(name="computes_in_fp32", axis="precision", prior=0.2, apply=_computes_in_fp32),
    Deviation(name="weights_16bit", axis="precision", prior=0.2, apply=_weights_16bit),
    Deviation(name="reference_on_gpu", axis="reference", prior=0.3, apply=_reference_on_gpu),
    Deviation(name="second_model", axis="reference", prior=0.12, apply=_second_model),
    Deviation(name="reference_fp32", axis="reference dtype", prior=0.25, apply=_reference_fp32),
    Deviation(name="foreach_step", axis="optimizer", prior=0.3, apply=_foreach),
    Deviation(name="plain_adamw", axis="optimizer", prior=0.1, apply=_plain_adamw),
    Deviation(name="eager_attention", axis="attention", prior=0.25, apply=_eager),
    Deviation(name="math_attention", axis="attention", prior=0.1, apply=_math),
    Deviation(name="no_checkpointing", axis="checkpointing", prior=0.25, apply=_no_checkpointing),
    Deviation(name="twice_the_tokens", axis="tokens", prior=0.15, apply=_more_tokens(2)),
    Deviation(name="four_times_the_tokens", axis="tokens", prior=0.08, apply=_more_tokens(4)),
    Deviation(name="outputs_held", axis="outputs", prior=0.3, apply=_outputs_held),
    Deviation(name="gradients_in_forward", axis="gradients", prior=0.15, apply=_gradients_in_forward),
    Deviation(name="older_transformers", axis="version", prior=0.2, apply=_older_transformers),
    Deviation(name="loss_not_fused", axis="loss", prior=0.2, apply=_loss_not_fused),
    Deviation(name="trains_everything", axis="adapter", prior=0.06, apply=_trains_everything),
    Deviation(name="not_quantised", axis="adapter", prior=0.1, apply=_not_quantised),
    Deviation(name="evaluation", axis="phases", prior=0.3, apply=_evaluates),
)  # fmt: skip

# What changes the optimizer step and loading; everything else is about what a pass over the model makes.
OF_STATES = ("precision", "reference", "reference dtype", "optimizer", "adapter")


OTHER_LENGTH = "other_length"  # followed by the length, as two lengths are two explanations


def kind_of(name: str) -> str:
    """A deviation's name without its figure."""
    return name.partition(" ")[0]


def sequence_of(length: int, prior: float) -> Deviation:
    """The batch that failed was padded to another length than believed."""

    def apply(job: Job) -> Job | None:
        if job.longest_seq is not None:
            return replace(job, longest_seq=length)
        return replace(job, seq=length) if job.seq is not None and job.seq != length else None

    return Deviation(name=f"{OTHER_LENGTH} {length}", axis="tokens", prior=prior, apply=apply)


# What the failing code proves: the innermost frames run only under this deviation.
SEEN_IN_CODE: tuple[tuple[str, str], ...] = (
    ("foreach_step", r"_foreach_|_multi_tensor_"),
    ("loop_step", r"_single_tensor_"),
    ("eager_attention", r"eager_attention|attn_weights|attention_scores|attention_probs"),
)
PROOF_DEPTH = 2


def _loop(job: Job) -> Job | None:
    return replace(job, optimizer_impl="loop") if implementation(job) != "loop" else None


def seen_in_code(job: Job, traces: Sequence[str]) -> tuple[Job, tuple[str, ...]]:
    """The job with what the traceback proves about it, and the names of what that changed."""
    apply = {"foreach_step": _foreach, "loop_step": _loop, "eager_attention": _eager}
    names: list[str] = []
    for name, pattern in SEEN_IN_CODE:
        changed = apply[name](job) if any(re.search(pattern, text) for text in traces[:PROOF_DEPTH]) else None
        if changed is not None:
            job, names = changed, [*names, name]
    return job, tuple(names)
