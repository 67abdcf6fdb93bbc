"""Job → Setup: what the user did not say is decided here, as the framework and its versions would.

Knows frameworks and versions, and nothing of the model or the card: what those decide (default length, attention
kernel) is asked where the model is recorded.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from vramcast.errors import InputError
from vramcast.job import Job
from vramcast.models.record.tape import DTYPES, Dtype
from vramcast.setup.adapters import feedforward_of, kind_of, layers_of
from vramcast.setup.defaults import ZERO, complete
from vramcast.setup.precision import RECIPES, Recipe
from vramcast.setup.profile import PEFT, Profile, at, versions_of
from vramcast.setup.profiles import PROFILES, profile_of
from vramcast.setup.records import (
    Adapter,
    Checkpointing,
    Companions,
    Data,
    DataLoading,
    Editing,
    Experts,
    Kernels,
    Loop,
    Offload,
    Optimizer,
    Parallel,
    Phases,
    Setup,
    Versions,
)
from vramcast.setup.tasks import task_of_job
from vramcast.setup.versions import (
    FOREACH_FROM,
    FUSED_NEEDS_TORCH,
    parse_numbers,
    parse_version,
    trl_version,
)

OF_TOKENS = ("sft", "pretrain")  # tasks whose trainer tells how many tokens are right
OWN_GRADIENTS = ("megatron", "deepspeed")
TORCH_OPTIMIZERS = (  # torch's own, and those that step as they do
    "adamw",
    "adam",
    "sgd",
    "sgd-momentum",
    "adagrad",
    "rmsprop",
    "schedule-free-adamw",
)


@functools.lru_cache(maxsize=8192)  # searches ask for the same jobs again and again
def resolve(job: Job) -> Setup:
    """Decide everything that the job left open."""
    job = complete(job)
    assert job.precision is not None
    profile, versions = profile_of(job), _versions(job)
    return Setup(
        model=job.model,
        params=job.params,
        gpu=job.gpu,
        data=_data(job, profile),
        precision=_precision(job, profile, versions),
        optimizer=_optimizer(job, profile, versions),
        kernels=_kernels(job),
        checkpointing=_checkpointing(job, profile),
        adapter=_adapter(job, profile),
        loop=_loop(job, profile),
        companions=_companions(job),
        phases=_phases(job),
        editing=_editing(job),
        experts=_experts(job),
        parallel=_parallel(job, profile),
        offload=Offload(
            what=job.offload, modules=tuple(job.offload_modules), device=job.offload_device
        ),
        loading=_loading(job),
        versions=versions,
        alloc_conf=job.alloc_conf,
    )


def _versions(job: Job) -> Versions:
    return Versions(
        framework=PROFILES[job.framework].runs_as or job.framework,
        torch=parse_version(job.torch_version),
        transformers=parse_version(job.transformers_version),
        trl=trl_version(job.trl_version, parse_version(job.transformers_version)),
        bitsandbytes=parse_version(job.bitsandbytes_version),
        liger=parse_numbers(job.liger_version),
        cublas_workspace=job.cublas_workspace,
        module_loading=job.module_loading,
    )


def _precision(job: Job, profile: Profile, versions: Versions) -> Recipe:
    """The recipe, with the dtypes that are said for a role."""
    assert job.precision is not None
    recipe = RECIPES[job.precision]
    trained, frozen = job.weights_dtype, job.frozen_dtype
    if job.has_adapters:  # all weights but the adapters are frozen
        trained, frozen = frozen or trained, None
    elif (
        (job.freeze or job.expand_blocks) and profile.raises_trained and recipe.autocast is not None
    ):
        frozen = frozen or recipe.autocast.name
    changes: dict[str, object] = {}
    if trained is not None:
        changes["weights"] = DTYPES[trained]
        changes["gradients"] = recipe.gradients if recipe.main_gradients else DTYPES[trained]
    if frozen is not None:
        changes["frozen"] = DTYPES[frozen]
    if job.grad_dtype is not None:
        changes |= _gradients(job, DTYPES[job.grad_dtype], recipe, versions)
    if job.master_dtype is not None:
        changes["master"] = job.master_dtype == "fp32"
    if job.state_dtype is not None:
        changes["states"] = DTYPES[job.state_dtype]
    if job.fp8_gather:
        changes["fp8_weights"] = _gathers_fp8(recipe)
    return replace(recipe, **changes) if changes else recipe  # type: ignore[arg-type]


def _gradients(job: Job, dtype: Dtype, recipe: Recipe, versions: Versions) -> dict[str, object]:
    """Who adds gradients up in buffers of its own chooses their dtype."""
    apart = versions.framework in OWN_GRADIENTS or job.strategy in ZERO
    if not apart and dtype != recipe.gradients:
        raise InputError(
            f"grad-dtype {dtype.name}: torch keeps gradients in the dtype of their weights ({recipe.weights.name}). "
            "Give weights-dtype, or framework megatron or deepspeed, which add them up in buffers of their own"
        )
    return {"gradients": dtype, "main_gradients": recipe.main_gradients or dtype != recipe.weights}


def _gathers_fp8(recipe: Recipe) -> bool:
    if not recipe.fp8_cache:
        raise InputError("fp8-gather needs precision fp8: other weights have no fp8 form")
    return True


def _data(job: Job, profile: Profile) -> Data:
    return Data(
        batch=job.batch,
        rows=task_of_job(job).rows,
        seq=job.seq,
        usual_seq=profile.seq,
        target_seq=job.target_seq,
        longest_seq=job.longest_seq,
        mean_seq=job.mean_seq,
        samples=job.samples,
        lengths=job.lengths,
        accumulate=_micro_batches(job),
        prompt=_prompt(job),
        is_half_prompt=job.prompt_tokens is None and task_of_job(job).halves_prompt,
        images=job.images,
        image_tokens=job.image_tokens,
    )


def _prompt(job: Job) -> int:
    """What is generated is scored, and nothing before it."""
    if job.prompt_tokens is not None:
        return job.prompt_tokens
    is_generated = task_of_job(job).generates and job.seq is not None
    return max((job.seq or 0) - (job.rollout_tokens or 0), 0) if is_generated else 0


def _micro_batches(job: Job) -> int:
    """A pipeline is filled with at least as many micro-batches as it has stages."""
    return job.pp if job.pp > 1 and job.accumulate == 1 else job.accumulate


def _optimizer(job: Job, profile: Profile, versions: Versions) -> Optimizer:
    assert job.optimizer is not None
    return Optimizer(
        name=job.optimizer,
        implementation=job.optimizer_impl or _implementation(job, profile, versions),
        projection_rank=job.optimizer_rank,
        block_size=job.optimizer_block,
    )


def _implementation(job: Job, profile: Profile, versions: Versions) -> str:
    """How the framework runs the optimizer's step."""
    if job.optimizer == "lomo":
        return "in-backward"
    if job.optimizer not in TORCH_OPTIMIZERS:
        return "loop"
    how = profile.other_impl
    if job.optimizer == "adamw":
        how = at(profile.optimizer_impl, versions_of(job))
    if profile.other_impl == "fused":  # its own kernels, whatever torch has
        return how
    if versions.torch < FOREACH_FROM:
        return "loop"
    return "foreach" if versions.torch < FUSED_NEEDS_TORCH else how


