"""The frameworks' habits as data: each value as read in the framework's source, of the version and day named beside it.

Words are explained in `setup.profile`. A framework that runs on another one's loop (LLaMA-Factory on transformers'
Trainer) names it in `runs_as` and says what it decides otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from vramcast.job import Job, Precision
from vramcast.setup.adapters import ALL_LINEAR, BY_PEFT
from vramcast.setup.profile import Profile, Since
from vramcast.setup.tasks import task_of_job

FROM_PRETRAINED = (
    "transformers modeling_utils.py from_pretrained: the checkpoint's dtype since 5.0, fp32 before"
)
LOADED = Since("transformers", "fp32", (((5, 0), "stored"),))
# transformers training_args.py: `optim` is adamw_torch_fused since 4.54, where torch is at least 2.8.
TRAINER_IMPL = Since("transformers", "foreach", (((4, 54), "fused"),))
# transformers modeling_utils.py gradient_checkpointing_enable: use_reentrant was True unless asked otherwise.
REENTRANT = Since("transformers", True, (((5, 0), False),))
DEEPSPEED = ("ddp", "zero2", "zero3")

HF = Profile(
    version="5.22",
    read="2026-08-21",
    source=f"{FROM_PRETRAINED}; Trainer(bf16=True) runs it under autocast",
    loads=LOADED,
    lora_targets=BY_PEFT,
    uses_accelerate=True,
    optimizer_impl=TRAINER_IMPL,
    reentrant=REENTRANT,
    # PEFT's documentation: users call prepare_model_for_kbit_training, which also switches checkpointing on.
    raises_quantised=True,
    quantised_checkpointing="full",
)
PLAIN = Profile(
    version="5.22",
    read="2026-08-21",
    source=f"{FROM_PRETRAINED}; a loop by hand trains it under autocast",
    loads=LOADED,  # a model of one's own, whose config names no dtype, is in fp32
    lora_targets=BY_PEFT,
    reentrant=REENTRANT,
    keeps_outputs=True,  # `outputs = model(**batch)`
    raises_quantised=True,
    quantised_checkpointing="full",
)

# TRL's experimental trainers as they differ from the others.
TRL_EXPERIMENTAL = {
    "loads": LOADED,
    "raises_quantised": True,
    "passes_dtype": False,
    "quantised_adapter_dtype": None,
}

# trl/trainer/sft_trainer.py: until the fused head came to all trainers, SFT alone computed its loss in chunks of 256
# tokens, each under a checkpoint (loss_type "chunked_nll").
TRL_SFT = {"loss": Since("trl", "full", (((1, 6), "tiled"),))}

PROFILES = {
    "plain": PLAIN,
    "hf": HF,
    "accelerate": replace(
        HF,
        version="1.15",
        read="2026-07-24",
        source=f"{FROM_PRETRAINED}; Accelerator(mixed_precision='bf16') runs it under autocast",
        optimizer_impl="foreach",
        keeps_outputs=True,
    ),
    "trl": replace(
        HF,
        version="1.16",
        read="2026-07-24",
        source="trl/trainer/utils.py create_model_from_path: fp32 where no dtype is given (the checkpoint's in 0.26); "
        "its configs have bf16 and gradient_checkpointing on",
        # before 0.26 as from_pretrained of transformers 4 did
        loads=Since("trl", "fp32", (((0, 26), "stored"), ((0, 27), "fp32"))),
        checkpointing=Since("trl", "none", (((0, 22), "full"),)),
        reentrant=Since("trl", True, (((0, 27), False),)),
        quantised_checkpointing=None,
        # trl/trainer/utils.py add_fused_lm_head: SFT, DPO, KTO, GRPO and RLOO compute log-probabilities in tiles.
        loss=Since("trl", "full", (((1, 15), "tiled"),)),
        # trl/trainer/sft_trainer.py compute_loss
        use_cache=Since("trl", None, (((0, 22), False),)),
        # since 1.3 the entropy's copy is there while that of the accuracy is made
        copies_logits=Since("trl", 0, (((0, 15), 1), ((1, 3), 2))),
        raises_quantised=False,
        passes_dtype=True,
        quantised_adapter_dtype="bf16",  # trl/trainer/*_trainer.py: `param.data.to(torch.bfloat16)`
        seq=1024,
    ),
    "lightning": replace(
        PLAIN,
        version="2.6",
        read="2026-07-24",
        source=f"{FROM_PRETRAINED}; precision='bf16-mixed' runs it under autocast",
        keeps_outputs=False,
        zero_grad="after-forward",
    ),
    "llama-factory": replace(
        HF,
        version="0.9.6",
        read="2026-08-18",
        runs_as="hf",
        source="LLaMA-Factory model/adapter.py: weights in 16 bit, trained ones raised to fp32",
        sources={
            "lora_rank": "hparams/finetuning_args.py lora_rank",
            "lora_targets": "hparams/finetuning_args.py lora_target all",
            "checkpointing": "disable_gradient_checkpointing is false",
        },
        tuning="lora",
        lora_targets=ALL_LINEAR,
        lora_rank=8,
        four_bit="nf4-double",
        raises_quantised=False,
        loads="16-bit",
        raises_trained=True,
        checkpointing="full",
        quantised_checkpointing=None,
        reentrant=True,
        seq=2048,
        strategies=DEEPSPEED,
    ),
    "axolotl": replace(
        HF,
        version="0.18.0",
        read="2026-07-24",
        runs_as="hf",
        lora_targets=ALL_LINEAR,  # lora_target_linear in its examples
        source="axolotl utils/config: torch_dtype bf16 where bf16 is auto; loaders/model.py lowers what was raised",
        four_bit="nf4-double",
        raises_quantised=False,
        loads="16-bit",
        quantised_checkpointing=None,
        seq=512,
        strategies=DEEPSPEED,
        alloc_conf="expandable_segments:True",  # utils/__init__.py sets it
    ),
    "ms-swift": replace(
        HF,
        version="4.6.0",
        read="2026-08-22",
        runs_as="hf",
        source="ms-swift arguments/base_args/model_args.py: torch_dtype of the checkpoint, bf16 follows it",
        tuning="lora",
        lora_targets=ALL_LINEAR,
        lora_rank=8,
        lora_dropout=0.05,
        four_bit="nf4-double",
        raises_quantised=False,
        loads="stored",
        checkpointing="full",
        quantised_checkpointing=None,
        strategies=DEEPSPEED,
    ),
    "unsloth": replace(
        HF,
        version="2026.8",
        read="2026-08-22",
        runs_as="trl",
        source="unsloth models/loader.py: dtype None is bf16 where the card has it, load_in_4bit True",
        sources={"optimizer": "386 of its notebooks have adamw_8bit"},
        tuning="qlora",
        lora_targets=ALL_LINEAR,
        four_bit="nf4-double",
        raises_quantised=False,
        loads="16-bit",
        optimizer="adamw-8bit",
        checkpointing="offload",
        quantised_checkpointing=None,
        reentrant=True,
        loss="fused",
        kernels=("norm", "rope", "mlp"),
        seq=2048,
        strategies=("ddp",),
    ),
    "torchtune": Profile(
        version="bd2a0fc7",
        read="2026-04-23",
        source="torchtune's recipes: dtype bf16",
        sources={
            "lora_rank": "54 of its 106 LoRA configs",
            "lora_targets": "lora_attn_modules and apply_lora_to_mlp of 104 of its LoRA configs",
            "checkpointing": "enable_activation_checkpointing in 125 of 177 configs",
            "loss": "LinearCrossEntropyLoss in its configs",
        },
        lora_rank=8,
        lora_targets=("q_proj", "v_proj", "output_proj", "mlp"),
        four_bit="nf4-double",  # torchao's NF4Tensor quantises its scales
        optimizer_impl="fused",
        checkpointing="full",
        loss="chunked",
        adapter_dtype="weights",
        precision=Precision.BF16_TRUE,
        strategies=("fsdp2",),
    ),
    "torchtitan": Profile(
        version="b5bcd76c",
        read="2026-08-21",
        source="torchtitan: fp32 weights, mixed_precision_param bfloat16",
        adapter_dtype="weights",
        optimizer_impl="fused",
        other_impl="fused",
        # torchtitan `del pred` after the loss (its PR 391), dated by the torch nightly of the day.
        keeps_outputs=Since("torch", True, (((2, 5), False),)),
        strategies=("fsdp2",),
        sequence_parallel=True,
        # torchtitan splits the loss over tensor-parallel ranks by default.
        loss_parallel=Since("torch", False, (((2, 4), True),)),
    ),
    "litgpt": Profile(
        version="0.5.13",
        read="2026-06-29",
        source="litgpt: precision bf16-mixed where the card has bf16",
        sources={"lora_targets": "litgpt/finetune/lora.py: lora_query and lora_value are on"},
        # litgpt/finetune/lora.py: "Quantization and mixed precision is not supported."
        quantised_precision=Precision.BF16_TRUE,
        lora_rank=8,
        lora_targets=("query", "value"),
        lora_dropout=0.05,
        adapter_dtype="weights",
        keeps_outputs=True,  # `logits = model(…)`
    ),
    "megatron": Profile(
        version="d98e8a64",
        read="2026-08-22",
        source="Megatron-LM --bf16: main gradients, master weights and states in fp32",
        adapter_dtype="weights",
        precision=Precision.MEGATRON_BF16,
        optimizer_impl="fused",
        other_impl="fused",
        strategies=("ddp",),
        loss_parallel=True,
        vocab_multiple=128,  # --make-vocab-size-divisible-by
    ),
    "deepspeed": Profile(
        version="edaa7221",
        read="2026-08-22",
        source="DeepSpeed bf16.enabled: fp32 master weights and states",
        precision=Precision.BF16_MASTER,
        optimizer_impl="fused",
        other_impl="fused",
        reentrant=REENTRANT,
        strategies=("zero1", "zero2", "zero3"),
    ),
    "verl": Profile(
        version="1dda039b",
        read="2026-08-22",
        runs_as="plain",
        source="verl trainer/config: fsdp_config.model_dtype fp32, computed in bf16 through FSDP's MixedPrecision",
        checkpointing="full",
        seq=1024,  # max_prompt_length 512 and max_response_length 512
        strategies=("fsdp1",),
    ),
    "openrlhf": Profile(
        version="3c3be623",
        read="2026-08-13",
        runs_as="deepspeed",
        source="OpenRLHF utils/deepspeed: param_dtype bf16, DeepSpeed's fp32 master weights and states",
        precision=Precision.BF16_MASTER,
        optimizer_impl="fused",
        other_impl="fused",
        seq=2048,
        strategies=("zero2", "zero3"),
    ),
    "nemo": Profile(
        version="36044ad3",
        read="2026-08-22",
        runs_as="plain",
        source="NeMo Automodel: torch_dtype auto is bf16, without master copy; FSDP2 reduces in fp32",
        lora_rank=8,
        adapter_dtype="weights",
        precision=Precision.BF16_TRUE,
        strategies=("fsdp2",),
    ),
}  # fmt: skip


def profile_of(job: Job) -> Profile:
    """The framework's, as it is for the job's task."""
    profile = PROFILES[job.framework]
    if job.framework != "trl":
        return profile
    if task_of_job(job).is_experimental:
        return replace(profile, **TRL_EXPERIMENTAL)  # type: ignore[arg-type]
    if job.task in (None, "sft", "pretrain"):
        return replace(profile, **TRL_SFT)  # type: ignore[arg-type]
    return profile
