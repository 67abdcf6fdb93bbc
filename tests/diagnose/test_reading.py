# ruff: noqa: E501 (pasted messages keep their lines)
"""Reading as a whole: gates, repetition, frames, several kinds in one log, floods and hostile bytes."""

from __future__ import annotations

import io
import re
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vramcast.allocator.oom import OomMoment, format_size, message
from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.observation import Moment, ledger_of
from vramcast.diagnose.readers.log import (
    FLOOD_READS,
    GATES,
    KEPT_PER_KIND,
    READERS,
    WORDS,
    read_stream,
    read_text,
)
from vramcast.diagnose.readers.stream import clean, without_prefix
from vramcast.ledger import Origin
from vramcast.report import diagnose_json, diagnose_text

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.84 GiB. GPU 2 has a total capacity of 39.38 GiB of "
    "which 276.56 MiB is free. Including non-PyTorch memory, this process has 38.99 GiB memory in use. Of the allocated "
    "memory 35.59 GiB is allocated by PyTorch, and 2.31 GiB is reserved by PyTorch but unallocated."
)
# Anything a terminal would act on: C0 and C1 controls (newline aside), and the characters that reorder text.
UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_every_word_that_wakes_a_reader_contains_a_gate() -> None:
    assert [word for word in WORDS if not any(gate in word for gate in GATES)] == []


def test_no_gate_holds_a_digit_for_lines_are_compared_without_theirs() -> None:
    assert [gate for gate in GATES if any(letter.isdigit() for letter in gate)] == []


def test_a_word_that_appears_only_when_digits_are_left_out_wakes_nobody() -> None:
    quiet = "loss 0.5 at step 3\n" * 40_000
    assert (
        read_text(
            f"{quiet}CU1DA out of mem2ory. Tried to allo3cate 20.00 MiB\n{quiet}"
        ).observations
        == ()
    )
    (found,) = read_text(f"{quiet}{OOM}\n{quiet}").observations
    assert (found.line, found.requested_bytes) == (40_001, round(18.84 * 2**30))


def test_counters_of_a_cgroup_are_the_hosts() -> None:
    (found,) = read_text("memory.max: 8589934592\nmemory.peak: 8589930496\n").observations
    assert (found.place, found.allowed_bytes, found.used_bytes) == ("host", 8589934592, 8589930496)


def test_every_word_is_lower_case_as_the_lines_are_when_searched() -> None:
    assert [word for reader in READERS for word in reader.words if word != word.lower()] == []


def test_prefixes_of_launchers_and_loggers_are_taken_away() -> None:
    for prefix in (
        "[rank12]: ",
        "(WorkerDict pid=77, ip=10.0.0.1) ",
        "2025-11-12T11:25:13.496Z ",
        "vllm-1  | ",
        "E   ",
    ):
        assert without_prefix(f"{prefix}memory in use") == "memory in use"


def test_the_innermost_frame_is_the_last_one_before_the_message() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 9, in <module>\n    trainer.train()\n'
        '  File "/x/torch/optim/adamw.py", line 606, in _multi_tensor_adamw\n'
        "    exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)\n"
        "                      ^^^^^^^^^^^^^^^^^^^^\n" + OOM
    )
    frames = read_text(text).frames
    assert [(frame.function, frame.line) for frame in frames] == [
        ("<module>", 9),
        ("_multi_tensor_adamw", 606),
    ]
    assert frames[-1].source == "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)"


def test_equal_messages_are_counted_not_repeated() -> None:
    (observation,) = read_text("\n".join([OOM] * 7)).observations
    assert observation.count == 7


def test_of_a_flood_the_first_the_highest_and_the_last_are_kept_and_the_rest_counted() -> None:
    lines = [f"step: {step}  memory: {step / 100:.2f}GiB(50.00%)" for step in range(1, 1001)]
    reading = read_text("\n".join([*lines[:500], lines[999], *lines[500:999]]))
    sizes = [item.reserved_bytes for item in reading.observations]
    assert len(sizes) == KEPT_PER_KIND + 2
    assert sizes[0] == round(0.01 * 2**30)
    assert max(size for size in sizes if size is not None) == 10 * 2**30
    assert sizes[-1] == round(9.99 * 2**30)
    assert reading.omitted == (("torchtitan_log", 1000 - KEPT_PER_KIND - 2),)


def test_a_failure_after_a_flood_of_other_lines_is_still_read() -> None:
    lines = [f"step: {step}  memory: 40.00GiB(50.00%)" for step in range(FLOOD_READS + 500)]
    reading = read_text("\n".join([*lines, OOM]))
    assert [item.kind for item in reading.observations] == ["torchtitan_log", "torch_cuda_oom_v2"]
    assert (
        sum(item.count for item in reading.observations) + dict(reading.omitted)["torchtitan_log"]
        == len(lines) + 1
    )


