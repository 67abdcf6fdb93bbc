"""Which answers are frozen, and how an answer becomes two short hashes.

    bytes     category, place, phases and bytes of every entry: what a change of structure must not move
    labels    the components' names beside them: what a change of wording moves, and nothing else may

An answer that is an error is frozen as the error's kind. `python tests/frozen/freeze.py` writes the file again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vramcast.engine.estimate import estimate
from vramcast.errors import VramcastError
from vramcast.job import FIELDS, job_from
from vramcast.ledger import Entry

FILE = Path(__file__).with_name("frozen.json")
# The catalog as it was when the answers were frozen: a model that is added moves none of them.
MODELS = tuple(Path(__file__).with_name("models.txt").read_text().split())
KINDS = {
    "fp32": {"precision": "fp32"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "lora": {"precision": "bf16-true", "lora-rank": 16, "framework": "hf"},
    "qlora": {"lora-rank": 16, "quantize": "nf4", "framework": "hf", "checkpointing": "full"},
}
LAYOUTS = {
    "one": {"gpu": "a100-80gb"},
    "fsdp2": {"gpu": "h100-80gb", "gpus": 8, "strategy": "fsdp2"},
    "zero3": {"gpu": "a100-40gb", "gpus": 8, "strategy": "zero3", "framework": "deepspeed"},
    "tp-pp": {
        "gpu": "h100-80gb",
        "gpus": 8,
        "tp": 2,
        "pp": 2,
        "framework": "megatron",
        "accumulate": 4,
    },
}
CARDS = "rtx3060 rtx4090 t4 v100-32gb l4 a100-40gb a100-80gb h100-80gb 8GiB 48GiB"
# Of random jobs: with which probability an option is given, and one of which values.
ALWAYS = {
    "batch": (0.6, "1 2 4 8"),
    "accumulate": (0.2, "2 4"),
    "precision": (0.6, "fp32 bf16-true bf16-mixed fp16-mixed bf16-master bf16-autocast"),
    "attention": (0.4, "eager sdpa flash math efficient"),
    "checkpointing": (0.4, "full selective every-2"),
    "lora-rank": (0.25, "8 64"),
    "reference": (0.2, "same cpu precomputed"),
    "teacher": (0.05, "same"),
    "optimizer": (0.4, "sgd sgd-momentum adafactor adamw-8bit paged-adamw lion muon galore lomo"),
    "optimizer-impl": (0.2, "foreach fused loop"),
    "loss": (0.2, "chunked fused"),
    "ema": (0.1, "same cpu"),
    "evaluate": (0.15, "true"),
    "alloc-conf": (0.1, "expandable_segments:True"),
    "keep-outputs": (0.1, "true"),
    "resume": (0.1, "cpu same"),
}
ON_ONE = {
    "framework": (0.6, "plain hf lightning accelerate trl torchtune litgpt"),
    "mean-seq": (0.1, "100 400"),
    "quantize": (0.15, "nf4 int8 nf4-double"),
    "critic": (0.08, "same"),
    "loop": (0.05, "one-pass joint"),
}
ON_MANY = {
    "framework": (1.0, "plain hf torchtune deepspeed megatron torchtitan"),
    "strategy": (0.8, "ddp fsdp1 fsdp2 zero1 zero2 zero3"),
    "tp": (0.25, "2 4"),
    "pp": (0.2, "2 4"),
    "cp": (0.1, "2"),
    "ep": (0.1, "2"),
    "offload": (0.15, "optimizer params"),
    "schedule": (0.1, "gpipe 1f1b interleaved"),
    "reshard": (0.1, "false"),
}
INNER = "layers.2[567].mlp.up_proj,layers.2[567].mlp.down_proj"
EDITS = [
    {"model": model, "gpu": "rtx4090", "seq": 420, "precision": "bf16-true", "edit": edit, **more}
    for model, edit in (
        ("qwen2-vl-7b", INNER),
        ("llama-3.1-8b", "layers.5.mlp.down_proj"),
        ("gpt2", "h.5.mlp.c_proj"),
    )
    for more in (
        {},
        {"edit-graph": "cut"},
        {"edit-gradients": "all-after"},
        {"sub-device": "cuda:1"},
        {"batch": 2},
    )
]
RANDOM_JOBS = 400


def catalog_jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for model in MODELS:
        for kind, how in KINDS.items():
            for layout, where in LAYOUTS.items():
                yield (
                    f"{model} {kind} {layout}",
                    {"model": model, "seq": 512, "batch": 2, **how, **where},
                )


def other_jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    draw = random.Random(23)
    for number in range(RANDOM_JOBS):
        yield f"random {number}", random_job(draw)
    for number, edit in enumerate(EDITS):
        yield f"edit {number}", edit


def random_job(draw: random.Random) -> dict[str, Any]:
    count = draw.choice((1, 1, 1, 1, 2, 8, 16))
    values: dict[str, Any] = {
        "model": draw.choice(MODELS),
        "gpu": draw.choice(CARDS.split()),
        "seq": draw.choice((128, 1024, 2048)),
    }
    if count > 1:
        values["gpus"] = count
    for name, (often, words) in {**ALWAYS, **(ON_MANY if count > 1 else ON_ONE)}.items():
        if draw.random() < often:
            values[name] = draw.choice(words.split())
    return values


# What jobs said when they were frozen by saying nothing: profiles may decide otherwise today.
AS_FROZEN = {"framework": "plain", "precision": "bf16-mixed", "checkpointing": "none"}


def freeze_estimate(values: dict[str, Any]) -> list[str]:
    try:
        forecast = estimate(job_from({**AS_FROZEN, **values}))
    except VramcastError as error:
        return [type(error).__name__]
    return freeze_entries(forecast.ledger.entries)


def freeze_entries(entries: Iterable[Entry]) -> list[str]:
    rows = [
        [
            [str(entry.category), str(entry.place), list(map(str, entry.phases)), entry.nbytes],
            entry.component,
        ]
        for entry in entries
    ]
    return [short_hash(sorted(row[0] for row in rows)), short_hash(sorted(rows))]


def short_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


PPO = "--reference same --reward same --critic same --rollout-tokens 512"
PLANS = (
    "qwen2.5-7b --gpu rtx4090 --seq 4096",
    "llama-3.1-8b --gpu a100-80gb --seq 4096",
    "phi-3-mini --gpu a100-80gb --batch 4 --seq 1024 --reference same --reference-dtype fp32",
    "flan-t5-xl --gpu 16GiB --seq 512",
    "t5-3b --gpu 16GiB --seq 512 --batch 4",
    "llama-3.1-8b --gpu rtx4090 --gpus 2 --seq 2048",
    "mixtral-8x7b --gpu a100-40gb --gpus 8 --seq 2048",
    "llama-3.1-70b --gpu h100-80gb --gpus 8 --seq 4096",
    f"llama-3.2-3b --gpu a100-40gb --batch 4 --seq 1024 {PPO}",
    "phi-3-mini --gpu a100-80gb --batch 4 --seq 1024 --attention eager --framework lightning --reference same",
    "llama-3.1-70b --gpu h100-80gb --gpus 8 --seq 4096 --strategy zero3 --framework deepspeed",
    "qwen2-vl-2b --gpu rtx4090 --seq 2048 --images 1 --batch 2",
    "flan-t5-xl --gpu 16GiB --seq 512 --batch 4",
    "qwen2.5-32b --gpu a100-80gb --gpus 8 --seq 4096 --strategy zero2",
    "llama-3.1-405b --gpu rtx4090 --gpus 8 --seq 2048",
    "gemma-3-27b --gpu 24GiB --seq 4096 --lora-rank 16 --quantize nf4 --framework hf",
    "internlm2.5-7b --gpu rtx4090 --seq 4096 --mean-seq 900",
    f"qwen2-vl-7b --gpu rtx4090 --second-gpu --seq 420 --images 1 --precision bf16-true --edit {INNER}",
    "llama-3.1-70b --gpu rtx3090 --gpus 2 --seq 512",
)
# Scripts on the virtual GPU.
EXAMPLES = Path(__file__).parents[2] / "examples"
TRACES = (
    "train_gpt.py --gpu rtx4090 --steps 2",
    "train_dpo.py --gpu rtx4090 --steps 1",
    "train_two_gpus.py --gpu rtx3060 --gpus 2 --steps 1",
    "train_trainer.py --gpu rtx3060 --steps 2 -- --block-size 256 --bf16",
    "train_fsdp.py --gpu a100-40gb --gpus 4 --rank 0 --steps 1",
)


def _said(job: dict[str, Any]) -> dict[str, Any]:
    """Without what is left at its default, so that a word more for jobs changes nothing here."""
    defaults = {name.replace("_", "-"): field.default for name, field in FIELDS.items()}
    return {
        key: value
        for key, value in job.items()
        if value is not None and value != [] and value != defaults[key]
    }


def freeze_plan(words: str) -> list[str]:
    """What the plans change and what they take; the wording is not part of it."""
    pinned = [f"--{name}={value}" for name, value in AS_FROZEN.items() if f"--{name}" not in words]
    found = _printed(["plan", *words.split(), *pinned, "--json"])
    plans = [found["fewest_changes"], found["closest"], *found["plans"]]
    numbers = [
        [
            _said(plan["job"]),
            plan["peak"],
            _rounded(plan["slowdown"]),
        ]
        for plan in plans
        if plan is not None
    ]
    singles = [
        [each["key"], each["frees_bytes"], _rounded(each["slowdown"])]
        for each in found["single_changes"]
    ]
    return [short_hash([numbers, singles, found["reach"]]), f"{len(found['plans'])} plans"]


def _rounded(slowdown: list[float] | None) -> list[float] | None:
    return None if slowdown is None else [round(end, 6) for end in slowdown]


def freeze_trace(words: str) -> list[str]:
    """Every entry, without and with its name; then the sums, which say whether bytes moved or only their names."""
    script, *options = words.split()
    found = _printed(["trace", "--json", str(EXAMPLES / script), *options])
    cards = found if isinstance(found, list) else [found]
    entries = [entry for card in cards for entry in card["entries"]]
    rows = [
        [[entry["category"], entry["place"], entry["phases"], entry["bytes"]], entry["component"]]
        for entry in entries
    ]
    sums: dict[str, int] = {}
    for entry in entries:
        for phase in entry["phases"]:
            key = f"{entry['category']} {entry['place']} {phase}"
            sums[key] = sums.get(key, 0) + entry["bytes"]
    return [
        short_hash(sorted(row[0] for row in rows)),
        short_hash(sorted(rows)),
        short_hash(sums),
        f"{sum(sums.values())} bytes",
    ]


def _printed(arguments: list[str]) -> Any:
    from vramcast.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(arguments)
    return json.loads(printed.getvalue())
