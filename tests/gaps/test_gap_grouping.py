"""Drawing jobs, comparing two sides and sorting differences, with sides and figures made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.accuracy.gaps.compare import Difference, compare
from vramcast.accuracy.gaps.draw import GapJob, draw, draw_job
from vramcast.accuracy.gaps.formula_side import FormulaSide
from vramcast.accuracy.gaps.mechanisms import Cell, mechanisms, spread
from vramcast.accuracy.gaps.run import Failure, Grid, formula_job, has_family
from vramcast.accuracy.gaps.tensors import Side, Tensor, part_of
from vramcast.accuracy.gaps.trace_side import Places, read_answer
from vramcast.errors import TraceError
from vramcast.report.gaps import GapsReport, gaps_json, gaps_page, gaps_text

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1376,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 32000,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
JOB = GapJob(
    seed=0, number=0, family="llama", config=LLAMA, framework="hf", batch=2, seq=256, target_seq=None, accumulate=1,
    attention="sdpa", precision="bf16-mixed", optimizer="adamw", checkpointing="none", lora_rank=None,
    lora_targets=("all-linear",), lora_dropout=0.0, zero_grad=None,
)  # fmt: skip
TOP_PHASE = "next backward"


def tensor(name: str, nbytes: int, count: int = 1, group: str = "pass", **more: Any) -> Tensor:
    return Tensor(group=group, name=name, nbytes=nbytes, count=count, **more)


def side(*tensors: Tensor) -> Side:
    return Side(allocated_bytes=sum(each.total for each in tensors), tensors=tensors)


def cell(number: int, *differences: Difference, error: float = 0.0) -> Cell:
    return Cell(
        job=replace(JOB, number=number),
        version="4.57.6",
        phase=TOP_PHASE,
        traced_bytes=1000,
        formula_bytes=round(1000 * (1 + error)),
        phases={TOP_PHASE: (1000, round(1000 * (1 + error)))},
        differences=differences,
        versions={"transformers": "4.57.6"},
    )


def missing(name: str, nbytes: int, shape: tuple[int, ...] = ()) -> Difference:
    return Difference(
        kind="missing", group="pass", part="attention", name=name, dtype="float32", shape=shape, nbytes=-nbytes
    )  # fmt: skip


# ---- jobs


def test_a_job_depends_on_seed_and_number_only() -> None:
    assert draw(5, 20)[:8] == draw(5, 8)
    assert draw(5, 20)[13] == draw_job(5, 13)
    assert draw(5, 8) != draw(6, 8)


def test_what_a_library_refuses_is_not_drawn() -> None:
    jobs = draw(1, 300)
    assert {job.framework for job in jobs} == {"plain", "hf", "trl", "accelerate"}
    for job in jobs:
        causal = job.config["architectures"][0].endswith(("ForCausalLM", "LMHeadModel"))
        assert causal or (job.framework != "trl" and job.lora_rank is None)
        assert job.zero_grad is None or job.framework == "plain"


def test_words_leave_out_what_is_the_default() -> None:
    assert JOB.words() == {
        "gpu": "a100-80gb", "framework": "hf", "precision": "bf16-mixed", "checkpointing": "none", "batch": 2,
        "seq": 256,
    }  # fmt: skip


def test_a_family_is_left_out_of_versions_before_it() -> None:
    qwen3 = replace(JOB, family="qwen3")
    assert not has_family(qwen3, "4.46.3")
    assert has_family(qwen3, "4.51.3")


# ---- two sides


def test_the_same_tensors_have_no_difference_whatever_their_names() -> None:
    traced = side(
        tensor("Llama.layers.*.self_attn aten::cat", 100, 4), tensor("w", 7, group="weights")
    )
    formula = side(*[tensor("q with positions", 100)] * 4, tensor("trained", 7, group="weights"))
    assert compare(traced, formula) == []


def test_missing_extra_other_dtype_and_other_rows_are_told_apart() -> None:
    traced = side(
        tensor("self_attn aten::cat", 100, 2),
        tensor("mlp aten::mm", 4000),
        tensor("lm_head aten::mm", 51200, dtype="float32", shape=(512, 25)),
    )
    formula = side(
        tensor("embedding: embeddings", 30),
        tensor("mlp: gate", 2000),
        tensor("head: logits", 51100),
    )
    found = {(each.kind, each.part): each.nbytes for each in compare(traced, formula)}
    assert found == {
        ("missing", "attention"): -200,
        ("extra", "embedding"): 30,
        ("dtype", "mlp"): -2000,
        ("size", "head and loss"): -100,
    }


def test_groups_without_single_tensors_are_compared_as_totals() -> None:
    traced = side(tensor("a", 10, 3, group="weights"), tensor("b", 5, group="gradients"))
    formula = side(
        tensor("trained", 40, group="weights"), tensor("of trained", 5, group="gradients")
    )
    (found,) = compare(traced, formula)
    assert (found.kind, found.group, found.nbytes) == ("total", "weights", 10)


def test_differences_add_up_to_the_gap() -> None:
    traced = side(tensor("mlp", 64, 3), tensor("norm", 10, 2), tensor("w", 9, group="weights"))
    formula = side(tensor("mlp: gate", 32, 2), tensor("x", 11), tensor("w", 2, group="weights"))
    found = compare(traced, formula, higher_bytes=17)
    assert (
        sum(each.nbytes for each in found) == formula.allocated_bytes + 17 - traced.allocated_bytes
    )


def test_parts_of_a_model() -> None:
    assert part_of("SelfAttention aten::_softmax_backward_data") == "attention"
    assert part_of("model aten::_log_softmax over the vocabulary") == "head and loss"
    assert part_of("encoder.block.*: position bias") == "attention"


# ---- traces


def answer(*phases: tuple[str, list[Any]], out_of_memory: str = "") -> dict[str, Any]:
    named = {
        phase: {
            "allocated_bytes": sum(row[5] * row[7] for row in rows),
            "inside_a_kernel_bytes": 0,
            "tensors": rows,
        }
        for phase, rows in phases
    }
    return {"out_of_memory": out_of_memory, "phases": named, "versions": {}}


def row(
    category: str, nbytes: int, made_in: str, shape: list[int], dtype: str = "float32"
) -> list[Any]:
    return [category, "Llama.x", "aten::mm", dtype, shape, nbytes, made_in, 1]


def test_the_loss_is_part_of_forward_and_the_larger_peak_counts() -> None:
    loss = row("logits and loss", 2048, "loss", [500])
    found = read_answer(
        answer(("forward", [row("activations", 512, "forward", [128])]), ("loss", [loss])), JOB
    )
    assert found.phases["forward"].allocated_bytes == 2048
    sizes = {each.group: each.nbytes for each in found.phases["forward"].tensors}
    assert sizes == {"pass": 2000, "rounding": 48}


def test_groups_of_traced_tensors() -> None:
    rows = [
        row("inputs", 4096, "load", [2, 256], "int64"),
        row("inputs", 8192, "load", [1, 1024], "int64"),
        row("logits and loss", 512, "forward", [128]),
        row("activations", 512, "next forward", [128]),
    ]
    found = read_answer(answer(("next forward", rows)), JOB).phases["next forward"]
    groups = [each.group for each in found.tensors]
    assert groups == ["inputs", "weights", "held outputs", "pass", "rounding"]


def test_a_trace_that_ran_out_of_memory_has_no_figures() -> None:
    with pytest.raises(TraceError, match="ran out of memory"):
        read_answer(answer(out_of_memory="CUDA out of memory."), JOB)


# ---- formulas


def test_tensors_of_the_formulas_add_up_to_their_bill(tmp_path: Path) -> None:
    places = Places(scripts=tmp_path, environments=tmp_path, jobs=tmp_path)
    for job in (
        JOB,
        replace(JOB, accumulate=2, number=1),
        replace(JOB, framework="plain", number=2),
    ):
        formula = FormulaSide(formula_job(job, "4.57.6", places))
        for phase, peak in formula.peaks.items():
            found, higher = formula.side(phase, side(tensor("lm_head aten::mm", 32_768_000)))
            assert found.allocated_bytes + higher == peak
            assert sum(each.total for each in found.tensors) == found.allocated_bytes


def test_the_moment_that_is_most_like_the_traced_one_is_compared(tmp_path: Path) -> None:
    """Three fp32 tensors over the vocabulary and a 16-bit copy of the head are alive where the loss's backward is."""
    places = Places(scripts=tmp_path, environments=tmp_path, jobs=tmp_path)
    formula = FormulaSide(formula_job(JOB, "4.57.6", places))
    traced = side(
        tensor("loss over the vocabulary", 65_536_000, 3),
        tensor("lm_head aten::_to_copy", 32_768_000),
    )
    found, _ = formula.side(TOP_PHASE, traced)
    large = sorted(
        each.nbytes for each in found.tensors if each.group == "pass" and each.nbytes > 10**7
    )
    assert large == [32_768_000, 65_536_000, 65_536_000, 65_536_000]


