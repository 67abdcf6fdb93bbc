"""OpenRLHF's flags: flat names (`--zero_stage`), and the dotted ones of 2026 (`--ds.zero_stage`).

Sources: openrlhf/cli/*.py, utils/deepspeed/deepspeed_utils.py. DeepSpeed keeps fp32 masters and builds its own
optimizer.
"""

from __future__ import annotations

from vramcast.configs.framework import Framework, words
from vramcast.configs.hf_words import read_attention, targets_of
from vramcast.configs.records import Draft, Record, Settings
from vramcast.configs.tasks import say_task

GROUPS = (
    "ds",
    "train",
    "data",
    "actor",
    "model",
    "adam",
    "logger",
    "ckpt",
    "eval",
    "rollout",
    "algo",
    "optim",
    "reward",
    "lora",
)


def _flat(settings: Settings, *names: str) -> Record | None:
    """A setting under its flat name or its name in a group."""
    keys = [key for name in names for key in (name, *(f"{group}.{name}" for group in GROUPS))]
    return settings.record(*keys)


def _is_on(settings: Settings, *names: str) -> bool:
    record = _flat(settings, *names)
    return record is not None and settings.is_on(record.key)


def _read_model(settings: Settings, draft: Draft) -> None:
    model = _flat(settings, "pretrain", "model_name_or_path") or settings.record(
        "actor.model_name_or_path"
    )
    if model is not None:
        draft.say("model", model.value, model)
    rank = _flat(settings, "lora_rank", "rank") or settings.record(
        "ds.lora.rank", "actor.lora.rank"
    )
    if rank is not None and settings.number(rank.key):
        draft.say("lora-rank", rank.value, rank)
        targets = _flat(settings, "target_modules", "lora_target_modules")
        if targets is not None:
            draft.say("lora-targets", targets_of(targets.value), targets)
        dropout = _flat(settings, "lora_dropout")
        draft.say("lora-dropout", dropout.value if dropout else None, dropout)
    four = _flat(settings, "load_in_4bit")
    if four is not None and settings.is_on(four.key):
        draft.say("quantize", "nf4-double", four)


def _read_training(settings: Settings, draft: Draft) -> None:
    micro = _flat(settings, "micro_train_batch_size", "micro_batch_size")
    pair = settings.record("chosen_key", "data.chosen_key", "rejected_key", "ref_pretrain")
    verb = settings.record("_verb")
    word = settings.text("_verb").partition("_")[0]
    if (
        word != "ppo"
    ):  # its critic, reward and rollouts are on other cards, or asleep while it trains
        say_task("dpo" if pair is not None and not word else word, verb or pair, draft)
    if micro is not None:
        draft.say("batch", settings.number(micro.key) or 1, micro)
    else:
        draft.say("batch", 1, "OpenRLHF's micro_train_batch_size is 1 by default")
    draft.facts["global_batch"] = _flat(settings, "train_batch_size", "batch_size")
    length = _flat(settings, "max_len", "max_length")
    if length is not None:
        draft.say("seq", length.value, length)
    checkpointing = _flat(settings, "gradient_checkpointing", "gradient_checkpointing_enable")
    if checkpointing is not None and settings.is_on(checkpointing.key):
        draft.say("checkpointing", "full", checkpointing)
        reentrant = _flat(
            settings, "gradient_checkpointing_use_reentrant", "gradient_checkpointing_reentrant"
        )
        draft.say(
            "reentrant",
            reentrant is not None,
            reentrant or "OpenRLHF checkpoints without reentry by default",
        )
    if _is_on(settings, "flash_attn"):
        draft.say("attention", "flash", _flat(settings, "flash_attn"))
    for key in (f"{group}.attn_implementation" for group in ("ds", "actor", "model")):
        read_attention(settings, draft, key)
    read_attention(settings, draft, "attn_implementation")
    if _is_on(settings, "use_liger_kernel"):
        draft.say("loss", "fused", _flat(settings, "use_liger_kernel"))
        draft.say("kernels", ("norm", "rope", "mlp"), _flat(settings, "use_liger_kernel"))
    packing = _flat(settings, "packing_samples")
    if packing is not None and settings.is_on(packing.key):
        draft.assume(f"{packing.text}: one row of the batch, each sample as long as it may be")


