"""What a job says and nothing of it comes of, as warnings: an option of another loop, of another kind of model.

Two kinds of rules: those that the job alone decides, and those for which the recorded model must be known.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.catalog.gpus import Gpu
from vramcast.engine.option_needs import NEEDS, OF_GENERATION, OF_LLAMA_CPP, OF_ONE_PASS, OF_SERVING
from vramcast.engine.recording.sequence_limits import trained_positions
from vramcast.errors import InputError
from vramcast.job import FIELDS, Job, flag_of
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program
from vramcast.setup.versions import parse_version

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
# The oldest with which measured jobs ran; what older ones did differently, nobody looked at.
OLDEST = {"torch_version": "1.10", "transformers_version": "4.16"}


def needless_options(said: Job, job: Job) -> tuple[str, ...]:
    """One sentence for each option that changes nothing, as far as the job alone tells.

    `job`: with its framework's defaults."""
    texts = [
        f"{_said(said, name)} has no effect: it needs {need.needs}"
        for need in NEEDS
        for name in need.names
        if _is_said(said, name) and not need.is_met(job)
    ]
    if said.tuning == "full" and said.has_adapters:
        texts.append(
            "tuning full has no effect: adapters are asked for, and they are what is trained"
        )
    return (*texts, *_unknown_versions(job))


def needless_without_training(said: Job) -> tuple[str, ...]:
    """Of a job that trains nothing: one sentence for each option that generate(), a pass or an engine does not read."""
    if said.engine is not None:
        read = OF_LLAMA_CPP if said.engine == "llama.cpp" else OF_SERVING
        whose = f"engine {said.engine}"
    else:
        read = OF_GENERATION if said.task == "generate" else OF_ONE_PASS
        whose = f"task {said.task}"
    texts = (
        f"{_said(said, name)} has no effect with {whose}"
        for name in FIELDS
        if name not in read and _is_said(said, name)
    )
    return (*texts, *_unknown_versions(said))


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
        *_of_labels(job, program),
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


def _unknown_versions(job: Job) -> Iterator[str]:
    """What will change in a library that does not exist yet is not known; nor what very old ones did."""
    for name, library in LIBRARIES.items():
        newest, version = str(FIELDS[name].default), getattr(job, name)
        oldest = OLDEST[name]
        if parse_version(version) > parse_version(newest):
            yield f"{library} {version} is newer than {newest}, the newest known here: taken as if it were {newest}"
        if parse_version(version) < parse_version(oldest):
            yield f"{library} {version} is older than {oldest}, the oldest known here: taken as if it were {oldest}"


def _of_labels(job: Job, program: Program) -> Iterator[str]:
    """A classifier has a row for each class."""
    if job.labels is None or any(
        param.shape and int(param.shape[0]) == job.labels for param in program.params()
    ):
        return
    yield f"{_said(job, 'labels')} has no effect: this model is no classifier here, unless you say task classify"


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
