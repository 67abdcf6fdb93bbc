"""Launch scripts: words of the shell, launchers, and the frameworks whose users write them. Expressed by hand first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.configs import Understood, job_of_files, understand
from vramcast.configs.shell import read_shell
from vramcast.errors import VramcastError
from vramcast.job import Job


def words_of(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in read_shell(text, "x.sh").commands]


def job_in(folder: Path, text: str, **flags: Any) -> tuple[Job, Understood]:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return job_of_files(understand([path]), flags)


def check(job: Job, **expected: Any) -> None:
    assert {key: getattr(job, key) for key in expected} == expected


# ---- the shell's words; what bash prints for them with `printf '<%s>' …` was written down by hand


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run a 'b c' \"d e\" f\\ g # end\n", [["run", "a", "b c", "d e", "f g"]]),
        ("A=1\nB=$A/2\nrun ${B} ${C:-x} ${A:-y} '$A'\n", [["run", "1/2", "x", "1", "$A"]]),
        ('ARGS="--a 1 --b 2"\nrun $ARGS "$ARGS"\n', [["run", "--a", "1", "--b", "2", "--a 1 --b 2"]]),
        ("L=(--a 1\n  # note\n  --b)\nL+=(--c)\nrun ${L[@]} \"${L[@]}\" ${L[1]}\n",
         [["run", "--a", "1", "--b", "--c", "--a", "1", "--b", "--c", "1"]]),
        ("run a \\\n  b > log 2>&1 | tee x && other &\n", [["run", "a", "b"], ["tee", "x"], ["other"]]),
        ("N=8\nrun $((N * 2 + 1)) $(expr 64 / $N) $(nproc) `id`\n", [["run", "17", "8", "$(nproc)", "`id`"]]),
        ("cat <<EOF > f.json\n{ 'not a command' }\nEOF\nrun\n", [["cat"], ["run"]]),
        ("read -r -d '' CMD <<EOF\nmod --a 1 \\\n  --b\nEOF\nrun $CMD\n", [["run", "mod", "--a", "1", "--b"]]),
        ("for x in 3 4; do\nrun $x\ndone\n", [["run", "3"]]),
        ("if [ -z $Q ]; then Q=5; fi\nX=7 run $Q\n", [["run", "5"]]),
    ],
)  # fmt: skip
def test_words_of_the_shell(text: str, words: list[list[str]]) -> None:
    assert words_of(text) == words


def test_nothing_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    script = f"""
X=$(touch {trap})
Y=`touch {trap}`
touch {trap}
python -c "open('{trap}', 'w')"
swift sft --model qwen2.5-0.5b --max_length 512 --per_device_train_batch_size $(touch {trap}; echo 2)
"""
    job_in(tmp_path, script)
    assert not trap.exists()


def test_variables_that_explode_are_refused(tmp_path: Path) -> None:
    text = "A0=xxxxxxxxxx\n" + "".join(f"A{n + 1}=$A{n}$A{n}$A{n}$A{n}$A{n}\n" for n in range(40))
    with pytest.raises(VramcastError, match="more than"):
        job_in(tmp_path, text)


# ---- frameworks


def test_a_script_in_the_manner_of_llava(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
    )
    script = """#!/bin/bash
deepspeed --num_gpus 4 train_mem.py \\
    --lora_enable True --lora_r 128 --lora_alpha 256 \\
    --deepspeed ./zero3.json \\
    --model_name_or_path qwen2.5-7b \\
    --bf16 True \\
    --per_device_train_batch_size 16 \\
    --gradient_accumulation_steps 1 \\
    --model_max_length 2048 \\
    --gradient_checkpointing True \\
    --learning_rate 2e-4
"""
    job, understood = job_in(tmp_path, script)
    check(
        job, model="qwen2.5-7b", batch=16, seq=2048, lora_rank=128, strategy="zero3", gpus=4, precision="bf16-master",
        checkpointing="full",
    )  # fmt: skip
    assert (understood.gaps, understood.unknown) == ((), ())


def test_ms_swift(tmp_path: Path) -> None:
    script = """
