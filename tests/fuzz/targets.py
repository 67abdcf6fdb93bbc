"""What is fuzzed: for every reader a command, seeds that are valid, and mutations that know the seeds' form.

A further reader is a function that makes seeds, one that mutates a seed, and a line in TARGETS.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import random
import struct
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
MODELS = TESTS.parent / "src/vramcast/catalog/data/models"
sys.path[:0] = [
    str(Path(__file__).parent),
    *(str(TESTS / name) for name in ("snapshot", "allocator", "models")),
]

from mutations import (  # noqa: E402
    ODD_NUMBERS,
    ODD_TEXTS,
    changed_bytes,
    changed_structure,
    enlarged,
    near,
    spliced,
    with_depth,
)

from vramcast.cli import main  # noqa: E402
from vramcast.job import FIELDS, flag_of  # noqa: E402

MAX_INPUT_BYTES = 2**27  # of which ten seconds are still asked
LARGE_INPUTS = 0.01  # the share of inputs of a MiB and more
Seeds = Callable[[], list[Any]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One reader. `write` turns a seed, which may have been mutated, into the bytes of its file."""

    file: str  # the name under which the input is stored
    command: tuple[str, ...]  # FILE and FOLDER stand for the input and the folder it lies in
    seeds: Seeds
    write: Callable[[Any, random.Random], bytes]
    mutate: Callable[[Any, random.Random], Any] = changed_structure
    in_bytes: float = 0.4  # the share of inputs whose bytes are changed
    beside: Callable[[Path], None] = lambda folder: None  # files that the input needs beside it

    def make(self, rng: random.Random) -> bytes:
        """A new input: changed in its structure, in its bytes, or in both."""
        seeds = self.seeds()
        seed = rng.choice(seeds)
        in_bytes = rng.random() < self.in_bytes
        try:
            data = self.write(
                seed if in_bytes and rng.random() < 0.7 else self.mutate(seed, rng), rng
            )
        except Exception:  # the change cannot be written in this form
            in_bytes, data = True, self.write(seed, rng)
        if in_bytes and rng.random() < 0.1:
            data = spliced(data, self.write(rng.choice(seeds), rng), rng)
        elif in_bytes:
            data = changed_bytes(data, rng)
        if rng.random() < LARGE_INPUTS:
            data = enlarged(data, rng.uniform(20, 27), rng)
        return data[:MAX_INPUT_BYTES]

    def run(self, folder: Path, data: bytes) -> int:
        """The exit code of the command; whatever it raises is a finding."""
        self.beside(folder)
        path = folder / self.file
        path.write_bytes(data)
        words = [
            word.replace("FILE", str(path)).replace("FOLDER", str(folder)) for word in self.command
        ]
        return run_command(words)


def run_command(words: list[str]) -> int:
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as exit:
            code = int(exit.code or 0)
    out.seek(0)
    said = out.read() + err.getvalue()
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in said), (
        "control characters in the output"
    )
    assert code != 2 or words[0] == "diagnose" or err.getvalue().count("\n") == 1, (
        f"not one line: {err.getvalue()!r}"
    )
    assert code in (0, 1, 2), f"exit code {code}"
    return code


def _json_bytes(value: Any, rng: random.Random) -> bytes:
    return with_depth(json.dumps(value), rng).encode("utf-8", "surrogatepass")


def _as_they_are(value: bytes, rng: random.Random) -> bytes:
    return value


# ---- snapshots


@cache
def _snapshots() -> list[Any]:
    from recordings import record

    plain = [record(seed=seed, steps=60).content() for seed in range(3)]
    busy = record(
        "expandable_segments:True", seed=7, steps=60, streams=(0, 1), private=True, delays=True
    ).content()
    return [*plain, busy, plain[0]["segments"]]


def _pickled(value: Any, rng: random.Random) -> bytes:
    return pickle.dumps(value, rng.randrange(6))


# ---- configs


@cache
def _configs() -> list[Any]:
    from configs import OTHERS

    seeds = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(MODELS.glob("*.json"))]
    return [_shallow(seed) for seed in (*seeds, *OTHERS.values())]


