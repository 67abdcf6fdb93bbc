"""Phases of reinforcement learning on the training cards: what lies around the update, and what waits where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.engine import estimate
from vramcast.engine.serving.estimate import estimate_serving
from vramcast.forecast import Forecast
from vramcast.job import Job, Precision, job_from
from vramcast.ledger import CRITIC, NEXT_STEP, ROLLOUT, SCORE, SYNC, Category

CUDA = "cuda:0"


def rl(**said: Any) -> Forecast:
    plain = {"model": "qwen2.5-0.5b", "gpus": 4, "strategy": "fsdp2", "seq": 512, "gpu": "24GiB"}
    named = {name.replace("_", "-"): value for name, value in {**plain, **said}.items()}
    return estimate(job_from(named), with_scaling=False)


def held(forecast: Forecast, phase: str, *categories: Category) -> int:
    alive = forecast.ledger.alive(phase, CUDA)
    return sum(entry.nbytes for entry in alive if not categories or entry.category in categories)


def test_update_is_what_it_is_without_phases_around_it() -> None:
    plain, around = rl(), rl(rollout_tokens=256)
    assert held(around, NEXT_STEP) == held(plain, NEXT_STEP)
    assert {ROLLOUT, SCORE} <= set(around.ledger.phases(CUDA))


def test_engine_takes_its_share_while_it_generates() -> None:
    """Everything that vLLM fills is its share of the card; CUDA graphs come beside it for this runner."""
    forecast = rl(rollout_engine="vllm", rollout_share=0.4, rollout_sleep=True, framework="verl")
    job = Job(
        model="qwen2.5-0.5b",
        gpu="24GiB",
        engine="vllm",
        gpu_memory_utilization=0.4,
        max_model_len=512,
        max_num_batched_tokens=8192,
        precision=Precision.BF16_TRUE,
    )
    served = estimate_serving(job).served
    assert served is not None
    of_engine = sum(
        entry.nbytes
        for entry in forecast.ledger.alive(ROLLOUT, CUDA)
        if entry.component.startswith("vllm: ") and "graphs" not in entry.component
    )
    assert of_engine == pytest.approx(served.budget_bytes, abs=2**20)
    assert [
        e for e in forecast.ledger.alive(NEXT_STEP, CUDA) if e.component.startswith("vllm: ")
    ] == []


def test_engine_that_stays_awake_is_there_in_the_update() -> None:
    asleep, awake = (
        rl(rollout_engine="vllm", rollout_share=0.4, rollout_sleep=sleep) for sleep in (True, False)
    )
    assert held(awake, NEXT_STEP) - held(asleep, NEXT_STEP) > 8 * 2**30
    assert held(awake, ROLLOUT) == held(asleep, ROLLOUT)


def test_offloaded_states_wait_in_cpu_memory() -> None:
    stays, waits = (
        rl(rollout_engine="vllm", rollout_share=0.3, rollout_offload=kind)
        for kind in ("none", "all")
    )
    states = (Category.WEIGHTS, Category.OPTIMIZER)
    moved = held(stays, ROLLOUT, *states)
    assert moved > 0
    assert held(waits, ROLLOUT, *states) == 0
    assert held(stays, ROLLOUT) - held(waits, ROLLOUT) == moved
    assert held(waits, NEXT_STEP) == held(stays, NEXT_STEP)
    on_host = [
        entry.nbytes
        for entry in waits.ledger.entries
        if entry.component.startswith("weights and states that wait")
    ]
    assert on_host == [4 * moved]


def test_critic_has_states_of_its_own_and_an_update_of_its_own() -> None:
    alone, both = rl(), rl(critic="same")
    critic = sum(
        entry.nbytes
        for entry in both.ledger.alive(NEXT_STEP, CUDA)
        if entry.component.startswith("critic: ")
    )
    assert held(both, NEXT_STEP) - held(alone, NEXT_STEP) == critic
    # fp32 weights and two Adam states of 494 M parameters without the tied head, over 4 ranks
    assert critic == pytest.approx(494_032_768 * 12 / 4, rel=0.01)
    assert held(both, CRITIC) > critic


def test_generate_under_zero3_gathers_the_model() -> None:
    forecast = rl(strategy="zero3", rollout_tokens=256, task="grpo")
    gathered = [
        entry.nbytes
        for entry in forecast.ledger.alive(ROLLOUT, CUDA)
        if entry.component == "gathered weights for generate()"
    ]
    assert gathered == [494_032_768 * 2]
    whole = rl(strategy="ddp", rollout_tokens=256)
    assert [
        e for e in whole.ledger.alive(ROLLOUT, CUDA) if "gathered weights for" in e.component
    ] == []


def test_weights_go_to_the_engine_in_a_phase_of_their_own() -> None:
    forecast = rl(rollout_engine="vllm", rollout_share=0.4, rollout_offload="all")
    assert held(forecast, SYNC, Category.WEIGHTS) > 0
    assert held(forecast, SYNC, Category.OPTIMIZER) == held(forecast, SYNC, Category.CACHE) == 0


def test_engine_without_room_is_said_so() -> None:
    forecast = rl(model="qwen2.5-7b", gpus=2, rollout_engine="vllm", rollout_share=0.6)
    assert any("rollout engine would not start: Free memory" in note for note in forecast.notes)


VERL = """
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=gae \\
    data.max_prompt_length=256 data.max_response_length=256 \\
    actor_rollout_ref.model.path=qwen2.5-0.5b \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \\
    critic.model.path=qwen2.5-0.5b \\
    trainer.n_gpus_per_node=4 trainer.nnodes=1
