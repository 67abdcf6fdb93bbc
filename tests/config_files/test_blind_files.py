"""What public files said that was misread at first sight, expressed by hand and written anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.configs import Understood, job_of_files, understand, write_change
from vramcast.errors import VramcastError
from vramcast.job import Job

AXOLOTL = "base_model: qwen2.5-0.5b\nsequence_len: 512\nmicro_batch_size: 2\nbf16: true\n"
FACTORY = (
    "model_name_or_path: qwen2.5-0.5b\nstage: sft\ndo_train: true\noutput_dir: out\ncutoff_len: 512\n"
    "per_device_train_batch_size: 1\n"
)
TRL = "model_name_or_path: qwen2.5-0.5b\nper_device_train_batch_size: 1\nmax_length: 512\nbf16: true\n"
LITGPT = "checkpoint_dir: checkpoints/microsoft/phi-2\ntrain:\n  micro_batch_size: 2\n  global_batch_size: 8\n"
ADAPTED = "adapter: lora\nlora_r: 8\nlora_target_linear: true\nlora_modules_to_save: [lm_head]\n"


def _read(path: Path, text: str, **flags: Any) -> tuple[Job, Understood]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return job_of_files(understand([path], model=flags.get("model")), flags)


def _told(understood: Understood) -> str:
    return " | ".join(map(str, (*understood.gaps, *understood.assumptions)))


def test_a_folder_that_is_called_as_the_model_is_not_the_model(tmp_path: Path) -> None:
    path = tmp_path / "finetune" / "phi-2" / "full.yaml"
    job, _ = _read(path, LITGPT + "  max_seq_length: 512\n")
    assert job.model == "phi-2"


@pytest.mark.parametrize(("more", "length"), [("  max_tokens: 1000\n", 2048), ("", None)])
def test_litgpt_fills_rows_to_the_block_size_where_it_pretrains(
    tmp_path: Path, more: str, length: int | None
) -> None:
    _, understood = _read(tmp_path / "a.yaml", LITGPT + more)
    assert understood.values.get("seq") == length
    assert ("max_seq_length is not set" in _told(understood)) == (length is None)


def test_a_completion_beside_a_length_is_of_a_trainer_of_pairs(tmp_path: Path) -> None:
    text = TRL + "beta: 0.1\nmax_completion_length: 400\nmax_prompt_length: 200\n"
    job, _ = _read(tmp_path / "orpo_lora.yaml", text)
    assert (job.task, job.seq) == ("orpo", 512)
    without = text.replace("max_length: 512\n", "")
    assert _read(tmp_path / "b.yaml", without)[0].task == "grpo"


def test_blocks_that_fsdp_checkpoints_are_checkpointed(tmp_path: Path) -> None:
    said = "gradient_checkpointing: false\n"
    fsdp = "fsdp_version: 2\ndp_shard_size: 2\nfsdp_config:\n  activation_checkpointing: true\n"
    job, understood = _read(tmp_path / "a.yml", AXOLOTL + said + fsdp)
    assert (job.checkpointing, job.strategy, job.gpus) == ("full", "fsdp2", 2)
    assert "holds, not" not in _told(understood)
    accelerate = (
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_activation_checkpointing: true\n"
    )
    (tmp_path / "acc.yaml").write_text(accelerate)
    (tmp_path / "trl.yaml").write_text(TRL + said + "packing: false\n")
    job, understood = job_of_files(understand([tmp_path / "trl.yaml", tmp_path / "acc.yaml"]), {})
    assert job.checkpointing == "full"
    assert "holds, not" not in _told(understood)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yml", AXOLOTL + ADAPTED),
        ("b.yaml", FACTORY + "lora_rank: 8\nadditional_target: lm_head\n"),
        (
            "c.sh",
            "swift sft --model qwen2.5-0.5b --train_type lora --max_length 512 --modules_to_save lm_head\n",
        ),
    ],
)
def test_modules_trained_beside_adapters_are_counted_on_one_card(
    tmp_path: Path, name: str, text: str
) -> None:
    job, understood = _read(tmp_path / name, text)
    assert job.modules_to_save == ("lm_head",)
    assert not understood.gaps
    job, understood = _read(tmp_path / name, text, gpu="2xh100")
    assert job.modules_to_save == ()
    assert "modules trained in full beside the adapters are not counted" in _told(understood)


def test_both_words_for_bf16_mean_the_purer(tmp_path: Path) -> None:
    text = FACTORY + "finetuning_type: full\nbf16: true\npure_bf16: true\n"
    job, understood = _read(tmp_path / "a.yaml", text)
    assert job.precision == "bf16-true"
    assert not understood.gaps


def test_a_stage_and_a_row_of_tokens_in_flags(tmp_path: Path) -> None:
    text = (
        "python loops/grpo_fast.py --model_name_or_path qwen2.5-0.5b --output_dir out --beta 0.01 "
        "--per_device_train_batch_size 4 --pack_length 4096 --deepspeed_stage 3 --num_train_epochs 1\n"
    )
    job, _ = _read(tmp_path / "a.sh", text)
    assert (job.strategy, job.batch, job.seq) == ("zero3", 1, 4096)


@pytest.mark.parametrize(
    "key", ["deepspeed_mode", "max_answer_length", "response_length", "pack_len"]
)
def test_lengths_and_deepspeed_matter_where_nobody_knows_them(tmp_path: Path, key: str) -> None:
    _, understood = _read(tmp_path / "a.yaml", f"{TRL}packing: false\n{key}: 3000\n")
    assert key in {gap.record.key for gap in understood.gaps if gap.record}


def test_ppo_in_one_program_has_all_models_on_every_card(tmp_path: Path) -> None:
    line = (
        "--pretrain qwen2.5-1.5b --reward_pretrain qwen2.5-0.5b --micro_train_batch_size 2 "
        "--prompt_max_len 256 --generate_max_len 256 --zero_stage 2 --remote_rm_url http://here\n"
    )
    job, _ = _read(tmp_path / "a.sh", f"deepspeed --module openrlhf.cli.train_ppo {line}")
    assert (job.critic, job.critic_model, job.reference) == ("same", "qwen2.5-0.5b", "same")
    job, _ = _read(tmp_path / "b.sh", f"python -m openrlhf.cli.train_ppo_ray {line}")
    assert (job.critic, job.reference) == ("none", "none")


def test_what_is_missing_of_the_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    inherits = "defaults: ../base.yaml\npolicy:\n  train_micro_batch_size: 2\n  max_total_sequence_length: 512\n"
    with pytest.raises(VramcastError, match=r"inherits from is not here: give it as well\): give"):
        _read(tmp_path / "in" / "a.yaml", inherits)
    with pytest.raises(VramcastError, match=r"which model \(.*base_model"):
        _read(tmp_path / "b.yml", AXOLOTL.replace("qwen2.5-0.5b", "$BASE"))


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("gradient_checkpointing: unsloth", "checkpointing", "offload"),
        ("disable_flash_attn2: false", "attention", "flash"),
        ("disable_flash_attn2: true", "attention", "sdpa"),
    ],
)
def test_switches_of_scripts_of_their_own(tmp_path: Path, line: str, key: str, value: str) -> None:
    job, understood = _read(tmp_path / "a.yaml", f"{TRL}packing: false\n{line}\n")
    assert getattr(job, key) == value
    assert not understood.unknown


def test_what_generates_with_torchtune_trains_nothing(tmp_path: Path) -> None:
    text = (
        "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\n"
        "checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n"
        "dtype: bf16\nprompt:\n  user: Hello\nmax_new_tokens: 300\nbatch_size: 1\n"
    )
    with pytest.raises(VramcastError, match="trains nothing"):
        _read(tmp_path / "generation.yaml", text)


def test_what_predicts_trains_nothing(tmp_path: Path) -> None:
    text = FACTORY.replace("do_train: true", "do_predict: true")
    with pytest.raises(VramcastError, match="do_predict without do_train; the file trains nothing"):
        _read(tmp_path / "a.yaml", text)


def test_what_merges_models_is_not_taken_for_a_training(tmp_path: Path) -> None:
    text = (
        "merge_method: linear\nbase_model: qwen2.5-0.5b\nmodels:\n  - model: a\ndtype: bfloat16\n"
    )
    with pytest.raises(VramcastError, match="no framework's configuration is recognised"):
        _read(tmp_path / "merge.yml", text)


def test_the_length_of_a_tokenizer_is_that_of_samples(tmp_path: Path) -> None:
    text = """
