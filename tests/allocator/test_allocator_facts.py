"""What we copied from torch, compared with the torch that is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from vramcast.allocator import Allocator, AllocatorSettings, OutOfMemory, constants
from vramcast.allocator.oom import format_size
from vramcast.errors import InputError, UnsupportedError, VramcastError

MIB = 1 << 20
INCLUDE = Path(torch.__file__).parent / "include/c10"


def test_constants_match_the_installed_torch_header() -> None:
    header = (INCLUDE / "core/AllocatorConfig.h").read_text()
    found = {
        name: int(value) for name, value in re.findall(r"constexpr size_t (k\w+) = (\d+);", header)
    }
    assert found == {
        "kMinBlockSize": constants.MIN_BLOCK_BYTES,
        "kSmallSize": constants.SMALL_REQUEST_MAX_BYTES,
        "kSmallBuffer": constants.SMALL_SEGMENT_BYTES,
        "kMinLargeAlloc": constants.OWN_SEGMENT_MIN_BYTES,
        "kRoundLarge": constants.SEGMENT_ROUNDING_BYTES,
    }
    default = re.search(r"large_segment_size_\{(\d+)\}", header)
    assert default is not None
    assert (
        int(default.group(1))
        == constants.DEFAULT_LARGE_SEGMENT_BYTES
        == AllocatorSettings().large_segment_bytes
    )


def test_every_setting_of_the_installed_torch_is_known() -> None:
    """The keys stand in the CUDA header as string literals, some of them in two halves."""
    header = (INCLUDE / "cuda/CUDAAllocatorConfig.h").read_text()
    keys_text = header[
        header.index("unordered_set<std::string> keys{") : header.index("return keys;")
    ]
    keys = re.findall(r'"(\w+)"', re.sub(r'"\s*\n\s*"', "", re.sub(r"//[^\n]*", "", keys_text)))
    assert "throw_on_cudamalloc_oom" in keys
    samples = {"backend": "native", "per_process_memory_fraction": "0.5"}
    for key in keys:
        AllocatorSettings.parse(f"{key}:{samples.get(key, 'True')}")


TEXTS = [
    "", "max_split_size_mb:19", "max_split_size_mb:20", "large_segment_size_mb:10", "large_segment_size_mb:11",
    "large_segment_size_mb:40,max_split_size_mb:20", "large_segment_size_mb:12,max_split_size_mb:12",
    "max_non_split_rounding_mb:2", "max_non_split_rounding_mb:20", "garbage_collection_threshold:0",
    "garbage_collection_threshold:0.5", "garbage_collection_threshold:1.0", "roundup_power2_divisions:3",
    "roundup_power2_divisions:8", "roundup_power2_divisions:0", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[300:1]", "roundup_power2_divisions:[256:0,>:3]", "expandable_segments:true",
    "expandable_segments:True", " max_split_size_mb : 64 , expandable_segments:True ", "max_split_size_mb",
    "max_split_size_mb:abc", "max_split_size_mb:64,",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_settings_are_accepted_exactly_when_torch_accepts_them(text: str) -> None:
    assert accepted(text) == accepted_by_torch(text)


def accepted_by_torch(text: str) -> bool:
    """torch's own parser. It remembers the segment size, so that is put back before and after."""
    parse = torch._C._accelerator_setAllocatorSettings
    parse("large_segment_size_mb:20")
    try:
        parse(text)
    except (RuntimeError, ValueError, IndexError):
        return False
    finally:
        parse("large_segment_size_mb:20")
    return True


def accepted(text: str) -> bool:
    try:
        AllocatorSettings.parse(text)
    except VramcastError:
        return False
    return True


def test_settings_become_figures() -> None:
    settings = AllocatorSettings.parse(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.6,"
        "large_segment_size_mb:32,per_process_memory_fraction:0.9,max_non_split_rounding_mb:64,pinned_num_register_threads:8"
    )
    assert settings.expandable_segments
    assert settings.max_split_bytes == 128 * MIB
    assert settings.garbage_collection_threshold == 0.6
    assert settings.large_segment_bytes == 32 * MIB
    assert settings.per_process_memory_fraction == 0.9
    assert settings.max_non_split_rounding_bytes == 64 * MIB


def test_a_misspelt_setting_names_its_neighbour() -> None:
    with pytest.raises(UnsupportedError, match="Did you mean expandable_segments"):
        AllocatorSettings.parse("expandable_segment:True")


