"""Ways of saying things that public files showed which nobody had looked at before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.configs import Understood, job_of_files, understand
from vramcast.job import Job

HF = "--per_device_train_batch_size 2 --output_dir out --model_max_length 512 --bf16 True"
QWEN = "--model_name_or_path Qwen/Qwen2.5-0.5B"


def _read(path: Path, text: str, **flags: Any) -> tuple[Job, Understood]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return job_of_files(understand([path], model=flags.get("model")), flags)


def test_a_substitution_with_brackets_is_one_word(tmp_path: Path) -> None:
    text = (
        "GPUS=$(python -c 'import torch; print(torch.cuda.device_count())')\n"
        'ARGS="--nproc_per_node $GPUS --nnodes 2 --master_port 6001"\n'
        f"torchrun $ARGS finetune.py {QWEN} {HF}\n"
    )
    job, understood = _read(tmp_path / "run.sh", text)
    assert job.batch == 2
    assert {record.key for record in understood.unknown}.isdisjoint({"nnodes", "master_port"})
    assert any("nproc_per_node" in str(gap) for gap in understood.gaps)


@pytest.mark.parametrize("named", ["train/ds.json", "./train/ds.json", "$HERE/ds.json"])
def test_a_path_from_above_or_from_the_script_s_folder(tmp_path: Path, named: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    text = (
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
        f"deepspeed train.py {QWEN} {HF} --deepspeed {named}\n"
    )
    job, understood = _read(tmp_path / "train" / "run.sh", text, gpus=2)
    assert job.strategy == "zero1"
    assert not understood.gaps


def test_a_path_from_above_leads_no_further_than_the_given_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    text = f"deepspeed train.py {QWEN} {HF} --deepspeed other/ds.json\n"
    job, understood = _read(tmp_path / "train" / "run.sh", text, gpus=2)
    assert job.strategy != "zero3"
    assert any("is not here" in str(gap) for gap in understood.gaps)


def test_a_folder_that_only_a_variable_knows(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 1 train.py --model_name_or_path $MODELS/Qwen2.5-0.5B {HF}\n"
    job, understood = _read(tmp_path / "run.sh", text)
    assert job.model == "Qwen2.5-0.5B"
    assert any("the folder is not in the files" in text for text in understood.assumptions)


def test_a_deepspeed_file_stands_in_for_a_variable(tmp_path: Path) -> None:
    run, config = tmp_path / "run.sh", tmp_path / "ds.json"
    run.write_text(f"deepspeed train.py {QWEN} {HF} --deepspeed $CONFIG\n")
    config.write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}))
    job, understood = job_of_files(understand([run, config]), {"gpus": 2})
    assert job.strategy == "zero2"
    assert not understood.gaps


def test_a_projector_trained_alone_is_named(tmp_path: Path) -> None:
    text = f"deepspeed train.py {QWEN} {HF} --tune_mm_mlp_adapter True\n"
    _, understood = _read(tmp_path / "run.sh", text)
    assert any("only the projector is trained" in str(gap) for gap in understood.gaps)


def test_lisa_is_named(tmp_path: Path) -> None:
    _, understood = _read(
        tmp_path / "run.sh", f"accelerate launch finetune.py {QWEN} {HF} --use_lisa 1\n"
    )
    assert any("LISA" in str(gap) for gap in understood.gaps)


def test_a_reference_model_makes_it_preferences(tmp_path: Path) -> None:
    text = (
        f"accelerate launch align.py {QWEN} --reference_model_name_or_path Qwen/Qwen2.5-0.5B --max_prompt_length 512 "
        "--per_device_train_batch_size 1 --bf16 True --output_dir out\n"
    )
    job, _ = _read(tmp_path / "run.sh", text)
    assert (job.task, job.reference) == ("dpo", "same")


def test_the_trainer_s_fp16_without_a_dtype(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 1 train.py {QWEN} {HF.replace('--bf16', '--fp16')}\n"
    assert _read(tmp_path / "run.sh", text)[0].precision == "fp16-autocast"
    (tmp_path / "requirements.txt").write_text("transformers==4.44.0\n")
    assert _read(tmp_path / "run.sh", text)[0].precision == "fp16-mixed"


def test_the_checkpoint_s_dtype_is_that_of_the_model_that_a_flag_names(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: somebody/unheard-of\ntorch_dtype: auto\nbf16: true\ndataset_mixer: {}\n"
        "use_peft: true\nlora_r: 8\nper_device_train_batch_size: 1\n"
    )
    job, understood = _read(tmp_path / "sft.yaml", text, model="gpt2")
    assert job.precision == "bf16-mixed"  # stored in fp32
    _, unknown = _read(tmp_path / "sft.yaml", text)
    assert unknown.values["precision"] == "bf16-autocast"
    assert any("dtype is not known" in text for text in unknown.assumptions)
    assert not any("dtype is not known" in text for text in understood.assumptions)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("from transformers import *\nm = AutoModelForMaskedLM.from_pretrained('bert-base-uncased')\n"
         "a = TrainingArguments(per_device_train_batch_size=4)\n", "pretrain"),
        ("from transformers import *\nm = AutoModelForSequenceClassification.from_pretrained('bert-base-uncased')\n"
         "a = TrainingArguments(per_device_train_batch_size=4)\n", "classify"),
        ("from transformers import *\nm = AutoModelForCausalLM.from_pretrained('gpt2')\n"
         "a = TrainingArguments(per_device_train_batch_size=4)\n", None),
    ],
)  # fmt: skip
def test_the_class_that_is_loaded_says_the_head(
    tmp_path: Path, text: str, task: str | None
) -> None:
    assert _read(tmp_path / "train.py", text)[0].task == task


@pytest.mark.parametrize(
    ("script", "task"), [("run_mlm.py", "pretrain"), ("run_glue.py", "classify")]
)
def test_the_script_s_name_says_the_head(tmp_path: Path, script: str, task: str) -> None:
    text = f"torchrun --nproc_per_node 2 {script} --model_name_or_path roberta-base {HF}\n"
    assert _read(tmp_path / "run.sh", text)[0].task == task


def test_a_tokenizer_call_says_how_long_samples_are(tmp_path: Path) -> None:
    text = (
        "from transformers import *\nlimit = 320\nm = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "def cut(text):\n    return tokenizer(text, truncation=True, max_length=limit)\n"
        "a = TrainingArguments(per_device_train_batch_size=4)\n"
    )
    assert _read(tmp_path / "train.py", text)[0].seq == 320


def test_quantised_weights_are_checkpointed_where_peft_prepares_them(tmp_path: Path) -> None:
    text = (
        "from transformers import *\nfrom peft import *\n"
        "m = AutoModelForCausalLM.from_pretrained('gpt2', load_in_8bit=True, torch_dtype=torch.float16)\n"
        "PREPARED\nc = LoraConfig(r=8, target_modules=['c_attn'])\n"
        "a = TrainingArguments(per_device_train_batch_size=4)\n"
    )
    plain = _read(tmp_path / "train.py", text.replace("PREPARED", ""))[0]
    assert (plain.checkpointing, plain.precision) == ("none", "fp16-true")
    called = text.replace("PREPARED", "m = prepare_model_for_kbit_training(m)")
    assert _read(tmp_path / "train.py", called)[0].checkpointing == "full"


TUNE = """
ROOT: ./models
MODELS: ${ROOT}/mine
model:
  _component_: torchtune.models.COMPONENT
  lora_rank: 8
  lora_attn_modules: [q_proj, v_proj]
