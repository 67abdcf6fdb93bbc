"""Every model type of the installed transformers, from a small config to a bill.

    python benchmarks/every_type/run.py results.jsonl [--slice 0/8] [TYPE …]   one line of JSON for each type
    python benchmarks/every_type/table.py results.jsonl                        docs/every-type.md from it

A small config is the class's own with two layers (four or all of them where it cannot be run with two), as transformers
writes it; sizes that have no default are given. Held against transformers: the count of
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

from vramcast.job import Precision

os.environ["HF_HUB_OFFLINE"] = "1"
SECONDS = 120  # for one type
LAYERS = re.compile(
    r"(n|num)_(\w+_)?(layers?|blocks)|(encoder|decoder)_layers|n_layers?|num_layers|depth"
)
# Sizes that have no default, or defaults of parts that do not fit together: what a checkpoint of the type says.
GIVEN: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 24},
    "blip-2": {"image_token_index": 50265},
    "chameleon": {"vocabulary_map": {"<image>": 8711, "IMGIMGAAZ": 4}},
    "dbrx": {"attn_config": {"rope_theta": 500000.0}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "emu3": {"vocabulary_map": {"<image>": 8711, "<|visual token 000000|>": 4}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "hunyuan_vl_text": {"head_dim": 128},
    "informer": {"prediction_length": 24},
    "instructblip": {"image_token_index": 50265},
    "instructblipvideo": {"video_token_index": 50265},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "ministral": {"head_dim": 128},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 151652},
    "qwen3_5": {"vision_config": {"out_hidden_size": 4096}},
    "qwen3_5_moe": {"vision_config": {"out_hidden_size": 2048}},
    "qwen3_omni_moe_thinker": {"vision_config": {"out_hidden_size": 2048}},
    "step3p5": {"sliding_window": 512},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "time_series_transformer": {"prediction_length": 24},
    "xmod": {"default_language": "en_XX"},
}
DEPTHS = (
    2,
    4,
    None,
)  # layers that are kept; None: all. Hybrids repeat after four, taps sit deep in backbones
# transformers 4 wrote these names; 5 reads both.
OLD_NAMES = {"dtype": "torch_dtype"}


def small(config: Any, depth: int | None) -> dict[str, Any]:
    """What makes a config's models so many layers deep, those inside it too."""
    changes: dict[str, Any] = {}
    if depth is None:
        return changes
    for key, value in config.to_dict().items():
        if type(value) is int and LAYERS.fullmatch(key) and value > depth:
            changes[key] = depth
    for name in getattr(config, "sub_configs", None) or {}:
        inner = getattr(config, name, None)
        if inner is not None and hasattr(inner, "to_dict"):
            inside = small(inner, depth)
            if inside:
                changes[name] = {"model_type": inner.model_type, **inside}
    return changes


def joined(changes: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    inside = {
        key: joined(changes.get(key, {}), value) if isinstance(value, dict) else value
        for key, value in given.items()
    }
    return {**changes, **inside}


def small_config(model_type: str, depth: int | None) -> tuple[dict[str, Any], str, int]:
    """The config as transformers writes it, the class that builds it, and how many parameters that has."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from vramcast.models.read.config import Config
    from vramcast.virtual.jobs.classes import model_class

    kind = CONFIG_MAPPING[model_type]
    given = GIVEN.get(model_type, {})
    config = kind(**joined(small(kind(**given), depth), given))
    chosen = model_class(Config({"model_type": model_type}, model_type), config)
    with torch.device("meta"):
        model = chosen._from_config(config)
    config.architectures = [chosen.__name__]
    data = {**json.loads(config.to_json_string()), "model_type": model_type}
    return data, chosen.__name__, sum(p.numel() for p in model.parameters())


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
    """With as few layers as the type can do with, in bf16 if it can."""
    first: dict[str, Any] = {}
    for depth in DEPTHS:
        for precision in (Precision.BF16_TRUE, Precision.FP32):
            row = _answer(model_type, depth, precision)
            if row["by"] in ("formula", "traced"):
                return row
            if not first or (row["by"] == "refused" and first["by"] != "refused"):
                first = row
            if not OF_DTYPE.search(row["why"]):
                break
        if NO_HELP.search(row["why"]):
            break
    return first


OF_DTYPE = re.compile(r"BFloat16|bfloat16|scalar type|same dtype")
# Reasons that other sizes would not mend.
NO_HELP = re.compile(
    r"pip install|no model class|has no forward|which no job describes|no attribute"
)


def _answer(model_type: str, depth: int | None, precision: Precision) -> dict[str, Any]:
    row: dict[str, Any] = {"type": model_type, "layers": depth, "precision": precision.value}
    try:
        data, name, params = small_config(model_type, depth)
    except Exception as error:
        return {**row, "by": "not buildable", "why": _line(error)}
    row |= {"class": name, "params": params}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        old = Path(folder) / "old.json"
        old.write_text(json.dumps(in_old_keys(data)), encoding="utf-8")
        row["params_old_keys"] = _count(old)
        return {**row, **_bill(path, name, precision)}


def _count(path: Path) -> int | str:
    from vramcast import read_model
    from vramcast.errors import VramcastError

    try:
        return sum(p.numel for p in read_model(str(path)).table() if p.tied_to is None)
    except VramcastError as error:
        return str(error).replace(str(path), "config")


def _bill(path: Path, name: str, precision: Precision) -> dict[str, Any]:
    """By whom the job is answered, and how the answer stands to the trace."""
    from vramcast import engine
    from vramcast.errors import UndescribedModelError, VramcastError
    from vramcast.job import Job
    from vramcast.setup import complete, model_of

    job = Job(
        model=str(path),
        task="pretrain" if name.endswith("ForMaskedLM") else None,  # else a classifier
        framework="plain",
        precision=precision,
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
