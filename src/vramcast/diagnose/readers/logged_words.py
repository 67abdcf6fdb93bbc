"""What a log says about the job itself: launch lines, argparse dumps, config prints, trainers' headers.

In: the lines around the failure. Out: words by the key under which frameworks know them, the first one said for each.
Values are words as printed; nothing is opened, and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# `--key value`, `key: value`, `key=value`, `"key": value`, `'--key', 'value'`, `'key': 'value',`
_END = r"(?=['\",;)\s\]}]|$)"
# After a flag a blank suffices; after a bare key it takes a colon, an equals sign, or the quotes of a list.
_AFTER_FLAG = r"(?:\s*[=:]\s*|['\"],\s*|\s+)['\"]?"
_AFTER_KEY = r"(?:['\"]?\s{0,20}[:=]\s{0,4}|['\"],\s*)['\"]?"


def _key(names: str, value: str) -> re.Pattern[str]:
    flag, key = rf"-{{1,2}}(?:{names}){_AFTER_FLAG}", rf"(?<![\w.-])(?:{names}){_AFTER_KEY}"
    return re.compile(rf"(?:{flag}|{key})(?P<v>{value}){_END}")


_NUMBER = r"[1-9](?:_?\d){0,6}"
_NAME = r"[A-Za-z0-9_./~\\:-]{3,200}"
_SWITCH = r"(?i:true|yes|1)"
# Cards that people name in a sentence; a bare number is one only behind RTX or GTX.
_CARD_MAKERS = r"(?:NVIDIA|Nvidia|GeForce|Tesla|Quadro)[ -]"
_CARDS = (
    r"(?:[ABHVabhv][1-3]00|[AH]800|H20|B200|GH200|P100|P40|[TL]4|L40S?|A10G?|A[34]0|(?:RTX )?A[2456]000"
    r"|(?:RTX|GTX)[ -]?\d{4}(?: ?Ti)?)(?![\w.])"
)
_CARD_SIZE = r"\d{2,3} ?G(?:i?B)?"
IN_PASSING = "named in passing"

# What it says, and the patterns, the most reliable first. Lengths are tokens, batches are samples per device.
_TABLE: tuple[tuple[str, tuple[re.Pattern[str], ...]], ...] = (
    (
        "model",
        (
            _key(
                r"model[-_]name[-_]or[-_]path|base[-_]model(?:[-_]name[-_]or[-_]path)?"
                r"|pretrained[-_]model[-_]name[-_]or[-_]path"
                r"|actor[-_]rollout[-_]ref\.model\.path|model[-_]path|model[-_]id|model[-_]name"
                r"|_name_or_path|pretrain|input-model",
                _NAME,
            ),
            re.compile(rf"from_pretrained\(\s*['\"](?P<v>{_NAME})['\"]"),
            re.compile(rf"\bvllm serve\s+['\"]?(?P<v>{_NAME}){_END}"),
            _key(r"model", _NAME),
        ),
    ),
    (
        IN_PASSING,  # in a sentence, with its size
        (
            re.compile(
                r"(?<![\w/.-])(?P<v>(?:[A-Z][\w-]*/)?[A-Za-z][\w.]*-(?:[\w.]+-)*\d{1,3}(?:\.\d{1,2})?[bB](?:-[\w.]+)*)"
                r"(?![\w/.])"
            ),
        ),
    ),
    (
        "batch",
        (
            _key(
                r"per[-_]device[-_]train[-_]batch[-_]size"
                r"|(?:train[-_])?micro[-_](?:train[-_])?batch[-_]size(?:[-_]per[-_]gpu)?",
                _NUMBER,
            ),
            re.compile(
                rf"[Bb]atch size per device\s*(?:/[^:=\n]{{0,20}})?[=:]\s*(?P<v>{_NUMBER})\b"
            ),
            _key(r"train[-_]batch[-_]size|batch[-_]size", _NUMBER),
        ),
    ),
    (
        "seq",
        (
            _key(
                r"max[-_]seq[-_]len(?:gth)?|cutoff[-_]len|model[-_]max[-_]length"
                r"|sequence[-_]len(?:gth)?|seq[-_]len(?:gth)?"
                r"|max[-_]length",
                _NUMBER,
            ),
            _key(r"block[-_]size", r"[1-9]\d{2,5}"),
        ),
    ),
    (
        "gpu",
        (
            re.compile(rf"(?P<v>(?:{_CARDS})[ -]?(?:(?:SXM\d?|PCIe)[ -]?)?\(?{_CARD_SIZE})(?!\w)"),
            re.compile(rf"(?<![\w.])(?P<size>{_CARD_SIZE}) (?:{_CARD_MAKERS})?(?P<v>{_CARDS})"),
            re.compile(rf"(?<![\w./-])(?P<v>{_CARDS})"),
        ),
    ),
    ("lora-rank", (_key(r"lora[-_]r(?:ank)?|lora[-_]dim", _NUMBER),)),
    (
        "lora",
        (
            _key(r"finetuning[-_]type|train[-_]type|tuner[-_]type|sft[-_]type", r"q?lora"),
            _key(r"use[-_](?:peft|lora)", _SWITCH),
            re.compile(r"--(?:use_peft|lora)(?P<v>)(?=\s|$)"),
        ),
    ),
    ("load-in-4bit", (_key(r"load[-_]in[-_]4bit", _SWITCH), _key(r"quantization[-_]bit", "4"))),
    ("load-in-8bit", (_key(r"load[-_]in[-_]8bit", _SWITCH), _key(r"quantization[-_]bit", "8"))),
    (
        "gradient-checkpointing",
        (
            _key(r"gradient[-_]checkpointing", _SWITCH),
            re.compile(r"--gradient[-_]checkpointing(?P<v>)(?=\s*(?:\\|--|$))"),
        ),
    ),
    ("optim", (_key(r"optim(?:izer)?", r"[a-z]\w{2,30}"),)),
    (
        "zero-stage",
        (
            _key(r"zero[-_]stage|stage", "[123]"),
            re.compile(r"\bds_z(?P<v>[23])(?!\d)"),
            re.compile(
                r"(?<![A-Za-z0-9])(?i:zero)[-_ ]?(?i:stage)?[-_ ]?(?P<v>[123])(?![A-Za-z0-9])"
            ),
        ),
    ),
    (
        "gpus",
        (
            _key(r"nproc[-_]per[-_]node|num[-_]gpus|num[-_]processes", _NUMBER),
            re.compile(rf"(?:{_CARDS})\s?\((?P<v>\d{{1,2}})\s?[x*×]\s?\d{{2,3}} ?G"),
            re.compile(rf"Num GPUs (?:used )?= (?P<v>{_NUMBER})"),
            re.compile(
                rf"(?<![\w.])(?P<v>[2-9]|\d{{2}})\s?(?:[x*×]|张|块|卡的?)?\s?(?:{_CARD_MAKERS})?(?:{_CARDS})"
            ),
        ),
    ),
    (
        "dtype",
        (
            _key(
                r"(?:torch[-_])?dtype",
                r"(?:torch\.)?(?:float|half|bfloat16|float16|float32|auto|fp16|bf16)",
            ),
        ),
    ),
    (
        "quantization",
        (_key(r"quantization", r"(?:awq|gptq|fp8|bitsandbytes|awq_marlin|gptq_marlin|int8)\w*"),),
    ),
    ("tensor-parallel-size", (_key(r"tensor[-_]parallel[-_]size|-tp|tp|tp-size", _NUMBER),)),
    (
        "gpu-memory-utilization",
        (_key(r"gpu[-_]memory[-_]utilization|mem[-_]fraction[-_]static", r"[01]?\.\d{1,4}"),),
    ),
)


def _said(match: re.Match[str]) -> str:
    """A card's size may stand before its name."""
    size, value = match.groupdict().get("size"), match["v"]
    if re.fullmatch(_NUMBER, value):
        return value.replace("_", "")
    return f"{value} {size}" if size else value.replace("(", "")


_SWITCHES = ("load-in-4bit", "load-in-8bit", "gradient-checkpointing", "lora")


def words_of_job(lines: Iterable[str]) -> Mapping[str, str]:
    """By key what was said first; of several patterns for a key the first that says anything."""
    text = "\n".join(lines)
    found: dict[str, str] = {}
    for key, patterns in _TABLE:
        match = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
        if match is not None:
            found[key] = "true" if key in _SWITCHES else _said(match)
    if "model" in found:
        found.pop(IN_PASSING, None)
    return found
