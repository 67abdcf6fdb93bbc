"""Parse the settings of PyTorch's caching allocator.

In: the text of `PYTORCH_ALLOC_CONF` / `PYTORCH_CUDA_ALLOC_CONF`, or the `allocator_settings` of a memory snapshot. Out:
a record. Settings of the pinned-memory allocator and of locking are accepted and ignored: they change no device bytes.
Does not know the card: a memory fraction stays a fraction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from vramcast.allocator.constants import (
    DEFAULT_LARGE_SEGMENT_BYTES,
    OWN_SEGMENT_MIN_BYTES,
    ROUNDUP_INTERVALS,
    ROUNDUP_START_LOG2,
)
from vramcast.errors import InputError, UnsupportedError, VramcastError, unknown
from vramcast.units import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """The settings that change which block a request gets; defaults are torch's."""

    max_split_bytes: int | None = None  # blocks of this size and more are never split
    max_non_split_rounding_bytes: int = 20 * MiB
    roundup_power2_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    per_process_memory_fraction: float = 1.0

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """`expandable_segments:True,max_split_size_mb:128`; a leading `PYTORCH_ALLOC_CONF=` is tolerated."""
        settings = cls()
        value_text = re.sub(r"^\s*PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF\s*=", "", text)
        for key, value in _pairs(value_text.strip().strip("\"'")):
            settings = settings._with(key, value)
        return settings

    def _with(self, key: str, value: str) -> AllocatorSettings:
        if key == "backend" and value != "native":
            raise UnsupportedError(
                f"backend:{value} is not modelled, only native is: it decides in the driver."
            )
        if key in _WITHOUT_EFFECT:
            return self
        if key not in _READERS:
            raise unknown("allocator setting", key, [*_READERS, *_WITHOUT_EFFECT])
        field, read = _READERS[key]
        settings = replace(self, **{field: read(key, value)})  # type: ignore[arg-type]
        _check_against_segment(settings, field)
        return settings

    @classmethod
    def from_snapshot(
        cls, recorded: Mapping[object, object]
    ) -> tuple[AllocatorSettings, tuple[str, ...]]:
        """The `allocator_settings` of a snapshot, and what of it is not understood here.

        Its text comes first, then what a running job can change. The memory fraction is left out: its card is unknown.
        """
        text = recorded.get("PYTORCH_ALLOC_CONF") or recorded.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        settings, ignored = cls._understood(text) if isinstance(text, str) else (cls(), ())
        changes = _recorded_changes(recorded)
        return replace(settings, per_process_memory_fraction=1.0, **changes), ignored  # type: ignore[arg-type]

    @classmethod
    def _understood(cls, text: str) -> tuple[AllocatorSettings, tuple[str, ...]]:
        """As much of a text as is known here: a newer torch may have settings that are unknown here."""
        settings, ignored = cls(), []
        try:
            for key, value in _pairs(text):
                try:
                    settings = settings._with(key, value)
                except VramcastError:
                    ignored.append(f"{key}:{value}")
        except InputError:
            ignored.append(text)
        return settings, tuple(ignored)

    def divisions_for(self, nbytes: int) -> int:
        """How many steps there are between two powers of two at this size; 0 or 1 is plain 512-byte rounding."""
        index = nbytes.bit_length() - 1 - ROUNDUP_START_LOG2
        if index < 0:
            return self.roundup_power2_divisions[0]
        if index >= ROUNDUP_INTERVALS:
            return self.roundup_power2_divisions[-1]
        return self.roundup_power2_divisions[index]


def _recorded_changes(recorded: Mapping[object, object]) -> dict[str, object]:
    """The figures of a snapshot's allocator_settings; what is not set is negative or empty there."""
    changes: dict[str, object] = {}
    max_split = recorded.get("max_split_size")
    if isinstance(max_split, int) and max_split > 0:
        changes["max_split_bytes"] = max_split
    threshold = recorded.get("garbage_collection_threshold")
    if isinstance(threshold, float) and 0 < threshold < 1:
        changes["garbage_collection_threshold"] = threshold
    expandable = recorded.get("expandable_segments")
    if isinstance(expandable, bool):
        changes["expandable_segments"] = expandable
    divisions = _recorded_divisions(recorded.get("roundup_power2_divisions"))
    if divisions is not None:
        changes["roundup_power2_divisions"] = divisions
    return changes


