"""One file in the manner of each further framework, expressed by hand first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.configs import job_of_files, understand
from vramcast.errors import VramcastError

TORCHTUNE = """
batch_size: 4
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 2048
model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /nowhere/llama-3.1-8b/
batch_size_val: ${batch_size}
optimizer:
  _component_: torch.optim.AdamW
  fused: True
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
gradient_accumulation_steps: 8
dtype: bf16
enable_activation_checkpointing: True
"""
LITGPT = """
checkpoint_dir: checkpoints/mistralai/mistral-7b
out_dir: out/x
precision: bf16-true
quantize: bnb.nf4-dq
devices: 1
lora_r: 32
lora_dropout: 0.05
lora_query: true
lora_key: false
lora_value: true
train:
  global_batch_size: 8
  micro_batch_size: 2
  max_seq_length: 512
"""
FACTORY_V1 = """
model: qwen2.5-0.5b
model_class: llm
peft_config:
  name: lora
  r: 16
  target_modules: all
kernel_config:
  name: auto
dist_config:
  name: fsdp2
train_dataset: data.yaml
micro_batch_size: 2
cutoff_len: 1024
"""
AUTOMODEL = """
step_scheduler:
  global_batch_size: 64
  local_batch_size: 8
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: qwen2.5-0.5b
distributed:
  strategy: fsdp2
  tp_size: 2
packed_sequence:
  packed_sequence_size: 4096
loss_fn:
  _target_: nemo_automodel.components.loss.chunked_ce.ChunkedCrossEntropy
"""
FOUNDRY = """
max_seq_len: 4096
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: llama-2-7b
device_train_microbatch_size: 2
global_train_batch_size: 64
max_duration: 1ep
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
  activation_checkpointing_reentrant: false
"""
NANOTRON = """
tokens:
  micro_batch_size: 3
  batch_accumulation_per_replica: 4
  sequence_length: 1024
parallelism:
  dp: 4
  tp: 2
  pp: 1
  tp_mode: REDUCE_SCATTER
optimizer:
  zero_stage: 1
  accumulate_grad_in_fp32: true
model:
  dtype: bfloat16
"""
EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "torchtune": (
        TORCHTUNE,
        {
            "model": "llama-3.1-8b", "batch": 4, "seq": 2048, "accumulate": 8, "lora_rank": 64,
            "quantize": "nf4-double",
            "lora_targets": ("q_proj", "output_proj", "mlp"), "precision": "bf16-true",
            "optimizer_impl": "fused", "loss": "chunked", "checkpointing": "full",
        },
    ),
    "litgpt": (
        LITGPT,
        {
            "model": "mistral-7b", "batch": 2, "accumulate": 4, "seq": 512, "lora_rank": 32, "quantize": "nf4-double",
            "lora_targets": ("query", "value"), "precision": "bf16-true", "gpus": 1,
        },
    ),
    "llama-factory-v1": (
        FACTORY_V1,
        {"model": "qwen2.5-0.5b", "batch": 2, "seq": 1024, "lora_rank": 16, "strategy": "fsdp2",
         "checkpointing": "full"},
    ),
    "nemo": (
        AUTOMODEL,
        {"batch": 8, "seq": 4096, "tp": 2, "strategy": "fsdp2", "precision": "bf16-true", "loss": "chunked"},
    ),
    "llm-foundry": (
        FOUNDRY,
        {
            "batch": 2, "seq": 4096, "strategy": "fsdp1", "precision": "bf16-mixed", "checkpointing": "full",
            "reentrant": False,
        },
    ),
    "nanotron": (
        NANOTRON,
        {"batch": 3, "accumulate": 4, "seq": 1024, "gpus": 8, "tp": 2, "strategy": "zero1",
         "precision": "megatron-bf16"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_further_frameworks(tmp_path: Path, name: str) -> None:
    text, expected = EXPECTED[name]
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    flags = {"model": "llama-2-7b"} if name == "nanotron" else {}
    job, understood = job_of_files(understand([path]), flags)
    assert {key: getattr(job, key) for key in expected} == expected
    assert (understood.gaps, understood.unknown) == ((), ())
    assert job_of_files(understand([path], name), flags)[0] == job  # forced, it is read alike


def test_what_is_configured_in_python_points_to_trace(tmp_path: Path) -> None:
    path = tmp_path / "lightning.yaml"
    path.write_text(
        "trainer:\n  precision: bf16-mixed\n  devices: 4\nmodel:\n  class_path: mine.Model\n"
    )
    with pytest.raises(VramcastError, match="vramcast trace"):
        understand([path])
