"""litgpt's traced rows say the same job as its formula rows, or say what of the run is not known."""

from __future__ import annotations

from pathlib import Path

import yaml

from vramcast.accuracy.traced import TraceRow, load_not_traced, load_trace_rows

FOLDER = Path(__file__).parent
TRACED = {row.id: row for row in load_trace_rows(FOLDER) if row.id.startswith("litgpt-")}
PUBLISHED = {row["id"]: row for row in yaml.safe_load((FOLDER / "litgpt.yaml").read_text())["rows"]}


def _given(row: TraceRow, name: str, default: str = "") -> str:
    arguments = list(row.arguments)
    return arguments[arguments.index(name) + 1] if name in arguments else default


def test_every_published_row_is_traced_or_says_why_not() -> None:
    assert set(PUBLISHED) == set(TRACED) | {
        each.id for each in load_not_traced(FOLDER) if each.id in PUBLISHED
    }


def test_traced_and_estimated_is_the_same_job() -> None:
    for id, row in TRACED.items():
        job, gpus = PUBLISHED[id]["job"], PUBLISHED[id].get("parallel", {}).get("gpus", 1)
        assert (row.gpu, row.peak_bytes, row.metric) == (
            job["gpu"],
            PUBLISHED[id]["peak_bytes"],
            "allocated",
        ), id
        assert int(_given(row, "--tokens")) == job["seq"], id
        assert int(_given(row, "--train.micro_batch_size")) == job["batch"], id
        assert int(_given(row, "--devices", "1")) == gpus, id
        assert row.arguments[0] == ("lora" if "lora-rank" in job else "full"), id
        assert int(_given(row, "--lora_r", "0")) == job.get("lora-rank", 0), id
        quantized = {"": "none", "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-double"}[
            _given(row, "--quantize")
        ]
        assert quantized == job.get("quantize", "none"), id


def test_a_script_of_2023_is_told_apart() -> None:
    for id, row in TRACED.items():
        of_2023 = PUBLISHED[id]["versions"].startswith("lit-gpt ")
        assert row.unknown == ("script" if of_2023 else ""), id
        assert ("--then" in row.arguments) is of_2023, id
