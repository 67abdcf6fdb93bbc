"""Round trips: a plan's change is written into the file, the file is read again, and the promised peak comes out."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.configs import Patch, job_of_files, understand, write_change
from vramcast.engine import estimate
from vramcast.job import Job

FILES = {
    "factory.yaml": """# my run
model_name_or_path: qwen2.5-0.5b   # small
stage: sft
template: qwen
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
disable_gradient_checkpointing: true  # faster
bf16: true
optim: 'adamw_torch'
""",
    "axolotl.yml": """base_model: qwen2.5-0.5b
sequence_len: 2048  # long enough
micro_batch_size: 8
gradient_accumulation_steps: 1
gradient_checkpointing: false
optimizer: adamw_torch_fused
val_set_size: 0
""",
    "trl.yaml": """model_name_or_path: qwen2.5-0.5b
use_peft: false
max_length: 2048
per_device_train_batch_size: 8
gradient_checkpointing: false
""",
    "arguments.json": """{
\t"model_name_or_path": "qwen2.5-0.5b",
\t"per_device_train_batch_size": 8, "output_dir": "out",
\t"max_length": 2048,
\t"bf16": true
}
""",
    "swift.sh": """# one card
export CUDA_VISIBLE_DEVICES=0
swift sft --model qwen2.5-0.5b \\
    --tuner_type full --max_length 2048 \\
    --gradient_checkpointing false \\
    --per_device_train_batch_size 8   # as many as fit
""",
    "llava.sh": """B=${B:-8}
python train_mem.py --model_name_or_path qwen2.5-0.5b --bf16 True --model_max_length 2048 \\
    --per_device_train_batch_size $B --gradient_checkpointing False --output_dir out
""",
    "unsloth.py": """from unsloth import FastLanguageModel
model, _ = FastLanguageModel.from_pretrained("qwen2.5-0.5b", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing=False)
args = SFTConfig(per_device_train_batch_size=8, optim="adamw_torch")  # 批
""",
}
FILES |= {
    "torchtune.yaml": """model:
  _component_: torchtune.models.qwen2_5.lora_qwen2_5_0_5b
  lora_rank: 8
  lora_attn_modules: ['q_proj', 'v_proj']
tokenizer:
  _component_: torchtune.models.qwen2_5.qwen2_5_tokenizer
  max_seq_len: 2048
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Qwen2.5-0.5B   # here
batch_size: 8
enable_activation_checkpointing: False
dtype: bf16
""",
    "nemo.yaml": """step_scheduler:
  local_batch_size: 8   # per GPU
model:
  pretrained_model_name_or_path: qwen2.5-0.5b
dataset:
  seq_len: 2048
distributed:
  strategy: ddp
  activation_checkpointing: false
""",
    "nanotron.yaml": """model:
  dtype: bfloat16
  model_config:
    hidden_size: 576
    intermediate_size: 1536
    num_attention_heads: 9
    num_hidden_layers: 30
    num_key_value_heads: 3
    vocab_size: 49152
parallelism:
  dp: 2
  tp_mode: ALL_REDUCE
tokens:
  micro_batch_size: 8
  sequence_length: 2048
""",
    "foundry.yaml": """max_seq_len: 2048
model:
  pretrained_model_name_or_path: qwen2.5-0.5b
device_train_microbatch_size: 8
train_loader:
  name: finetuning
fsdp_config:
  sharding_strategy: FULL_SHARD
  activation_checkpointing: false
""",
    "model_config.yaml": """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 24
  --micro-batch-size: 8   # as ever
  --seq-length: 2048
  --bf16: true
TEST_TYPE: regular
""",
    "megatron.sh": """MICRO=8
ARGS="--micro-batch-size $MICRO --seq-length 2048 --bf16"
MORE=(
  --tensor-model-parallel-size 1
)
torchrun --nproc_per_node 2 pretrain_gpt.py $ARGS ${MORE[@]}
""",
    "verl.sh": """set -x
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path=qwen2.5-0.5b \\
    actor_rollout_ref.model.enable_gradient_checkpointing=False \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    trainer.n_gpus_per_node=2 $@
""",
    "openrlhf.sh": """deepspeed --num_gpus 2 --module openrlhf.cli.train_sft \\
   --pretrain qwen2.5-0.5b --micro_train_batch_size 8 \\
   --max_len 2048 --zero_stage 2
