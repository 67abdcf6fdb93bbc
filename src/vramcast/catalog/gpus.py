"""GPUs by name: in comes what people type, out comes a Gpu with what CUDA reports for it.

A total nobody has read off a real card is None, with the reason in `gap`; nothing is derived from the number on the
box. Does not know drivers or Windows: totals shrink a little with newer drivers (see `seen`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache

from vramcast.catalog.instances import find_instance, machines_of
from vramcast.catalog.tables import read_rows
from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.units import MiB, format_gib, parse_bytes

SMALLEST_CARD_BYTES = 64 * MiB
LARGEST_CARD_BYTES = 2**40  # no GPU has a TiB
# What was meant as a size and is none: -24GiB, infGiB, 24PB, 1e3GiB.
MISSIZED = re.compile(
    r"\s*([-+]?(inf|nan)|[-+][\d.,e]+|\d[\d.,e+-]*)\s*([kmgtpe]i?)b\s*|nan|inf", re.IGNORECASE
)
SIZE = re.compile(r"\s*[0-9]{1,12}(\.[0-9]{1,12})?\s*([kmgt]i?)?b\s*", re.IGNORECASE)
# Words of a name that make it another card.
VARIANTS = {"ti", "super", "d", "xt", "xtx", "x", "s"}
# The kind of memory, as torch's name of a card says it and people leave it out.
MEMORY = re.compile(r"\b(hbm[0-9]?e?|gddr[0-9]x?)\b", re.IGNORECASE)
# Words that vendors and shops put before or after the name of the card.
DECORATION = {
    "nvidia",
    "geforce",
    "tesla",
    "amd",
    "instinct",
    "radeon",
    "apple",
    "generation",
    "gpu",
    "oam",  # the form of AMD's modules
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card as torch sees it."""

    name: str
    vendor: str
    total_bytes: int | None  # what CUDA reports, under Linux where that is known
    gap: str = ""  # why total_bytes is None
    aliases: tuple[str, ...] = ()
    nominal_gb: int | None = None  # the number on the box
    seen: str = ""  # totals seen with other drivers and systems, as text
    smi_total_mib: str = ""
    total_source: str = ""
    bandwidth_gb_s: float | None = None
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    fp32_tflops: float | None = None
    interconnect: str = ""
    architecture: str = ""  # compute capability, gfx name or Metal
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    supports_bf16: bool | None = None  # in hardware
    supports_fp8: bool | None = None
    context_bytes: int | None = None  # the bare context, modules loaded lazily
    context_range_bytes: tuple[int, int] | None = None  # up to a training run's kernels loaded
    context_source: str = ""
    sources: str = ""  # codes of gpus_source_codes.csv
    notes: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def capacity_bytes(self) -> int:
        """total_bytes, or an error with a way forward where nobody has reported it."""
        if self.total_bytes is None:
            raise UnsupportedError(
                f"{self.name}: {self.gap} Give the card's memory instead, as torch.cuda.mem_get_info() prints it: "
                "--gpu 22.2GiB."
            )
        return self.total_bytes


@cache
def all_gpus() -> tuple[Gpu, ...]:
    rules = read_rows("context_defaults.csv")
    return tuple(_read_gpu(row, rules) for row in read_rows("gpus.csv"))