"""
OPENRLHF = """
deepspeed --module openrlhf.cli.train_ppo_ray \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 4 \\
   --pretrain qwen2.5-0.5b --critic_pretrain qwen2.5-0.5b --colocate_all_models \\
   --vllm_gpu_memory_utilization 0.5 --vllm_enable_sleep --deepspeed_enable_sleep \\
   --prompt_max_len 256 --generate_max_len 256 --micro_train_batch_size 2 --zero_stage 3 --bf16
"""


@pytest.mark.parametrize("script", [VERL, OPENRLHF])
def test_launch_scripts_get_an_answer(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script, encoding="utf-8")
    assert main(["estimate", "--from", str(path), "--gpu", "24GiB", "-v"]) == 0
    printed = capsys.readouterr().out
    for words in ("rollout engine's cache holds", "critic update", "weight sync"):
        assert words in printed
    assert main(["estimate", "--from", str(path)]) == 0
    assert "the rollout engine is not counted: it fills a share" in capsys.readouterr().out
    assert main(["plan", "--from", str(path), "--gpu", "24GiB"]) == 0


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_trl_generates_here_or_elsewhere(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nnum_generations: 8\nper_device_train_batch_size: 4\n"
        f"max_prompt_length: 256\nmax_completion_length: 256\nuse_vllm: true\nvllm_mode: {mode}\n"
        "vllm_gpu_memory_utilization: 0.3\nbf16: true\n",
        encoding="utf-8",
    )
    assert main(["estimate", "--from", str(path), "--gpu", "24GiB", "-v"]) == 0
    printed = capsys.readouterr().out
    assert ("rollout engine's cache holds" in printed) is (mode == "colocate")
    assert ("generated on other cards" in printed) is (mode == "server")
    assert "not counted" not in printed


def test_the_task_is_printed_as_the_user_said_it() -> None:
    """The update is computed as fine-tuning on what was generated, which nobody asked for."""
    said = {"model": "qwen2.5-0.5b", "framework": "verl", "task": "grpo", "gpu": "h100", "gpus": 2}
    texts = estimate(job_from(said)).assumptions
    assert any(text.startswith("task grpo: Qwen2ForCausalLM; ") for text in texts)
    assert not any("task sft" in text for text in texts)
