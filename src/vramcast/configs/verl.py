"""verl's Hydra tree (`actor_rollout_ref.actor…`), as overrides of a launch script or as YAML.

Source: verl/trainer/config/**.yaml. The actor's update, its critic and the rollout engine on the same cards.
"""

from __future__ import annotations

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import dtype_word, targets_of
from vramcast.configs.model_parts import freeze_parts
from vramcast.configs.records import Draft, Record, Settings

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ENGINE = f"{ACTOR}.fsdp_config"
OLD_ENGINE = f"{ACTOR}.megatron"
ROLLOUT = "actor_rollout_ref.rollout"


def _is_sft(settings: Settings) -> bool:
    return not any(record.key.startswith("actor_rollout_ref.") for record in settings)


def _read_model(settings: Settings, draft: Draft) -> None:
    model = settings.record(f"{MODEL}.path", "model.path", "model.partial_pretrain")
    if model is not None:
        draft.say("model", model.value, model)
    rank = settings.record(f"{MODEL}.lora_rank", f"{MODEL}.lora.rank", "model.lora_rank")
    if rank is not None and settings.number(rank.key):
        draft.say("lora-rank", rank.value, rank)
        targets = settings.record(f"{MODEL}.target_modules", "model.target_modules")
        if targets is not None:
            draft.say("lora-targets", targets_of(targets.value), targets)
        excluded = settings.record(f"{MODEL}.exclude_modules")
        if excluded is not None and "visual" in str(excluded.value):
            freeze_parts(draft, excluded, tower=True, projector=True)
        elif excluded is not None:
            draft.gap(excluded, "modules without adapters: say those with them with --lora-targets")
    checkpointing = settings.record(
        f"{MODEL}.enable_gradient_checkpointing", "model.enable_gradient_checkpointing"
    )
    by_default = not draft.is_before(0, 2)  # verl/trainer/config/ppo_trainer.yaml of 0.1
    is_on = by_default if checkpointing is None else settings.is_on(checkpointing.key)
    told = f"verl's enable_gradient_checkpointing is {'on' if by_default else 'off'} by default"
    source = checkpointing or told
    draft.say("checkpointing", "full" if is_on else "none", source)
    offload = settings.record(
        f"{MODEL}.enable_activation_offload", "model.enable_activation_offload"
    )
    if offload is not None and settings.is_on(offload.key):
        draft.replace("checkpointing", "offload", offload)
    liger = settings.record(f"{MODEL}.use_liger", "model.use_liger", "use_liger")
    if liger is not None and settings.is_on(liger.key):
        draft.say("kernels", ("norm", "rope", "mlp"), liger)
    settings.used.update(
        (f"{MODEL}.use_remove_padding", "model.use_remove_padding", "use_remove_padding")
    )