def find_gpu(name: str) -> Gpu:
    """A card by any spelling of its name, by a machine that has it, or an anonymous one by its size: `rtx4090`,
    `A100 80GB`, `g5.xlarge`, `24GiB`."""
    if not name.strip():
        raise InputError("--gpu is empty: give a card such as rtx4090, or a size such as 24GiB.")
    exact = _by_spelling().get(_plain(name))
    if exact is not None:
        return exact
    if SIZE.fullmatch(name):
        return _make_anonymous(name)
    if MISSIZED.fullmatch(name):
        raise InputError(
            f"--gpu {name.strip()} is no size. Write a size like 24GiB, or a card's name."
        )
    if name.strip().isdigit() and (_plain(name),) not in _by_key():
        raise InputError(
            f"--gpu {name.strip()} has no unit. Write a size like {name.strip()}GiB, or a card's name."
        )
    instance = find_instance(name)
    found = _matches(instance.card if instance else name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnsupportedError(
            f"{name!r} may be {_or([gpu.name for gpu in found])}. Write one of these."
        )
    rented = [f"{name.strip()} {machine}" for machine in machines_of(name)]
    if rented:
        raise UnsupportedError(f"{name.strip()!r} has several cards. Write one of {_or(rented)}.")
    if instance is not None:
        raise UnsupportedError(
            f"{instance.name} has {instance.card}, which is not in the catalog. Give the memory of one card instead: "
            "--gpu 24GiB."
        )
    raise _unknown_gpu(name)


def is_known(name: str) -> bool:
    """Is this the name of a card, of several, or of a machine?"""
    return is_spelling(name) or find_instance(name) is not None or bool(_matches(name))


def is_spelling(name: str) -> bool:
    """Is this a card's name or alias, letter for letter?"""
    return _plain(name) in _by_spelling()


def _matches(name: str) -> list[Gpu]:
    """The card of this name; else those of which this is a part of the name: `a100` is said of several."""
    for text in (name, MEMORY.sub(" ", name)):
        found = _by_key().get(_key(text)) or _by_spelling().get(_plain(text))
        if found:
            return [found]
    words = set(_key(name))
    return [gpu for gpu in all_gpus() if _is_short_for(words, gpu.name)]


def _is_short_for(words: set[str], name: str) -> bool:
    """Are these words of a card's name, without what tells its memory and form, but with all that makes it another
    card?"""
    all_words = set(_key(name))
    return _model_words(name) | (all_words & VARIANTS) <= words <= all_words


@cache
def _model_words(name: str) -> set[str]:
    """The number of a card with the letters before it: what no short form of its name leaves out."""
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    at = next((at for at, word in enumerate(words) if word.isdigit()), 0)
    return (
        {words[at]}
        if at == 0 or words[at - 1] in DECORATION | {"rtx", "gtx"}
        else {*words[at - 1 : at + 1]}
    )


def _unknown_gpu(name: str) -> UnsupportedError:
    """Suggests cards of the same series: `rtx4095` may be a 4090, hardly an RTX A4500."""
    advice = "See `vramcast gpus`, or give a size: --gpu 24GiB."
    spellings = {spelling: gpu for gpu in all_gpus() for spelling in gpu.spellings}
    alike = {
        spelling: likeness for spelling in spellings if (likeness := _likeness(name, spelling)) > 0
    }
    near = sorted(alike, key=lambda spelling: -alike[spelling])
    cards = list(dict.fromkeys(spellings[spelling].name for spelling in near))[:4]
    if not cards:
        return unknown("GPU", name, spellings, advice)
    return UnsupportedError(f"unknown GPU {name!r}. Did you mean {_or(cards)}? {advice}")


def _likeness(name: str, spelling: str) -> float:
    """How near two names of one series are; 0 for different series."""
    (letters, number), (others, other) = _series(name), _series(spelling)
    common = next(
        (at for at in range(len(number)) if number[: at + 1] != other[: at + 1]), len(number)
    )
    is_alike = bool(letters) or (len(number) == len(other) and common > 0)
    if not number or letters != others or not is_alike:
        return 0
    return common + SequenceMatcher(None, _plain(name), _plain(spelling)).ratio()


def _series(name: str) -> tuple[str, str]:
    """The letters before a card's number, without the maker's, and the number: `mi`, `300`; `rtx`, `4090`."""
    words = [word for word in re.findall(r"[a-z]+|[0-9]+", name.lower()) if word not in DECORATION]
    at = next((at for at, word in enumerate(words) if word.isdigit()), None)
    if at is None:
        return "", ""
    letters = words[at - 1] if at else ""
    return ("" if letters in ("rtx", "gtx") else letters), words[at]


def eager_context(gpu: Gpu) -> tuple[int, tuple[int, int], str] | None:
    """Bare context, its range and source under torch before 1.13, which loaded every kernel at once."""
    bare, span, source = _find_context(
        gpu.name, gpu.vendor, read_rows("context_eager.csv"), gpu.architecture
    )
    return None if bare is None or span is None else (bare, span, source)


def search_gpus(text: str) -> tuple[Gpu, ...]:
    """Cards whose name or alias contains the text."""
    wanted = _plain(text)
    if text.strip() and not wanted:
        return ()

    def matches(gpu: Gpu) -> bool:
        return any(wanted in _plain(spelling) for spelling in gpu.spellings)

    return tuple(filter(matches, all_gpus()))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _key(text: str) -> tuple[str, ...]:
    """Letters and numbers in any order: `H100-80GB-SXM` and `h100 sxm 80gb` are one card."""
    words = re.findall(r"[a-z]+|[0-9]+", text.lower())
    meaningful = (word for word in words if word not in DECORATION)
    return tuple(sorted("gb" if word in ("g", "gib") else word for word in meaningful))


@cache
def _by_spelling() -> dict[str, Gpu]:
    """Every spelling as it is; most people type one."""
    return {_plain(spelling): gpu for gpu in all_gpus() for spelling in gpu.spellings}


@cache
def _by_key() -> dict[tuple[str, ...], Gpu]:
    """Every spelling of every card, also with the card's size added to it."""
    keys: dict[tuple[str, ...], Gpu] = {}
    for gpu in all_gpus():
        for spelling in gpu.spellings:
            keys[_key(spelling)] = gpu
    for gpu in all_gpus():
        for spelling in gpu.spellings:
            keys.setdefault(_key(f"{spelling} {gpu.nominal_gb}GB"), gpu)
    return keys


def _or(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _make_anonymous(size: str) -> Gpu:
    total = parse_bytes(size)
    if total > LARGEST_CARD_BYTES:
        raise InputError(f"--gpu {size} is too large for one GPU. Write it like 24GiB.")
    if total < SMALLEST_CARD_BYTES:
        raise InputError(
            f"--gpu {size}: {total} bytes is too small for a GPU. Write it like 24GiB."
        )
    context, span, source = _find_context("", "nvidia", read_rows("context_defaults.csv"))
    return Gpu(
        name=f"GPU with {format_gib(total)}",
        vendor="nvidia",
        total_bytes=total,
        total_source="given",
        context_bytes=context,
        context_range_bytes=span,
        context_source=source,
    )


def _read_gpu(row: dict[str, str], rules: list[dict[str, str]]) -> Gpu:
    total, architecture = row["cuda_total_bytes"], row["architecture"]
    capability = re.fullmatch(r"(\d+)\.(\d+)", architecture)
    context, span, source = _find_context(row["name"], row["vendor"], rules, architecture)
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        aliases=tuple(filter(None, row["aliases"].split(";"))),
        total_bytes=int(total) if total else None,
        gap="" if total else f"memory size not in the catalog ({row['notes']}).",
        nominal_gb=_int(row["nominal_gb"]),
        seen=row["cuda_total_seen"],
        smi_total_mib=row["nvidia_smi_total_mib"],
        total_source=row["memory_source"],
        bandwidth_gb_s=_float(row["bandwidth_gb_s"]),
        bf16_tflops=_float(row["bf16_tflops"]),
        fp16_tflops=_float(row["fp16_tflops"]),
        fp32_tflops=_float(row["fp32_tflops"]),
        interconnect=row["interconnect"],
        architecture=architecture,
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
        sm_count=_int(row["sm_count"]),
        supports_bf16=row["supports_bf16"].startswith("yes"),
        supports_fp8=row["supports_fp8"].startswith("yes"),
        context_bytes=context,
        context_range_bytes=span,
        context_source=source,
        sources=row["sources"],
        notes=row["notes"],
    )


def _find_context(
    name: str, vendor: str, rules: list[dict[str, str]], architecture: str = ""
) -> tuple[int | None, tuple[int, int] | None, str]:
    """The first rule for this card, its compute capability or its vendor."""
    for rule in rules:
        if rule["applies_to"] in (name, architecture, vendor):
            bare = int(rule["bare_mib"]) * MiB
            low = int(rule["low_mib"]) * MiB
            high = int(rule["high_mib"]) * MiB
            return bare, (low, high), rule["basis"]
    return None, None, ""


def _int(text: str) -> int | None:
    return int(text) if text else None


def _float(text: str) -> float | None:
    return float(text) if text else None
