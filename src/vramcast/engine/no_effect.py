"""What a job says and nothing of it comes of, as warnings: an option of another loop, of another kind of model.

Two kinds of rules: those that the job alone decides, and those for which the recorded model must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.engine.recording.sequence_limits import trained_positions
from vramcast.errors import InputError
from vramcast.job import FIELDS, Job, flag_of
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program
from vramcast.setup.versions import parse_version

Applies = Callable[[Job], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Options that do nothing unless the job says something else, too."""

    names: tuple[str, ...]
    needs: str
    is_met: Applies


def _has_adapters(job: Job) -> bool:
    return job.has_adapters


def _has_lengths(job: Job) -> bool:
    return job.mean_seq is not None or job.lengths is not None


def _has_liger(job: Job) -> bool:
    return job.loss == "fused" or bool(job.kernels)


def _is_8bit(job: Job) -> bool:
    return "8bit" in (job.optimizer or "")


def _is_quantised(job: Job) -> bool:
    return job.quantize != "none" or _is_8bit(job) or (job.optimizer or "").startswith("paged")


def _shards(job: Job) -> bool:
    return job.gpus > 1 and job.strategy not in ("none", "ddp")


def _is_fsdp(job: Job) -> bool:
    return job.strategy is None or job.strategy.startswith("fsdp")


NEEDS = (
    Need(
        names=("lora_targets", "lora_dropout", "lora_dtype"),
        needs="lora-rank",
        is_met=_has_adapters,
    ),
    Need(names=("samples",), needs="mean-seq or lengths", is_met=_has_lengths),
    Need(
        names=("optimizer_rank",),
        needs="optimizer galore",
        is_met=lambda job: job.optimizer == "galore",
    ),
    Need(names=("optimizer_block",), needs="an 8-bit optimizer", is_met=_is_8bit),
    Need(
        names=("reentrant",),
        needs="checkpointing",
        is_met=lambda job: job.checkpointing != "none",
    ),
    Need(
        names=("reference_dtype",),
        needs="a reference model",
        is_met=lambda job: job.reference != "none",
    ),
    Need(names=("reward_model",), needs="reward", is_met=lambda job: job.reward != "none"),
    Need(names=("critic_model",), needs="critic", is_met=lambda job: job.critic != "none"),
    Need(names=("teacher_model",), needs="teacher", is_met=lambda job: job.teacher != "none"),
    Need(
        names=("companion_dtype",),
        needs="reward or teacher",
        is_met=lambda job: job.reward != "none" or job.teacher != "none",
    ),
    Need(
        names=("edit_rank", "edit_hidden", "edit_forwards", "edit_gradients", "edit_graph"),
        needs="edit",
        is_met=lambda job: bool(job.edit),
    ),
    Need(names=("shard_size",), needs="several GPUs that share one sharded copy", is_met=_shards),
    Need(
        names=("virtual_stages",),
        needs="pp and schedule interleaved",
        is_met=lambda job: job.pp > 1 and job.schedule == "interleaved",
    ),
    Need(
        names=("schedule", "stage_layers", "first_stage_layers", "last_stage_layers"),
        needs="pp",
        is_met=lambda job: job.pp > 1,
    ),
    Need(names=("sequence_parallel", "loss_parallel"), needs="tp", is_met=lambda job: job.tp > 1),
    Need(names=("cp_style",), needs="cp", is_met=lambda job: job.cp > 1),
    Need(names=("gpus_per_node",), needs="gpus", is_met=lambda job: job.gpus > 1),
    Need(names=("offload_device",), needs="offload", is_met=lambda job: job.offload != "none"),
    Need(names=("units", "reshard"), needs="strategy fsdp1 or fsdp2", is_met=_is_fsdp),
    Need(names=("prefetch",), needs="workers", is_met=lambda job: job.workers > 0),
    Need(names=("dataset_mode",), needs="dataset", is_met=lambda job: job.dataset is not None),
    Need(names=("trl_version",), needs="framework trl", is_met=lambda job: job.framework == "trl"),
    Need(names=("peft_version",), needs="lora-rank", is_met=_has_adapters),
    Need(names=("liger_version",), needs="Liger's loss or kernels", is_met=_has_liger),
    Need(
        names=("bitsandbytes_version",),
        needs="quantize or an 8-bit optimizer",
        is_met=_is_quantised,
    ),
)
OF_EXPERTS = (
    "expert_dispatch",
    "expert_gemm",
    "expert_load",
    "expert_capacity",
    "expert_tp",
    "pad_experts",
    "overlap_experts",
)
OF_LAYERS = ("batch", "seq", "target_seq", "images", "image_tokens", "attention", "checkpointing")
LIBRARIES = {"torch_version": "torch", "transformers_version": "transformers"}