""",
}
# Expressed by hand: what the plan is, and the lines that the file then has.
SMALLER = {"batch": 2, "accumulate": 4, "checkpointing": "full"}
LINES = {
    "factory.yaml": ["per_device_train_batch_size: 2", "gradient_accumulation_steps: 4",
                     "disable_gradient_checkpointing: false  # faster"],
    "axolotl.yml": ["micro_batch_size: 2", "gradient_accumulation_steps: 4", "gradient_checkpointing: true"],
    "trl.yaml": ["per_device_train_batch_size: 2", "gradient_accumulation_steps: 4", "gradient_checkpointing: true"],
    "arguments.json": ['\t"per_device_train_batch_size": 2, "output_dir": "out",',
                       '\t"gradient_accumulation_steps": 4,',
                       '\t"gradient_checkpointing": true'],
    "swift.sh": ["    --gradient_checkpointing true \\", "    --per_device_train_batch_size 2 \\",
                 "    --gradient_accumulation_steps 4   # as many as fit"],
    "llava.sh": ["B=${B:-2}",
                 "    --per_device_train_batch_size $B --gradient_checkpointing True --output_dir out \\",
                 "    --gradient_accumulation_steps 4"],
    "unsloth.py": ["model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing=True)"],
    "torchtune.yaml": ["batch_size: 2", "gradient_accumulation_steps: 4", "enable_activation_checkpointing: true"],
    "nemo.yaml": ["  local_batch_size: 2   # per GPU", "  activation_checkpointing: true"],
    "nanotron.yaml": ["  micro_batch_size: 2", "  batch_accumulation_per_replica: 4", "  recompute_layer: true"],
    "foundry.yaml": ["device_train_microbatch_size: 2", "  activation_checkpointing: true"],
    "model_config.yaml": ["  --micro-batch-size: 2   # as ever", "  --recompute-granularity: full"],
    "megatron.sh": ["MICRO=2"],
    "verl.sh": ["    actor_rollout_ref.model.enable_gradient_checkpointing=True \\",
                "    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\"],
    "openrlhf.sh": ["   --pretrain qwen2.5-0.5b --micro_train_batch_size 2 \\", "    --gradient_checkpointing"],
}  # fmt: skip
# What the frameworks derive from a global batch, or have no word for.
NO_WORD = {
    "nemo.yaml",
    "foundry.yaml",
    "model_config.yaml",
    "megatron.sh",
    "verl.sh",
    "openrlhf.sh",
}
GIVEN: dict[str, dict[str, Any]] = {
    "model_config.yaml": {"model": "qwen2.5-0.5b"},
    "megatron.sh": {"model": "qwen2.5-0.5b"},
}


def changed(folder: Path, name: str, **changes: Any) -> tuple[Path, Job, Patch]:
    path = folder / name
    path.write_text(FILES[name], encoding="utf-8")
    flags = GIVEN.get(name, {})
    job, understood = job_of_files(understand([path]), flags)
    after = replace(job, **changes)
    return path, after, write_change(understood, [path], job, after, flags)


@pytest.mark.parametrize("name", FILES)
def test_a_change_comes_back_as_the_changed_job(tmp_path: Path, name: str) -> None:
    path, after, patch = changed(tmp_path, name, **SMALLER)
    new = patch.after[path]
    assert [line for line in LINES[name] if line not in new.splitlines()] == []
    assert patch.left == ({"accumulate": 4} if name in NO_WORD else {})
    path.write_text(new, encoding="utf-8")
    job, _ = job_of_files(understand([path]), {**GIVEN.get(name, {}), **patch.left})
    assert estimate(job).verdict() == estimate(after).verdict()


@pytest.mark.parametrize("name", ["factory.yaml", "axolotl.yml", "trl.yaml", "swift.sh"])
def test_adapters_come_back_too(tmp_path: Path, name: str) -> None:
    path, _, patch = changed(
        tmp_path, name, lora_rank=16, quantize="nf4-double", tuning="qlora", lora_dropout=0.05
    )
    path.write_text(patch.after[path], encoding="utf-8")
    job, _ = job_of_files(understand([path]), {})
    assert (job.lora_rank, job.quantize) == (16, "nf4-double")


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
@pytest.mark.parametrize("name", FILES)
def test_the_diff_is_one_that_patch_applies(tmp_path: Path, name: str) -> None:
    path, _, patch = changed(tmp_path, name, **SMALLER)
    done = subprocess.run(
        ["patch", "-p0", str(path)], input=patch.diff().encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert path.read_text(encoding="utf-8") == patch.after[path]


def test_a_list_with_a_line_per_item_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "trl.yaml"
    text = "model_name_or_path: qwen2.5-0.5b\nuse_peft: true\nlora_r: 64\nlora_target_modules:\n"
    text += "  - q_proj\n  - v_proj\nper_device_train_batch_size: 8\ndataset_name: a/b\n"
    path.write_text(text, encoding="utf-8")
    job, understood = job_of_files(understand([path]), {})
    patch = write_change(understood, [path], job, replace(job, lora_targets=("o_proj",)), {})
    assert "lora_target_modules:\n  - o_proj\nper_device" in patch.after[path]
    assert patch.left == {}


def test_offload_goes_into_the_file_of_deepspeed(tmp_path: Path) -> None:
    zero = tmp_path / "ds.json"
    zero.write_text(
        '{\n  "zero_optimization": {\n    "stage": 2\n  },\n  "bf16": {"enabled": "auto"}\n}\n'
    )
    path = tmp_path / "train.yaml"
    path.write_text(FILES["factory.yaml"] + "deepspeed: ds.json\n", encoding="utf-8")
    job, understood = job_of_files(understand([path]), {"gpus": 4})
    after = replace(job, strategy="zero3", offload="optimizer")
    patch = write_change(understood, [path], job, after, {"gpus": 4})
    assert json.loads(patch.after[zero])["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
    }
    assert patch.left == {}


def test_what_no_file_can_say_is_left_for_flags(tmp_path: Path) -> None:
    _, _, patch = changed(tmp_path, "factory.yaml", alloc_conf="expandable_segments:True")
    assert patch.left == {"alloc-conf": "expandable_segments:True"}
    assert patch.after == {}


def test_plan_writes_and_the_estimate_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "factory.yaml"
    path.write_text(FILES["factory.yaml"], encoding="utf-8")
    arguments = ["--from", str(path), "--gpu", "16GiB"]
    assert main(["estimate", *arguments]) == 1
    assert main(["plan", *arguments, "--write", "--keep", "alloc-conf", "--json"]) == 0
    printed = capsys.readouterr().out
    plans = json.loads(printed[printed.index("{\n") :])
    promised = plans["patches"][0]["verdict_without_flags"] or plans["plans"][0]["peak"]
    assert main(["estimate", *arguments, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["process_bytes"] == promised["process_bytes"]
    assert path.read_text(encoding="utf-8").startswith(
        "# my run\nmodel_name_or_path: qwen2.5-0.5b   # small\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["factory.yaml"]
