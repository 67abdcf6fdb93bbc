"""plan, fit and check as users meet them: what they print, write and return."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.job import job_from
from vramcast.jobfile import read_job
from vramcast.plan import search
from vramcast.plan.ranking import MUCH_SLOWER
from vramcast.report.words.plan import MOVES, REASONS

SMALL = ["gpt2", "--batch", "8", "--seq", "512"]


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


# ---- plan


def test_a_plan_is_ranked_explained_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "job.yaml"
    code, out, _ = answered(capsys, "plan", *SMALL, "--gpu", "6GiB", "--write", str(target))
    assert code == 0
    assert out.startswith("DOES NOT FIT")
    assert "plans that fit, cheapest first" in out
    assert "gradient_accumulation_steps" in out or "use_liger_kernel=True" in out
    assert main(["check", str(target)]) == 0
    assert main(["estimate", str(target)]) == 0
    assert read_job(target, {}).gpu == "6GiB"


def test_json_has_what_a_program_needs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answered(capsys, "plan", *SMALL, "--gpu", "6GiB", "--json")
    found = json.loads(out)
    assert code == 0
    for plan in found["plans"]:
        assert plan["fits"]
        assert (
            plan["peak"]["allocated_bytes"]
            <= plan["peak"]["reserved_bytes"]
            <= plan["peak"]["process_bytes"]
        )
        assert plan["changes"]
        assert len(plan["slowdown"]) == 2
    order = ["free", "slower", "changes the training"]
    quick = [plan for plan in found["plans"] if max(plan["slowdown"]) <= MUCH_SLOWER]
    classes = [order.index(plan["class"]) for plan in quick]
    assert classes == sorted(classes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "phi-3-mini --gpu rtx4090 --seq 1024 --batch 2",
        "llama-3.1-8b --gpu rtx4090 --gpus 2 --seq 2048",
        "gpt2 --gpu 4GiB --seq 1024 --batch 8 --mean-seq 400",
    ],
)
def test_the_answer_does_not_depend_on_the_machine(words: str) -> None:
    """On one core and on all, with other hashes, beside a busy neighbour."""
    command = [sys.executable, "-m", "vramcast", "plan", *words.split(), "--json"]
    cores = os.sched_getaffinity(0)
    answers = set()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            for seed, allowed in (("1", cores), ("2", {min(cores)})):
                done = subprocess.run(
                    command,
                    env={**os.environ, "PYTHONHASHSEED": seed},
                    stdout=subprocess.PIPE,
                    check=True,
                    preexec_fn=lambda allowed=allowed: os.sched_setaffinity(0, allowed),
                )
                answers.add(done.stdout)
        finally:
            neighbour.kill()
    assert len(answers) == 1


def test_a_plan_that_needs_a_long_search_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "llama-3.1-70b", "--seq", "512", "--gpu", "rtx3090", "--gpus", "2", "--json")
    code, out, _ = answered(capsys, *words)
    assert code == 0
    assert json.loads(out)["plans"]


def test_a_search_tells_what_it_estimated_and_found() -> None:
    told: list[tuple[int, bool]] = []
    job = job_from({"model": "gpt2", "gpu": "3GiB", "batch": 8, "seq": 1024})
    plans = search.plan(
        job, on_estimate=lambda number, found: told.append((number, found is not None))
    )
    assert [number for number, _ in told] == list(range(1, len(told) + 1))
    assert sum(found for _, found in told) >= len(plans.fitting) > 0


def test_what_must_stay_is_kept_and_slow_plans_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (
        "plan",
        *SMALL,
        "--gpu",
        "4GiB",
        "--json",
        "--keep",
        "optimizer,precision,lora-rank,seq,freeze",
    )
    _, out, _ = answered(capsys, *words, "--max-slowdown", "1.5")
    for plan in json.loads(out)["plans"]:
        assert max(plan["slowdown"]) <= 1.5
        assert (plan["job"]["optimizer"], plan["job"]["precision"]) == ("adamw", "bf16-mixed")
        assert plan["job"]["seq"] == 512


def test_the_global_batch_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = answered(capsys, "plan", *SMALL, "--gpu", "4GiB", "--json", "--global-batch", "64")
    for plan in json.loads(out)["plans"]:
        assert plan["job"]["batch"] * plan["job"]["accumulate"] == 64


@pytest.mark.parametrize(("model", "seq"), [("whisper-tiny", "448"), ("roberta-base", "450")])
def test_lengths_end_with_the_table_of_positions(
    model: str, seq: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decoder's own table, and one with rows that are not positions: the longest sequence is looked for below."""
    code, out, err = answered(
        capsys, "plan", model, "--batch", "16", "--seq", seq, "--gpu", "6GiB", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["reach"]["longest_seq"] == int(seq)


def test_where_nothing_fits_the_smallest_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = answered(capsys, "plan", "gpt2-xl", "--seq", "512", "--gpu", "1GiB")
    assert code == 1
    assert "no fitting setup found; closest:" in out
    target = tmp_path / "job.yaml"
    assert main(["plan", "gpt2-xl", "--seq", "512", "--gpu", "1GiB", "--write", str(target)]) == 2
    assert not target.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--keep", "optimiser"], "unknown job key for --keep 'optimiser'. Did you mean optimizer"),
        (["--max-slowdown", "0"], "above 0"),
        (["--max-slowdown", "nan"], "above 0"),
        (["--global-batch", "9"], "not a multiple of the micro-batch 8"),
        (["--write", "/nowhere/job.yaml"], "cannot be written"),
    ],
)
def test_wrong_limits_are_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = answered(capsys, "plan", *SMALL, "--gpu", "6GiB", *words)
    assert code == 2
    assert said in err


