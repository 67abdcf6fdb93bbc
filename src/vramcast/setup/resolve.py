"""Job → Setup: what the user did not say is decided here, as the framework and its versions would.

Knows frameworks and versions, and nothing of the model or the card: what those decide (default length, attention
kernel) is asked where the model is recorded.
"""

from __future__ import annotations

import functools

from vramcast.errors import InputError
from vramcast.job import Job
from vramcast.setup.precision import RECIPES
from vramcast.setup.profiles import PROFILES, complete
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
from vramcast.setup.versions import (
    FOREACH_FROM,
    FUSED_FROM,
    FUSED_NEEDS_TORCH,
    REENTRANT_BEFORE,
    TITAN_DROPS_OUTPUTS_FROM,
    TITAN_LOSS_PARALLEL_FROM,
    parse_numbers,
    parse_version,
)

TORCH_OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "adagrad", "rmsprop")
TRAINERS = ("hf", "trl")  # transformers.Trainer and its children
# Loops that checkpoint through transformers' gradient_checkpointing_enable.
WITH_TRANSFORMERS = ("hf", "trl", "accelerate", "lightning", "plain", "deepspeed")


@functools.lru_cache(maxsize=8192)  # searches ask for the same jobs again and again
def resolve(job: Job) -> Setup:
    """Decide everything that the job left open."""
    job = complete(job)
    assert job.precision is not None
    versions = _versions(job)
    return Setup(
        model=job.model,
        params=job.params,
        gpu=job.gpu,
        data=_data(job),
        precision=RECIPES[job.precision],
        optimizer=_optimizer(job, versions),
        kernels=_kernels(job),
        checkpointing=_checkpointing(job, versions),
        adapter=_adapter(job),
        loop=_loop(job, versions),
        companions=_companions(job),
        phases=_phases(job),
        editing=_editing(job),
        experts=_experts(job),
        parallel=_parallel(job, versions),
        offload=Offload(
            what=job.offload, modules=tuple(job.offload_modules), device=job.offload_device
        ),
        loading=_loading(job),
        versions=versions,
        alloc_conf=job.alloc_conf,
    )


def _versions(job: Job) -> Versions:
    return Versions(
        framework=job.framework,
        torch=parse_version(job.torch_version),
        transformers=parse_version(job.transformers_version),
        bitsandbytes=parse_version(job.bitsandbytes_version),
        liger=parse_numbers(job.liger_version),
        cublas_workspace=job.cublas_workspace,
    )


def _data(job: Job) -> Data:
    return Data(
        batch=job.batch,
        seq=job.seq,
        target_seq=job.target_seq,
        longest_seq=job.longest_seq,
        mean_seq=job.mean_seq,
        samples=job.samples,
        lengths=job.lengths,
        accumulate=_micro_batches(job),
        images=job.images,
        image_tokens=job.image_tokens,
    )


def _micro_batches(job: Job) -> int:
    """A pipeline is filled with at least as many micro-batches as it has stages."""
    return job.pp if job.pp > 1 and job.accumulate == 1 else job.accumulate


def _optimizer(job: Job, versions: Versions) -> Optimizer:
    return Optimizer(
        name=job.optimizer,
        implementation=job.optimizer_impl or _default_implementation(job.optimizer, versions),
        projection_rank=job.optimizer_rank,
        block_size=job.optimizer_block,
    )


def _default_implementation(optimizer: str, versions: Versions) -> str:
    """How the framework runs the optimizer's step."""
    if optimizer == "lomo":
        return "in-backward"
    if optimizer not in TORCH_OPTIMIZERS:
        return "loop"
    if versions.framework in ("torchtitan", "megatron", "deepspeed"):
        return "fused"
    if versions.torch < FOREACH_FROM:
        return "loop"
    new = versions.transformers >= FUSED_FROM and versions.torch >= FUSED_NEEDS_TORCH
    if versions.framework in TRAINERS and optimizer == "adamw" and new:
        return "fused"
    return "foreach"


def _kernels(job: Job) -> Kernels:
    return Kernels(
        attention=job.attention,
        fused=tuple(job.kernels),
        loss=job.loss or "full",
        compile=job.compile,
        recompute=tuple(job.recompute),
        deterministic=job.deterministic,
    )


def _checkpointing(job: Job, versions: Versions) -> Checkpointing:
    if job.reentrant and job.checkpointing == "selective":
        raise InputError(
            "selective checkpointing needs the form without reentry: leave out reentrant"
        )
    how = job.checkpointing or "none"
    if job.offload in ("activations", "all"):  # the inputs of recomputed blocks go to the host
        how = "offload"
    return Checkpointing(how=how, is_reentrant=_is_reentrant(how, job.reentrant, versions))


def _is_reentrant(how: str, asked: bool | None, versions: Versions) -> bool:
    """use_reentrant=True recomputes a block to its end and holds the result during the block's backward."""
    if how in ("none", "selective"):
        return False
    if asked is not None:
        return asked
    old = versions.transformers < REENTRANT_BEFORE
    return old and versions.framework in WITH_TRANSFORMERS


def _adapter(job: Job) -> Adapter:
    return Adapter(
        rank=job.lora_rank,
        targets=tuple(job.lora_targets),
        dropout=job.lora_dropout,
        dtype=job.lora_dtype,
        dora=job.dora,
        quantize=job.quantize,
        freeze=tuple(job.freeze),
    )


def _loop(job: Job, versions: Versions) -> Loop:
    return Loop(
        gate=job.loop,
        keeps_outputs=_keeps_outputs(job, versions),
        zero_grad=job.zero_grad or _default_zero_grad(versions.framework),
    )


def _keeps_outputs(job: Job, versions: Versions) -> bool:
    """Loops written by hand say `outputs = model(...)`, litgpt `logits = model(...)`; trainers return only the loss."""
    if job.keep_outputs is not None:
        return job.keep_outputs
    if versions.framework == "torchtitan":
        return versions.torch < TITAN_DROPS_OUTPUTS_FROM
    return PROFILES[versions.framework].keeps_outputs


def _default_zero_grad(framework: str) -> str:
    return "after-forward" if framework == "lightning" else "before-forward"


def _companions(job: Job) -> Companions:
    return Companions(
        reference=job.reference,
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


def _parallel(job: Job, versions: Versions) -> Parallel:
    sequence, logits = job.sequence_parallel, job.loss_parallel
    return Parallel(
        gpus=job.gpus,
        gpus_per_node=job.gpus_per_node,
        strategy=job.strategy,
        shard_size=job.shard_size,
        tp=job.tp,
        sequence_parallel=versions.framework == "torchtitan" if sequence is None else sequence,
        loss_parallel=_splits_loss(versions) if logits is None else logits,
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
        vocab_multiple=job.vocab_multiple or _default_vocab_multiple(versions.framework),
    )


def _splits_loss(versions: Versions) -> bool:
    """Whether the framework leaves the logits split over tensor-parallel ranks."""
    if versions.framework == "torchtitan":
        return versions.torch >= TITAN_LOSS_PARALLEL_FROM
    return versions.framework == "megatron"


def _default_vocab_multiple(framework: str) -> int:
    """Megatron-LM: --make-vocab-size-divisible-by is 128."""
    return 128 if framework == "megatron" else 1


def _loading(job: Job) -> DataLoading:
    return DataLoading(
        dataset=job.dataset,
        dataset_mode=job.dataset_mode,
        workers=job.workers,
        prefetch=job.prefetch,
        pin_memory=job.pin_memory,
    )
