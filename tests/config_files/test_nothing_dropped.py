"""Every setting that decides memory is seen: another value gives another Job, or is named in the report.

The keys are those that the frameworks' own sources read (transformers, TRL, accelerate, DeepSpeed, LLaMA-Factory,
axolotl, ms-swift, Megatron-LM, OpenRLHF, verl, unsloth, torchtune, litgpt, NeMo, llm-foundry, nanotron).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.configs import Understood, understand
from vramcast.configs.framework import SUGGESTIVE
from vramcast.configs.tables import BY_NAME
from vramcast.errors import VramcastError

MODEL = "model_name_or_path: qwen2.5-0.5b\n"
BASES = {
    "hf": MODEL + "output_dir: out\nper_device_train_batch_size: 4\nnum_train_epochs: 1\n",
    "trl": MODEL + "dataset_name: a/b\nper_device_train_batch_size: 4\n",
    "llama-factory": MODEL + "stage: sft\ntemplate: qwen\ndo_train: true\nbf16: true\n",
    "axolotl": "base_model: qwen2.5-0.5b\nsequence_len: 1024\nmicro_batch_size: 2\nadapter: lora\nlora_r: 8\n"
    "lora_target_linear: true\ngradient_checkpointing: true\n",
    "accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\n",
    "deepspeed": "zero_optimization:\n  stage: 2\ntrain_micro_batch_size_per_gpu: 2\n",
    "ms-swift": "model: qwen2.5-0.5b\ntuner_type: lora\nmax_length: 1024\nsplit_dataset_ratio: 0\n",
    "ms-swift-megatron": "model: qwen2.5-0.5b\ntuner_type: full\nmicro_batch_size: 2\nmax_length: 1024\n"
    "save_safetensors: true\nbf16: true\n",
    "megatron": "micro_batch_size: 2\nseq_length: 1024\nuse_mcore_models: true\nbf16: true\nfp8_format: hybrid\n"
    "num_attention_heads: 8\n",
    "openrlhf": "pretrain: qwen2.5-0.5b\nzero_stage: 3\nmicro_train_batch_size: 2\nmax_len: 1024\n",
    "verl": "actor_rollout_ref:\n  model:\n    path: qwen2.5-0.5b\n",
    "torchtune": "model:\n  _component_: torchtune.models.qwen2_5.lora_qwen2_5_0_5b\n  lora_rank: 8\ntokenizer:\n"
    "  _component_: x\ncheckpointer:\n  _component_: y\n  checkpoint_dir: /tmp/qwen2.5-0.5b\nbatch_size: 2\n",
    "litgpt": "checkpoint_dir: checkpoints/Qwen/Qwen2.5-0.5B\nlora_r: 8\nlora_query: true\ntrain:\n"
    "  micro_batch_size: 2\n  max_seq_length: 512\n",
    "nemo": "step_scheduler:\n  local_batch_size: 2\nmodel:\n  pretrained_model_name_or_path: qwen2.5-0.5b\npeft:\n"
    "  dim: 8\n",
    "llm-foundry": "device_train_microbatch_size: 2\nmax_seq_len: 512\ntrain_loader:\n  name: x\nmodel:\n"
    "  pretrained_model_name_or_path: qwen2.5-0.5b\n",
    "nanotron": "tokens:\n  micro_batch_size: 2\n  sequence_length: 512\nparallelism:\n  dp: 2\n  tp_mode: ALL_REDUCE\n"
    "model:\n  dtype: bfloat16\n",
}  # fmt: skip
# A value that is not the default.
TRAINER = {
    "per_device_train_batch_size": 3, "gradient_accumulation_steps": 3, "fp16": True, "gradient_checkpointing": True,
    "optim": "paged_adamw_8bit", "torch_compile": True, "use_liger_kernel": True, "eval_strategy": "steps",
    "deepspeed": "ds_z3_config.json", "fsdp": "full_shard", "ddp_bucket_cap_mb": 100, "auto_find_batch_size": True,
    "torch_empty_cache_steps": 4, "group_by_length": True, "dataloader_num_workers": 3, "neftune_noise_alpha": 5,
    "dataloader_pin_memory": False, "dataloader_prefetch_factor": 4, "load_in_4bit": True, "max_length": 77,
    "attn_implementation": "eager", "parallelism_config": {"cp_size": 2}, "torch_dtype": "float16",
    "use_peft": True, "eval_accumulation_steps": 2, "prediction_loss_only": True, "label_smoothing_factor": 0.1,
}  # fmt: skip
KEYS: dict[str, dict[str, object]] = {
    "hf": {**TRAINER, "bf16": True},
    "trl": {
        **TRAINER, "bf16": False, "packing": True, "padding_free": True, "activation_offloading": True,
        "num_generations": 4, "max_completion_length": 99, "max_prompt_length": 7, "beta": 0.2, "use_vllm": True,
        "vllm_gpu_memory_utilization": 0.4, "lora_r": 64, "lora_target_modules": ["o_proj"], "loss_type": "dft",
        "sync_ref_model": True, "precompute_ref_log_probs": True, "cast_lm_head_to_fp32": True, "use_dora": True,
        "modules_to_save": ["lm_head"], "lora_modules_to_save": ["lm_head"], "target_parameters": ["x"],
        "reward_model_path": "qwen2.5-1.5b", "vllm_mode": "server", "max_pixels": 1000, "steps_per_generation": 3,
    },
    "llama-factory": {
        "stage": "dpo", "finetuning_type": "full", "lora_rank": 9, "lora_dropout": 0.1, "lora_target": "q_proj",
        "use_dora": True, "additional_target": "lm_head", "freeze_trainable_layers": 3, "freeze_extra_modules": "x",
        "quantization_bit": 4, "pure_bf16": True, "cutoff_len": 77, "packing": True, "neat_packing": True,
        "per_device_train_batch_size": 3, "gradient_accumulation_steps": 3, "disable_gradient_checkpointing": True,
        "use_reentrant_gc": False, "use_unsloth_gc": True, "use_unsloth": True, "enable_liger_kernel": True,
        "flash_attn": "disabled", "upcast_layernorm": True, "upcast_lmhead_output": True, "image_max_pixels": 999,
        "video_max_pixels": 999, "video_maxlen": 9, "ref_model": "qwen2.5-1.5b", "reward_model": "x",
        "use_galore": True, "use_apollo": True, "use_badam": True, "use_adam_mini": True, "use_muon": True,
        "fp8": True, "deepspeed": "ds_z3_config.json", "ray_num_workers": 3, "use_kt": True, "optim": "lion_8bit",
        "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "val_size": 0.1, "eval_strategy": "steps",
        "mixture_of_depths": "load", "shift_attn": True, "compute_accuracy": True,
    },
    "axolotl": {
        "load_in_4bit": True, "load_in_8bit": True, "lora_r": 9, "lora_dropout": 0.1, "lora_modules_to_save": ["x"],
        "lora_target_parameters": ["x"], "peft_layers_to_transform": [1], "peft_use_dora": True, "sequence_len": 77,
        "sample_packing": True, "micro_batch_size": 3, "gradient_accumulation_steps": 3, "optimizer": "ademamix_8bit",
        "bf16": False, "fp16": True, "bfloat16": True, "gradient_checkpointing": False, "activation_offloading": True,
        "layer_offloading": True, "selective_checkpointing": True, "attn_implementation": "eager",
        "flash_attention": True, "flex_attention": True, "liger_rope": True, "liger_rms_norm": True,
        "liger_glu_activation": True, "liger_fused_linear_cross_entropy": True, "cut_cross_entropy": True,
        "chunked_cross_entropy": True, "tiled_mlp": True, "lora_mlp_kernel": True, "embeddings_skip_upcast": True,
        "lora_on_cpu": True, "quantize_moe_experts": True, "fsdp_version": 2, "dp_shard_size": 2,
        "tensor_parallel_size": 2, "context_parallel_size": 2, "sequence_parallel_degree": 2, "rl": "dpo",
        "unfrozen_parameters": ["x"], "fp8": True, "deepspeed": "ds_z3.json", "torch_compile": True,
        "val_set_size": 0.1, "eval_batch_size": 7, "reward_model": True, "relora": True, "gptq": True,
        "plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"], "eval_strategy": "steps",
    },
    "accelerate": {
        "distributed_type": "MULTI_GPU", "num_processes": 3, "num_machines": 2, "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_offload_params": True}, "dynamo_config": {"dynamo_backend": "INDUCTOR"},
        "parallelism_config": {"parallelism_config_tp_size": 2}, "fp8_config": {"backend": "TE"},
        "megatron_lm_config": {"megatron_lm_tp_degree": 2},
    },
    "deepspeed": {
        "zero_optimization.stage": 3, "zero_optimization.offload_optimizer.device": "cpu",
        "zero_optimization.offload_param.device": "cpu", "zero_optimization.offload_optimizer.ratio": 0.3,
        "zero_optimization.offload_param.nvme_path": "/x", "zero_optimization.reduce_bucket_size": 1000,
        "zero_optimization.allgather_bucket_size": 1000, "zero_optimization.stage3_prefetch_bucket_size": 1000,
        "zero_optimization.stage3_param_persistence_threshold": 0, "zero_optimization.stage3_max_live_parameters": 5,
        "zero_optimization.stage3_max_reuse_distance": 5, "zero_optimization.sub_group_size": 1000,
        "zero_optimization.overlap_comm": True, "bf16.enabled": True, "fp16.enabled": True,
        "bf16.bf16_master_weights_and_grads": True, "data_types.grad_accum_dtype": "fp32",
        "zero_optimization.zero_hpz_partition_size": 8, "zero_optimization.zero_quantized_weights": True,
        "zero_optimization.mics_shard_size": 4, "tensor_parallel.autotp_size": 2, "optimizer.type": "Lion",
        "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 3, "zero_optimization.zenflow.x": 1,
        "activation_checkpointing.cpu_checkpointing": True, "pipeline.stages": 2,
    },
    "ms-swift": {
        "tuner_type": "full", "lora_rank": 9, "lora_dropout": 0.2, "target_modules": "q_proj", "lora_dtype": "bf16",
        "freeze_parameters_ratio": 0.5, "trainable_parameters": "x", "per_device_train_batch_size": 3,
        "gradient_checkpointing": False, "max_length": 77, "torch_dtype": "float16", "quant_bits": 4,
        "attn_impl": "eager", "use_logits_to_keep": True, "use_liger_kernel": True, "sequence_parallel_size": 2,
        "deepspeed": "zero3", "fsdp": "fsdp2", "use_galore": True, "optimizer": "muon", "rlhf_type": "dpo",
        "modules_to_save": "x", "vllm_gpu_memory_utilization": 0.5, "max_pixels": 9999, "packing": True,
        "padding_free": True, "optim": "adamw_torch_4bit", "use_dora": True, "lisa_activated_layers": 2,
        "teacher_model": "qwen2.5-1.5b", "num_labels": 3, "reward_model": "x", "experts_impl": "x",
        "vit_gradient_checkpointing": False, "packing_length": 9999, "device_map": "auto",
    },
    "ms-swift-megatron": {
        "tuner_type": "lora", "micro_batch_size": 3, "global_batch_size": 32, "recompute_granularity": "full",
        "use_distributed_optimizer": False, "tensor_model_parallel_size": 2, "sequence_parallel": True,
        "attention_backend": "unfused", "optimizer_cpu_offload": True, "fp8_format": "hybrid", "rlhf_type": "dpo",
        "main_grads_dtype": "bf16", "packing": True, "vit_gradient_checkpointing": False, "mtp_num_layers": 1,
    },
    "megatron": {
        "micro_batch_size": 3, "seq_length": 77, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
        "context_parallel_size": 2, "expert_model_parallel_size": 2, "sequence_parallel": True,
        "use_distributed_optimizer": True, "optimizer": "sgd", "use_precision_aware_optimizer": True,
        "no_gradient_accumulation_fusion": True, "recompute_granularity": "full", "recompute_method": "block",
        "moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True, "attention_backend": "unfused",
        "grad_reduce_in_bf16": True, "fp8_recipe": "mxfp8", "fp8_param_gather": True, "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 0.5, "use_megatron_fsdp": True, "num_experts": 8, "mtp_num_layers": 1,
        "account_for_embedding_in_pipeline_split": True, "pipeline_model_parallel_layout": "x", "cp_comm_type": "a2a",
        "num_layers_per_virtual_pipeline_stage": 1, "moe_expert_capacity_factor": 1.5, "enable_cuda_graph": True,
        "decoder_first_pipeline_num_layers": 3, "make_vocab_size_divisible_by": 64, "cpu_offloading_num_layers": 2,
        "first_last_layers_bf16": True, "data_parallel_sharding_strategy": "optim", "cross_entropy_loss_fusion": True,
        "recompute_modules": ["mlp"], "offload_modules": ["core_attn"],
    },
    "openrlhf": {
        "zero_stage": 2, "param_dtype": "fp16", "adam_offload": True, "zpg": 8, "gradient_checkpointing": True,
        "ring_attn_size": 2, "ds_tensor_parallel_size": 2, "load_in_4bit": True, "lora_rank": 8, "max_len": 77,
        "micro_train_batch_size": 3, "vllm_gpu_memory_utilization": 0.5, "max_tokens_per_gpu": 9, "enable_ema": True,
        "critic_pretrain": "x", "reward_pretrain": "x", "ref_pretrain": "x", "grad_accum_dtype": "fp32",
        "use_liger_kernel": True, "flash_attn": True, "overlap_comm": True, "packing_samples": True,
        "gradient_checkpointing_use_reentrant": True, "teacher_model": "x",
    },
    "verl": {
        f"actor_rollout_ref.{key}": value
        for key, value in {
            "actor.ppo_micro_batch_size_per_gpu": 3, "actor.use_dynamic_bsz": True, "model.lora_rank": 8,
            "model.enable_gradient_checkpointing": False, "model.enable_activation_offload": True,
            "model.use_liger": True, "model.use_fused_kernels": True, "model.tiled_mlp.enabled": True,
            "actor.fsdp_config.param_offload": True, "actor.fsdp_config.optimizer_offload": True,
            "actor.fsdp_config.offload_policy": True, "actor.fsdp_config.model_dtype": "bf16",
            "actor.fsdp_config.fsdp_size": 2, "actor.strategy": "fsdp2", "actor.use_kl_loss": True,
            "rollout.gpu_memory_utilization": 0.7, "actor.entropy_from_logits_with_chunking": True,
            "actor.entropy_checkpointing": True, "actor.calculate_entropy": True, "model.use_remove_padding": False,
            "actor.optim.optimizer": "Adafactor", "actor.ulysses_sequence_parallel_size": 2,
            "actor.megatron.tensor_model_parallel_size": 2, "model.target_modules": "q_proj",
            "actor.fsdp_config.reshard_after_forward": False, "actor.optim.override_optimizer_config.x": 1,
            "actor.ppo_max_token_len_per_gpu": 99, "rollout.free_cache_engine": False, "model.exclude_modules": "x",
            "actor.fsdp_config.dtype": "float16", "actor.fsdp_config.forward_prefetch": True,
        }.items()
    } | {
        "data.max_prompt_length": 99, "data.max_response_length": 99, "trainer.n_gpus_per_node": 4,
        "trainer.nnodes": 2, "algorithm.use_kl_in_reward": True, "critic.model.path": "x",
        "reward_model.enable": True, "algorithm.adv_estimator": "grpo",
    },
    "torchtune": {
        "dtype": "fp32", "batch_size": 3, "tokenizer.max_seq_len": 99, "dataset.packed": True,
        "enable_activation_checkpointing": True, "enable_activation_offloading": True,
        "optimizer._component_": "bitsandbytes.optim.PagedAdamW8bit", "optimizer_in_bwd": True,
        "loss._component_": "x.CEWithChunkedOutputLoss", "compile": True, "fsdp_cpu_offload": True,
        "tensor_parallel_dim": 2, "data_parallel_shard_dim": 2, "model.lora_rank": 9, "optimizer.fused": True,
        "model.lora_attn_modules": ["q_proj"], "model.quantize_base": True, "model.use_dora": True,
        "gradient_accumulation_steps": 3, "enable_fp8_training": True, "custom_sharded_layers": ["output"],
        "fsdp_reshard_after_forward": False, "run_val_every_n_steps": 5, "batch_size_val": 9, "ac_mode": "selective",
    },
    "litgpt": {
        "precision": "32-true", "quantize": "bnb.nf4", "lora_r": 9, "lora_dropout": 0.2, "lora_mlp": True,
        "lora_head": True, "train.micro_batch_size": 3, "train.max_seq_length": 99, "devices": 2,
        "optimizer": "SGD", "eval.max_iters": 7, "train.global_batch_size": 8, "num_nodes": 2,
    },
    "nemo": {
        "step_scheduler.local_batch_size": 3, "model.torch_dtype": "float32", "distributed.strategy": "ddp",
        "distributed.activation_checkpointing": True, "distributed.tp_size": 2, "distributed.cp_size": 2,
        "distributed.ep_size": 2, "packed_sequence.packed_sequence_size": 99, "peft.dim": 9, "peft.dropout": 0.1,
        "loss_fn._target_": "x.FusedLinearCrossEntropy", "optimizer._target_": "x.Muon", "fp8.enabled": True,
        "quantization.load_in_4bit": True, "distributed.defer_fsdp_grad_sync": True, "compile.enabled": True,
        "distributed.dp_replicate_size": 2, "peft.target_modules": "*_proj", "freeze_config.freeze_embeddings": True,
        "distributed.pp_size": 2, "distributed.sequence_parallel": True, "step_scheduler.global_batch_size": 32,
    },
    "llm-foundry": {
        "device_train_microbatch_size": "auto", "max_seq_len": 99, "precision": "fp32",
        "fsdp_config.sharding_strategy": "NO_SHARD",
        "fsdp_config.activation_checkpointing": True, "fsdp_config.activation_cpu_offload": True,
        "optimizer.name": "decoupled_lionw", "model.peft_config.r": 8, "tp_config.x": 2, "eval_interval": "9ba",
        "model.attn_config.attn_impl": "torch", "device_eval_batch_size": 64,
    },
    "nanotron": {
        "tokens.micro_batch_size": 3, "tokens.sequence_length": 99, "parallelism.dp": 4, "parallelism.tp": 2,
        "parallelism.pp": 2, "optimizer.zero_stage": 1, "optimizer.accumulate_grad_in_fp32": False,
        "model.dtype": "float32", "parallelism.recompute_layer": True, "parallelism.tp_mode": "REDUCE_SCATTER",
        "tokens.batch_accumulation_per_replica": 3, "parallelism.expert_parallel_size": 2,
    },
}  # fmt: skip
GRPO: dict[str, object] = {"num_generations": 8, "max_completion_length": 512}
# Settings that say something only beside others.
BESIDE: dict[tuple[str, str], dict[str, object]] = {
    ("trl", "max_prompt_length"): GRPO,
    ("trl", "use_vllm"): GRPO,
    ("trl", "lora_target_modules"): {"use_peft": True},
    ("llama-factory", "freeze_trainable_layers"): {"finetuning_type": "freeze"},
    ("llama-factory", "ref_model"): {"stage": "dpo"},
    ("axolotl", "eval_batch_size"): {"val_set_size": 0.1},
    ("deepspeed", "zero_optimization.offload_optimizer.ratio"): {
        "zero_optimization.offload_optimizer.device": "cpu"
    },
    ("deepspeed", "zero_optimization.offload_param.nvme_path"): {
        "zero_optimization.offload_param.device": "nvme"
    },
    ("ms-swift", "num_labels"): {"task_type": "seq_cls"},
    ("ms-swift", "vit_gradient_checkpointing"): {"model": "qwen2.5-vl-3b"},
    ("ms-swift", "packing_length"): {"packing": True},
    ("ms-swift-megatron", "main_grads_dtype"): {"use_precision_aware_optimizer": True},
    ("megatron", "use_precision_aware_optimizer"): {
        "exp_avg_dtype": "bf16",
        "exp_avg_sq_dtype": "bf16",
    },
    ("megatron", "recompute_method"): {"recompute_granularity": "full"},
    ("megatron", "recompute_modules"): {"recompute_granularity": "selective"},
    ("megatron", "optimizer_offload_fraction"): {"optimizer_cpu_offload": True},
    ("openrlhf", "vllm_gpu_memory_utilization"): {"actor_num_gpus_per_node": 4},
    ("openrlhf", "max_tokens_per_gpu"): {"use_dynamic_batch": True, "actor_num_gpus_per_node": 4},
    ("verl", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"): {
        "actor_rollout_ref.actor.use_dynamic_bsz": True
    },
    ("verl", "trainer.nnodes"): {"trainer.n_gpus_per_node": 8},
    ("litgpt", "num_nodes"): {"devices": 2},
    ("litgpt", "train.global_batch_size"): {"devices": 2},
    ("torchtune", "batch_size_val"): {"run_val_every_n_steps": 5},
    ("llm-foundry", "device_eval_batch_size"): {"eval_interval": "9ba"},
}
# Seen by nobody, and why that is right.
NOT_SEEN = {
    ("hf", "eval_accumulation_steps"): "needs compute_metrics, which only a script has: --eval-kept says it",
    ("trl", "eval_accumulation_steps"): "needs compute_metrics",
    ("hf", "prediction_loss_only"): "needs compute_metrics",
    ("trl", "prediction_loss_only"): "needs compute_metrics",
    ("trl", "gradient_checkpointing"): "on by default in TRL",
    ("trl", "vllm_mode"): "use_vllm is what is named",
    ("trl", "steps_per_generation"): "a batch of rollouts is generated as a micro-batch is trained, or by vLLM",
    ("deepspeed", "zero_optimization.allgather_bucket_size"): "cuts the gathering of weights that are there already",
    ("deepspeed", "zero_optimization.offload_param.nvme_path"): "the device is what counts",
    ("verl", "actor_rollout_ref.model.use_remove_padding"): "rows are counted as long as they may be",
    ("verl", "actor_rollout_ref.actor.entropy_from_logits_with_chunking"): "needs calculate_entropy, which is named",
    ("verl", "actor_rollout_ref.actor.entropy_checkpointing"): "needs calculate_entropy, which is named",
    ("llama-factory", "val_size"): "eval_strategy says whether it is evaluated",
    ("axolotl", "eval_strategy"): "val_set_size says whether it is evaluated",
    ("nemo", "step_scheduler.global_batch_size"): "needs the number of GPUs, which is asked for",
    ("ms-swift-megatron", "global_batch_size"): "needs the number of GPUs, which is asked for",
    ("ms-swift-megatron", "vit_gradient_checkpointing"): "Megatron's recompute_granularity is what counts",
    ("litgpt", "eval.max_iters"): "a validation without graph takes less than a step",
    ("megatron", "data_parallel_sharding_strategy"): "needs use_megatron_fsdp, which is named",
    ("megatron", "cross_entropy_loss_fusion"): "Megatron's own fusion keeps the same tensors",
    ("megatron", "num_experts"): "the model's, which is given",
}  # fmt: skip
CASES = [(name, key) for name, keys in KEYS.items() for key in keys]


def outcome(understood: Understood) -> tuple[object, ...]:
    """All that a report shows of a reading, without the places of the lines."""
    said = {key: str(each.value) for key, each in understood.said.items()}
    gaps = sorted(f"{gap.record.key if gap.record else ''} {gap.text}" for gap in understood.gaps)
    unknown = sorted(record.key for record in understood.unknown)
    return said, gaps, unknown, len(understood.assumptions)


def with_key(base: str, key: str, value: object) -> str:
    """As JSON, which is YAML: a nested key joins the group that is there."""
    import yaml

    data = yaml.safe_load(base)
    *groups, last = key.split(".")
    inner = data
    for group in groups:
        inner = inner.setdefault(group, {}) if isinstance(inner, dict) else {}
    inner[last] = value
    return json.dumps(data, indent=1)


def read(folder: Path, name: str, text: str) -> Understood | str:
    path = folder / "train.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        return understand([path], name)
    except VramcastError as error:
        return str(error)


@pytest.mark.parametrize(("name", "key"), CASES, ids=[f"{name}-{key}" for name, key in CASES])
def test_another_value_is_seen(tmp_path: Path, name: str, key: str) -> None:
    base = BASES[name]
    for beside, value in BESIDE.get((name, key), {}).items():
        base = with_key(base, beside, value)
    before = read(tmp_path, name, base)
    after = read(tmp_path, name, with_key(base, key, KEYS[name][key]))
    assert not isinstance(before, str), before
    seen = isinstance(after, str) or outcome(before) != outcome(after)
    assert seen != ((name, key) in NOT_SEEN)


@pytest.mark.parametrize("name", KEYS)
def test_a_key_that_no_table_has_is_named(tmp_path: Path, name: str) -> None:
    """As if it had been taken out of the table: under a name that nobody knows. In groups whose other settings do not
    matter (`optimizer.lr`), only names that sound like memory are told apart."""
    for key, value in KEYS[name].items():
        groups, dot, last = key.rpartition(".")
        if dot and (key.startswith(BY_NAME[name].apart) or not SUGGESTIVE.search(last)):
            continue
        renamed = f"{groups}{dot}zz_{last}"
        after = read(tmp_path, name, with_key(BASES[name], renamed, value))
        assert not isinstance(after, str), after
        named = {record.key for record in after.unknown}
        named |= {gap.record.key for gap in after.gaps if gap.record is not None}
        assert any(each.startswith(renamed) for each in named), renamed


def test_every_framework_is_tried() -> None:
    others = {"peft", "unsloth", "llama-factory-v1"}
    assert set(BASES) == set(KEYS) == set(BY_NAME) - others