tokenizer:
  _component_: torchtune.models.llama2.llama2_tokenizer
dataset:
  _component_: torchtune.datasets.chat_dataset
  max_seq_len: 1536
checkpointer:
  _component_: torchtune.utils.FullModelHFCheckpointer
  checkpoint_dir: ${MODELS}/step-100
batch_size: 2
dtype: bf16
"""


@pytest.mark.parametrize(
    ("component", "model"),
    [
        ("llama2.qlora_llama2_7b", "llama-2-7b"),
        ("llama3_1.llama3_1_8b", "llama-3.1-8b"),
        ("qwen2_5.lora_qwen2_5_0_5b_base", "qwen2.5-0.5b"),
        ("qwen2.qwen2_1_5b", "qwen2-1.5b"),
        ("gemma.lora_gemma_7b", "gemma-7b"),
    ],
)
def test_torchtune_s_model_is_what_its_function_builds(
    tmp_path: Path, component: str, model: str
) -> None:
    job, _ = _read(tmp_path / "tune.yaml", TUNE.replace("COMPONENT", component))
    assert (job.model, job.seq) == (model, 1536)


def test_nanotron_counts_context_parallel_gpus(tmp_path: Path) -> None:
    text = (
        "tokens: {micro_batch_size: 1, sequence_length: 4096}\nmodel: {dtype: bfloat16}\n"
        "parallelism: {dp: 3, tp: 2, pp: 1, context_parallel_size: 4, tp_mode: REDUCE_SCATTER}\n"
    )
    assert _read(tmp_path / "nano.yaml", text, model="llama-2-7b")[0].gpus == 24


def test_settings_under_mosaicml_s_parameters(tmp_path: Path) -> None:
    text = """