tokenizer.model_max_length = 640
model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b")
TrainingArguments(output_dir="out", per_device_train_batch_size=2)
"""
    assert _read(tmp_path / "a.py", text)[0].seq == 640


def test_llm_foundry_accumulates_what_the_global_batch_leaves(tmp_path: Path) -> None:
    text = (
        "max_seq_len: 512\nmodel:\n  name: hf_causal_lm\n  pretrained_model_name_or_path: qwen2.5-0.5b\n"
        "device_train_microbatch_size: 2\nglobal_train_batch_size: 64\nmax_duration: 1ep\nprecision: amp_bf16\n"
    )
    job, _ = _read(tmp_path / "a.yaml", text, gpus=8, strategy="ddp")
    assert job.accumulate == 4


def test_nemo_rl_checkpoints_in_its_own_words(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    text = (
        "policy:\n  model_name: qwen2.5-0.5b\n  train_micro_batch_size: 2  # of each GPU\n"
        "  max_total_sequence_length: 512\n  precision: bfloat16\n  sequence_packing:\n    enabled: false\n"
        "  dtensor_cfg:\n    enabled: true\n    activation_checkpointing: false\n"
    )
    job, understood = _read(path, text)
    patch = write_change(understood, [path], job, replace(job, checkpointing="full"), {})
    assert "+    activation_checkpointing: true" in patch.diff()
    assert not patch.left


def test_what_the_reader_found_by_itself_is_shown_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    text = "\nopenrlhf --x\npython -m openrlhf.cli.train_rm --pretrain qwen2.5-0.5b --max_len 512\n"
    _, understood = _read(path, text)
    assert understood.said["task"].origin == f"{path}:3 rm"


def test_the_command_of_accelerate_wins_over_its_file(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    flags = "--per_device_train_batch_size 1 --output_dir out --model_max_length 512 --bf16 True"
    line = f"accelerate launch --config_file acc.yaml --num_processes 4 t.py --model_name_or_path gpt2 {flags}\n"
    job, understood = _read(tmp_path / "run.sh", line)
    assert job.gpus == 4
    assert "holds, not" not in _told(understood)
