"""Variables of shell scripts and names of Python scripts that stand for a value which is in the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.configs import Understood, job_of_files, understand, write_change
from vramcast.configs.python_values import ON_NEW_CARD, WITHOUT_ARGUMENTS, WITHOUT_ENVIRONMENT
from vramcast.errors import VramcastError
from vramcast.job import Job
from vramcast.report.words.sentences import translate

HF = "--per_device_train_batch_size 2 --output_dir out --model_max_length 512 --bf16 True"
QWEN = "--model_name_or_path Qwen/Qwen2.5-0.5B"
MEGATRON = (
    "--tensor-model-parallel-size 1 --micro-batch-size 4 --seq-length 512 --train-iters 9 --bf16"
)


def _read(path: Path, text: str, **flags: Any) -> tuple[Job, Understood]:
    path.write_text(text, encoding="utf-8")
    return job_of_files(understand([path], model=flags.get("model")), flags)


# ---- shell


def test_a_default_that_is_assigned_where_it_stands(tmp_path: Path) -> None:
    text = (
        ': "${MODEL:=Qwen/Qwen2.5-0.5B}"\n'
        ': "${BATCH:=4}"\n'
        ': "${BATCH:=9}"\n'
        "torchrun --nproc_per_node 1 train.py --model_name_or_path $MODEL --output_dir out "
        '--per_device_train_batch_size "${BATCH}" --model_max_length ${LEN:=512} --bf16 True\n'
    )
    job, understood = _read(tmp_path / "run.sh", text)
    assert (job.model, job.batch, job.seq) == ("Qwen/Qwen2.5-0.5B", 4, 512)
    after = replace(job, batch=2)
    patch = write_change(understood, [tmp_path / "run.sh"], job, after, {})
    assert '+: "${BATCH:=2}"' in patch.diff()


def test_a_default_in_a_branch_that_is_not_taken_is_not_assigned(tmp_path: Path) -> None:
    text = f'if [ 1 = 2 ]; then : "${{B:=9}}"; fi\ntorchrun train.py {QWEN} {HF} --seed ${{B:-3}}\n'
    _, understood = _read(tmp_path / "run.sh", text)
    assert understood.parts[0].settings.records["seed"].value == 3


@pytest.mark.parametrize(
    ("written", "value"),
    [("${LEN:?say it}", 1024), ("${LEN:+256}", 256), ("${NONE:+256} 128", 128)],
)
def test_a_variable_that_must_be_set_and_one_that_switches(
    tmp_path: Path, written: str, value: int
) -> None:
    text = (
        "LEN=1024\ntorchrun train.py --model_name_or_path qwen2.5-0.5b --output_dir out "
        f"--per_device_train_batch_size 2 --bf16 True --model_max_length {written}\n"
    )
    assert _read(tmp_path / "run.sh", text)[0].seq == value


def test_an_empty_variable_is_no_word(tmp_path: Path) -> None:
    text = f'PAD=""\nFREEZE=\ntorchrun train.py {QWEN} {HF} --gradient_checkpointing $PAD ${{FREEZE}}\n'
    assert _read(tmp_path / "run.sh", text)[0].checkpointing == "full"


@pytest.mark.parametrize("how", ['eval "$CMD"', "eval $CMD", 'eval "${CMD} 2>&1 | tee log.txt"'])
def test_a_command_in_a_variable(tmp_path: Path, how: str) -> None:
    text = f'ARGS="{MEGATRON}"\nCMD="torchrun --nproc_per_node 2 pretrain_gpt.py $ARGS"\n{how}\n'
    job, understood = _read(tmp_path / "run.sh", text, model="qwen2.5-0.5b")
    assert (job.batch, job.seq, job.gpus) == (4, 512, 2)
    assert not understood.unknown


def test_words_of_a_here_document_keep_their_lines_and_are_changed_there(tmp_path: Path) -> None:
    text = (
        "read -r -d '' commands <<EOF\nopenrlhf.cli.train_sft \\\n   --pretrain qwen2.5-0.5b \\\n"
        "   --micro_train_batch_size 4 \\\n   --max_len 512\nEOF\ndeepspeed --module $commands\n"
    )
    job, understood = _read(tmp_path / "run.sh", text)
    assert understood.said["batch"].origin == f"{tmp_path / 'run.sh'}:4 micro_train_batch_size"
    after = replace(job, batch=2)
    patch = write_change(understood, [tmp_path / "run.sh"], job, after, {})
    assert "+   --micro_train_batch_size 2 \\" in patch.diff()


def test_what_a_queue_starts_stands_behind_the_bar(tmp_path: Path) -> None:
    text = (
        "uv run queue.py --gpus 8 --cluster here -- \\\nuv run loops/grpo_loop.py --beta 0.01 "
        "--model_name_or_path qwen2.5-0.5b --per_device_train_batch_size 1 --pack_length 4096 "
        "--response_length 2048 --deepspeed_stage 2 --num_generations 4 --output_dir out\n"
    )
    job, understood = _read(tmp_path / "run.sh", text)
    assert (job.strategy, job.batch) == ("zero2", 1)
    assert "gpus" not in {record.key for record in understood.unknown}


@pytest.mark.parametrize(
    "line",
    [
        "python3 -m verl.trainer.main_generation trainer.n_gpus_per_node=2 model.path=qwen2.5-0.5b",
        "tune run generate --config custom.yaml",
    ],
)
def test_what_generates_trains_nothing(tmp_path: Path, line: str) -> None:
    with pytest.raises(VramcastError, match="no command in it that starts a training"):
        _read(tmp_path / "run.sh", line + "\n")


# ---- Python

TRAIN = """
from transformers import AutoModelForCausalLM, TrainingArguments
model = AutoModelForCausalLM.from_pretrained({model})
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size={batch}, bf16={bf16})
"""


def _train(model: str = '"qwen2.5-0.5b"', batch: str = "2", bf16: str = "True") -> str:
    return TRAIN.format(model=model, batch=batch, bf16=bf16)


def test_options_have_their_defaults(tmp_path: Path) -> None:
    text = (
        "import argparse\nBATCH = 6\n\ndef main():\n    parser = argparse.ArgumentParser()\n"
        '    parser.add_argument("--model_name", "-m", default="qwen2.5-0.5b")\n'
        '    parser.add_argument("--batch-size", type=int, default=BATCH)\n'
        '    parser.add_argument("--bf16", action="store_true")\n'
        "    args = parser.parse_args()\n    batch = args.batch_size\n"
    )
    body = _train("args.model_name", "batch", "args.bf16").replace("\n", "\n    ")
    job, understood = _read(tmp_path / "train.py", text + body)
    assert (job.model, job.batch) == ("qwen2.5-0.5b", 6)
    assert understood.assumptions[0] == f"{tmp_path / 'train.py'} {WITHOUT_ARGUMENTS}"


def test_an_option_without_default_is_asked_for(tmp_path: Path) -> None:
    text = 'parser.add_argument("--batch", type=int, required=True)\nargs = parser.parse_args()\n'
    _, understood = _read(tmp_path / "train.py", text + _train(batch="args.batch"))
    assert any("its value is not in the files" in str(gap) for gap in understood.gaps)


@pytest.mark.parametrize(
    ("before", "batch"),
    [
        ("class Settings:\n    batch: int = 6\ncfg = Settings()\n", "cfg.batch"),
        ("class Settings:\n    batch = 3\ncfg = Settings(batch=6)\n", "cfg.batch"),
        ("class Settings:\n    batch = 6\n", "Settings.batch"),
        ('CONFIG = {"batch": 6}\n', 'CONFIG["batch"]'),
        ("CONFIG = dict(size=6)\n", 'CONFIG.get("size", 2)'),
        ("CONFIG = {}\n", 'CONFIG.get("size", 6)'),
        ("import os\n", 'int(os.environ.get("BATCH", "6"))'),
        ("import os\n", 'int(os.getenv("BATCH", 6))'),
        ("a, b = 6, 7\n", "a"),
        ("a: int = 6\n", "a"),
        ("big = None\n", "big or 6"),
        ("is_big = False\n", "9 if is_big else 6"),
        ("sizes = [2, 6]\n", "sizes[-1]"),
    ],
)
def test_ways_of_naming_a_number(tmp_path: Path, before: str, batch: str) -> None:
    assert _read(tmp_path / "train.py", before + _train(batch=batch))[0].batch == 6


def test_a_name_made_of_names(tmp_path: Path) -> None:
    text = 'size = "0.5b"\nname = f"qwen2.5-{size}"\n'
    assert _read(tmp_path / "train.py", text + _train(model="name"))[0].model == "qwen2.5-0.5b"


def test_the_default_of_a_function_holds_where_nothing_else_is_known(tmp_path: Path) -> None:
    text = "def go(name='qwen2.5-0.5b', batch=6):\n" + _train("name", "batch").replace(
        "\n", "\n    "
    )
    job, understood = _read(tmp_path / "train.py", text)
    assert (job.model, job.batch) == ("qwen2.5-0.5b", 6)
    assert any(
        "gives batch only the default of a function" in each for each in understood.assumptions
    )
    job, _ = _read(tmp_path / "train.py", "batch = read()\n" + text)
    assert job.batch == 8  # transformers' default; the name got something that is not in the file


def test_the_card_is_asked_for_bf16(tmp_path: Path) -> None:
    text = "import torch\nhas_bf16 = torch.cuda.is_bf16_supported()\n"
    job, understood = _read(tmp_path / "train.py", text + _train(bf16="has_bf16"))
    assert "compute" not in {gap.record.key for gap in understood.gaps if gap.record}
    assert not understood.gaps
    assert understood.assumptions == (f"{tmp_path / 'train.py'} {ON_NEW_CARD}",)
    assert job.batch == 2


ADAPTED = """
from peft import LoraConfig
{before}
config = LoraConfig({settings})
"""


def test_arguments_in_a_dictionary(tmp_path: Path) -> None:
    before = (
        'R = 24\nkwargs = {"r": R, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}'
    )
    text = _train() + ADAPTED.format(before=before, settings="**kwargs")
    job, _ = _read(tmp_path / "train.py", text)
    assert (job.lora_rank, job.lora_targets, job.lora_dropout) == (24, ("q_proj", "v_proj"), 0.1)


def test_arguments_that_are_not_in_the_file_are_said(tmp_path: Path) -> None:
    text = _train() + ADAPTED.format(before="from settings import kwargs", settings="**kwargs")
    _, understood = _read(tmp_path / "train.py", text)
    assert any("**kwargs" in str(gap) for gap in understood.gaps)


def test_of_two_trainings_the_last_is_read(tmp_path: Path) -> None:
    text = """
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
SFTTrainer("qwen2.5-0.5b", args=SFTConfig(per_device_train_batch_size=8, packing=True, optim="adafactor"))
DPOTrainer("qwen2.5-0.5b", args=DPOConfig(per_device_train_batch_size=2, max_length=256))
"""
    job, understood = _read(tmp_path / "train.py", text)
    assert (job.task, job.batch, job.seq, job.optimizer) == ("dpo", 2, 256, None)
    assert understood.assumptions[0].endswith("has 2 trainings: the last is read, `DPO`")


def test_a_text_does_not_grow_without_end(tmp_path: Path) -> None:
    lines = ['a = "xxxxxxxxxx"', *(["a = f'{a}{a}'"] * 60), *(["b = a + a", "a = b"] * 60)]
    job, _ = _read(tmp_path / "train.py", "\n".join(lines) + _train())
    assert job.batch == 2


def test_what_is_nested_too_deep_is_not_followed(tmp_path: Path) -> None:
    deep = "+".join(["1"] * 600)
    job, _ = _read(tmp_path / "train.py", f"a = {deep}\n" + _train(batch="6"))
    assert job.batch == 6


@pytest.mark.parametrize(
    "text",
    [WITHOUT_ARGUMENTS, WITHOUT_ENVIRONMENT, ON_NEW_CARD, "gives r only the default of a function"],
)
def test_what_was_assumed_of_python_is_known_in_chinese(text: str) -> None:
    assert translate(f"train.py {text}", "zh") != f"train.py {text}"


@pytest.mark.parametrize(
    "lines",
    [
        ["a = {'x': 1}", *(["a = {'y': a, 'z': a}"] * 60), "LoraConfig(**a)"],
        ["a = [1, 2]", *(["a = [a, a, a, a]"] * 60), "LoraConfig(task_type=a)"],
        ["class S:\n    x = {}", *(["s = S(x=s, y=s)"] * 60), "LoraConfig(r=s)"],
    ],
)
def test_what_holds_itself_many_times_is_not_followed(tmp_path: Path, lines: list[str]) -> None:
    _, understood = _read(tmp_path / "train.py", "\n".join([*lines, _train()]), model="gpt2")
    assert all(len(str(gap)) < 500 for gap in understood.gaps)


@pytest.mark.parametrize("how", ['eval \\"\\$A\\"', 'bash -c \\"\\$A\\"'])
def test_a_command_that_calls_itself_has_an_end(tmp_path: Path, how: str) -> None:
    plain = how.replace("\\", "")
    text = f'A="{how}"\n{plain}\ntorchrun --nproc_per_node 1 train.py {QWEN} {HF}\n'
    assert _read(tmp_path / "run.sh", text)[0].batch == 2


def test_a_new_flag_stands_behind_a_word_that_stands_free(tmp_path: Path) -> None:
    text = (
        "STEPS=9\nswift sft --model Qwen/Qwen2.5-0.5B \\\n  --per_device_train_batch_size 2 \\\n"
        '  --max_length 512 \\\n  --save_steps "$STEPS" \\\n  --seed "${SEED:-42}" \\\n  "$@"\n'
    )
    path = tmp_path / "run.sh"
    job, understood = _read(path, text)
    patch = write_change(
        understood, [path], job, replace(job, loss="fused", kernels=("norm", "rope", "mlp")), {}
    )
    assert not patch.left
    assert "  --max_length 512 \\\n    --use_liger_kernel True" in patch.after[path]
