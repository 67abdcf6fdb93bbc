# ruff: noqa: E501 (pasted messages keep their lines)
"""Explaining a gap: variants of a job against what was observed, with figures worked out by hand.

Phi-3-mini has 3,821,079,552 parameters: 14.23 GiB in fp32. Weights, gradients, two states, the foreach list and an fp32
reference are six such copies: 85.41 GiB; without the reference or without the list 71.17 GiB.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.job_gap.agreement import agree
from vramcast.diagnose.job_gap.deviations import BY_DEFAULT, BY_MISTAKE, DEVIATIONS, IN_SILENCE
from vramcast.diagnose.job_gap.gap import Gap, explain_gap
from vramcast.diagnose.job_gap.priced_job import price
from vramcast.diagnose.job_gap.tensors import matches_of, tensors_of
from vramcast.diagnose.job_gap.variants import MAX_LOOKED_AT
from vramcast.diagnose.readers.log import read_text
from vramcast.diagnose.rules.evidence import Evidence, evidence_of
from vramcast.errors import InputError
from vramcast.job import Job, Precision
from vramcast.ledger import (
    BACKWARD,
    FORWARD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    STEP,
)

GIB = 2**30
COPY = 3_821_079_552 * 4
PHI = Job(
    framework="plain", model="phi-3-mini", batch=2, seq=256, reference="same", gpu="a100-80gb"
)
MIXED = replace(PHI, precision=Precision.BF16_MIXED)  # fp32 weights under autocast
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Of the allocated memory 76.72 GiB is allocated by PyTorch, and 1.81 GiB is "
    "reserved by PyTorch but unallocated."
)


def evidence(text: str) -> Evidence:
    found = evidence_of(read_text(text))
    assert found is not None
    return found


def gap_of(job: Job, text: str = LOG) -> Gap:
    return explain_gap(job, evidence(text))


@pytest.fixture(scope="module")
def phi() -> Gap:
    return gap_of(replace(PHI, precision=Precision.BF16_TRUE))


def test_the_one_explanation_of_76_72_gib_is_fp32_with_an_fp32_reference_and_foreach_in_the_first_step(
    phi: Gap,
) -> None:
    (only,) = phi.explanations
    assert only.changes == ("weights_fp32",)
    assert only.cause == "optimizer_foreach"
    assert only.agreement.phase == STEP
    assert 6 * COPY <= only.need_bytes <= 6 * COPY + 64 * 2**20
    assert only.need_bytes / GIB == pytest.approx(85.4, abs=0.05)
    assert only.job.reference == "same"
    assert only.job.reference_dtype is None  # like the trained weights: fp32


@pytest.mark.parametrize("least_share", [0.2, 0.05, 0.01])
def test_the_one_explanation_does_not_hinge_on_how_unlikely_the_others_may_be(
    least_share: float,
) -> None:
    """Down to a hundredth of its plausibility no other variant of the job reaches 76.72 GiB and then runs out."""
    gap = explain_gap(
        replace(PHI, precision=Precision.BF16_TRUE), evidence(LOG), least_share=least_share
    )
    assert [item.changes for item in gap.explanations] == [("weights_fp32",)]
    assert (
        gap.num_variants < MAX_LOOKED_AT
    )  # the search ended at the limit given here, not at its own


def test_only_a_fused_step_under_lightning_has_another_explanation_and_not_in_the_step() -> None:
    """A fused AdamW has no temporaries: five copies, 71.2 GiB, are survived. Lightning's gradients are still alive in the
    second forward, and autocast keeps 16-bit copies of all weights (7.1 GiB) there: more than the 78.8 GiB of the card."""
    fused = replace(MIXED, optimizer_impl="fused")
    assert agree(price(fused), evidence(LOG)) is None
    lightning = agree(price(replace(fused, framework="lightning")), evidence(LOG))
    assert lightning is not None
    assert lightning.phase == NEXT_FORWARD
    assert lightning.peak_bytes > 78.8 * GIB
    assert (
        agree(
            price(replace(fused, framework="lightning", precision=Precision.FP32)),
            evidence(LOG),
        )
        is None
    )


def test_every_deviation_says_how_it_comes_about() -> None:
    assert all(item.why for item in DEVIATIONS)
    assert {item.prior for item in DEVIATIONS} == {BY_DEFAULT, IN_SILENCE, BY_MISTAKE}


def test_a_sharded_job_that_was_not_sharded_after_all() -> None:
    """GPT-2 XL has 1.56 billion parameters: 23.2 GiB at 16 bytes each on every rank, an eighth of that if sharded."""
    believed = Job(
        model="gpt2-xl",
        batch=1,
        seq=128,
        gpus=8,
        strategy="fsdp2",
        precision=Precision.BF16_MIXED,
        framework="plain",
    )
    text = (
        '  File "torch/optim/adamw.py", line 606, in _multi_tensor_adamw\n    torch._foreach_sqrt(x)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which "
        "20.00 MiB is free. Of the allocated memory 22.80 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    gap = gap_of(believed, text)
    assert gap.described.need_bytes < 6 * GIB
    assert gap.explanations[0].changes == ("not_sharded",)


def test_the_flat_parameters_of_a_block_are_what_fsdp1_asks_for() -> None:
    """A layer of Llama 13B: 4 · 5120² + 3 · 5120 · 13824 + 2 · 5120 parameters, 605 MiB in 16 bit, printed as 606."""
    job = Job(
        model="llama2-13b",
        batch=1,
        seq=512,
        precision=Precision.FP16_MIXED,
        gpus=2,
        strategy="fsdp1",
    )
    (observation,) = read_text("CUDA out of memory. Tried to allocate 606.00 MiB.").observations
    (match,) = matches_of(observation, tensors_of(job), FORWARD)
    assert match.candidate.nbytes == (4 * 5120**2 + 3 * 5120 * 13824 + 2 * 5120) * 2
    assert match.candidate.name == "gathered parameters of model.layers.N, fp16"


def test_an_offload_that_is_not_active_explains_states_on_the_card() -> None:
    believed = Job(
        model="gpt2-xl",
        batch=1,
        seq=128,
        strategy="zero2",
        offload="optimizer",
        framework="deepspeed",
    )
    real = price(replace(believed, offload="none", keep_outputs=False))
    step = next(span for span in real.needs if span.phase == STEP)
    card = step.peak_bytes / GIB - 0.5
    text = (
        '  File "deepspeed/ops/adam/fused_adam.py", line 9, in step\n    state["exp_avg"] = torch.zeros_like(p.data)\n'
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of {card + 0.6:.2f} GiB "
        f"of which 20.00 MiB is free. Of the allocated memory {card:.2f} GiB is allocated by PyTorch, and 20.00 MiB is reserved by "
        "PyTorch but unallocated."
    )
    assert ("not_offloaded",) in [item.changes for item in gap_of(believed, text).explanations]


def test_the_theory_of_the_note_does_not_run_out(phi: Gap) -> None:
    contrasts = {item.name: item for item in phi.contrasts}
    textbook = contrasts[
        "textbook"
    ]  # 2 + 2 + 8 bytes, a 2-byte reference, a 4-byte foreach list: 18 of 24 bytes
    assert textbook.need_bytes == pytest.approx(COPY * 18 / 4, rel=0.002)
    assert textbook.fits
    assert contrasts["reference on the CPU"].need_bytes == pytest.approx(5 * COPY, rel=0.001)
    assert contrasts["reference on the CPU"].need_bytes / GIB == pytest.approx(71.2, abs=0.05)
    assert contrasts["reference on the CPU"].fits
    assert contrasts["fused optimizer"].fits
    assert contrasts["checkpointing"].fits is False
    assert not contrasts["weights in 16 bit"].agrees


def test_an_expected_figure_below_what_was_allocated_is_refuted_and_would_have_fitted() -> None:
    diagnosis = diagnose(read_text(LOG), PHI, expected_bytes=62_600_000_000)
    rules = [finding.rule for finding in diagnosis.findings]
    assert "expected_refuted" in rules
    assert "expected_fits" in rules


def test_foreach_adam_of_torch_2_0_holds_two_lists_and_of_2_1_one() -> None:
    """`denom = torch._foreach_add(exp_avg_sq_sqrt, eps)` beside the roots, then `_foreach_add_` in place."""
    plain = Job(
        model="phi-3-mini", batch=1, seq=64, precision=Precision.FP32, transformers_version="4.37"
    )
    old, new = (price(replace(plain, torch_version=torch)) for torch in ("2.0", "2.1"))
    assert old.need_bytes - new.need_bytes == pytest.approx(COPY, rel=1e-4)


def test_a_job_that_explains_everything_needs_no_deviation() -> None:
    (only,) = gap_of(MIXED).explanations
    assert only.changes == ()
    assert only.need_bytes / GIB == pytest.approx(85.4, abs=0.05)


def test_a_reference_believed_on_the_cpu_was_on_the_gpu() -> None:
    best = gap_of(replace(MIXED, reference="cpu")).explanations[0]
    assert best.changes == ("reference_on_gpu",)
    assert best.agreement.phase == STEP


def test_two_deviations_are_found_together() -> None:
    best = gap_of(replace(PHI, reference="cpu", precision=Precision.BF16_TRUE)).explanations[0]
    assert set(best.changes) == {"weights_fp32", "reference_on_gpu"}


def test_allocated_is_a_lower_bound_the_job_cannot_have_needed_less() -> None:
    for explanation in gap_of(replace(PHI, precision=Precision.BF16_TRUE)).explanations:
        assert explanation.need_bytes >= 76.72 * GIB


def test_a_job_that_would_have_failed_earlier_is_no_explanation() -> None:
    """Weights, reference and gradients in fp32 exceed a 40 GB card in backward: it never reaches a step with 39 GiB."""
    text = (
        '  File "torch/optim/adamw.py", line 1, in _multi_tensor_adamw\n    torch._foreach_sqrt(x)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 39.39 GiB of which "
        "10.00 MiB is free. Of the allocated memory 38.00 GiB is allocated by PyTorch, and 400.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    job = replace(PHI, gpu="a100-40gb", precision=Precision.FP32)
    assert agree(price(job), evidence(text)) is None


def test_the_traceback_decides_the_phase() -> None:
    frames = {
        '  File "a/torch/optim/adamw.py", line 9, in _multi_tensor_adamw\n    x = torch._foreach_sqrt(y)\n': (STEP, NEXT_STEP),
        '  File "a/torch/_tensor.py", line 9, in backward\n    torch.autograd.backward(\n'
        '  File "a/graph.py", line 1, in _engine_run_backward\n    return run_backward(\n': (BACKWARD, NEXT_BACKWARD),
        '  File "a/modeling_llama.py", line 9, in forward\n    logits = logits.float()\n': (
            FORWARD, LOSS, NEXT_FORWARD, NEXT_LOSS, "eval",
        ),
    }  # fmt: skip
    for trace, phases in frames.items():
        assert evidence(f"{trace}{LOG}").phases == phases
    assert evidence(LOG).phases is None


def test_what_the_frames_prove_is_not_a_guess() -> None:
    """Fused by default, yet the traceback stands in _multi_tensor_adamw: foreach it was."""
    trace = '  File "torch/optim/adamw.py", line 606, in _multi_tensor_adamw\n    torch._foreach_sqrt(x)\n'
    best = gap_of(replace(MIXED, optimizer_impl="fused"), trace + LOG).explanations[0]
    assert best.changes == ("foreach_step",)
    assert best.weight == 1


def test_a_longer_batch_is_solved_from_the_request() -> None:
    """A batch padded to 8192 instead of 256 tokens: its fp32 logits of 2 × 8192 × 32,064 words are 1.96 GiB."""
    believed = replace(
        PHI, reference="none", precision=Precision.BF16_TRUE, transformers_version="4.49", seq=256
    )
    loss = next(span for span in price(replace(believed, seq=8192)).needs if span.phase == LOSS)
    allocated = loss.peak_bytes - round(1.96 * GIB)
    text = (
        '  File "modeling_phi3.py", line 9, in forward\n    logits = logits.float()\n'
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of "
        f"{loss.peak_bytes / GIB:.2f} GiB of which 1.00 GiB is free. Of the allocated memory {allocated / GIB:.2f} GiB is allocated "
        "by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated."
    )
    solved = [
        item
        for item in gap_of(replace(believed, gpu=None), text).explanations
        if item.job.seq != 256
    ]
    found = next(item for item in solved if item.changes[0].startswith("other_length"))
    assert found.job.seq == pytest.approx(8192, rel=0.005)
    assert found.cause == "logits"
    assert any("logits" in match.candidate.name for match in found.matches)


def test_a_neighbour_is_the_cause_where_the_job_alone_would_fit() -> None:
    """All in bf16 the job needs 42.7 GiB of a card with 79.3: it failed at 39 because half the card was taken."""
    text = (
        "CUDA out of memory. Tried to allocate 188.00 MiB (GPU 0; 79.32 GiB total capacity; 39.00 GiB already allocated; "
        "100.00 MiB free; 39.50 GiB reserved in total by PyTorch)"
    )
    best = gap_of(replace(PHI, precision=Precision.BF16_TRUE), text).explanations[0]
    assert best.changes == ()
    assert best.cause == "another_process"


def test_where_two_remain_the_measurement_that_decides_is_named() -> None:
    text = (
        '  File "torch/optim/adamw.py", line 606, in _multi_tensor_adamw\n    torch._foreach_sqrt(x)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 130.00 MiB. GPU 0 has a total capacity of 94.99 GiB of which "
        "1.19 MiB is free. Of the allocated memory 92.43 GiB is allocated by PyTorch, and 703.27 MiB is reserved by PyTorch but "
        "unallocated."
    )
    job = Job(
        model="qwen2.5-7b",
        batch=1,
        seq=1024,
        precision=Precision.BF16_TRUE,
        framework="trl",
        reference="same",
    )
    gap = gap_of(job, text)
    assert len(gap.explanations) > 1
    assert gap.decide in ("precision", "reference dtype")
    # 130 MiB are one bf16 matrix of 3584 × 18944, so 16-bit weights come first
    assert "weights_fp32" not in gap.explanations[0].changes
    assert gap.explanations[0].matches


def test_a_job_that_cannot_be_priced_leaves_the_rest_of_the_diagnosis() -> None:
    diagnosis: Diagnosis = diagnose(read_text(LOG), Job(framework="plain", model="no-such-model"))
    assert diagnosis.gap is None
    assert "job_not_priced" in [finding.rule for finding in diagnosis.findings]
    assert diagnosis.hypotheses


def test_a_count_of_parameters_explains_nothing() -> None:
    with pytest.raises(InputError, match="--model"):
        gap_of(Job(params=7_000_000_000))


@pytest.mark.slow
def test_nothing_is_claimed_where_nothing_agrees() -> None:
    text = LOG.replace("76.72", "9.00").replace("1.81", "0.10")
    gap = gap_of(replace(PHI, precision=Precision.FP32), text)
    assert gap.explanations == ()
    assert "no_explanation" in [finding.rule for finding in diagnose(read_text(text), PHI).findings]


def test_without_the_card_and_the_code_nothing_is_claimed() -> None:
    gap = gap_of(replace(PHI, gpu=None))
    assert gap.explanations == ()
    rules = [finding.rule for finding in diagnose(read_text(LOG), replace(PHI, gpu=None)).findings]
    assert "card_unknown" in rules
    assert "no_explanation" not in rules


def test_memory_that_was_free_is_not_explained_by_the_job() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 188.00 MiB (GPU 0; 79.32 GiB total capacity; 39.00 GiB already allocated; "
        "38.00 GiB free; 39.50 GiB reserved in total by PyTorch)"
    )
    assert gap_of(PHI, text).explanations == ()


@pytest.mark.parametrize(
    "kind",
    ["RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.", "CUDA error: out of memory"],
)
def test_other_libraries_failures_are_not_measured_against_the_job(kind: str) -> None:
    diagnosis = diagnose(read_text(kind), PHI)
    assert diagnosis.gap is None


@pytest.mark.slow
@given(
    allocated=st.integers(0, 10**7), cached=st.integers(0, 10**5), requested=st.integers(0, 10**6),
    capacity=st.integers(0, 10**7), free=st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_any_numbers_are_survived_and_every_explanation_reaches_what_was_seen(
    allocated: int, cached: int, requested: int, capacity: int, free: int
) -> None:
    text = (
        f"CUDA out of memory. Tried to allocate {requested}.00 MiB (GPU 0; {capacity}.00 MiB total capacity; {allocated}.00 MiB already "
        f"allocated; {free}.00 MiB free; {allocated + cached}.00 MiB reserved in total by PyTorch)"
    )
    diagnosis = diagnose(read_text(text), Job(framework="plain", model="gpt2", batch=2, seq=64))
    for hypothesis in diagnosis.hypotheses:
        if hypothesis.explanation is not None:
            assert hypothesis.explanation.need_bytes * 1.02 + 2**27 >= allocated * 2**20


def test_every_phase_that_agrees_is_named_until_one_cannot_have_been_survived() -> None:
    """Without the card's size nothing says that the first agreeing phase was the last: all of them are named."""
    job = Job(framework="plain", model="gpt2", batch=4, seq=512, precision=Precision.FP32)
    course = price(job)
    text = (
        '  File "train.py", line 3, in step\n    loss.backward()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Of the allocated memory {} MiB is allocated by PyTorch, and 1.00 MiB "
        "is reserved by PyTorch but unallocated."
    )
    spans = {span.phase: span for span in course.needs}
    inside = (spans[NEXT_BACKWARD].start_bytes + spans[BACKWARD].peak_bytes) // 2
    assert spans[NEXT_BACKWARD].start_bytes < inside < spans[BACKWARD].peak_bytes
    found = agree(course, evidence(text.format(inside >> 20)))
    assert found is not None
    assert (found.phase, found.or_in) == (BACKWARD, (NEXT_BACKWARD,))
    card = f" GPU 0 has a total capacity of {(spans[BACKWARD].peak_bytes >> 20) - 512} MiB of which 1.00 MiB is free."
    tight = agree(
        course, evidence(text.format(inside >> 20).replace("memory. Of", f"memory.{card} Of"))
    )
    assert tight is None or tight.or_in == ()


def test_ranks_that_share_a_card_are_priced_together() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 130.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which "
        "60.00 MiB is free. Process 11 has 26.10 GiB memory in use. Process 12 has 26.00 GiB memory in use. Including non-PyTorch "
        "memory, this process has 26.90 GiB memory in use. Of the allocated memory 25.50 GiB is allocated by PyTorch, and 300.00 MiB "
        "is reserved by PyTorch but unallocated."
    )
    job = Job(
        framework="plain",
        model="gpt2",
        batch=4,
        seq=512,
        precision=Precision.FP32,
        gpus=4,
        strategy="ddp",
    )
    found = [
        dict(item.values)
        for item in diagnose(read_text(text), job).findings
        if item.rule == "ranks_on_one_card"
    ]
    assert [item["count"] for item in found] == [3]
    assert found[0]["together_bytes"] == 3 * int(found[0]["rank_bytes"])
    alone = replace(job, gpus=1, strategy="none")
    assert not [
        item
        for item in diagnose(read_text(text), alone).findings
        if item.rule == "ranks_on_one_card"
    ]