# ---- mechanisms


def test_differences_of_many_jobs_are_one_mechanism_with_letters_for_sizes() -> None:
    name = "LlamaForCausalLM.model.layers.*.self_attn aten::cat"
    cells = [
        cell(0, missing(name, 100, (2, 8, 256, 64))),
        cell(1, missing(f"PeftModel.base_model.{name}", 50, (2, 8, 256, 64)), missing("self_attn aten::mul", 20)),
        cell(2),
        cell(3),
    ]  # fmt: skip
    first, second = mechanisms(cells)
    assert first.names == ("self_attn aten::cat float32 (b, n, s, d)",)
    assert first.weight == pytest.approx((0.1 + 0.05) / 4)
    assert first.worst == (0, "4.57.6")
    assert second.weight == pytest.approx(0.02 / 4)


def test_what_occurs_in_the_same_cells_is_one_mechanism() -> None:
    (found,) = mechanisms(
        [cell(0, missing("self_attn aten::cat", 100), missing("self_attn aten::mul", 30))]
    )
    assert found.names == ("self_attn aten::cat", "self_attn aten::mul")
    assert found.weight == pytest.approx(0.13)


def test_the_spread_of_errors() -> None:
    errors = [0.001, -0.002, 0.003, 0.004, -0.005, 0.006, 0.007, 0.008, 0.02, -0.1]
    found = spread([cell(number, error=error) for number, error in enumerate(errors)])
    assert found is not None
    assert found.median == pytest.approx(0.005)
    assert found.ninth_decile == pytest.approx(0.02)
    assert found.worst == pytest.approx(-0.1)
    assert found.within_one_percent == 8
    assert spread([]) is None


# ---- reports


def test_every_report_shows_mechanism_worst_job_and_failure() -> None:
    failure = Failure(
        job=replace(JOB, number=9),
        version="4.40.2",
        side="trace",
        reason="was not done after 120 s",
    )
    grid = Grid(
        cells=(cell(3, missing("self_attn aten::cat", 100), error=-0.1),), failures=(failure,)
    )
    report = GapsReport(seed=7, jobs=2, grid=grid, versions=("4.57.6",))
    for shown in (gaps_text(report), gaps_page(report)):
        assert "self_attn aten::cat" in shown
        assert "-10.00%" in shown
        assert "was not done after 120 s" in shown
        assert "make gaps SEED=0 ONLY=3 VERSIONS=4.57.6" in shown
    assert "Seed 7 is not among them" in gaps_page(report)
    assert "Seed 7 is one of them" in gaps_page(replace(report, worked_on=(6, 7)))
    data = gaps_json(report)
    assert data["cells"][0]["error"] == pytest.approx(-0.1)
    assert data["mechanisms"][0]["cells"] == [{"job": 3, "version": "4.57.6", "share": -0.1}]
    assert data["failures"][0]["job"] == 9
