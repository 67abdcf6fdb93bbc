"""What files say, and what flags say → the Job. Flags win; what a Job needs and nobody says is asked for, or assumed
and said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from vramcast.configs.records import Gap, Record, Said
from vramcast.configs.understand import Understood
from vramcast.errors import InputError, VramcastError
from vramcast.everyday_words import translate
from vramcast.job import MOST_GPUS, Job, check_value, fields, job_from, parse_value

COPIES = "modules trained in full beside the adapters are not counted"
INHERITS = "the file that it inherits from"


def _refuse_contradictions(said: Mapping[str, Said]) -> None:
    """deepspeed/runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"."""
    stages, strategy = said.get("pp"), said.get("strategy")
    if stages is None or strategy is None or type(stages.value) is not int or stages.value < 2:
        return
    if strategy.value in ("zero2", "zero3"):
        raise InputError(
            f"{strategy.origin}: {strategy.value} with {stages.value} pipeline stages ({stages.origin}): DeepSpeed "
            "refuses that; take zero1 with a pipeline, or leave out one of the two"
        )


def _accumulation(said: Mapping[str, Said], total: Record | None) -> dict[str, Said]:
    """What is left of the batch of all GPUs for each copy of the model, in micro-batches."""
    counts = [said[key].value for key in ("gpus", "batch", "tp", "pp", "cp") if key in said]
    known = all(type(value) is int and value > 0 for value in counts)
    if total is None or type(total.value) is not int or not known or "accumulate" in said:
        return {}
    if "gpus" not in said or "batch" not in said or _is_assumed(said["gpus"]):
        return {}
    batch = said["batch"].value
    copies = max(counts[0] // math.prod(counts[2:]), 1)
    if total.value < 1 or total.value % (copies * batch):
        return {}
    told = f"{total.place} {total.key} {total.value} / (micro-batch {batch} × {copies} copies)"
    return {"accumulate": Said(value=total.value // (copies * batch), origin=told)}


def _is_assumed(each: Said) -> bool:
    return each.origin.startswith("not in the files")


def _left_out(said: dict[str, Said]) -> Iterator[Gap]:
    """What no answer describes is left out and named, so that the rest is answered. What a flag says stays."""
    gpus, stages = said.get("gpus"), said.get("pp")
    many = gpus is not None and type(gpus.value) is int and gpus.value > 1
    task, tokens = said.get("task"), said.get("rollout-tokens")
    if many and task is not None and task.value in ("grpo", "ppo") and not _is_flag(task):
        del said["task"]
        yield Gap(
            record=task.record,
            text="completions generated on many GPUs, and models that judge them, are not counted: the step is",
        )
        if tokens is not None and not _is_flag(tokens):
            del said["rollout-tokens"]
            _say_prompt(said, tokens)
    reference = said.get("reference")
    if reference is None or reference.value not in ("same", "cpu") or _is_flag(reference):
        return
    if stages is not None and type(stages.value) is int and stages.value > 1:
        said["reference"] = Said(value="none", origin=reference.origin, record=reference.record)
        yield Gap(record=reference.record, text="a reference across pipeline stages is not counted")


def _counts_copies(job: Job) -> bool:
    """engine/recording/regime.py: modules trained in full beside adapters, over plain weights on one GPU."""
    sizes = (job.gpus, job.tp, job.pp, job.cp, job.ep)
    is_divided = any(type(size) is int and size > 1 for size in sizes)
    return not is_divided and job.quantize in (None, "none")


def _say_prompt(said: dict[str, Said], tokens: Said) -> None:
    length = said.get("seq")
    if length is not None and length.value > tokens.value:
        said["prompt-tokens"] = Said(value=length.value - tokens.value, origin=tokens.origin)


def _is_flag(each: Said) -> bool:
    return each.origin.startswith("--")


def _copy_of_gpus(said: Mapping[str, Said]) -> dict[str, Said]:
    """Where nobody says how many GPUs there are, as many as one copy of the model needs."""
    sizes = [said[key].value for key in ("tp", "pp", "cp", "shard-size") if key in said]
    count = math.prod(size for size in sizes if type(size) is int)
    experts = said["ep"].value if "ep" in said else 1
    stages = said["pp"].value if "pp" in said else 1
    by_megatron = "framework" in said and said["framework"].value == "megatron"
    cut = said.get(
        "expert-tp", said.get("tp") if by_megatron else None
    )  # Megatron cuts experts as it cuts the rest
    parts = 1 if cut is None or experts == 1 else cut.value
    if all(type(each) is int for each in (experts, stages, parts)):
        count = math.lcm(count, experts * stages * parts)
    if "gpus" in said or not 1 < count <= MOST_GPUS:
        return {}
    return {
        "gpus": Said(value=count, origin=f"not in the files: {count} hold one copy; say --gpus")
    }


def _ask_for_gpus(said: Mapping[str, Said]) -> tuple[str, ...]:
    if "gpus" in said and _is_assumed(said["gpus"]):
        return (f"how many GPUs is {said['gpus'].origin}",)
    if "gpus" in said or "strategy" not in said or said["strategy"].value in ("none", None):
        return ()
    return (
        f"how many GPUs is not in the files: counted with 1; give --gpus N, {said['strategy'].value} shares among them",
    )


def _checked(said: Mapping[str, Said]) -> dict[str, Said]:
    """Every value as the Job's field wants it; a mistake names the line."""
    made: dict[str, Said] = {}
    for key, each in said.items():
        value = each.value
        if isinstance(value, str) and "$" in value and key in fields():
            raise InputError(f"{each.origin}: {value} is not in the files: give --{key}")
        try:
            parsed = parse_value(key, value)
            check_value(fields()[key], parsed)
        except VramcastError as error:
            raise type(error)(f"{each.origin}: {error}") from None
        made[key] = Said(value=parsed, origin=each.origin, record=each.record)
    return made


def _why_no_model(understood: Understood) -> str:
    """What names it is not in the files, or another file is."""
    for gap in understood.gaps:
        key = "" if gap.record is None else gap.record.key
        if "model" in key.lower() or "pretrain" in key or gap.text.startswith(INHERITS):
            return f" ({gap})"
    return ""


def job_of_files(understood: Understood, flags: Mapping[str, Any]) -> tuple[Job, Understood]:
    """The Job; flags win, and are origins themselves."""
    told = translate(dict(flags))
    kept = {key: each for key, each in understood.said.items() if key not in told}
    said = {
        **_checked(kept),
        **{key: Said(value=value, origin=f"--{key}") for key, value in told.items()},
    }
    said |= _copy_of_gpus(said)
    _refuse_contradictions(said)
    left_out = tuple(_left_out(said))
    said |= _accumulation(said, understood.total_batch)
    if "model" not in said and "params" not in said:
        raise InputError(
            f"the files do not say which model{_why_no_model(understood)}: give MODEL as well "
            "(`vramcast estimate MODEL --from …`)"
        )
    job = job_from({key: each.value for key, each in said.items()})
    copies = said.get("modules-to-save")
    if copies is not None and not _is_flag(copies) and not _counts_copies(job):
        del said["modules-to-save"]
        left_out = (*left_out, Gap(record=copies.record, text=COPIES))
        job = job_from({key: each.value for key, each in said.items()})
    values = {
        key: Said(value=getattr(job, key.replace("-", "_")), origin=each.origin, record=each.record)
        for key, each in said.items()
    }
    made = Understood(
        said=values,
        frameworks=understood.frameworks,
        gaps=(*understood.gaps, *left_out),
        unknown=understood.unknown,
        assumptions=(*understood.assumptions, *_ask_for_gpus(said)),
        total_batch=understood.total_batch,
        version=understood.version,
        asked_version=understood.asked_version,
        parts=understood.parts,
    )
    return job, made