def _kernels(job: Job) -> Kernels:
    return Kernels(
        attention=job.attention,
        fused=tuple(job.kernels),
        loss=job.loss or "full",
        compile=job.compile,
        recompute=tuple(job.recompute),
        deterministic=job.deterministic,
    )


def _checkpointing(job: Job, profile: Profile) -> Checkpointing:
    if job.reentrant and job.checkpointing == "selective":
        raise InputError(
            "selective checkpointing needs the form without reentry: leave out reentrant"
        )
    how = job.checkpointing or "none"
    if job.offload in ("activations", "all"):  # the inputs of recomputed blocks go to the host
        how = "offload"
    return Checkpointing(how=how, is_reentrant=_is_reentrant(how, job, profile))


def _is_reentrant(how: str, job: Job, profile: Profile) -> bool:
    """use_reentrant=True recomputes a block to its end and holds the result during the block's backward."""
    if how in ("none", "selective"):
        return False
    return at(profile.reentrant, versions_of(job)) if job.reentrant is None else job.reentrant


def _adapter(job: Job, profile: Profile) -> Adapter:
    is_quantised = job.quantize != "none"
    return Adapter(
        kind=kind_of(job),
        rank=job.lora_rank,
        block=job.adapter_block,
        targets=tuple(job.lora_targets),
        feedforward=feedforward_of(job),
        layers=layers_of(job),
        saved=tuple(job.modules_to_save),
        virtual_tokens=job.virtual_tokens or 0,
        prompt_hidden=job.prompt_hidden,
        added_blocks=job.expand_blocks or 0,
        dropout=job.lora_dropout or 0.0,
        dtype=job.lora_dtype or _adapter_dtype(job, profile, is_quantised=is_quantised),
        dora=job.dora,
        quantize=job.quantize,
        is_raised=is_quantised and _raises(job, profile),
        freeze=tuple(job.freeze),
    )