def _shallow(config: dict[str, Any]) -> dict[str, Any]:
    """Four layers record like forty, in less time."""
    return {
        key: min(value, 4) if "layer" in key and type(value) is int else value for key, value in config.items()
    }  # fmt: skip


# ---- safetensors


def _header(count: int, dtype: str, nbytes: int) -> dict[str, Any]:
    names = [f"model.layers.{number}.mlp.weight" for number in range(count)]
    size = 16 * 16 * nbytes
    return {
        "__metadata__": {"format": "pt"},
        **{
            name: {"dtype": dtype, "shape": [16, 16], "data_offsets": [at * size, (at + 1) * size]}
            for at, name in enumerate(names)
        },
    }


@cache
def _headers() -> list[Any]:
    return [_header(3, "F32", 4), _header(8, "BF16", 2), _header(1, "I64", 8), {}]


def _safetensors(header: Any, rng: random.Random) -> bytes:
    text = _json_bytes(header, rng)
    length = (
        len(text) if rng.random() < 0.8 else rng.choice([len(text) - 1, len(text) + 1, 2**63, 0])
    )
    return struct.pack("<Q", length) + text + bytes(_data_bytes(header))


def _data_bytes(header: dict[str, Any]) -> int:
    """As much as the header describes, if that can be stored."""
    ends = [
        entry.get("data_offsets", [0, 0])[1] for entry in header.values() if isinstance(entry, dict)
    ]
    return min(max((end for end in ends if type(end) is int), default=0), 100_000)


@cache
def _indices() -> list[Any]:
    shards = [f"model-{number}.safetensors" for number in (1, 2)]
    names = [f"model.layers.{number}.mlp.weight" for number in range(3)]
    return [
        {"metadata": {"total_size": 6144}, "weight_map": dict.fromkeys(names, shard)}
        for shard in shards
    ]


def _shards(folder: Path) -> None:
    for seed, number in ((_header(3, "F32", 4), 1), (_header(8, "BF16", 2), 2)):
        path = folder / f"model-{number}.safetensors"
        if not path.is_file():
            text = json.dumps(seed).encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(_data_bytes(seed)))


# ---- job files


@cache
def _jobs() -> list[Any]:
    return [
        {"model": "gpt2", "batch": 4, "seq": 256, "gpu": "rtx4090", "precision": "bf16-autocast"},
        {"model": "pythia-14m", "lora-rank": 8, "lora-targets": ["all-linear"], "freeze": ["embed"], "gpu": "8GiB"},
        {"model": "t5-small", "seq": 128, "target-seq": 32, "checkpointing": "full", "optimizer": "adafactor"},
        {"model": "smollm2-135m", "gpus": 8, "strategy": "fsdp2", "gpu": "a100-80gb", "offload": "optimizer"},
        {"model": "smollm2-135m", "gpus": 8, "tp": 2, "pp": 2, "framework": "megatron", "precision": "megatron-bf16"},
        {"model": "mixtral-8x7b", "gpus": 8, "ep": 4, "framework": "megatron", "precision": "megatron-bf16"},
        {"model": "qwen2-vl-2b", "images": 1, "batch": 2, "gpu": "rtx4090"},
        {"model": "gpt2", "mean-seq": 100, "seq": 512, "samples": 1000, "evaluate": True, "gpu": "rtx4090"},
        {"model": "gpt2", "reference": "same", "reward": "same", "critic": "same", "rollout-tokens": 64, "seq": 128},
        {"model": "gpt2", "edit": ["h.11.mlp"], "framework": "hf", "loop": "plain"},
        {"params": "7B", "gpu": "rtx4090", "optimizer": "adamw-8bit", "precision": "bf16-true"},
        {"model": "bert-base-uncased", "batch": 8, "quantize": "nf4", "lora-rank": 4, "framework": "hf"},
        {"model": "whisper-base", "batch": 2, "framework": "trl"},
        {"model": "vit-base-patch16-224", "batch": 2, "compile": True},
    ]  # fmt: skip