def test_a_message_is_found_in_one_endless_line_wherever_it_is_cut() -> None:
    for lead in (0, 16_300, 16_384 - 60, (1 << 20) - 150, (1 << 20) - 20):
        (observation,) = read_text("x" * lead + " " + OOM + " " + "y" * 50_000).observations
        assert observation.free_bytes == round(276.56 * 2**20), lead
        assert observation.unallocated_bytes == round(2.31 * 2**30), lead


def test_a_message_without_its_first_words_is_read_from_where_it_begins() -> None:
    """However much of its front was cut off, what is left is read, once."""
    for begin in ("Tried to", "GPU 2 has", "Including non"):
        (observation,) = read_text("**" + OOM[OOM.index(begin) :]).observations
        assert observation.kind == "torch_cuda_oom_v2"
        assert observation.process_bytes == round(38.99 * 2**30), begin
        assert observation.unallocated_bytes == round(2.31 * 2**30), begin
        assert observation.place == ("cuda" if begin == "Including non" else "cuda:2")


def test_a_front_that_is_wrapped_is_not_taken_for_one_that_was_cut_off() -> None:
    rest = OOM[OOM.index("memory. Tried") :]
    (observation,) = read_text("torch.OutOfMemoryError: HIP out\nof " + rest).observations
    assert observation.kind == "torch_hip_oom"
    assert observation.requested_bytes == round(18.84 * 2**30)


def test_ranks_that_share_a_line_are_told_apart() -> None:
    line = "[Rank {0}] (after 1 iterations) memory (MB) | allocated: {0}.5 | max allocated: 9{0}.0 | reserved: 99.0"
    ranks = [
        (item.rank, item.allocated_bytes)
        for item in read_text(line.format(4) + line.format(7)).observations
    ]
    assert ranks == [(4, round(4.5 * 2**20)), (7, round(7.5 * 2**20))]


def test_powershell_redirects_are_utf16() -> None:
    (observation,) = read_stream(io.BytesIO(("\ufeff" + OOM).encode("utf-16-le"))).observations
    assert observation.capacity_bytes == round(39.38 * 2**30)


@pytest.mark.slow
def test_memory_stays_small_however_long_the_log() -> None:
    class Endless(io.RawIOBase):
        """64 MiB that are never all in memory."""

        left = 64

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return (
                b"2025 INFO step loss 0.1 lr 1e-5 tokens 12345\n" * 23_301
                if self.left >= 0
                else b""
            )

    tracemalloc.start()
    read_stream(Endless())  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


sizes = st.integers(min_value=0, max_value=2**45)


@settings(max_examples=300, deadline=None)
@given(
    moment=st.builds(
        OomMoment,
        requested_bytes=sizes, segment_bytes=sizes, device=st.integers(0, 15), total_bytes=sizes, free_bytes=sizes,
        process_bytes=st.none() | sizes, allowed_bytes=st.none() | sizes, allocated_bytes=sizes, reserved_bytes=sizes,
        private_cached_bytes=st.just(0) | sizes,
    ),
    width=st.integers(24, 200),
    lead=st.sampled_from(["", "RuntimeError: ", "torch.OutOfMemoryError: ", "ERROR train failed with "]),
    prefix=st.sampled_from(["", "[rank3]: ", "2025-11-12T11:25:13.49Z ", "(Worker pid=12) ", "│ "]),
)  # fmt: skip
def test_whatever_torch_prints_is_read_back_however_it_is_wrapped(
    moment: OomMoment, width: int, lead: str, prefix: str
) -> None:
    allocated = moment.allocated_bytes + moment.private_cached_bytes
    if moment.reserved_bytes < allocated:
        return
    text = lead + message(moment)
    wrapped = "\n".join(prefix + text[at : at + width] for at in range(0, len(text), width))
    (found,) = read_text(wrapped).observations
    printed = {
        "requested_bytes": moment.segment_bytes, "capacity_bytes": moment.total_bytes, "free_bytes": moment.free_bytes,
        "process_bytes": moment.process_bytes or None, "allowed_bytes": moment.allowed_bytes, "allocated_bytes": allocated,
        "unallocated_bytes": moment.reserved_bytes - allocated,
    }  # fmt: skip
    for name, size in printed.items():
        value = getattr(found, name)
        assert (value is None) == (size is None), name
        if size is not None:
            unit = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[
                format_size(size).split()[1]
            ]
            assert abs(value - size) <= unit * 0.005 + 1, name
    assert found.place == f"cuda:{moment.device}"