# two cards
nproc_per_node=2
CUDA_VISIBLE_DEVICES=0,1 \\
NPROC_PER_NODE=$nproc_per_node \\
swift sft \\
    --model qwen2.5-7b --tuner_type lora --dataset 'a/b#500' \\
    --torch_dtype bfloat16 --per_device_train_batch_size 1 \\
    --lora_rank 16 --target_modules all-linear --max_length 2048 \\
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) --deepspeed zero2
"""
    job, understood = job_in(tmp_path, script)
    check(
        job, batch=1, seq=2048, lora_rank=16, lora_dropout=0.05, accumulate=8, gpus=2, strategy="zero2",
        precision="bf16-master", checkpointing="full",
    )  # fmt: skip
    assert understood.unknown == ()


def test_megatron(tmp_path: Path) -> None:
    script = """
GPUS_PER_NODE=8
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes 2"
MODEL_ARGS=(--num-layers 32 --hidden-size 4096 --seq-length 4096)
TRAINING_ARGS=(
  --micro-batch-size 2
  --global-batch-size 128
  --bf16
  --use-distributed-optimizer
  --recompute-granularity selective
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} \\
   --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel
"""
    job, understood = job_in(tmp_path, script, model="llama-2-7b")
    check(
        job, framework="megatron", gpus=16, tp=4, pp=2, batch=2, seq=4096, strategy="zero1", precision="megatron-bf16",
        sequence_parallel=True, recompute=("core_attn",), accumulate=32,  # 128 / (2 × 16/(4·2) copies)
    )  # fmt: skip
    assert (understood.gaps, understood.unknown) == ((), ())


def test_pairs_of_ms_swift_on_megatron(tmp_path: Path) -> None:
    script = """
NPROC_PER_NODE=4 megatron rlhf --rlhf_type dpo --model qwen2.5-7b --tuner_type full --max_length 2048 \\
    --micro_batch_size 1 --global_batch_size 8 --tensor_model_parallel_size 2
"""
    job, _ = job_in(tmp_path, script)
    check(
        job, batch=1, task="dpo", gpus=4, tp=2, accumulate=4, reference="same"
    )  # 8 pairs / (1 pair × 2 copies)


def test_tuners_without_a_word_are_counted_as_lora(tmp_path: Path) -> None:
    job, understood = job_in(
        tmp_path, "swift sft --model qwen2.5-7b --tuner_type boft --max_length 512\n"
    )
    check(job, lora_rank=8)
    assert [gap.text for gap in understood.gaps] == ["counted as LoRA"]


def test_openrlhf_pairs(tmp_path: Path) -> None:
    script = """
deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo \\
   --pretrain llama-3.1-8b --micro_train_batch_size 1 --train_batch_size 256 --bf16 --max_len 8192 \\
   --zero_stage 3 --adam_offload --ref_offload --gradient_checkpointing --attn_implementation flash_attention_2 \\
   --chosen_key chosen --rejected_key rejected
"""
    job, understood = job_in(tmp_path, script)
    check(
        job,
        batch=1,
        task="dpo",
        seq=8192,
        strategy="zero3",
        offload="optimizer",
        reference="cpu",
        attention="flash",
        gpus=8,
    )
    check(job, accumulate=32)  # 256 pairs / (1 pair × 8 GPUs)
    assert (understood.gaps, understood.unknown) == ((), ())


def test_verl_overrides(tmp_path: Path) -> None:
    script = """
set -x
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=qwen2.5-7b \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.ref.fsdp_config.param_offload=True \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1 $@
"""
    job, understood = job_in(tmp_path, script)
    check(
        job,
        batch=4,
        seq=1536,
        strategy="fsdp1",
        gpus=8,
        precision="bf16-mixed",
        reference="cpu",
        checkpointing="full",
        rollout_engine="vllm",
        rollout_share=0.6,
        rollout_tp=2,
        rollout_tokens=1024,
        critic="none",
    )
    assert [gap.record.key for gap in understood.gaps if gap.record] == []


def test_a_recipe_behind_accelerate_launch(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: qwen2.5-7b\nmax_length: 4096\nper_device_train_batch_size: 2\nuse_peft: false\n"
    )
    script = "accelerate launch --config_file fsdp.yaml sft.py --config recipe.yaml --per_device_train_batch_size 1\n"
    job, _ = job_in(tmp_path, script)
    check(
        job, model="qwen2.5-7b", batch=1, seq=4096, strategy="fsdp2", gpus=4, precision="bf16-mixed"
    )


def test_a_value_from_outside_is_asked_for(tmp_path: Path) -> None:
    script = "torchrun --nproc_per_node $N train.py --model_name_or_path $MODEL "
    script += "--per_device_train_batch_size ${BATCH}\n"
    with pytest.raises(VramcastError, match="do not say which model"):
        job_in(tmp_path, script)
    job, understood = job_in(tmp_path, script, model="qwen2.5-0.5b", batch=3)
    check(job, batch=3)
    assert {gap.record.key for gap in understood.gaps if gap.record} >= {"nproc_per_node"}


def test_a_script_that_trains_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(VramcastError, match="no command in it that starts a training"):
        job_in(tmp_path, "swift infer --model x\npython eval.py --per_device_train_batch_size 3\n")


# ---- branches: what `bash` takes when the script is started without arguments


BRANCHES = """
AC=${AC:-sel}
SIZE=7B
TP=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP=$2; shift 2;;
  esac