def _recorded_divisions(recorded: object) -> tuple[int, ...] | None:
    """One number per power of two; None if the snapshot has something else."""
    if not isinstance(recorded, Mapping) or len(recorded) != ROUNDUP_INTERVALS:
        return None
    values = tuple(recorded.values())
    return values if all(isinstance(value, int) for value in values) else None


def _check_against_segment(settings: AllocatorSettings, field: str) -> None:
    smallest = settings.large_segment_bytes
    if (
        field in ("max_split_bytes", "large_segment_bytes")
        and (settings.max_split_bytes or smallest) < smallest
    ):
        given = (settings.max_split_bytes or 0) // MiB
        raise InputError(
            f"max_split_size_mb:{given} is too small: torch wants at least {smallest // MiB}."
        )
    if field == "max_non_split_rounding_bytes" and settings.max_non_split_rounding_bytes < smallest:
        given = settings.max_non_split_rounding_bytes // MiB
        raise InputError(
            f"max_non_split_rounding_mb:{given} is too small: torch wants at least {smallest // MiB}."
        )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """`key:value` items; a value in brackets may hold commas and colons."""
    text = re.sub(r"\s+", "", text)
    position = 0
    while position < len(text):
        match = re.compile(r"([A-Za-z0-9_]+):(\[[^\]]*\]|[^,\[\]]+)(?:,|$)").match(text, position)
        if match is None:
            raise InputError(
                f"cannot parse the allocator settings (--alloc-conf) at {text[position:]!r}. Write key:value,key:value."
            )
        yield match.group(1), match.group(2)
        position = match.end()


def _mebibytes(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", value):
        raise InputError(f"{key} takes a number of MiB, not {value!r}.")
    return int(value) * MiB


def _segment_size(key: str, value: str) -> int:
    nbytes = _mebibytes(key, value)
    if nbytes <= OWN_SEGMENT_MIN_BYTES:
        raise InputError(
            f"{key}:{value} is too small: torch wants more than {OWN_SEGMENT_MIN_BYTES // MiB}."
        )
    return nbytes


def _fraction(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise InputError(f"{key} takes a number from 0 to 1, not {value!r}.")
    return number


def _threshold(key: str, value: str) -> float:
    number = _fraction(key, value)
    if not 0 < number < 1:
        raise InputError(f"{key} must be between 0 and 1, both excluded, not {value!r}.")
    return number


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise InputError(f"{key} takes True or False (torch is case sensitive), not {value!r}.")
    return value == "True"


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """`4`, or `[256:1,512:2,>:4]` with boundaries in MiB."""
    if not value.startswith("["):
        return (_power_of_two(key, value),) * ROUNDUP_INTERVALS
    result = [0] * ROUNDUP_INTERVALS
    # torch starts `>` one interval above the last boundary, also if there is none.
    first_boundary, last_index = True, 0
    for item in value[1:-1].split(","):
        boundary, _, count_text = item.partition(":")
        count = 0 if count_text == "0" else _power_of_two(key, count_text)
        if boundary == ">":
            result[last_index + 1 :] = [count] * (ROUNDUP_INTERVALS - last_index - 1)
            continue
        index = min(_power_of_two(key, boundary).bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if first_boundary:
            result[:index] = [count] * index
        result[index] = count
        first_boundary, last_index = False, index
    return tuple(result)


def _power_of_two(key: str, value: str) -> int:
    number = int(value) if re.fullmatch(r"[0-9]{1,12}", value) else 0
    if number == 0 or number & (number - 1):
        raise InputError(f"{key} takes powers of two, not {value!r}.")
    return number


_READERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "max_split_size_mb": ("max_split_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "expandable_segments": ("expandable_segments", _boolean),
    "large_segment_size_mb": ("large_segment_bytes", _segment_size),
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
}
_WITHOUT_EFFECT = frozenset(
    {
        "backend",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "pinned_free_catch_all",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
    }
)
