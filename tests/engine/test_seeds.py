"""Five questions that people worked out by hand, with the figures that a review of them found to be right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.engine.estimate import estimate
from vramcast.errors import InputError
from vramcast.job import Job, job_from
from vramcast.ledger import Category, Entry, Ledger
from vramcast.plan.observed_line import fit, parse_points
from vramcast.units import GiB, format_gib_and_gb

PHI = 3_821_079_552


def ledger(**values: Any) -> Ledger:
    return estimate(job_from(values)).ledger


def lines(found: Ledger, phase: str, place: str = "cuda:0") -> dict[str, int]:
    return found.grouped(lambda entry: str(entry.category), phase=phase, place=place)


def is_modelled(entry: Entry) -> bool:
    """Without workspaces, rounding and the batch, which the hand-made tables leave out."""
    return entry.category not in (Category.WORKSPACE, Category.SLACK, Category.INPUT)


# ---- Phi-3-mini with a reference model: why 76.72 GiB were allocated when it ran out


def npo(**values: Any) -> Job:
    return job_from(
        {
            "model": "phi-3-mini", "batch": 2, "seq": 256, "framework": "lightning", "precision": "bf16-mixed",
            "transformers-version": "4.51", **values,
        }
    )  # fmt: skip


def peak(job: Job) -> tuple[str, int]:
    found = Ledger(entries=tuple(filter(is_modelled, estimate(job).ledger.entries)))
    moment = found.peak("cuda:0")
    return moment.phase, moment.allocated_bytes


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
@pytest.mark.parametrize(
    ("place", "bytes_each", "gib"), [("cpu", 20, "71.17"), ("same", 24, "85.41")]
)
def test_the_peak_is_in_the_first_optimizer_step(
    precision: str, place: str, bytes_each: int, gib: str
) -> None:
    phase, nbytes = peak(npo(reference=place, precision=precision))
    assert (phase, nbytes) == ("step", bytes_each * PHI)
    assert f"{nbytes / GiB:.2f}" == gib


def test_the_moments_of_that_run() -> None:
    """GB: loaded, end of forward, end of backward, states created, inside the step."""
    found = Ledger(
        entries=tuple(
            filter(is_modelled, estimate(npo(precision="fp32", reference="same")).ledger.entries)
        )
    )
    moments = {
        phase: sum(lines(found, phase).values()) / 1e9 for phase in ("load", "backward", "step")
    }
    assert moments["load"] == pytest.approx(30.57, rel=0.005)
    assert moments["backward"] == pytest.approx(45.85, rel=0.02)
    assert moments["step"] == pytest.approx(91.71, rel=0.005)


def test_a_fused_optimizer_moves_the_peak_to_the_next_forward() -> None:
    """Lightning zeroes gradients only behind forward: 80.8 GiB, before the reference itself runs."""
    job = npo(reference="same", **{"optimizer-impl": "fused"})
    assert peak(job)[0] in ("next forward", "next loss")
    found = Ledger(entries=tuple(filter(is_modelled, estimate(job).ledger.entries)))
    assert found.moment("next forward", "cuda:0").allocated_bytes / GiB == pytest.approx(
        80.8, rel=0.005
    )


def test_a_reference_on_the_host_is_paid_for_there() -> None:
    """15.3 GB all the time, and twice that while the model is copied."""
    found = estimate(npo(reference="cpu")).ledger
    assert 4 * PHI < sum(lines(found, "step", "host").values()) < 4 * PHI + 3 * GiB
    assert lines(found, "load", "host")["companion models"] == 4 * PHI
    copied = [entry for entry in found.entries if entry.place == "host" and entry.nbytes == 4 * PHI]
    assert sum(entry.nbytes for entry in copied if "load" in entry.phases) == 8 * PHI


def test_what_the_log_said_in_both_units() -> None:
    assert format_gib_and_gb(int(76.72 * GiB)) == "76.72 GiB (82.38 GB)"


@pytest.mark.parametrize(
    ("values", "gb"),
    [
        ({"reference": "cpu", "checkpointing": "full", "precision": "fp32"}, 76.4),
        (
            {
                "reference": "cpu",
                "checkpointing": "full",
                "precision": "fp32",
                "optimizer-impl": "fused",
            },
            61.6,
        ),
        ({"reference": "cpu", "checkpointing": "full", "optimizer-impl": "fused"}, 69.0),
    ],
)
def test_the_corrected_scenarios(values: dict[str, Any], gb: float) -> None:
    assert peak(npo(**values))[1] / 1e9 == pytest.approx(gb, rel=0.01)


# ---- a T5 of 10 + 10 layers, encoder and embedding frozen, Adafactor


def t5(**values: Any) -> Job:
    return job_from(
        {
            "model": "chatlm-mini-chinese", "batch": 24, "seq": 512, "optimizer": "adafactor",
            "framework": "accelerate", "freeze": "shared,encoder", "transformers-version": "4.36", **values,
        }
    )  # fmt: skip


def test_a_batch_of_ids_is_kilobytes() -> None:
    assert 24 * 512 * 4 == 49_152  # one tensor in 32 bit, which was counted as 50 MB
    assert lines(estimate(t5()).ledger, "forward")[str(Category.INPUT)] == 294_912


def test_a_frozen_encoder_has_no_activations_gradients_or_states() -> None:
    forecast = estimate(t5())
    assert forecast.model is not None
    assert forecast.model.params_trainable == 94_396_032
    components = {
        entry.component
        for entry in forecast.ledger.entries
        if entry.category == Category.ACTIVATIONS
    }
    assert any(name.startswith("decoder.block") for name in components)
    assert not any(name.startswith("encoder.block") for name in components)
    found = lines(forecast.ledger, "step")
    assert found[str(Category.GRADIENTS)] == 4 * 94_396_032


def test_adafactor_states_are_megabytes() -> None:
    states = lines(estimate(t5()).ledger, "step")[str(Category.OPTIMIZER)]
    assert 500_000 < states < 5_000_000


def test_two_observed_points_make_a_line() -> None:
    line = fit(parse_points("8:8GB,24:19GB"))
    assert (line.per_sample_bytes, line.fixed_bytes, line.residual_bytes) == (
        687_500_000,
        2_500_000_000,
        0,
    )
    assert line.largest_batch(20 * 10**9) == 25


def test_the_slope_agrees_with_a_padded_length_of_about_390() -> None:
    """Per sample, allocated: 0.46 GB at 320 tokens and 0.92 at 512 were measured for the saved tensors."""
    peaks = [
        sum(lines(estimate(t5(batch=batch, seq=390)).ledger, "next backward").values())
        for batch in (8, 24)
    ]
    assert (peaks[1] - peaks[0]) / 16e9 == pytest.approx(0.6875, rel=0.1)


@pytest.mark.parametrize(
    "text", ["8:8GB", "8:8GB,8:9GB", "8:8GB,24:7GB", "8", "x:1GB,2:2GB", "0:1GB,2:2GB", "8:8,9:"]
)
def test_points_that_make_no_line_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        fit(parse_points(text))


def test_more_points_show_how_far_they_are_from_a_line() -> None:
    line = fit([(1, 1_000), (2, 2_100), (3, 2_900)])
    assert line.residual_bytes == 100
    assert line.per_sample_bytes == 950


def test_the_command_prints_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "sweep",
        "chatlm-mini",
        "--batch",
        "8,24",
        "--seq",
        "420",
        "--gpu",
        "20GB",
        "--observed",
        "8:8GB,24:19GB",
    ]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "0.6875 GB per sample" in text
    assert "(2.50 GB)" in text
    assert "largest batch by this line: 25" in text
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["observed"]["per_sample_bytes"] == 687_500_000


# ---- notes about a 7B


@pytest.mark.parametrize(
    ("precision", "gb"),
    [("fp32", 112), ("bf16-master", 112), ("megatron-bf16", 126), ("bf16-true", 56)],
)
def test_bytes_per_parameter_of_recipes(precision: str, gb: int) -> None:
    found = ledger(params=7_000_000_000, precision=precision)
    assert sum(lines(found, "step").values()) == gb * 10**9


def test_attention_is_quadratic_only_where_scores_are_kept() -> None:
    eager, fused = (
        estimate(job_from({"model": "qwen3-0.6b", "seq": 512, "attention": kernel})).scaling
        for kernel in ("eager", "flash")
    )
    assert eager is not None
    assert fused is not None
    assert fused.crossover_seq is None
    assert eager.crossover_seq is not None
    # fp32 scores and their 16-bit copy, 16 heads, 28 layers
    assert eager.quadratic_bytes == pytest.approx(28 * 16 * (4 + 2), rel=0.1)