compute: {gpus: 8}
parameters:
  max_seq_len: 2048
  model: {name: hf_causal_lm, pretrained_model_name_or_path: meta-llama/Llama-2-7b-hf}
  device_train_microbatch_size: 2
  train_loader: {name: finetuning}
  max_duration: 1ep
  fsdp_config: {sharding_strategy: FULL_SHARD}
"""
    job, _ = _read(tmp_path / "run.yaml", text)
    assert (job.batch, job.seq, job.gpus, job.strategy) == (2, 2048, 8, "fsdp1")


@pytest.mark.parametrize(("estimator", "critic"), [("gae", "same"), ("reinforce", "none")])
def test_openrlhf_has_a_critic_with_gae_alone(tmp_path: Path, estimator: str, critic: str) -> None:
    text = (
        "python -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --colocate_all_models --vllm_num_engines 8 "
        "--actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_gpu_memory_utilization 0.5 --prompt_max_len 512 "
        f"--generate_max_len 512 --micro_train_batch_size 2 --advantage_estimator {estimator}\n"
    )
    assert _read(tmp_path / "run.sh", text)[0].critic == critic


def test_internvl_s_tiles_and_adapters(tmp_path: Path) -> None:
    text = (
        "torchrun --nproc_per_node 2 internvl/train/internvl_chat_finetune.py --model_name_or_path internvl3-8b "
        "--use_llm_lora 16 --freeze_llm True --freeze_mlp True --freeze_backbone True --grad_checkpoint True "
        "--force_image_size 448 --max_dynamic_patch 6 --down_sample_ratio 0.5 --use_thumbnail True --bf16 True "
        "--per_device_train_batch_size 1 --max_seq_length 4096 --output_dir out\n"
    )
    job, understood = _read(tmp_path / "run.sh", text)
    assert (job.lora_rank, job.checkpointing, job.images, job.image_tokens) == (16, "full", 7, 256)
    assert job.freeze == ("*vision_tower*", "*multi_modal_projector*")
    assert not understood.gaps


@pytest.mark.parametrize(
    ("plugin", "evaluates"),
    [("cut_cross_entropy.CutCrossEntropyPlugin", None), ("liger.LigerPlugin", True)],
)
def test_cut_cross_entropy_makes_no_logits_in_an_evaluation(
    tmp_path: Path, plugin: str, evaluates: bool | None
) -> None:
    text = (
        f"base_model: Qwen/Qwen2.5-0.5B\nplugins:\n  - axolotl.integrations.{plugin}\n"
        f"liger_fused_linear_cross_entropy: {evaluates is True}\n"
        "sequence_len: 512\nmicro_batch_size: 2\nval_set_size: 0.1\nbf16: true\n"
    )
    _, understood = _read(tmp_path / "axolotl.yaml", text)
    assert understood.values["loss"] == "fused"
    assert understood.values.get("evaluate") is evaluates