def _read_deepspeed(settings: Settings, draft: Draft) -> None:
    stage = _flat(settings, "zero_stage")
    number = 2 if stage is None else settings.number(stage.key) or 0
    draft.say(
        "strategy",
        f"zero{number}" if number else "ddp",
        stage or "OpenRLHF's zero_stage is 2 by default",
    )
    dtype = _flat(settings, "param_dtype")
    word = "bf16" if dtype is None else str(dtype.value).lower()
    source = dtype or _flat(settings, "bf16") or "OpenRLHF trains in bf16 by default"
    draft.say("precision", "fp16-master" if word == "fp16" else "bf16-master", source)
    if _is_on(settings, "adam_offload"):
        draft.say("offload", "optimizer", _flat(settings, "adam_offload"))
    for names, word in (
        (("ring_attn_size",), "cp"),
        (("ds_tensor_parallel_size", "tensor_parallel_size"), "tp"),
    ):
        record = _flat(settings, *names)
        if record is not None and (settings.number(record.key) or 1) > 1:
            draft.say(word, record.value, record)


def _read_reference(settings: Settings, draft: Draft) -> None:
    """DPO compares with a copy; adapters switched off are one already."""
    reference = _flat(settings, "ref_pretrain")
    is_dpo = reference is not None or "ref_offload" in settings
    if is_dpo:
        kind = (
            "cpu"
            if _is_on(settings, "ref_offload")
            else "adapter"
            if draft.value("lora-rank")
            else "same"
        )
        draft.say("reference", kind, reference or _flat(settings, "ref_offload"))


def _read_rl(settings: Settings, draft: Draft) -> None:
    """PPO and its kin by Ray: the actor's GPUs train, those of vLLM and of the other models are not counted."""
    nodes = settings.record("actor_num_nodes", "actor.num_nodes")
    per_node = settings.record("actor_num_gpus_per_node", "actor.num_gpus_per_node")
    prompt, answer = (
        _flat(settings, "prompt_max_len"),
        _flat(settings, "generate_max_len", "max_new_tokens"),
    )
    if per_node is None and answer is None:
        return
    if per_node is not None:
        machines = 1 if nodes is None else settings.number(nodes.key) or 1
        draft.say("gpus", (settings.number(per_node.key) or 1) * machines, per_node)
    if prompt is not None and answer is not None:
        total = (settings.number(prompt.key) or 0) + (settings.number(answer.key) or 0)
        draft.say("seq", total, prompt)
    budget = _flat(settings, "max_tokens_per_gpu", "train_max_tokens_per_gpu")
    if budget is not None and _is_on(settings, "dynamic_batch_enable", "use_dynamic_batch"):
        draft.replace("batch", 1, budget)
        draft.replace("seq", budget.value, budget)
    kl = _flat(settings, "init_kl_coef") or settings.record("algo.kl.init_coef", "kl.init_coef")
    together = _flat(settings, "colocate_all_models", "colocate_all", "colocate_actor_ref")
    has_reference = kl is None or str(kl.value) not in ("0", "0.0")
    if settings.text("_verb") == "ppo":
        _read_one_program(settings, draft, has_reference=has_reference)
    elif has_reference and together is not None and settings.is_on(together.key):
        draft.say("reference", "same", together)
    elif has_reference:
        draft.say("reference", "none", "OpenRLHF's reference is on GPUs of its own")
    utilization = settings.record("vllm_gpu_memory_utilization", "vllm.gpu_memory_utilization")
    if (
        utilization is not None
        or _is_on(settings, "colocate_all_models")
        or _is_on(settings, "colocate_all")
    ):
        _read_colocated(settings, draft, utilization)


def _read_one_program(settings: Settings, draft: Draft, *, has_reference: bool) -> None:
    """openrlhf/cli/train_ppo.py, without Ray until 0.7: actor, critic and reference are on every card, and transformers
    generates."""
    verb = settings.record("_verb")
    draft.say("reference", "same" if has_reference else "none", verb)
    draft.say("critic", "same", verb)
    critic = settings.record("critic_pretrain", "reward_pretrain")
    if critic is not None:
        draft.say("critic-model", critic.value, critic)
    draft.gap(verb, "completions that transformers generates on the same cards are not counted")
    if settings.record("remote_rm_url") is not None:
        settings.used.add("reward_pretrain")


def _read_colocated(settings: Settings, draft: Draft, share: Record | None) -> None:
    """colocate_all puts vLLM and the other models on the actor's cards."""
    together = _is_on(settings, "colocate_all_models") or _is_on(settings, "colocate_all")
    if not together:
        draft.gap(share, "vLLM has cards of its own, which are not counted")
        return
    told = share or _flat(settings, "colocate_all_models", "colocate_all")
    draft.say("rollout-engine", "vllm", told)
    if share is not None:
        draft.say("rollout-share", share.value, share)
    ranks = settings.record("vllm_tensor_parallel_size", "vllm.tensor_parallel_size")
    if ranks is not None and (settings.number(ranks.key) or 1) > 1:
        draft.say("rollout-tp", settings.number(ranks.key), ranks)
    sleep = settings.record("vllm_enable_sleep", "vllm.enable_sleep")
    if sleep is not None:
        draft.say("rollout-sleep", settings.is_on(sleep.key), sleep)
    moved = settings.record("deepspeed_enable_sleep", "ds.enable_sleep")
    if moved is not None and settings.is_on(moved.key):
        draft.say("rollout-offload", "optimizer", moved)
    _read_critic(settings, draft)


