"""NeMo Automodel and NeMo RL: YAML with nested groups.

Sources: nemo_automodel/recipes, components/distributed, components/_peft/lora.py; nemo_rl/models/automodel/setup.py,
nemo_rl/models/megatron/*, examples/configs/*.yaml.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import dtype_word, read_attention
from vramcast.configs.model_parts import freeze_parts, num_layers
from vramcast.configs.records import Draft, Settings

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"}
OPTIMIZERS = {"adamw": "adamw", "adam": "adam", "sgd": "sgd", "fusedadam": "adamw", "muon": "muon"}


def _read(settings: Settings, draft: Draft) -> None:
    model = settings.record(
        "model.pretrained_model_name_or_path",
        "policy.model_name",
        "model.config.pretrained_model_name_or_path",
        "model.config.name_or_path",
    )
    draft.say("model", model.value if model else None, model)
    if any(record.key.startswith("policy.") for record in settings):
        _read_rl(settings, draft)
    else:
        _read_automodel(settings, draft)


# ---- Automodel


def _read_automodel(settings: Settings, draft: Draft) -> None:
    batch = settings.record("step_scheduler.local_batch_size")
    draft.say("batch", batch.value if batch else None, batch)
    draft.facts["global_batch"] = settings.record("step_scheduler.global_batch_size")
    _read_adapter(settings, draft, "peft")
    length = settings.record(
        "packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length"
    )
    draft.say("seq", length.value if length and settings.number(length.key) else None, length)
    dtype = settings.record("model.torch_dtype")
    word = dtype_word(dtype.value) if dtype else "bf16"
    source = dtype or "NeMo Automodel loads in bf16 by default"
    draft.say("precision", "fp32" if word == "fp32" else f"{word or 'bf16'}-true", source)
    if settings.is_on("distributed.activation_checkpointing"):
        draft.say("checkpointing", "full", settings.record("distributed.activation_checkpointing"))
    strategy = settings.record("distributed.strategy", "distributed._target_")
    is_ddp = strategy is not None and "ddp" in str(strategy.value).lower()
    draft.say("strategy", "ddp" if is_ddp else "fsdp2", strategy)
    if strategy is not None and "megatron" in str(strategy.value).lower():
        draft.gap(strategy, "Megatron-FSDP is counted as FSDP2")
    _read_sizes(settings, draft, "distributed")
    _read_pipeline(settings, draft)
    _read_parts(settings, draft)
    _read_kernels(settings, draft)


def _read_adapter(settings: Settings, draft: Draft, prefix: str) -> None:
    rank, enabled = settings.record(f"{prefix}.dim"), settings.record(f"{prefix}.enabled")
    if rank is None or (enabled is not None and not settings.is_on(enabled.key)):
        return
    draft.say("lora-rank", rank.value, rank)
    dropout, targets = (settings.record(f"{prefix}.{key}") for key in ("dropout", "target_modules"))
    draft.say("lora-dropout", dropout.value if dropout else None, dropout)
    if settings.is_on(f"{prefix}.match_all_linear"):
        draft.say("lora-targets", ("all-linear",), settings.record(f"{prefix}.match_all_linear"))
    elif targets is not None and targets.value:
        draft.say("lora-targets", _names(targets.value), targets)
    if settings.is_on(f"{prefix}.use_dora"):
        draft.say("dora", True, settings.record(f"{prefix}.use_dora"))


def _names(value: object) -> tuple[str, ...]:
    """`*_proj` stands for the projections that it matches."""
    found: list[str] = []
    for each in value if isinstance(value, list) else [value]:
        last = str(each).rpartition(".")[2]
        found += [name for name in LINEAR if fnmatchcase(name, last)] if "*" in last else [last]
    return tuple(dict.fromkeys(found)) or ("all-linear",)


def _read_pipeline(settings: Settings, draft: Draft) -> None:
    """A pipeline cuts the local batch into micro-batches."""
    stages = settings.number("distributed.pp_size", default=1) or 1
    micro = settings.record("distributed.pipeline.pp_microbatch_size")
    schedule = settings.record("distributed.pipeline.pp_schedule")
    per_stage = settings.record("distributed.pipeline.layers_per_stage")
    if stages < 2:
        return
    draft.say("pp", stages, settings.record("distributed.pp_size"))
    batch = draft.value("batch")
    if micro is not None and type(batch) is int and type(micro.value) is int and micro.value > 0:
        draft.replace("batch", micro.value, micro)
        draft.say("accumulate", max(batch // micro.value, 1), micro)
    if schedule is None:
        return
    word = SCHEDULES.get(str(schedule.value).lower())
    draft.say("schedule", word, schedule)
    if word is None:
        draft.gap(schedule, "no such schedule is known: counted as 1f1b")
    layers, count = num_layers(draft), None if per_stage is None else settings.number(per_stage.key)
    if word == "interleaved" and layers and count:
        draft.say("virtual-stages", max(layers // stages // count, 1), per_stage)


def _read_parts(settings: Settings, draft: Draft) -> None:
    keys = {"tower": "vision_tower", "language": "language_model"}
    frozen = {
        kind: record
        for kind, key in keys.items()
        if settings.is_on(f"freeze_config.freeze_{key}")
        and (record := settings.record(f"freeze_config.freeze_{key}")) is not None
    }
    if frozen:
        freeze_parts(draft, next(iter(frozen.values())), **dict.fromkeys(frozen, True))
    if settings.is_on("quantization.load_in_4bit"):
        double = settings.is_on("quantization.bnb_4bit_use_double_quant")
        four = settings.record("quantization.load_in_4bit")
        draft.say("quantize", "nf4-double" if double else "nf4", four)
    settings.under("quantization")


def _read_kernels(settings: Settings, draft: Draft) -> None:
    loss = settings.text("loss_fn._target_")
    record = settings.record("loss_fn._target_")
    kind = "fused" if "fusedlinear" in loss else "chunked" if "chunked" in loss else None
    draft.say("loss", kind, record)
    if settings.is_on("compile.enabled"):
        draft.say("compile", True, settings.record("compile.enabled"))
    backend = settings.record("model.backend.attn")
    if backend is not None and str(backend.value) in ("te", "fa", "flash"):
        draft.say("attention", "flash", backend)
    elif backend is not None and str(backend.value) == "flex":
        draft.say("attention", "flash", backend)
        draft.gap(backend, "flex attention is counted as flash attention")
    read_attention(settings, draft, "model.attn_implementation")
    if settings.is_on("model.use_liger_kernel"):
        draft.say("kernels", ("norm", "rope", "mlp"), settings.record("model.use_liger_kernel"))
    optimizer = settings.record("optimizer._target_")
    if optimizer is not None:
        name = str(optimizer.value).rpartition(".")[2].lower()
        draft.say("optimizer", OPTIMIZERS.get(name), optimizer)
        if name not in OPTIMIZERS:
            draft.gap(optimizer, "no such optimizer is known; counted as AdamW")
        for key in ("master_weights", "exp_avg_dtype", "store_param_remainders"):
            asked = settings.record(f"optimizer.{key}")
            if asked is not None and asked.value not in (False, "torch.float32", "fp32"):
                draft.gap(asked, "Transformer Engine's states in other dtypes: say --state-dtype")
    if settings.is_on("optimizer.fused"):
        draft.say("optimizer-impl", "fused", settings.record("optimizer.fused"))


def _read_sizes(settings: Settings, draft: Draft, prefix: str) -> None:
    for keys, word in (
        (("tp_size", "tensor_parallel_size", "tensor_model_parallel_size"), "tp"),
        (("cp_size", "context_parallel_size"), "cp"),
        (("ep_size", "expert_parallel_size", "expert_model_parallel_size"), "ep"),
        (("pipeline_model_parallel_size",), "pp"),
        (("expert_tensor_parallel_size",), "expert-tp"),
    ):
        record = settings.record(*(f"{prefix}.{key}" for key in keys))
        if record is not None and str(record.value).isdigit() and int(record.value) > 1:
            draft.say(word, record.value, record)
    if settings.is_on(f"{prefix}.sequence_parallel"):
        draft.say("sequence-parallel", True, settings.record(f"{prefix}.sequence_parallel"))
    replicas = settings.record(f"{prefix}.dp_replicate_size")
    if replicas is not None and str(replicas.value).isdigit() and int(replicas.value) > 1:
        draft.gap(replicas, "copies of the sharded model: say the GPUs of one with --shard-size")


# ---- RL


def _read_rl(settings: Settings, draft: Draft) -> None:
    batch, length = (
        settings.record("policy.train_micro_batch_size"),
        settings.record("policy.max_total_sequence_length"),
    )
    source = batch or "NeMo RL's train_micro_batch_size is 4 by default"
    draft.say("batch", 4 if batch is None else batch.value, source)
    told = length or "NeMo RL's max_total_sequence_length is 512 by default"
    draft.say("seq", 512 if length is None else length.value, told)
    _pack(settings, draft)
    gpus, nodes = (
        settings.record("cluster.gpus_per_node"),
        settings.number("cluster.num_nodes") or 1,
    )
    if gpus is not None:
        draft.say("gpus", (settings.number(gpus.key) or 1) * nodes, gpus)
    if settings.is_on("policy.megatron_cfg.enabled"):
        _read_megatron(settings, draft)
        settings.under("policy.dtensor_cfg")
    else:
        _read_dtensor(settings, draft)
        settings.under("policy.megatron_cfg")
    share = settings.record("policy.generation.vllm_cfg.gpu_memory_utilization")
    if share is not None:
        draft.gap(share, "the share of the card that vLLM holds is not counted")
    _read_reference(settings, draft)


def _pack(settings: Settings, draft: Draft) -> None:
    """One row of as many tokens as the micro-batch has."""
    for key in ("policy.sequence_packing.enabled", "policy.dynamic_batching.enabled"):
        record = settings.record(key)
        batch, seq = draft.value("batch"), draft.value("seq")
        if record is not None and settings.is_on(key) and type(batch) is int and type(seq) is int:
            draft.replace("seq", batch * seq, record)
            draft.replace("batch", 1, record)


def _read_dtensor(settings: Settings, draft: Draft) -> None:
    precision = settings.record("policy.precision")
    draft.say("precision", "bf16-mixed", precision or "NeMo RL loads in fp32 and computes in bf16")
    draft.say("strategy", "fsdp2", "NeMo RL's policy is sharded by FSDP2")
    prefix = "policy.dtensor_cfg"
    if settings.is_on(f"{prefix}.activation_checkpointing"):
        draft.say("checkpointing", "full", settings.record(f"{prefix}.activation_checkpointing"))
    if settings.is_on(f"{prefix}.cpu_offload"):
        draft.say("offload", "all", settings.record(f"{prefix}.cpu_offload"))
    _read_sizes(settings, draft, prefix)
    _read_adapter(settings, draft, f"{prefix}.lora_cfg")


def _read_megatron(settings: Settings, draft: Draft) -> None:
    prefix = "policy.megatron_cfg"
    source = settings.record(f"{prefix}.enabled")
    draft.replace("framework", "megatron", source)
    draft.say("precision", "megatron-bf16", settings.record("policy.precision") or source)
    _read_sizes(settings, draft, prefix)
    is_shared = settings.is_on(f"{prefix}.optimizer.use_distributed_optimizer", default=True)
    draft.say("strategy", "zero1" if is_shared else "ddp", source)
    if settings.is_on(f"{prefix}.activation_checkpointing"):
        draft.say("checkpointing", "full", settings.record(f"{prefix}.activation_checkpointing"))
    if settings.is_on(f"{prefix}.optimizer.optimizer_cpu_offload"):
        draft.say(
            "offload", "optimizer", settings.record(f"{prefix}.optimizer.optimizer_cpu_offload")
        )
    _read_adapter(settings, draft, f"{prefix}.peft")
    if settings.is_on(f"{prefix}.fp8_cfg.enabled"):
        draft.say("precision", "fp8", settings.record(f"{prefix}.fp8_cfg.enabled"))


def _read_reference(settings: Settings, draft: Draft) -> None:
    """The reference's weights lie in CPU memory and are swapped in."""
    penalty = settings.record(
        "loss_fn.reference_policy_kl_penalty", "dpo.reference_policy_kl_penalty"
    )
    if penalty is not None and str(penalty.value) not in ("0", "0.0"):
        draft.say("reference", "cpu", penalty)
    if any(record.key.startswith("dpo.") for record in settings):
        draft.say("task", "dpo", next(each for each in settings if each.key.startswith("dpo.")))


