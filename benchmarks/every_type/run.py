"""Every model type of the installed transformers, from a small config to a bill.

    python benchmarks/every_type/run.py results.jsonl [--slice 0/8] [TYPE …]   one line of JSON for each type
    python benchmarks/every_type/table.py results.jsonl                        docs/every-type.md from it

A small config is the class's own with two layers, as transformers writes it. Held against transformers: the count of
parameters, by the class on the meta device, also of the config in the keys of transformers 4; and the peak of two plain
steps in bf16 with AdamW. A family of the formulas is held against its trace; a traced answer is its trace.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
SECONDS = 120  # for one type
LAYERS = re.compile(
    r"(n|num)_(\w+_)?(layers?|blocks)|(encoder|decoder)_layers|n_layers?|num_layers|depth"
)
# transformers 4 wrote these names; 5 reads both.
OLD_NAMES = {"dtype": "torch_dtype"}


def small(config: Any) -> dict[str, Any]:
    """What makes a config's models two layers deep, those inside it too."""
    changes: dict[str, Any] = {}
    for key, value in config.to_dict().items():
        if type(value) is int and LAYERS.fullmatch(key) and value > 2:
            changes[key] = 2
    for name in getattr(config, "sub_configs", None) or {}:
        inner = getattr(config, name, None)
        if inner is not None and hasattr(inner, "to_dict"):
            inside = small(inner)
            if inside:
                changes[name] = {"model_type": inner.model_type, **inside}
    return changes


def small_config(model_type: str) -> tuple[dict[str, Any], str, int]:
    """The config as transformers writes it, the class that builds it, and how many parameters that has."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from vramcast.models.read.config import Config
    from vramcast.virtual.jobs.classes import model_class

    kind = CONFIG_MAPPING[model_type]
    plain = kind()
    error: Exception | None = None
    for changes in (small(plain), {}):
        try:
            config = kind(**changes)
            chosen = model_class(Config({"model_type": model_type}, model_type), config)
            with torch.device("meta"):
                model = chosen._from_config(config)
        except Exception as problem:  # the default config of many types cannot be built at all
            error = error or problem
            continue
        config.architectures = [chosen.__name__]
        data = {**json.loads(config.to_json_string()), "model_type": model_type}
        return data, chosen.__name__, sum(p.numel() for p in model.parameters())
    assert error is not None
    raise error


def in_old_keys(data: dict[str, Any]) -> dict[str, Any]:
    """The config with the keys of transformers 4.45: rope settings at top level, torch_dtype."""
    found = {OLD_NAMES.get(key, key): value for key, value in data.items()}
    rope = found.pop("rope_parameters", None)
    if isinstance(rope, dict) and "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        if scaling.get("rope_type", "default") != "default":
            found["rope_scaling"] = scaling
    elif rope is not None:
        found["rope_parameters"] = rope
    inner = found.get("text_config")
    if isinstance(inner, dict):
        found["text_config"] = in_old_keys(inner)
    return found


def answer(model_type: str) -> dict[str, Any]:
    row: dict[str, Any] = {"type": model_type}
    try:
        data, name, params = small_config(model_type)
    except Exception as error:
        return {**row, "by": "not buildable", "why": _line(error)}
    row |= {"class": name, "params": params}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        old = Path(folder) / "old.json"
        old.write_text(json.dumps(in_old_keys(data)), encoding="utf-8")
        row["params_old_keys"] = _count(old)
        return {**row, **_bill(path, name)}


def _count(path: Path) -> int | str:
    from vramcast import read_model
    from vramcast.errors import VramcastError

    try:
        return sum(p.numel for p in read_model(str(path)).table() if p.tied_to is None)
    except VramcastError as error:
        return str(error).replace(str(path), "config")


def _bill(path: Path, name: str) -> dict[str, Any]:
    """By whom the job is answered, and how the answer stands to the trace."""
    from vramcast import engine
    from vramcast.errors import UndescribedModelError, VramcastError
    from vramcast.job import Job, Precision
    from vramcast.setup import complete, model_of

    job = Job(
        model=str(path),
        task="pretrain" if name.endswith("ForMaskedLM") else None,  # else a classifier
        framework="plain",
        precision=Precision.BF16_TRUE,
        optimizer="adamw",
        batch=2,
        seq=64,
        gpu="h200",
        tuning="full",
    )
    source = model_of(complete(job))
    found: dict[str, Any] = {}
    if source.is_described:
        try:
            forecast = engine.estimate(job, with_scaling=False)
            assert forecast.model is not None
            found = {"by": "formula", "counted": forecast.model.params_total,
                     "peak": forecast.verdict().allocated_bytes}  # fmt: skip
        except UndescribedModelError:
            pass
        except VramcastError as error:
            return {"by": "refused", "why": _line(error)}
    try:
        traced, kind, counted = _trace(job, source)
    except VramcastError as error:
        reason = str(error).replace(str(path), "config")
        return {**found, "not_traced": reason} if found else {"by": "refused", "why": reason}
    if not found:
        return {"by": "traced", "counted": counted, "peak": traced, "traced": traced, "ran": kind}
    return {**found, "traced": traced}


def _trace(job: Any, source: Any) -> tuple[int, str, int]:
    """The same as `estimate` does in a process of its own, here."""
    from vramcast.forecasting.tracer import request_of
    from vramcast.traces.record import from_json
    from vramcast.virtual.jobs.trace_any import trace_here

    answer = trace_here({"jobs": [request_of(job, source.config)]}, None)["answers"][0]
    if "error" in answer:
        from vramcast.errors import UnsupportedError

        raise UnsupportedError(answer["error"])
    ledger = from_json(answer["trace"]).ledger
    peak = max(ledger.moment(phase, "cuda:0").allocated_bytes for phase in ledger.phases("cuda:0"))
    return peak, answer["kind"], answer["params_total"]


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _alarm(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--slice", default="0/1", help="of all types: the first of eight is 0/8")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    number, of = map(int, args.slice.split("/"))
    types = args.types or sorted(CONFIG_MAPPING_NAMES)[number::of]
    known = args.results.read_text(encoding="utf-8").splitlines() if args.results.exists() else []
    done = {json.loads(line)["type"] for line in known}
    signal.signal(signal.SIGALRM, _alarm)
    for model_type in types:
        if model_type in done:
            continue
        started = time.monotonic()
        signal.alarm(SECONDS)
        try:
            row = answer(model_type)
        except TimeoutError as error:
            row = {"type": model_type, "by": "refused", "why": str(error)}
        except Exception as error:  # a bug of ours: the table shows it
            row = {"type": model_type, "by": "failed", "why": _line(error)}
        finally:
            signal.alarm(0)
        row["seconds"] = round(time.monotonic() - started, 2)
        with args.results.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")
        print(model_type, row["by"], row.get("why", "")[:100], file=sys.stderr)


if __name__ == "__main__":
    main()