def _raises(job: Job, profile: Profile) -> bool:
    """Who wants 16-bit adapters, or what is not quantised in 16 bit, leaves PEFT's preparation out."""
    wanted = job.lora_dtype in (None, "fp32") and job.frozen_dtype in (None, "fp32")
    return wanted and (profile.raises_quantised or job.frozen_dtype == "fp32")


def _adapter_dtype(job: Job, profile: Profile, *, is_quantised: bool) -> str:
    """PEFT raises those of a 16-bit model to fp32; other frameworks keep the model's dtype."""
    if is_quantised and profile.quantised_adapter_dtype is not None:
        return profile.quantised_adapter_dtype
    if is_quantised and profile.adapter_dtype is PEFT:
        return "fp32"
    return at(profile.adapter_dtype, versions_of(job))


def _loop(job: Job, profile: Profile) -> Loop:
    versions = versions_of(job)
    keeps = at(profile.keeps_outputs, versions)
    return Loop(
        gate=job.loop,
        keeps_outputs=keeps if job.keep_outputs is None else job.keep_outputs,
        zero_grad=job.zero_grad or profile.zero_grad,
        use_cache=at(profile.use_cache, versions) if job.use_cache is None else job.use_cache,
        has_attention_mask=job.attention_mask is not False,
        copies_logits=at(profile.copies_logits, versions) if job.task in (None, *OF_TOKENS) else 0,
    )


def _companions(job: Job) -> Companions:
    return Companions(
        reference=job.reference or "none",
        reference_dtype=job.reference_dtype,
        reward=job.reward,
        reward_model=job.reward_model,
        critic=job.critic,
        critic_model=job.critic_model,
        teacher=job.teacher,
        teacher_model=job.teacher_model,
        companion_dtype=job.companion_dtype,
        ema=job.ema,
    )


def _phases(job: Job) -> Phases:
    return Phases(
        rollout_tokens=job.rollout_tokens,
        rollout_batch=job.rollout_batch,
        evaluate=job.evaluate,
        eval_batch=job.eval_batch,
        eval_kept=job.eval_kept,
        resume=job.resume,
    )


def _editing(job: Job) -> Editing:
    return Editing(
        parameters=tuple(job.edit),
        rank=job.edit_rank,
        hidden_layers=job.edit_hidden,
        forwards=job.edit_forwards,
        gradients=job.edit_gradients,
        graph=job.edit_graph,
        sub_device=job.sub_device,
    )


def _experts(job: Job) -> Experts:
    return Experts(
        ep=job.ep,
        tp=job.expert_tp,
        dispatch=job.expert_dispatch,
        gemm=job.expert_gemm,
        overlap=job.overlap_experts,
        load=job.expert_load,
        capacity=job.expert_capacity,
        pad=job.pad_experts,
    )


def _parallel(job: Job, profile: Profile) -> Parallel:
    sequence, logits = job.sequence_parallel, job.loss_parallel
    return Parallel(
        gpus=job.gpus,
        gpus_per_node=job.gpus_per_node,
        strategy=job.strategy,
        shard_size=job.shard_size,
        tp=job.tp,
        sequence_parallel=profile.sequence_parallel if sequence is None else sequence,
        loss_parallel=at(profile.loss_parallel, versions_of(job)) if logits is None else logits,
        pp=job.pp,
        schedule=job.schedule,
        virtual_stages=job.virtual_stages,
        stage_layers=tuple(job.stage_layers),
        first_stage_layers=job.first_stage_layers,
        last_stage_layers=job.last_stage_layers,
        cp=job.cp,
        cp_style=job.cp_style,
        grad_fusion=job.grad_fusion,
        bucket_view=job.bucket_view,
        reshard=job.reshard,
        units=job.units,
        reduce_bucket=job.reduce_bucket,
        vocab_multiple=job.vocab_multiple or profile.vocab_multiple,
    )


def _loading(job: Job) -> DataLoading:
    return DataLoading(
        dataset=job.dataset,
        dataset_mode=job.dataset_mode,
        workers=job.workers,
        prefetch=job.prefetch,
        pin_memory=job.pin_memory,
    )