NAMES = [
    "gpt2",
    "t5-small",
    "pythia-14m",
    "mixtral-8x7b",
    "clip-vit-large-patch14",
    "llava-1.5-7b",
    "llama-3.1-405b",
]
WORDS = {
    "model": NAMES, "reward-model": NAMES, "critic-model": NAMES, "teacher-model": NAMES,
    "gpu": ["rtx4090", "a100-80gb", "t4", "24GiB", "1B", "64MiB", "1000TiB", "m2-ultra", "mi300x"],
    "checkpointing": ["none", "full", "selective", "offload", "every-2", "every-0", "every-999999999", "every--1"],
    "lora-targets": ["all-linear", "q_proj", "*", "[", "", "lm_head", ".*", "c_attn"],
    "freeze": ["*", "", "embed", "["],
    "edit": ["*", "h.0", "h.11.mlp", "nothing", "["], "stage-layers": ["1", "0", "-1", "x", "6", "999999"],
    "alloc-conf": ["expandable_segments:True", "max_split_size_mb:20", "max_split_size_mb:0", "x", ":", "a:b,c",
                   "roundup_power2_divisions:[256:1,512:2]", "garbage_collection_threshold:0.8",
                   "backend:cudaMallocAsync", "max_split_size_mb:99999999999999999999",
                   "per_process_memory_fraction:0.0"],
    "cublas-workspace": [":4096:8", ":0:0", ":16:8", "x", ":99999999999999:9999999999", ":::", ":-1:2"],
    "torch-version": ["2.13", "1.0", "0", "x", "2.6.0+cu124", "99999999999999999999.0", "-1", "2."],
    "transformers-version": ["4.45", "5.0", "0", "x"], "bitsandbytes-version": ["0.40", "0.49", "x"],
    "liger-version": ["0.1", "0.8.5", ""], "sub-device": ["1", "cuda:1", "cpu", "x", "cuda:-1"],
    "lengths": ["/dev/null", "nowhere"], "dataset": ["/dev/null", "nowhere", "*"],
}  # fmt: skip
SMALL = [0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 100, 128, 1000, 10**5, 10**9, 10**12, 10**15]


def job_value(name: str, rng: random.Random) -> Any:
    """A value of the field's type, odd or plain."""
    field = FIELDS[name.replace("-", "_")]
    facts = field.metadata
    if facts["choices"]:
        chosen = rng.choice(facts["choices"])
        return [chosen] if facts["kind"] == "list" else chosen
    if name in WORDS:
        return (
            [rng.choice(WORDS[name])] * rng.choice([1, 1, 3])
            if facts["kind"] == "list"
            else rng.choice(WORDS[name])
        )
    if facts["kind"] == "flag":
        return rng.random() < 0.5
    if facts["kind"] in ("int", "count"):
        return rng.choice(SMALL[: rng.choice([6, 10, len(SMALL)])])
    return rng.choice([0.0, 0.1, 1.0, 0.5]) if facts["kind"] == "float" else rng.choice(ODD_TEXTS)


def changed_job(job: Any, rng: random.Random) -> Any:
    """Keys with values that are valid alone; what they mean together is the question."""
    job = dict(job)
    names = [flag_of(name) for name in FIELDS]
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 5])):
        name = rng.choice(names)
        if name in job and rng.random() < 0.3:
            job[name] = near(job[name], rng)
        else:
            job[name] = job_value(name, rng)
    if "model" in job and "params" in job:
        del job[rng.choice(["model", "params"])]
    return job


LITERALS = [
    "&a [*a]", "!!timestamp 99999-99-99", "!!bool maybe", "!!int x", "!!float x", "!!binary x", "!!set x", "!!omap x",
    "!!python/name:os.system", "1:2:3:4", "0x" + "f" * 4000, ".inf", ".nan", "~", "[[a]]", "{a: b}", "? a", "|", ">",
    "*nothing", "&b {c: *b}", "'", '"\\ud800"', "\t", "%", "@", "2001-01-01", "1_000", "0b11", "<<: *a", "!x y",
]  # fmt: skip


def wild_job(job: Any, rng: random.Random) -> Any:
    """Half the changes in the words of YAML."""
    job = changed_job(job, rng) if rng.random() < 0.5 else changed_structure(job, rng)
    if isinstance(job, dict) and rng.random() < 0.5:
        job[flag_of(rng.choice(list(FIELDS)))] = _Literal(rng.choice(LITERALS))
    return job


class _Literal(str):
    """Text that stands in the file as it is."""

    __slots__ = ()