done
if [ $AC = full ]; then
  OPTS="--full"
elif [ "$AC" = sel ] && [ $TP -eq 1 ]; then
  OPTS="--some
    --more"
else
  OPTS="--never"
fi
case "$SIZE" in
  1B|3B) L=10;;
  7?) L=20 ;;
  *) L=30;;
esac
[ -z "$SEQ" ] && SEQ=512
[[ $TP == 1 && -n $Z ]] && TP=7
if [[ $L != 2* ]]; then L=0; else A=5; fi
NOW=$(date "+%d %m")
run="go $OPTS --l $L --s $SEQ --tp $TP --a $A --now $NOW"
eval $run
"""


def test_branches_that_are_taken() -> None:
    words = words_of(BRANCHES)[-1]
    taken = ["--some", "--more", "--l", "20", "--s", "512", "--tp", "1", "--a", "5", "--now"]
    assert words == ["go", *taken, '$(date "+%d %m")']


def test_a_branch_that_only_a_machine_decides_is_said(tmp_path: Path) -> None:
    script = "if [ -f /etc/hosts ]; then B=3; else B=4; fi\n"
    script += "swift sft --model qwen2.5-0.5b --per_device_train_batch_size $B --max_length 512\n"
    job, understood = job_in(tmp_path, script)
    check(job, batch=3)
    assert any("run.sh:1: which branch is taken" in text for text in understood.assumptions)


def test_files_that_a_script_takes_in(tmp_path: Path) -> None:
    """Beside it they are read; elsewhere they are not opened, and that is said."""
    (tmp_path / "env.sh").write_text("LEN=768\n")
    script = "source ./env.sh\n. /etc/profile\n"
    script += "swift sft --model qwen2.5-0.5b --max_length $LEN\n"
    job, understood = job_in(tmp_path, script)
    check(job, seq=768)
    assert any(
        "takes in /etc/profile, which is not read" in text for text in understood.assumptions
    )


def test_completions_that_nobody_counts_are_named(tmp_path: Path) -> None:
    """By vLLM, or on many GPUs: the step is answered, on prompt and completion."""
    script = """NPROC_PER_NODE={gpus} swift rlhf --rlhf_type grpo --model qwen2.5-0.5b --max_length 1000 --beta 0 \\
    --max_completion_length 500 {vllm}
"""
    job, understood = job_in(tmp_path, script.format(gpus=4, vllm=""))
    check(job, task=None, seq=1500, prompt_tokens=1000, rollout_tokens=None, gpus=4)
    assert any("completions generated on many GPUs" in str(gap) for gap in understood.gaps)
    job, understood = job_in(
        tmp_path, script.format(gpus=1, vllm="--use_vllm true --vllm_gpu_memory_utilization 0.4")
    )
    check(job, task=None, seq=1500, prompt_tokens=1000)
    assert any("vLLM holds" in str(gap) for gap in understood.gaps)
    job, _ = job_in(tmp_path, script.format(gpus=1, vllm=""))
    check(job, task="grpo", seq=1500, rollout_tokens=500)


def test_a_reference_across_pipeline_stages_is_named(tmp_path: Path) -> None:
    script = "NPROC_PER_NODE=4 megatron rlhf --rlhf_type dpo --model qwen2.5-7b --max_length 512 "
    job, understood = job_in(tmp_path, script + "--pipeline_model_parallel_size 2\n")
    check(job, task="dpo", pp=2, reference="none")
    assert any("reference across pipeline stages" in str(gap) for gap in understood.gaps)