def _read_data(settings: Settings, draft: Draft) -> None:
    """A row is prompt and response; with use_dynamic_bsz it is one row of the budget of tokens."""
    prompt, response = (
        settings.record("data.max_prompt_length"),
        settings.record("data.max_response_length"),
    )
    length = (_number(prompt) or 512) + (_number(response) or 512)
    source = (
        response or prompt or "verl's max_prompt_length and max_response_length are 512 by default"
    )
    dynamic = settings.record(f"{ACTOR}.use_dynamic_bsz")
    budget = settings.record(f"{ACTOR}.ppo_max_token_len_per_gpu")
    if dynamic is not None and settings.is_on(dynamic.key):
        draft.say("batch", 1, dynamic)
        draft.say(
            "seq",
            _number(budget) or 16384,
            budget or "verl's ppo_max_token_len_per_gpu is 16384 by default",
        )
        return
    micro = settings.record(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    draft.say("seq", length, source)
    if micro is not None:
        draft.say("batch", micro.value, micro)
    else:
        _read_old_batch(settings, draft)


def _read_old_batch(settings: Settings, draft: Draft) -> None:
    total = settings.record(f"{ACTOR}.ppo_micro_batch_size")
    gpus = (settings.number("trainer.n_gpus_per_node") or 8) * (
        settings.number("trainer.nnodes") or 1
    )
    if total is not None:
        draft.say("batch", max((_number(total) or 1) // gpus, 1), total)
    else:
        draft.gap(
            None, "ppo_micro_batch_size_per_gpu is not in the files: give --batch; counted with 1"
        )


def _read_sft_data(settings: Settings, draft: Draft) -> None:
    dynamic, budget = (
        settings.record("data.use_dynamic_bsz"),
        settings.record("data.max_token_len_per_gpu"),
    )
    micro = settings.record("data.micro_batch_size_per_gpu")
    if dynamic is not None and settings.is_on(dynamic.key):
        draft.say("batch", 1, dynamic)
        draft.say(
            "seq",
            _number(budget) or 8192,
            budget or "verl's max_token_len_per_gpu is 8192 by default",
        )
        return
    draft.say(
        "batch",
        4 if micro is None else micro.value,
        micro or "verl's micro_batch_size_per_gpu is 4 by default",
    )
    length = settings.record("data.max_length")
    draft.say(
        "seq",
        1024 if length is None else length.value,
        length or "verl's data.max_length is 1024 by default",
    )


def _number(record: Record | None) -> int | None:
    try:
        return None if record is None else int(float(record.value))
    except (TypeError, ValueError):
        return None


def _read_engine(settings: Settings, draft: Draft) -> None:
    strategy = settings.record(f"{ACTOR}.strategy", "model.strategy", "engine.strategy", "engine")
    word = "fsdp" if strategy is None else str(strategy.value).lower()
    named = [*_listed(settings, "defaults"), settings.text("config_name")]
    is_megatron = any("megatron" in each for each in named)
    if (
        any(record.key.startswith(OLD_ENGINE) for record in settings)
        or word == "megatron"
        or is_megatron
    ):
        _read_megatron(settings, draft)
    else:
        told: Record | str = strategy or "verl's actor.strategy is fsdp by default"
        draft.say("strategy", "fsdp2" if word in ("fsdp2", "veomni") else "fsdp1", told)
        _read_fsdp(settings, draft)
    nodes = settings.number("trainer.nnodes", default=1) or 1
    per_node = settings.record("trainer.n_gpus_per_node")
    if per_node is not None and "$" not in str(per_node.value):
        draft.say("gpus", (_number(per_node) or 8) * nodes, per_node)
        draft.say("gpus-per-node", _number(per_node), per_node)


def _listed(settings: Settings, key: str) -> list[str]:
    found = [settings.value(each.key) for each in settings if each.key.partition(".")[0] == key]
    return [
        str(name) for value in found for name in (value if isinstance(value, list) else [value])
    ]


def _read_fsdp(settings: Settings, draft: Draft) -> None:
    for prefix in (ENGINE, "model.fsdp_config", "engine"):
        dtype = settings.record(f"{prefix}.model_dtype")
        if dtype is not None:
            word = dtype_word(dtype.value)
            draft.say("precision", "bf16-mixed" if word == "fp32" else f"{word}-true", dtype)
        size = settings.record(f"{prefix}.fsdp_size")
        if size is not None and (_number(size) or -1) > 0:
            draft.say("shard-size", _number(size), size)
        policy = settings.record(f"{prefix}.offload_policy")
        if policy is not None and settings.is_on(policy.key):
            draft.say("offload", "all", policy)
    draft.say("precision", "bf16-mixed", "verl's model_dtype is fp32 by default, computed in bf16")
    sizes = settings.record(
        f"{ACTOR}.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"
    )
    if sizes is not None and (_number(sizes) or 1) > 1:
        draft.say("cp", _number(sizes), sizes)
        draft.say("cp-style", "ulysses", sizes)


def _read_megatron(settings: Settings, draft: Draft) -> None:
    for key, word in (
        ("tensor_model_parallel_size", "tp"),
        ("pipeline_model_parallel_size", "pp"),
        ("context_parallel_size", "cp"),
        ("expert_model_parallel_size", "ep"),
        ("expert_tensor_parallel_size", "expert-tp"),
    ):
        record = settings.record(f"{OLD_ENGINE}.{key}", f"engine.{key}")
        if record is not None and _number(record) is not None:
            draft.say(word, _number(record), record)
    draft.replace("framework", "megatron", "verl on Megatron")
    draft.said.pop("checkpointing", None)
    recompute = settings.record(f"{OLD_ENGINE}.override_transformer_config.recompute_granularity")
    if recompute is not None and str(recompute.value) == "full":
        draft.say("checkpointing", "full", recompute)
    draft.say("strategy", "zero1", "verl's Megatron has a distributed optimizer")
    draft.say("precision", "megatron-bf16", "verl's Megatron trains in bf16")
    for name in ("param_offload", "optimizer_offload", "grad_offload"):
        settings.used.add(f"{OLD_ENGINE}.{name}")


def _read_companions(settings: Settings, draft: Draft) -> None:
    """With a KL term there is a reference; with adapters it is the model itself."""
    kl = settings.record(f"{ACTOR}.use_kl_loss")
    reward_kl = settings.record("algorithm.use_kl_in_reward")
    asked = next(
        (each for each in (kl, reward_kl) if each is not None and settings.is_on(each.key)), None
    )
    if asked is not None:
        offload = settings.record("actor_rollout_ref.ref.fsdp_config.param_offload")
        on_host = offload is not None and settings.is_on(offload.key)
        kind = "adapter" if draft.value("lora-rank") else "cpu" if on_host else "same"
        draft.say("reference", kind, asked)
    estimator = settings.record("algorithm.adv_estimator")
    if estimator is None or str(estimator.value).lower() == "gae":
        draft.say("critic", "same", estimator or "verl's adv_estimator is gae, which has a critic")
        model = settings.record("critic.model.path")
        if model is not None:
            draft.say("critic-model", model.value, model)


def _read_rollout(settings: Settings, draft: Draft) -> None:
    """An engine on the cards that train: rollout/rollout.yaml."""
    name = settings.record(f"{ROLLOUT}.name")
    engine = "vllm" if name is None else str(name.value).lower()
    response = settings.record("data.max_response_length")
    draft.say(
        "rollout-tokens",
        _number(response) or 512,
        response or "verl's max_response_length is 512 by default",
    )
    if engine not in ("vllm", "sglang"):
        return
    draft.say("rollout-engine", engine, name or "verl's rollout.name is an engine")
    share = settings.record(f"{ROLLOUT}.gpu_memory_utilization")
    if share is not None and _share(share) is not None:
        draft.say("rollout-share", _share(share), share)
    ranks = settings.record(f"{ROLLOUT}.tensor_model_parallel_size")
    if ranks is not None and _number(ranks):
        draft.say("rollout-tp", _number(ranks), ranks)
    elif ranks is None:
        draft.say("rollout-tp", 2, "verl's rollout.tensor_model_parallel_size is 2 by default")
    frees = settings.record(f"{ROLLOUT}.free_cache_engine")
    if frees is not None:
        draft.say("rollout-sleep", settings.is_on(frees.key), frees)


def _share(record: Record) -> float | None:
    try:
        found = float(record.value)
    except (TypeError, ValueError):
        return None
    return found if 0 < found <= 1 else None


def _read_offload(settings: Settings, draft: Draft) -> None:
    """Moved to the host between phases, and back for the update."""
    moved = {}
    for prefix in (ENGINE, OLD_ENGINE):
        for what in ("param", "optimizer"):
            record = settings.record(f"{prefix}.{what}_offload")
            if record is not None and settings.is_on(record.key):
                moved[what] = record
        settings.used.add(f"{prefix}.grad_offload")  # gradients go with the parameters
    if moved:
        word = {"param": "params", "optimizer": "optimizer"}
        chosen = "all" if len(moved) == 2 else word[next(iter(moved))]
        draft.say("rollout-offload", chosen, next(iter(moved.values())))


def _read(settings: Settings, draft: Draft) -> None:
    _read_model(settings, draft)
    if _is_sft(settings):
        _read_sft_data(settings, draft)
    else:
        _read_data(settings, draft)
        _read_companions(settings, draft)
        _read_rollout(settings, draft)
    _read_engine(settings, draft)
    _read_offload(settings, draft)


VERL = Framework(
    name="verl",
    title="verl",
    rules=(_read,),
    gaps={
        f"{MODEL}.use_fused_kernels": "fused log-probabilities: say it with --loss fused",
        f"{MODEL}.tiled_mlp": "the tiled MLP is counted whole: too much",
        f"{ACTOR}.calculate_entropy": "logits kept for the entropy are not counted",
        f"{ACTOR}.optim.optimizer": "another optimizer: say it with --optimizer",
        f"{ACTOR}.optim.override_optimizer_config*": "offloaded or reduced states: say it with --offload, --optimizer",
        "reward_model.enable": "the reward model is not counted",
        f"{ENGINE}.forward_prefetch": "blocks gathered ahead are not counted",
        "optim.optimizer": "another optimizer: say it with --optimizer",
        "distillation*": "the teacher: say it with --teacher",
        "teacher*": "the teacher: say it with --teacher",
        f"{OLD_ENGINE}.override_transformer_config.account_for_*": "say the layers with --stage-layers",
        f"{OLD_ENGINE}.virtual_pipeline_model_parallel_size": "say the chunks per GPU with --virtual-stages",
        f"{OLD_ENGINE}.override_transformer_config.mtp*": "layers that predict further tokens are not counted",
        f"{OLD_ENGINE}.override_transformer_config.use_precision_aware*": "16-bit states are counted in fp32: too much",
    },
    no_effect=words(
        """
        data.* algorithm.* trainer.* reward* custom_reward_function* critic.* actor_rollout_ref.rollout.*
        actor_rollout_ref.ref.* actor_rollout_ref.actor.optim.* actor_rollout_ref.hybrid_engine
        *.ppo_mini_batch_size *.kl_loss_coef *.entropy_coeff *.kl_loss_type *.ppo_micro_batch_size*
        *.clip_ratio* *.lora_alpha *.megatron.use_mbridge *.megatron.vanilla_mbridge
        *.megatron.use_dist_checkpointing *.dist_checkpointing_path *.override_transformer_config.recompute_*
        *.override_transformer_config.*_fusion *.override_transformer_config.moe_*
        *.override_transformer_config.persist_layer_norm
        *.override_transformer_config.deallocate_pipeline_outputs
        *.override_transformer_config.attention_backend *.override_transformer_config.num_layers_in_*
        *.use_torch_compile *.policy_loss* *.loss_agg_mode *.use_shm *.grad_clip *.trust_remote_code
        *.profiler.* *.checkpoint.* *.ppo_epochs *.lora.alpha *.lora.lora_* *.forward_prefetch
        *.entropy_from_logits_with_chunking *.entropy_checkpointing *.fsdp_config.strategy *.router_replay*
        *.seed model.lora_alpha *.override_config.max_position_embeddings *.torch_dtype *.use_remove_padding
        *.fsdp_config.wrap_policy* *.shuffle *.use_dynamic_bsz *.external_lib *.tau_* *.freeze_vision_tower
        actor_rollout_ref.nccl_timeout ray_* hydra.* defaults* global_profiler* transfer_queue* optim.*
        checkpoint.* trainer val_* config_path config_name optim
        """
    ),
    apart=(
        "actor_rollout_ref.rollout.",
        "actor_rollout_ref.ref.",
        "critic.",
        "reward",
        "custom_reward_function",
        "trainer.",
        "data.",
        "algorithm.",
    ),
    marks={
        "actor_rollout_ref*": 9,
        "data.max_prompt_length": 2,
        "trainer.n_gpus_per_node": 3,
        "model.partial_pretrain": 5,
        "data.micro_batch_size_per_gpu": 4,
    },
)
