"""GPUs by name: in comes what people type, out comes a Gpu with what CUDA reports for it.

A total nobody has read off a real card is None, with the reason in `gap`; nothing is derived from the number on the
box. Does not know drivers or Windows: totals shrink a little with newer drivers (see `seen`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from vramcast.catalog.tables import read_rows
from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.units import MiB, format_gib, parse_bytes

SMALLEST_CARD_BYTES = 64 * MiB
SIZE = re.compile(r"\s*[0-9]{1,12}(\.[0-9]{1,12})?\s*([kmgt]i?)?b\s*", re.IGNORECASE)
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
    """A card by any spelling of its name, or an anonymous one by its size: `rtx4090`, `A100 80GB`, `24GiB`."""
    if SIZE.fullmatch(name):
        return _make_anonymous(name)
    found = _by_key().get(_key(name)) or _by_key().get((_plain(name),))
    if found:
        return found
    candidates = _names_with_words(set(_key(name)))
    if len(candidates) > 1:
        raise UnsupportedError(f"{name!r} may be {_or(candidates)}. Write one of these.")
    spellings = [spelling for gpu in all_gpus() for spelling in gpu.spellings]
    raise unknown("GPU", name, spellings, "See `vramcast gpus`, or give a size: --gpu 24GiB.")


def _names_with_words(words: set[str]) -> list[str]:
    """Names of cards that have all of these words: `a100` is said of several."""
    if not words:
        return []
    return [gpu.name for gpu in all_gpus() if words <= set(_key(gpu.name))]


def eager_context(gpu: Gpu) -> tuple[int, tuple[int, int], str] | None:
    """Bare context, its range and source under torch before 1.13, which loaded every kernel at once."""
    bare, span, source = _find_context(
        gpu.name, gpu.vendor, read_rows("context_eager.csv"), gpu.architecture
    )
    return None if bare is None or span is None else (bare, span, source)


def search_gpus(text: str) -> tuple[Gpu, ...]:
    """Cards whose name or alias contains the text."""
    wanted = _plain(text)

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
def _by_key() -> dict[tuple[str, ...], Gpu]:
    """Every spelling of every card, also with the card's size added to it."""
    keys: dict[tuple[str, ...], Gpu] = {}
    for gpu in all_gpus():
        for spelling in gpu.spellings:
            keys[_key(spelling)] = gpu
            keys[(_plain(spelling),)] = gpu
    for gpu in all_gpus():
        for spelling in gpu.spellings:
            keys.setdefault(_key(f"{spelling} {gpu.nominal_gb}GB"), gpu)
    return keys


def _or(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _make_anonymous(size: str) -> Gpu:
    total = parse_bytes(size)
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