SNIPPETS = st.sampled_from(
    [
        OOM, OOM[:90], "CUDA out of memory. Tried to allocate ", "99999999999999999999999999 GiB", "(GPU 0; ", "MiB / 5MiB |",
        "\x1b[31m", "\x1b]0;pwned\x07", "\x1b]8;;http://x\x1b\\", "\x9b31m", "\x00", "\r", "\n", "\u202e", "|", "Killed",
        "nvidia-smi", "memory.used [MiB], memory.total [MiB]\n1, 2\n", "_MemRefType.PARAM |", "| Allocated memory | 1 MB |",
        "MA 1 GB Max_MA 2 GB CA 3 GB Max_CA 4 GB", "exits with return code = -9", "-", "1e999", "٣", "Process 1 has 2 GiB memory in use",
        "Failed to CUDA calloc 12 bytes", "OOM when allocating tensor with shape[99999999999,99999999999] and type float",
        '"segments" "total_size": 9', "Estimated memory needed", "1.00GB | 2.00GB | x", "GPU:0\nprocess 1 uses 2 MB GPU memory",
        "Mem: 1 2 3", "free -m\nMem: 9 9 9", "failed to allocate CUDA0 buffer of size 99999999999999999999", "1900,00 MiB of pinned memory",
        "TotalUsedMemStatistics : 1 alloc size : 2", "max mem: 7", "CUDA0 model buffer size = 1 MiB", "---> 88 x", "[1] 12 killed x",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    parts=st.lists(
        SNIPPETS
        | st.text(max_size=20)
        | st.binary(max_size=20).map(lambda raw: raw.decode("latin-1")),
        max_size=12,
    )
)
@example(
    parts=[
        "\x1b[2J\x1b]0;x\x07 CUDA out of memory. Tried to allocate \x1b[31m5.00 GiB\x1b[0m\x9b2J"
    ]
)
def test_hostile_text_never_breaks_the_reader_nor_reaches_the_terminal(parts: list[str]) -> None:
    diagnosis = diagnose(read_text("".join(parts)))
    for lang in ("en", "zh"):
        assert not UNPRINTABLE.search(diagnose_text.render(diagnosis, lang=lang))
    data = diagnose_json.render(diagnosis)
    strings: list[str] = []
    collect(data, strings)
    assert not any(UNPRINTABLE.search(text) or "\n" in text for text in strings)
    for observation in diagnosis.reading.observations:
        ledger = ledger_of(observation)
        ledger.check()
        assert all(entry.origin is Origin.MEASURED for entry in ledger.entries)


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=400))
def test_random_bytes_are_read_without_complaint_and_never_reach_the_terminal(raw: bytes) -> None:
    diagnosis = diagnose(read_stream(io.BytesIO(raw)))
    assert not UNPRINTABLE.search(diagnose_text.render(diagnosis, lang="en"))
    assert all(1 <= item.line <= raw.count(b"\n") + 1 for item in diagnosis.reading.observations)


def collect(data: object, strings: list[str]) -> None:
    if isinstance(data, str):
        strings.append(data)
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        collect(item, strings)


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\link",
        "\x9b5m",
        "\x1bP+q\x1b\\",
    ],
)
def test_terminal_escapes_are_taken_out_before_anything_is_quoted(sequence: str) -> None:
    assert not UNPRINTABLE.search(clean(f"a{sequence}b"))


def test_a_measured_ledger_divides_the_process_as_the_message_does() -> None:
    (observation,) = read_text(OOM).observations
    ledger = ledger_of(observation)
    moment = ledger.peak("cuda:2")
    assert moment.allocated_bytes == round(35.59 * 2**30)
    assert moment.reserved_bytes == round(35.59 * 2**30) + round(2.31 * 2**30)
    assert moment.process_bytes == round(38.99 * 2**30)


def test_an_estimate_is_not_a_measurement() -> None:
    (observation,) = read_text(
        "Theoretical memory footprints: weight and optimizer=1.00 MB, total=2.00 MB"
    ).observations
    assert observation.moment is Moment.THEORY
    assert ledger_of(observation).entries == ()


@pytest.mark.parametrize(
    "text",
    [
        "| Allocations           |      12     |    2357,    |      12     |       0     |",
        "Free memory on device (1.0/2.0 GiB) is less than desired GPU memory utilization (0.9.1, 5 GiB)",
        "free -m\nMem: 1..2 3 4",
        "free -m\nMem: 99999999999999999999 3 4",
    ],
)
def test_numbers_that_are_none_are_survived(text: str) -> None:
    """Found by mutating samples: digits, commas and dots that a pattern lets through and a number cannot be made of."""
    table = "|                  PyTorch CUDA memory summary, device ID 0                 |\n"
    for whole in (text, table + text):
        diagnosis = diagnose(read_text(whole))
        assert not UNPRINTABLE.search(diagnose_text.render(diagnosis, lang="en"))