NEMO = Framework(
    name="nemo",
    title="NeMo",
    rules=(_read,),
    gaps={
        "fp8.enabled": "fp8 is counted as bf16",
        "qat*": "quantisation-aware training is not described",
        "peft.exclude_modules": "modules without adapters: say those with them with --lora-targets",
        "freeze_config.freeze_audio_tower": "the audio tower is counted as trained",
        "freeze_config.freeze_embeddings": "frozen embeddings are counted as trained: say --freeze",
        "distributed.defer_fsdp_grad_sync": "unsharded gradients between micro-batches are not counted",
        "teacher_model*": "the teacher: say it with --teacher and --teacher-model",
        "teacher.*": "the teacher: say it with --teacher and --teacher-model",
        "model.num_nextn_predict_layers": "layers that predict further tokens are not counted",
        "speculative*": "draft models are not described",
        "flow_matching*": "diffusion models are not described",
        "policy.draft.enabled": "draft models are not described",
        "value*": "the value model is not counted",
    },
    no_effect=words(
        """
        step_scheduler* model._target_ model.pretrained* model.use_cache model.trust_remote_code dist_env* rng*
        wandb* checkpoint* dataset* dataloader* validation_* optimizer* lr_scheduler* loss_fn* packed_sequence*
        distributed._target_ distributed.backend distributed.dp_* distributed.use_hf_tp_plan peft.* recipe logger*
        grpo* dpo* sft* ppo* env* data* seed clip_grad* mlflow* comet* ci* benchmark* tokenizer* training*
        defaults* policy.tokenizer* policy.optimizer* policy.scheduler* policy.train_global_batch_size
        policy.logprob* policy.max_grad_norm policy.make_sequence* policy.megatron_cfg.*
        policy.dynamic_batching.* policy.sequence_packing.* policy.generation* policy.dtensor_cfg.* policy.hf_*
        policy.precision cluster.* loss_fn._target_ policy.offload_* model.backend.* model.config* compile.* fp8.*
        distributed.pipeline.* distributed.moe.* distributed.pp_size processor* freeze_config.* reward_*
        model.text_config* model.output_hidden_states model.use_sdpa_patching model.force_hf kd_* distillation*
        model.backend.enable_* model.backend.gate_precision model.backend.compile_* data.max_input_seq_length
        dataloader.collate_fn.* policy.megatron_cfg.moe_router_dtype policy.megatron_cfg.freeze_moe_router
        policy.megatron_cfg.peft.lora_* policy.dtensor_cfg.lora_cfg.lora_* policy.megatron_cfg.pipeline_dtype
        policy.megatron_cfg.optimizer.optimizer policy.megatron_cfg.optimizer.bf16 *.backend.enable_*
        *.val_batch_size *.val_global_batch_size *.val_micro_batch_size
        policy.megatron_cfg.optimizer.params_dtype policy.megatron_cfg.fp8_cfg.* model.mtp_* policy.draft.*
        model.load_base_model policy.train_micro* policy.generation_batch_size rm*
        """
    ),
    apart=(
        "ci.",
        "benchmark.",
        "policy.generation.",
        "checkpoint",
        "wandb",
        "logger",
        "grpo.",
        "validation_",
        "env.",
    ),
    marks={
        "step_scheduler.local_batch_size": 5,
        "model.pretrained_model_name_or_path": 3,
        "step_scheduler*": 3,
        "policy.model_name": 5,
        "policy.train_micro_batch_size": 4,
        "policy.megatron_cfg*": 4,
        "policy.dtensor_cfg*": 4,
        "policy.generation*": 4,
        "policy.max_total_sequence_length": 4,
        "cluster.gpus_per_node": 3,
        "cluster.num_nodes": 2,
        "grpo.*": 2,
        "defaults": 1,
    },
)
