"""Job → Program: the model as a job runs it, at the job's batch and lengths, loss included."""

from __future__ import annotations

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.between_steps import TO_FP32
from vramcast.engine.recording.attention_copies import lay_out
from vramcast.engine.recording.regime import regime_of
from vramcast.engine.recording.sequence_limits import default_seq
from vramcast.engine.recording.shared_casts import share_casts
from vramcast.engine.stream.gate_loops import check_loop
from vramcast.errors import InputError, unknown
from vramcast.job import PROMPTS, is_regular
from vramcast.models.families import own_targets, record
from vramcast.models.read.config import Config
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Param
from vramcast.setup import Setup
from vramcast.setup.records import Adapter, Data

DEVICE = "cuda:0"


def is_divided(setup: Setup) -> bool:
    """Does anything in the job concern many GPUs, or what a strategy for them does on one?"""
    sizes = (
        setup.parallel.gpus,
        setup.parallel.tp,
        setup.parallel.pp,
        setup.parallel.cp,
        setup.experts.ep,
    )
    return (
        max(sizes) > 1
        or setup.offload.what != "none"
        or setup.parallel.strategy not in (None, "none")
    )


def record_on_one_gpu(setup: Setup, config: Config, gpu: Gpu | None, sizes: Sizes) -> Program:
    """The model as this job runs it, loss included; names are checked against what exists."""
    regime = regime_of(setup, config, gpu)
    if setup.editing.sub_device is not None and not setup.editing.parameters:
        raise InputError("sub-device is the second device of an editing job: it needs edit")
    if setup.editing.parameters:
        from vramcast.engine.editing.lines import edit_regime

        regime = edit_regime(setup.editing, config, regime, sizes)
    program = record(config, regime, sizes)
    lay_out(program, setup, config)
    share_casts(program, setup)
    add_loss_to(program, setup)
    check_loop(setup, program)
    params = list(program.params())
    _check_targets(setup.adapter, params, program)
    if setup.adapter.freeze and all(param.trainable for param in params):
        raise InputError(
            f"freeze {', '.join(setup.adapter.freeze)} matches no parameter. {_modules(program)}"
        )
    if not any(param.trainable for param in params):
        raise InputError(f"freeze {', '.join(setup.adapter.freeze)} leaves nothing to train")
    return program


def add_loss_to(program: Program, setup: Setup) -> None:
    add_loss(
        program,
        transformers=setup.versions.transformers,
        kind=setup.kernels.loss,
        # accelerate's _prepare_fsdp2 leaves the model's forward as it is.
        outputs_in_fp32=setup.versions.framework in TO_FP32 and setup.parallel.strategy != "fsdp2",
        keeps_outputs=setup.loop.keeps_outputs,
        copies_by_caller=setup.loop.copies_logits,
    )


def _check_targets(adapter: Adapter, params: list[Param], program: Program) -> None:
    """A target that matches nothing is silently skipped by PEFT, and then less is trained than was meant."""
    if adapter.kind is None:
        return
    if program.regime.code != "transformers":
        _check_own_targets(adapter, program.regime.code)
        return
    _check_saved(adapter, program)
    if adapter.kind in PROMPTS:
        return
    adapted = _adapted_modules(params)
    targets = [target for target in adapter.targets if target != "all-linear"]
    missing = [target for target in targets if not _is_end_of_any(target, adapted)]
    if is_regular(adapter.targets) or adapter.kind != "lora":
        missing = []  # PEFT wants one module that matches; its own tables name some that a model has not
    if not adapted and adapter.layers:
        raise InputError(
            f"layers-to-transform {', '.join(map(str, adapter.layers))} names no layer with lora-targets "
            f"{', '.join(adapter.targets)}: layers count from 0"
        )
    if missing or not adapted:
        raise InputError(
            f"lora-targets {', '.join(missing or adapter.targets)} match no module. {_modules(program)}"
        )


def _check_saved(adapter: Adapter, program: Program) -> None:
    """PEFT passes over a name that no module has, and then less is trained than was meant."""
    copied = any(".original_module." in param.name for param in program.params(tied=True))
    if adapter.saved and not copied:
        raise InputError(
            f"modules-to-save {', '.join(adapter.saved)} match no module. {_modules(program)}"
        )


def _check_own_targets(adapter: Adapter, code: str) -> None:
    """A framework with its own adapters has its own names for them."""
    known = (*own_targets(code), "all-linear")
    for target in adapter.targets:
        if target not in known:
            raise unknown(f"lora-targets of {code}", target, known)


def _adapted_modules(params: list[Param]) -> set[str]:
    """Paths of the modules that were given an adapter."""
    names = (param.name for param in params)
    return {name.partition(".base_layer")[0] for name in names if ".base_layer." in name}


def _is_end_of_any(target: str, paths: set[str]) -> bool:
    """Is the target a whole path, or the end of one?"""
    return any(path == target or path.endswith(f".{target}") for path in paths)


def _modules(program: Program) -> str:
    """The names a user could have meant."""
    paths = (
        param.name.removesuffix(".weight").removesuffix(".base_layer")
        for param in program.params()
        if param.kind == "linear"
    )
    return f"Linear modules of this model: {', '.join(sorted({path.rpartition('.')[2] for path in paths}))}."


def sizes_of(data: Data, config: Config) -> Sizes:
    seq = data.longest_seq or data.seq or default_seq(config, data.usual_seq)
    images = 1 if data.images is None else data.images
    return Sizes.named(
        data.batch * data.rows, seq, data.target_seq or seq, images, data.image_tokens
    )


def plain(sizes: Sizes) -> Sizes:
    """The same numbers without the names that formulas show."""
    tokens = None if sizes.image_tokens is None else int(sizes.image_tokens)
    return Sizes(
        batch=int(sizes.batch),
        seq=int(sizes.seq),
        target_seq=int(sizes.target_seq),
        images=int(sizes.images),
        image_tokens=tokens,
    )
