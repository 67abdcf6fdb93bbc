"""How a job may differ from what its owner believes: small functions Job → Job, each with how it comes about.

Nobody has counted how often each happens. What is known is its mechanism, and that gives one of three grades: what a
library does unless told otherwise, what it does in silence where something is missing, what takes a mistake. A grade
halves the one above it. The grades only order explanations that the numbers allow alike. `apply` gives None where the
deviation changes nothing. Two deviations of one name are two ways to the same fact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vramcast.engine.lines.optimizers import implementation, version
from vramcast.engine.lines.training_step import keeps_outputs
from vramcast.engine.recording.precision import RECIPES
from vramcast.job import Job, Precision
from vramcast.models.record.tape import F32

SMALL_OPTIMIZERS = (
    "adamw-8bit", "paged-adamw-8bit", "paged-adamw", "adafactor", "lion", "adam-mini", "galore",
)  # fmt: skip


BY_DEFAULT, IN_SILENCE, BY_MISTAKE = 0.4, 0.2, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One way to differ. Deviations of one axis exclude each other."""

    name: str
    axis: str
    prior: float
    apply: Callable[[Job], Job | None]
    why: str = ""  # the mechanism behind the grade


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


def _fused(job: Job) -> Job | None:
    known = job.optimizer in ("adamw", "adam")
    return replace(job, optimizer_impl="fused") if known and implementation(job) != "fused" else None


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


SHARDING = ("fsdp1", "fsdp2", "zero1", "zero2", "zero3")


def _not_sharded(job: Job) -> Job | None:
    return replace(job, strategy="ddp", offload="none") if job.gpus > 1 and job.strategy in SHARDING else None


def _stays_gathered(job: Job) -> Job | None:
    """SHARD_GRAD_OP, or FSDP2 with reshard_after_forward=False."""
    sharded = job.gpus > 1 and job.strategy in ("fsdp1", "fsdp2")
    return replace(job, reshard=False) if sharded and job.reshard else None


def _not_offloaded(job: Job) -> Job | None:
    return replace(job, offload="none") if job.offload != "none" else None


def _residuals_on_every_rank(job: Job) -> Job | None:
    return replace(job, sequence_parallel=False) if job.tp > 1 and job.sequence_parallel is not False else None


def _logits_on_every_rank(job: Job) -> Job | None:
    return replace(job, loss_parallel=False) if job.tp > 1 and job.loss_parallel is not False else None


def _of(name: str, axis: str, prior: float, apply: Callable[[Job], Job | None], why: str) -> Deviation:
    return Deviation(name=name, axis=axis, prior=prior, apply=apply, why=why)


DEVIATIONS: tuple[Deviation, ...] = (
    _of("weights_fp32", "precision", BY_DEFAULT, _weights_fp32_autocast,
        "from_pretrained made fp32 weights before transformers 5, and bf16=True only autocasts"),
    _of("weights_fp32", "precision", BY_DEFAULT, _weights_fp32, "the same without autocast"),
    _of("computes_in_fp32", "precision", IN_SILENCE, _computes_in_fp32, "nothing warns where autocast is not entered"),
    _of("weights_16bit", "precision", IN_SILENCE, _weights_16bit, "transformers 5 loads in the checkpoint's dtype"),
    _of("reference_on_gpu", "reference", BY_DEFAULT, _reference_on_gpu, "trainers move a reference to their device"),
    _of("second_model", "reference", BY_MISTAKE, _second_model, "a copy that somebody made"),
    _of("reference_fp32", "reference dtype", IN_SILENCE, _reference_fp32, "loaded apart, without the dtype"),
    _of("foreach_step", "optimizer", BY_DEFAULT, _foreach, "torch's default since 2.0"),
    _of("fused_step", "optimizer", BY_DEFAULT, _fused, "the Trainer's default since transformers 4.54"),
    _of("plain_adamw", "optimizer", BY_MISTAKE, _plain_adamw, "another optimizer than the one meant"),
    _of("eager_attention", "attention", IN_SILENCE, _eager, "under output_attentions, or the model knows no other"),
    _of("math_attention", "attention", IN_SILENCE, _math, "where no fused kernel takes the mask, head size or dtype"),
    _of("no_checkpointing", "checkpointing", IN_SILENCE, _no_checkpointing, "the flag did not reach the model"),
    _of("twice_the_tokens", "tokens", IN_SILENCE, _more_tokens(2), "padded to the longest; DPO stacks pairs"),
    _of("four_times_the_tokens", "tokens", BY_MISTAKE, _more_tokens(4), "no truncation"),
    _of("outputs_held", "outputs", BY_DEFAULT, _outputs_held, "a loop's variable lives until it is assigned again"),
    _of("gradients_in_forward", "gradients", IN_SILENCE, _gradients_in_forward, "zero_grad stands after the forward"),
    _of("older_transformers", "version", IN_SILENCE, _older_transformers, "another version than believed"),
    _of("loss_not_fused", "loss", IN_SILENCE, _loss_not_fused, "a patch that does not know the model does nothing"),
    _of("trains_everything", "adapter", BY_MISTAKE, _trains_everything, "the adapters were not put in"),
    _of("not_quantised", "adapter", BY_MISTAKE, _not_quantised, "the quantisation config was not passed"),
    _of("evaluation", "phases", BY_DEFAULT, _evaluates, "only thought of where the failing code evaluates"),
    _of("not_sharded", "sharding", IN_SILENCE, _not_sharded, "started by another launcher, every rank keeps it all"),
    _of("stays_gathered", "sharding", IN_SILENCE, _stays_gathered, "SHARD_GRAD_OP, or no reshard after forward"),
    _of("not_offloaded", "offload", IN_SILENCE, _not_offloaded, "an offload key of another backend is ignored"),
    _of("residuals_on_every_rank", "tensor parallel", IN_SILENCE, _residuals_on_every_rank,
        "sequence parallelism is off unless asked for"),
    _of("logits_on_every_rank", "tensor parallel", IN_SILENCE, _logits_on_every_rank,
        "logits are gathered unless the loss is parallel"),
)  # fmt: skip

# What changes the optimizer step and loading; everything else is about what a pass over the model makes.
OF_STATES = ("precision", "reference", "reference dtype", "optimizer", "adapter", "sharding", "offload")


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
