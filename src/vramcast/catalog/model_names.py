"""A model's name as people type it, taken apart: whose it is, which model, and how its checkpoint is stored.

    read_name("unsloth/Qwen3-8B-bnb-4bit")   → owner unsloth, words qwen 3 8 b, stored "bnb-4bit"
    read_name("Qwen3_8B_Instruct")           → no owner, words qwen 3 8 b instruct

Does not know which models exist: `models.py` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

# How a checkpoint is stored, as a part of its name says it. The first that matches counts.
STORED = {
    "unsloth-bnb-4bit": r"unsloth-bnb-4bit",
    "bnb-4bit": r"bnb-4-?bit|4-?bit-bnb|bnb-nf4|nf4",
    "bnb-8bit": r"bnb-8-?bit|8-?bit-bnb|bnb-int8",
    "mlx": r"mlx(-community)?(-q?[0-9](-?bit)?)?|(?<=mlx-)[0-9]-?bit|dwq|qat-4bit",
    "gguf": r"gguf|ggml|(ud-)?i?q[2-8](-?[01]|-k(-?[msl]|-xl)?)(-gguf)?",
    "awq": r"(autoawq-|awq-)?(int4-|4bit-)?awq(-int4|-4-?bit|-g128|-w4a16|-marlin|-gemm)*",
    "gptq": r"(auto)?gptq(model)?(-marlin|-int[2348]|-[2348]-?bits?|-w4a16|-g128|-128g|-actorder|-true|-false)*",
    "nvfp4": r"nvfp4(a16)?|fp4",
    "mxfp4": r"mxfp4",
    "fp8": r"fp8(-dynamic|-static|-block|-kv|-per-?tensor|-per-?channel|-tensorwise|-torchao|-e4m3)*",
    "w4a16": r"(quantized\.)?w4a16(-g128)?|int4|autoround|torchao-int4|hqq(-4bit)?|exl[23]|aqlm(-2bit)?|eetq",
    "w8a8": r"(quantized\.)?w8a(8|16)|int8|smoothquant",
    "4bit": r"4-?bit",
    "8bit": r"8-?bit|6-?bit",
}
_STORED = {kind: re.compile(rf"(?:^|-)(?:{pattern})(?=-|$)") for kind, pattern in STORED.items()}
# Words that name a way of training, a file format or a date: the same tensors.
VARIANTS = {
    "instruct",
    "it",
    "chat",
    "base",
    "hf",
    "meta",
    "pt",
    "dpo",
    "sft",
    "orpo",
    "rlhf",
    "thinking",
    "reasoning",
    "bf16",
    "fp16",
    "safetensors",
    "preview",
    "terminus",
    "deduped",
    "qat",
    "unquantized",
    "linearized",
    "abliterated",
    "uncensored",
    "official",
    "sharded",
}
# Mirrors that write the first owner before the name: bartowski/Qwen_Qwen3-8B-GGUF.
REPEATED_OWNER = re.compile(
    r"^(qwen|google|mistralai|meta-llama|microsoft|deepseek-ai|openai|huggingfacetb|ibm-granite|nvidia|zai-org|thudm|"
    r"allenai|tiiuae|moonshotai|nousresearch|unsloth)_(?=[a-z])",
    re.IGNORECASE,
)
# A release's month or day: 2507 is July 2025, 0528 the 28th of May.
DATE = re.compile(r"2[3-6](0[1-9]|1[0-2])|(0[1-9]|1[0-2])([0-2][0-9]|3[01])")


# The longest text that it was trained for: rotary positions have no parameters.
CONTEXT = re.compile(r"[0-9]+k|1m")
# Words of a model that is more, or other, than the one whose name it holds: other inputs, a head of its own, a part.
OF_ANOTHER = {
    "vl", "vla", "vlm", "vision", "visual", "image", "video", "audio", "speech", "tts", "asr", "ocr", "omni",
    "sam", "llava", "onevision", "next", "blip", "internvl", "minicpm", "cogvlm", "clip", "siglip", "fuse",
    "projector", "eagle", "medusa", "mtp", "draft", "drafter", "speculator", "dflash", "hydra", "embed",
    "embedding", "embeddings", "gte", "e", "retriever", "colbert", "reranker", "moe", "mamba", "rwkv", "hybrid",
    "pruned", "prune", "sheared", "sparse", "slim", "minitron", "depth", "width", "layers", "layer", "random",
    "testing", "dummy", "debug", "expanded", "extended", "resized", "vocab", "tokenizer", "byte", "diffusion",
    "encoder", "scratch", "upscaled", "merged", "x"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelName:
    owner: str  # as typed
    tail: str  # lower case, words joined by dashes, without what says how it is stored
    stored: str = ""  # a key of STORED

    @property
    def words(self) -> tuple[str, ...]:
        """Letters and numbers: `llama-3.1-8b`, `Llama3.1_8B` and `llama 3.1 8b` are one."""
        return split_words(self.tail)

    @property
    def plain_words(self) -> tuple[str, ...]:
        """Without the words that do not change a tensor."""
        kept = [part for part in self.tail.split("-") if part not in VARIANTS]
        undated = [part for part in kept if not DATE.fullmatch(part)]
        if len(undated) > 1 and CONTEXT.fullmatch(undated[-1]):
            undated.pop()
        return split_words("-".join(undated))


def read_name(text: str) -> ModelName:
    owner, _, name = text.strip().strip("/").rpartition("/")
    if not owner and name.startswith("models--"):  # a folder of the Hugging Face cache
        owner, _, name = name.removeprefix("models--").rpartition("--")
    tail = normalise(REPEATED_OWNER.sub("", name))
    is_mlx = "mlx" in owner.lower()
    for kind, pattern in _STORED.items():
        rest = pattern.sub("", tail).strip("-")
        if rest != tail and rest:
            return ModelName(owner, rest, "mlx" if is_mlx else kind)
    return ModelName(owner, tail, "mlx" if is_mlx else "")


def normalise(name: str) -> str:
    """Lower case, words joined by one dash."""
    return re.sub(r"-{2,}", "-", re.sub(r"[\s_]+", "-", name.lower())).strip("-")


def split_words(tail: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z]+|[0-9]+(?:\.[0-9]+)*", tail))


def is_built_on(asked: tuple[str, ...], base: tuple[str, ...]) -> bool:
    """Does a name hold that of its base, as those of fine-tunes do: `dolphin-2.9-llama3-8b`, `llama-3.1-tulu-3-8b`?

    The base's last words are its size, which may come later; nothing else may tell of another model or size."""
    if len(base) < 3 or base[-1] not in SIZE_UNITS or not base[-2][0].isdigit():
        return False
    family, size = base[:-2], base[-2:]
    for at in range(len(asked) - len(base) + 1):
        if asked[at : at + len(family)] != family:
            continue
        rest = asked[at + len(family) :]
        if rest[:2] != size and VERSION.match(" ".join(rest)):
            continue
        for later in range(len(rest) - 1):
            if rest[later : later + 2] == size:
                others = (*asked[:at], *rest[:later], *rest[later + 2 :])
                return OF_ANOTHER.isdisjoint(others) and not _has_size(others)
    return False


SIZE_UNITS = ("b", "m")
VERSION = re.compile(r"(v )?[0-9]")  # of a family, where its base has none: mamba2 is not mamba


def _has_size(words: tuple[str, ...]) -> bool:
    return any(number[0].isdigit() and unit in SIZE_UNITS for number, unit in pairwise(words))
