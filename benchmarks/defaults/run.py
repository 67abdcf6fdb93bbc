"""Traces scripts that leave everything to their library, and asks `estimate` about them with as few words.

python benchmarks/defaults/run.py FOLDER [--only WORD] [--cases second|third|fourth] [--estimates]

FOLDER keeps each trace's answer, so that estimates can be compared again without tracing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from cases import BLIND, CASES, FOURTH, LAYERS, THIRD, Case
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vramcast.catalog.models import find_model
from vramcast.errors import VramcastError
from vramcast.forecasting import estimate
from vramcast.job import job_from

SCRIPTS = Path(__file__).resolve().parent / "scripts"
CARD = "a100-80gb"
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers")
BY_LAYER = ("layer_types", "no_rope_layers")
WORDS = ("<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(60)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--cases", choices=("first", "second", "third", "fourth"), default="first")
    parser.add_argument("--estimates", action="store_true", help="trace nothing")
    args = parser.parse_args()
    drawn = {"first": CASES, "second": BLIND, "third": THIRD, "fourth": FOURTH}[args.cases]
    chosen = [case for case in drawn if args.only in case.name]
    if not args.estimates:
        for case in chosen:
            answer = args.folder / file_of(case)
            if not answer.exists():
                trace(case, make_model(case.model, args.folder / "models"), answer)
    print_table(list(compare(chosen, args.folder)))


def make_model(name: str, folder: Path) -> Path:
    """The catalog's config with fewer layers, and a tokenizer of words."""
    made = folder / name
    if made.exists():
        return made
    config = dict(find_model(name).config)
    for key in DEPTHS:
        if key in config:
            config[key] = LAYERS
    for key in BY_LAYER:
        if key in config:
            config[key] = config[key][:LAYERS]
    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(made)
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


def trace(case: Case, model: Path, answer: Path) -> None:
    script = [str(SCRIPTS / f"{case.script}.py")]
    ranks = ["--gpus", str(case.gpus), "--rank", "0"] if case.gpus > 1 else []
    said = [str(model), str(case.batch), str(case.seq), case.adapters, case.what]
    command = [sys.executable, "-m", "vramcast", "trace", "--json", "--gpu", CARD, "--empty-weights",
               "--steps", "2", "--offline", *ranks, *script, "--", *said]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        answer.write_text(done.stdout, encoding="utf-8")
    print(
        case.name,
        "traced" if done.returncode == 0 else f"failed: {done.stderr[-2000:]}",
        flush=True,
    )


def compare(cases: list[Case], folder: Path) -> Iterator[tuple[Case, int, int | str]]:
    for case in cases:
        answer = folder / file_of(case)
        if answer.exists():
            yield case, traced_bytes(answer), estimated_bytes(case, folder)


def file_of(case: Case) -> str:
    return f"{case.name.replace(' ', '_')}.json"


def traced_bytes(answer: Path) -> int:
    found: Any = json.loads(answer.read_text(encoding="utf-8"))
    found = found[0] if isinstance(found, list) else found
    return max(phase["allocated_bytes"] for phase in found["phases"] if phase["place"] == "cuda:0")


def estimated_bytes(case: Case, folder: Path) -> int | str:
    model = folder / "models" / case.model
    try:
        job = job_from({"model": str(model), "gpu": CARD, **case.words()})
        return estimate(job, with_scaling=False).verdict().allocated_bytes or 0
    except VramcastError as error:
        return str(error)


def print_table(found: list[tuple[Case, int, int | str]]) -> None:
    errors = []
    for case, traced, told in found:
        if isinstance(told, str):
            print(f"{case.name:60} refused: {told}")
            continue
        errors.append(abs(told / traced - 1))
        print(f"{case.name:60} {traced / 2**30:8.3f} {told / 2**30:8.3f} {told / traced - 1:+8.2%}")
    if errors:
        close = sum(error <= 0.03 for error in errors)
        print(
            f"{len(errors)} scripts, median {median(errors):.2%}, worst {max(errors):.2%}, {close} within 3 %"
        )


if __name__ == "__main__":
    main()