def _yaml(job: Any, rng: random.Random) -> bytes:
    if not isinstance(job, dict):
        return _json_bytes(job, rng)
    lines = (
        f"{key}: {value if isinstance(value, _Literal) else _yaml_value(value)}"
        for key, value in job.items()
    )
    return with_depth("\n".join(lines), rng).encode("utf-8", "surrogatepass")


def _yaml_value(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    return json.dumps(value)


# ---- lengths, logs, parquet


@cache
def _lengths() -> list[Any]:
    return [[5, 7, 300, 12], list(range(1, 200)), [1024] * 50, [1]]


def _lines(values: Any, rng: random.Random) -> bytes:
    values = values if isinstance(values, list) else [values]
    return "\n".join(str(value)[:10_000] for value in values).encode("utf-8", "surrogatepass")


def changed_lengths(values: list[Any], rng: random.Random) -> list[Any]:
    return [
        value if rng.random() < 0.95 else rng.choice([near(value, rng), rng.choice(ODD_NUMBERS)])
        for value in values
    ]


@cache
def _logs() -> list[Any]:
    return [path.read_bytes() for path in sorted((TESTS / "diagnose/samples").glob("*.txt"))]


@cache
def _frameworks(ending: str) -> list[Any]:
    """The examples of docs/configs.md: a file of each framework."""
    found = sorted((TESTS.parent / "docs/configs").glob(f"*.{ending}"), reverse=True)
    return [path.read_bytes() for path in found]


@cache
def _notebooks() -> list[Any]:
    """The Python example as cells, with a line of shell."""
    (text,) = _frameworks("py")
    cells = [
        {"cell_type": "code", "source": [f"!pip install trl\n{part}\n"]}
        for part in text.decode().split("\n\n")
    ]
    return [{"cells": cells, "nbformat": 4, "metadata": {}}]


BRANCHES = b"""#!/bin/bash
AC=${AC:-sel}
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP=$2; shift 2;;
  esac
done
if [ $AC = full ]; then
  OPTS="--gradient_checkpointing true"
elif [ "$AC" = sel ] && [ -z "$TP" ]; then
  OPTS="--lora_rank 8 \\
    --max_length $((4 * 256))"
else
  OPTS="--tuner_type full"
fi
source ./train.sh
case "$AC" in
  full|all) B=1;;
  *) B=2 ;;
esac
for d in a b; do
  run="swift sft --model gpt2 $OPTS --per_device_train_batch_size $B"
  eval $run
done
"""


def _scripts() -> list[Any]:
    return [*_frameworks("sh"), BRANCHES]


def changed_lines(data: bytes, rng: random.Random) -> bytes:
    """Lines of a framework's file left out, repeated, moved, or given an odd value."""
    lines = data.split(b"\n")
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(len(lines))
        key, sign, _value = lines[at].partition(rng.choice([b":", b"=", b" "]))
        odd = str(rng.choice([*ODD_NUMBERS, *ODD_TEXTS])).encode("utf-8", "surrogatepass")
        piece = rng.choice([key + sign + b" " + odd, lines[at] * 40, b"", rng.choice(lines)])
        lines[at : at + rng.randrange(2)] = [piece] * rng.choice([1, 1, 30])
    return b"\n".join(lines)


def changed_log(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    other = rng.choice(_logs()).split(b"\n")
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(len(lines))
        piece = rng.choice(
            [rng.choice(other), lines[at] * rng.choice([2, 40]), b"", lines[at][::-1]]
        )
        lines[at : at + rng.randrange(2)] = [piece] * rng.choice([1, 1, 30])
    return b"\n".join(lines)


@cache
def _parquets() -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (
        {"text": ["a", "bb", None] * 20, "number": list(range(60))},
        {"tokens": [[1, 2], [], None] * 20, "pair": [{"a": 1, "b": "x"}] * 60},
        {"flag": [True, False] * 30, "kind": pa.array(["x", "y"] * 30).dictionary_encode()},
    )
    made = []
    for columns in tables:
        stream = io.BytesIO()
        pq.write_table(pa.table(columns), stream, row_group_size=20)
        made.append(stream.getvalue())
    return made


def changed_footer(data: bytes, rng: random.Random) -> bytes:
    """The footer alone is read, so it alone is changed; its length is put right most of the time."""
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = changed_bytes(data[-8 - size : -8], rng)
    length = len(footer) if rng.random() < 0.9 else rng.choice([0, 2**31, 2**32 - 1, size + 1])
    return data[: -8 - size] + footer + struct.pack("<I4s", length, b"PAR1")


# ---- other readers


@cache
def _baselines() -> list[Any]:
    return [{"verdict": {"allocated_bytes": 2**30, "fits": True}, "entries": []}]


def _job_beside(folder: Path) -> None:
    (folder / "job.yaml").write_text("model: gpt2\ngpu: rtx4090\n", encoding="utf-8")


TARGETS = {
    "snapshot": Target(
        file="x.pickle", command=("snapshot", "FILE", "--replay", "--html", "FOLDER/x.html"), seeds=_snapshots,
        write=_pickled,
    ),
    "snapshot-json": Target(file="x.pickle", command=("snapshot", "FILE", "--json"), seeds=_snapshots, write=_pickled),
    "snapshot-diagnosed": Target(file="x.pickle", command=("diagnose", "FILE"), seeds=_snapshots, write=_pickled),
    "config": Target(file="config.json", command=("params", "FILE"), seeds=_configs, write=_json_bytes),
    "config-estimated": Target(
        file="config.json", command=("estimate", "FILE", "--gpu", "rtx4090", "--seq", "64"), seeds=_configs,
        write=_json_bytes,
    ),
    "config-megatron": Target(
        file="config.json",
        command=("estimate", "FILE", "--framework", "megatron", "--precision", "megatron-bf16", "--seq", "64",
                 "--gpus", "4", "--tp", "2"),
        seeds=_configs, write=_json_bytes,
    ),
    "safetensors": Target(file="x.safetensors", command=("params", "FILE"), seeds=_headers, write=_safetensors),
    "index": Target(
        file="model.safetensors.index.json", command=("estimate", "FOLDER"), seeds=_indices, write=_json_bytes,
        beside=_shards,
    ),
    "job": Target(file="job.yaml", command=("estimate", "--job", "FILE"), seeds=_jobs, write=_yaml, mutate=wild_job),
    "job-estimated": Target(
        file="job.yaml", command=("estimate", "FILE", "--json"), seeds=_jobs, write=_yaml, mutate=changed_job,
        in_bytes=0.02,
    ),
    "job-planned": Target(
        file="job.yaml", command=("plan", "FILE"), seeds=_jobs, write=_yaml, mutate=changed_job,
        in_bytes=0.02,
    ),
    "lengths": Target(
        file="x.txt", command=("estimate", "gpt2", "--lengths", "FILE"), seeds=_lengths, write=_lines,
        mutate=changed_lengths,
    ),
    "log": Target(file="x.log", command=("diagnose", "FILE"), seeds=_logs, write=_as_they_are, mutate=changed_log),
    "parquet": Target(
        file="x.parquet", command=("host", "--dataset", "FILE", "--ram", "16GiB"), seeds=_parquets, write=_as_they_are,
        mutate=changed_footer,
    ),
    **{
        f"from-{ending}": Target(
            file=f"train.{ending}", command=("job", *model, "--from", "FILE"),
            seeds=lambda ending=ending: _scripts() if ending == "sh" else _frameworks(ending), write=_as_they_are,
            mutate=changed_lines,
        )
        for ending, model in (("yaml", ()), ("json", ("gpt2",)), ("sh", ()), ("py", ()))
    },
    "from-ipynb": Target(
        file="train.ipynb", command=("job", "--from", "FILE"), seeds=_notebooks, write=_json_bytes,
    ),
    "from-estimated": Target(
        file="train.yaml", command=("estimate", "--from", "FILE", "--gpu", "rtx4090"),
        seeds=lambda: _frameworks("yaml"), write=_as_they_are, mutate=changed_lines, in_bytes=0.02,
    ),
    "baseline": Target(
        file="x.json", command=("check", "FOLDER/job.yaml", "--baseline", "FILE"), seeds=_baselines, write=_json_bytes,
        beside=_job_beside,
    ),
}  # fmt: skip