def test_chinese_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = answered(capsys, "plan", *SMALL, "--gpu", "6GiB", "--lang", "zh", "--markdown")
    assert "装得下的方案" in out
    assert "|---" in out
    assert "cheapest first" not in out


def test_every_move_has_words_in_both_languages() -> None:
    from vramcast.plan.cluster import ACROSS
    from vramcast.plan.moves import CHANGES, FREE, SLOWER

    for move in (*FREE, *SLOWER, *CHANGES, *ACROSS):
        assert move.name in MOVES, move.name
        assert move.why in REASONS, move.why


# ---- many GPUs, editing


@pytest.mark.slow
def test_many_gpus_shard_before_they_change_the_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Llama-3.1-8B on two cards of 24 GB: full sharding with offload, or LoRA."""
    words = ("plan", "llama-3.1-8b", "--gpus", "2", "--gpu", "rtx4090", "--seq", "2048", "--json")
    code, out, _ = answered(capsys, *words)
    assert code == 0
    plans = json.loads(out)["plans"]
    found = [{change["name"] for change in plan["changes"]} for plan in plans]
    assert any({"FSDP2", "weights and optimizer states on the host"} <= names for names in found)
    assert any("LoRA" in names for names in found)
    assert all(plan["slowdown"][0] > 0 for plan in plans)
    code, out, _ = answered(capsys, *words, "--max-slowdown", "1.5")
    assert all(max(plan["slowdown"]) <= 1.5 for plan in json.loads(out)["plans"])


def test_the_global_batch_of_many_gpus_counts_all_copies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (
        "plan",
        "gpt2-medium",
        "--batch",
        "4",
        "--seq",
        "512",
        "--gpus",
        "4",
        "--gpu",
        "12GiB",
        "--json",
    )
    _, out, _ = answered(capsys, *words, "--global-batch", "64")
    plans = json.loads(out)["plans"]
    assert plans
    for plan in plans:
        job = plan["job"]
        assert job["batch"] * job["accumulate"] * job["gpus"] // job["tp"] == 64
    assert answered(capsys, *words, "--global-batch", "8")[0] == 2


@pytest.mark.slow
def test_editing_on_two_cards(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen2-VL-7B: the forwards one at a time and the edited layers on the second card."""
    inner = ",".join(
        f"model.language_model.layers.{n}.mlp.{w}_proj"
        for n in (25, 26, 27)
        for w in ("gate", "up")
    )
    words = (
        "qwen2-vl-7b",
        "--edit",
        inner,
        "--precision",
        "bf16-true",
        "--seq",
        "420",
        "--images",
        "1",
    )
    code, out, _ = answered(capsys, "plan", *words, "--gpu", "rtx4090", "--second-gpu", "--json")
    assert code == 0
    assert any(plan["job"]["sub-device"] == "cuda:1" for plan in json.loads(out)["plans"])
    assert all(
        0 < low <= high * 2 for low, high in (plan["slowdown"] for plan in json.loads(out)["plans"])
    )
    code, out, _ = answered(
        capsys,
        "plan",
        *words,
        "--gpu",
        "rtx4090",
        "--second-gpu",
        "--json",
        "--max-slowdown",
        "0.5",
    )
    assert (code, json.loads(out)["plans"]) == (1, [])