def _read_critic(settings: Settings, draft: Draft) -> None:
    """openrlhf/cli/train_ppo_ray.py: only GAE, the default, has a critic; it begins as the actor unless said."""
    estimator = _flat(settings, "advantage_estimator") or settings.record(
        "algo.advantage.estimator", "advantage.estimator"
    )
    critic = settings.record("critic_pretrain", "critic.model_name_or_path")
    if critic is not None:
        draft.say("critic", "same", critic)
        draft.say("critic-model", critic.value, critic)
    elif estimator is None or str(estimator.value).lower() == "gae":
        told = estimator or "OpenRLHF's advantage_estimator is gae by default, which has a critic"
        draft.say("critic", "same", told)


OPENRLHF = Framework(
    name="openrlhf",
    title="OpenRLHF",
    rules=(_read_model, _read_training, _read_deepspeed, _read_reference, _read_rl),
    gaps={
        "overlap_comm": "the second bucket of overlapped communication is not counted",
        "ds.overlap_comm": "the second bucket of overlapped communication is not counted",
        "zpg": "ZeRO++'s second copy per node is not counted",
        "enable_ema": "the averaged copy: say it with --ema cpu",
        "critic_pretrain": "the critic is not counted",
        "reward_pretrain": "the reward model is not counted",
        "teacher_model": "the teacher: say it with --teacher",
        "grad_accum_dtype": "gradients accumulated in another dtype: counted as DeepSpeed's default",
    },
    no_effect=words(
        """
        actor.adam.* data.prompt_* data.input_* data.apply_* data.label_* data.max_samples data.dataset*
        data.image_* data.max_images* train.colocate_* ds.enable_sleep train.max_epochs train.num_episodes
        train.seed train.async_* train.partial_* train.agent_* actor.eps_* actor.entropy_*
        ds.ring_attn_head_stride actor.policy_* actor.kl_* data.*_key data.output_template data.multiturn
        actor.gradient_* train.full_determinism* data.num_workers data.split* ckpt_* adam.* lr_* actor.lr*
        optim.* train.save_* actor.freeze_visual_encoder actor.num_* ds.lora.* data.input_template
        ds.packing_samples ds.deepcompile train.logging* dataset* input_key output_key apply_chat_template
        prompt_key label_key chosen_key rejected_key input_template tokenizer_chat_template max_samples
        max_epochs num_episodes learning_rate *_learning_rate l2 beta save_* logging_* eval_* load_checkpoint
        use_wandb wandb_* use_tensorboard seed aux_loss_coef nll_loss_coef ipo label_smoothing train_batch_size
        rollout_batch_size micro_rollout_batch_size n_samples_per_prompt advantage_estimator normalize_* gamma
        lambd kl_* use_kl_* init_kl_coef eps_clip* vllm_* colocate_* async_train async_queue_size remote_rm_url
        ref_num_* critic_num_* reward_num_* actor_num_* ref_reward_offload temperature top_p
        freezing_actor_steps deepspeed_enable_sleep ring_head_stride full_determinism_* agent_func_path
        dynamic_filtering* train_max_tokens_per_gpu rollout_max_tokens_per_gpu adam_betas adam_offload max_norm
        disable_fast_tokenizer prompt_split eval_split logger.* ckpt.* reward.* ref.* critic.* vllm.* rollout.*
        algo.* eval.* kd_coef bf16 lora_alpha ds_* value_head_prefix loss_type packing_samples
        multiturn local_rank overlong_* mix_* enable_vllm_is_correction use_ms policy_loss_type entropy_*
        working_dir runtime_env* margin_loss random_temperature compute_fp32_loss value_clip perf runtime*
        address image* limit* ray_* no_* input output submit max_images_per_prompt freeze_visual_encoder
        """
    ),
    apart=("vllm.", "rollout.", "ref.", "critic.", "reward.", "eval.", "logger.", "ckpt."),
    marks={
        "pretrain": 2,
        "zero_stage": 3,
        "ds.zero_stage": 5,
        "micro_train_batch_size": 4,
        "packing_samples": 1,
        "max_len": 1,
    },
)