def needless_options(said: Job, job: Job) -> tuple[str, ...]:
    """One sentence for each option that changes nothing, as far as the job alone tells.

    `job`: with its framework's defaults."""
    texts = [
        f"{_said(said, name)} has no effect: it needs {need.needs}"
        for need in NEEDS
        for name in need.names
        if _is_said(said, name) and not need.is_met(job)
    ]
    return (*texts, *_newer_versions(job))


def needless_without_layers(said: Job) -> tuple[str, ...]:
    """Of a job that is only a number of parameters."""
    return tuple(
        f"{_said(said, name)} has no effect: it needs the model's layers, and only its parameters are known"
        for name in OF_LAYERS
        if _is_said(said, name)
    )


def needless_for_model(
    job: Job, program: Program, config: Config, gpu: Gpu | None
) -> tuple[str, ...]:
    """One sentence for each option that this model has no use for. Raises for ranks that are a typing mistake."""
    return (
        *_of_images(job, program),
        *_of_decoder(job, program),
        *_of_experts(job, program),
        *_of_depth(job, program),
        *_of_adapters(job, program),
        *_of_positions(job, config),
        *_of_flash(job, gpu),
    )


def _is_said(job: Job, name: str) -> bool:
    return bool(getattr(job, name) != FIELDS[name].default)


def _said(job: Job, name: str) -> str:
    value = getattr(job, name)
    shown = ",".join(value) if isinstance(value, tuple) else str(value).lower()
    return f"{flag_of(name)} {shown}"


def _newer_versions(job: Job) -> Iterator[str]:
    """What will change in a library that does not exist yet is not known."""
    for name, library in LIBRARIES.items():
        known = str(FIELDS[name].default)
        if parse_version(getattr(job, name)) > parse_version(known):
            yield (
                f"{library} {getattr(job, name)} is newer than {known}, the newest known here: "
                f"taken as if it were {known}"
            )


def _of_images(job: Job, program: Program) -> Iterator[str]:
    if any("pixel" in value.label for value in program.tape.inputs):
        return
    for name in ("images", "image_tokens"):
        if getattr(job, name):
            yield f"{_said(job, name)} has no effect: this model reads no images"


def _of_decoder(job: Job, program: Program) -> Iterator[str]:
    if job.target_seq is not None and not any(
        "decoder" in value.label for value in program.tape.inputs
    ):
        yield f"{_said(job, 'target_seq')} has no effect: this model has no encoder and decoder, seq is its only length"


def _of_experts(job: Job, program: Program) -> Iterator[str]:
    if any("expert" in param.name for param in program.params()):
        return
    for name in OF_EXPERTS:
        if _is_said(job, name):
            yield f"{_said(job, name)} has no effect: this model has no experts"


def _of_depth(job: Job, program: Program) -> Iterator[str]:
    every = (job.checkpointing or "").removeprefix("every-")
    depth = sum(placed.section.is_block for placed in program.sections)
    if every.isdigit() and int(every) > depth > 0:
        yield f"checkpointing every-{every} checkpoints no block: the model has {depth}"


def _of_adapters(job: Job, program: Program) -> Iterator[str]:
    if job.lora_rank is None:
        return
    sides = [tuple(map(int, param.shape)) for param in program.params() if len(param.shape) == 2]
    longest = max((max(side) for side in sides if job.lora_rank not in side), default=0)
    shortest = max((min(side) for side in sides if job.lora_rank not in side), default=0)
    if job.lora_rank > longest:
        raise InputError(
            f"lora-rank {job.lora_rank} is larger than any matrix of this model ({longest:,}). Ranks are 4 to 256."
        )
    if job.lora_rank > shortest:
        yield (
            f"lora-rank {job.lora_rank} is above the full rank of every matrix ({shortest:,}): "
            "adapters are larger than what they adapt"
        )


def _of_positions(job: Job, config: Config) -> Iterator[str]:
    trained = trained_positions(config)
    seq = job.longest_seq or job.seq
    if trained is not None and seq is not None and seq > trained:
        yield (
            f"seq {seq} is beyond the {trained:,} positions that the model was made for: "
            "it runs, with positions it has not seen"
        )


def _of_flash(job: Job, gpu: Gpu | None) -> Iterator[str]:
    if job.attention != "flash" or gpu is None or gpu.compute_capability is None:
        return
    if gpu.compute_capability < (8, 0):
        yield f"attention flash needs an Ampere card or newer: on {gpu.name} the call would fail"


def kernels_of(program: Program) -> tuple[str, ...]:
    """The attention kernels that the model's layers run, in the order of their first use."""
    found: dict[str, None] = {}
    for section in {id(placed.section): placed.section for placed in program.sections}.values():
        for op in section.ops:
            if op.name.endswith(" attention"):
                found[op.name.removesuffix(" attention")] = None
            elif op.output.label == "scaled q":
                found["math"] = None
            elif op.output.label in ("attention weights", "scores") and "math" not in found:
                found.setdefault("eager")
    return tuple(found)