# ---- fit


def test_cards_are_listed_by_size_and_the_smallest_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = answered(capsys, "fit", *SMALL, "--framework", "plain", "--json")
    cards = json.loads(out)["cards"]
    assert code == 0
    sizes = [card["capacity_bytes"] for card in cards]
    assert sizes == sorted(sizes)
    for card in cards:
        assert card["fits"] == (card["process_bytes"] <= card["capacity_bytes"])
    assert not cards[0]["fits"]
    assert cards[-1]["fits"]


def test_the_fewest_cards_come_cheapest_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fit", "gpt2-medium", "--batch", "4", "--seq", "512", "--most-gpus", "2")
    code, out, _ = answered(
        capsys, *words, "--price", "rtx4060=1", "--price", "rtx3090=3,a100-80gb=9", "--json"
    )
    assert code == 0
    cards = {card["gpu"]: card for card in json.loads(out)["cards"]}
    assert set(cards) == {"GeForce RTX 4060", "GeForce RTX 3090", "A100 80GB SXM4"}
    assert cards["GeForce RTX 3090"]["count"] == 1
    assert cards["GeForce RTX 3090"]["price"] == 3
    assert cards["GeForce RTX 4060"]["count"] == 2  # 8 GB are too few for one
    fitting = [card["price"] for card in json.loads(out)["cards"] if card["fits"]]
    assert fitting == sorted(fitting)
    assert "by the given prices" in answered(capsys, *words, "--price", "rtx3090=3")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--price", "rtx4090=x"], "written like"),
        (["--price", "rtx4090"], "written like"),
        (["--price", "rtx4090=-1"], "written like"),
        (["--price", "gtx9=1"], "unknown GPU"),
        (["--price", "24GiB=1"], "name a built-in GPU"),
        (["--most-gpus", "0"], "at least 1"),
        (["--most-gpus", "4", "--gpus", "2"], "leave out gpus"),
        (["--gpu", "rtx4090"], "vramcast estimate"),
    ],
)
def test_wrong_cards_are_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = answered(capsys, "fit", *SMALL, *words)
    assert code == 2
    assert said in err


# ---- check


def test_check_answers_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: gpt2\nbatch: 8\nseq: 512\n", encoding="utf-8")
    code, out, _ = answered(capsys, "check", str(job), "--gpu", "rtx4090")
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith("FITS")
    assert answered(capsys, "check", str(job), "--gpu", "4GiB")[0] == 1
    assert answered(capsys, "check", str(job), "--gpu", "gtx999")[0] == 2
    assert answered(capsys, "check", str(tmp_path / "none.yaml"), "--gpu", "rtx4090")[0] == 2


def test_check_guards_against_growth(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job, old = tmp_path / "job.yaml", tmp_path / "old.json"
    job.write_text("model: gpt2\nbatch: 8\nseq: 512\n", encoding="utf-8")
    old.write_text(
        answered(capsys, "check", str(job), "--gpu", "rtx4090", "--json")[1], encoding="utf-8"
    )
    guarded = ("check", str(job), "--gpu", "rtx4090", "--baseline", str(old))
    assert answered(capsys, *guarded)[0] == 0
    code, out, _ = answered(capsys, *guarded, "--batch", "9", "--max-growth", "5%")
    assert code == 1
    assert "TOO MUCH" in out
    assert answered(capsys, *guarded, "--batch", "9", "--max-growth", "50%")[0] == 0
    assert answered(capsys, *guarded, "--max-growth", "5")[0] == 2
    old.write_text("{}", encoding="utf-8")
    assert answered(capsys, *guarded)[0] == 2