def test_the_asynchronous_backend_is_refused_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match="cudaMallocAsync"):
        AllocatorSettings.parse("backend:cudaMallocAsync")


@pytest.mark.parametrize(
    "text", ["a:b:c", "max_split_size_mb:[1", "per_process_memory_fraction:2", "=:="]
)
def test_nonsense_is_refused_with_the_place(text: str) -> None:
    with pytest.raises((InputError, UnsupportedError)):
        AllocatorSettings.parse(text)


def test_statistics_feed_torchs_own_memory_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch formats its summary from the names of memory_stats; with ours it must find every one it wants."""
    ours = Allocator(1 << 30, AllocatorSettings())
    blocks = [ours.malloc(size) for size in (100, 3 * MIB, 50 * MIB)]
    ours.free(blocks[2])
    monkeypatch.setattr(torch.cuda.memory, "memory_stats", lambda device=None: ours.memory_stats())
    summary = torch.cuda.memory.memory_summary(device=0, abbreviated=False)
    rows = [
        line
        for line in summary.splitlines()
        if line.startswith(("| GPU reserved memory", "| Allocated memory", "| Requested"))
    ]
    assert [re.sub(r"\s+", " ", row).strip("| ") for row in rows] == [
        "Allocated memory | 3072 KiB | 54272 KiB | 54272 KiB | 51200 KiB",
        "Requested memory | 3072 KiB | 54272 KiB | 54272 KiB | 51200 KiB",
        "GPU reserved memory | 73728 KiB | 73728 KiB | 73728 KiB | 0 B",
    ]


def test_statistics_have_the_documented_names() -> None:
    """The docstring of torch.cuda.memory_stats is the list that users know."""
    text = torch.cuda.memory.memory_stats.__doc__ or ""
    plain = set(re.findall(r'"(num_\w+|max_split_size)"', text))
    families = set(
        re.findall(
            r'"(\w+)\.\{all,large_pool,small_pool\}\.\{current,peak,allocated,freed\}"', text
        )
    )
    families -= {
        "allocated"
    }  # a slip in the docstring: the count is called allocation, as memory_summary shows
    assert len(families) >= 8
    wanted = plain | {f"{family}.{pool}.{kind}" for family in families for pool in ("all", "large_pool", "small_pool")
                      for kind in ("current", "peak", "allocated", "freed")}  # fmt: skip
    assert wanted <= set(Allocator().memory_stats())


def test_the_error_says_what_torch_says() -> None:
    """The wording of torch 2.11 and later, put together by hand from CUDACachingAllocator.cpp."""
    ours = Allocator(8 * 1024 * MIB, device=1, context_bytes=400 * MIB, other_bytes=1024 * MIB)
    ours.malloc(6000 * MIB)
    ours.malloc(300 * MIB - 300)
    ours.free(ours.malloc(3 * MIB, pool=(1, 0)))
    with pytest.raises(OutOfMemory) as caught:
        ours.malloc(2048 * MIB + 5)
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 8.00 GiB of which 448.00 MiB is "
        "free. Including non-PyTorch memory, this process has 6.56 GiB memory in use. Of the allocated memory 6.17 GiB "
        "is allocated by PyTorch, with 20.00 MiB allocated in private pools (e.g., CUDA Graphs), and 0 bytes is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    assert caught.value.moment.requested_bytes == 2048 * MIB + 5
    assert ours.memory_stats()["num_ooms"] == 1


def test_a_memory_fraction_is_named_in_the_error() -> None:
    ours = Allocator(1024 * MIB)
    ours.set_fraction(0.5)
    ours.malloc(400 * MIB)
    with pytest.raises(
        OutOfMemory, match=r"512\.00 MiB allowed; Of the allocated memory 400\.00 MiB"
    ):
        ours.malloc(200 * MIB)
    ours.set_fraction(1.0)
    ours.malloc(200 * MIB)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1024, "1024 bytes"), (1025, "1.00 KiB"), (MIB, "1024.00 KiB"), (1 << 30, "1024.00 MiB"),
     ((1 << 30) + 1, "1.00 GiB"), (5 << 40, "5120.00 GiB")],
)  # fmt: skip
def test_sizes_are_written_as_torch_writes_them(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text
