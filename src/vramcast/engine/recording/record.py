"""Job → Program: the model as a job runs it, at the job's batch and lengths, loss included."""

from __future__ import annotations

from vramcast.catalog.gpus import Gpu
from vramcast.engine.editing.lines import edit_regime
from vramcast.engine.lines.between_steps import TO_FP32
from vramcast.engine.lines.optimizers import version
from vramcast.engine.lines.training_step import keeps_outputs
from vramcast.engine.recording.attention_copies import lay_out
from vramcast.engine.recording.regime import regime_of
from vramcast.engine.recording.sequence_limits import default_seq
from vramcast.engine.stream.gate_loops import check_loop
from vramcast.errors import InputError, unknown
from vramcast.job import Job
from vramcast.models.families import own_targets, record
from vramcast.models.read.config import Config
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Param

DEVICE = "cuda:0"


def is_divided(job: Job) -> bool:
    """Does anything in the job concern many GPUs, or what a strategy for them does on one?"""
    sizes = (job.gpus, job.tp, job.pp, job.cp, job.ep)
    return max(sizes) > 1 or job.offload != "none" or job.strategy not in (None, "none")


def record_on_one_gpu(job: Job, config: Config, gpu: Gpu | None, sizes: Sizes) -> Program:
    """The model as this job runs it, loss included; names are checked against what exists."""
    regime = regime_of(job, config, gpu)
    if job.sub_device is not None and not job.edit:
        raise InputError("sub-device is the second device of an editing job: it needs edit")
    program = record(config, edit_regime(job, config, regime, sizes) if job.edit else regime, sizes)
    lay_out(program, job, config)
    add_loss_to(program, job)
    check_loop(job, program)
    params = list(program.params())
    _check_targets(job, params, program)
    if job.freeze and all(param.trainable for param in params):
        raise InputError(f"freeze {', '.join(job.freeze)} matches no parameter. {_modules(program)}")
    if not any(param.trainable for param in params):
        raise InputError(f"freeze {', '.join(job.freeze)} leaves nothing to train")
    return program


def add_loss_to(program: Program, job: Job) -> None:
    transformers, to_fp32 = version(job.transformers_version), job.framework in TO_FP32 and not keeps_outputs(job)
    add_loss(program, transformers=transformers, kind=job.loss, outputs_in_fp32=to_fp32)


def _check_targets(job: Job, params: list[Param], program: Program) -> None:
    """A target that matches nothing is silently skipped by PEFT, and then less is trained than was meant."""
    if job.lora_rank is None:
        return
    if program.regime.code != "transformers":
        known = (*own_targets(program.regime.code), "all-linear")
        for target in job.lora_targets:
            if target not in known:
                raise unknown(f"lora-targets of {program.regime.code}", target, known)
        return
    adapted = {param.name.partition(".base_layer")[0] for param in params if ".base_layer." in param.name}
    missing = [
        target for target in job.lora_targets
        if target != "all-linear" and not any(name == target or name.endswith(f".{target}") for name in adapted)
    ]  # fmt: skip
    if missing or not adapted:
        raise InputError(f"lora-targets {', '.join(missing or job.lora_targets)} match no module. {_modules(program)}")


def _modules(program: Program) -> str:
    """The names a user could have meant."""
    paths = (
        param.name.removesuffix(".weight").removesuffix(".base_layer")
        for param in program.params()
        if param.kind == "linear"
    )
    return f"Linear modules of this model: {', '.join(sorted({path.rpartition('.')[2] for path in paths}))}."


def sizes_of(job: Job, config: Config) -> Sizes:
    seq = job.longest_seq or job.seq or default_seq(config)
    images = 1 if job.images is None else job.images
    return Sizes.named(job.batch, seq, job.target_seq or seq, images, job.image_tokens)


def plain(sizes: Sizes) -> Sizes:
    """The same numbers without the names that formulas show."""
    tokens = None if sizes.image_tokens is None else int(sizes.image_tokens)
    return Sizes(
        batch=int(sizes.batch), seq=int(sizes.seq), target_seq=int(sizes.target_seq), images=int(sizes.images),
        image_tokens=tokens,
    )  # fmt: skip
