# ruff: noqa: E501 (messages keep their lines)
"""/dev/shm is called too small only where the text does not give another reason. Reasons as strerror prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.readers.log import read_text

SIZE = {28: "No space left on device"}
NOT_SIZE = {
    2: "No such file or directory",
    12: "Cannot allocate memory",
    23: "Too many open files in system",
    24: "Too many open files",
}
CALLS = (
    "unable to open shared memory object </torch_{pid}_{pid}> in read-write mode: {reason} ({errno})",
    "unable to write to file </torch_{pid}_{pid}>: {reason} ({errno})",
    "unable to resize file </torch_{pid}_{pid}> to the right size: {reason} ({errno})",
    "unable to mmap 33554560 bytes from file </torch_{pid}_{pid}>: {reason} ({errno})",
)
PREFIXES = ("", "[rank3]: ", "2026-01-05 10:11:12,345 ERROR train.py: ", "\x1b[31m", "E0105 " * 40)


def steps(text: str) -> list[str]:
    return [item.step for item in diagnose(read_text(text)).advice]


@given(
    st.sampled_from(CALLS),
    st.sampled_from(sorted({**SIZE, **NOT_SIZE}.items())),
    st.sampled_from(PREFIXES),
    st.integers(1, 10**7),
)
def test_shm_is_too_small_only_if_the_device_was_full(
    call: str, failure: tuple[int, str], prefix: str, pid: int
) -> None:
    errno, reason = failure
    text = f"{prefix}RuntimeError: {call.format(pid=pid, reason=reason, errno=errno)}"
    assert ("more_shm" in steps(text)) is (errno in SIZE), text


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "RuntimeError: DataLoader worker (pid 3855) is killed by signal: Bus error. It is possible that dataloader's workers "
            "are out of shared memory. Please try to raise your shared memory limit.",
            "shared_memory",
        ),
        (
            "RuntimeError: unable to open shared memory object </torch_29919_1396> in read-write mode: Too many open files (24)",
            "open_files",
        ),
        (
            "RuntimeError: unable to mmap 1073741824 bytes from file </torch_1_2>: Cannot allocate memory (12)",
            "host_memory",
        ),
    ],
)
def test_each_reason_has_its_own_cause(text: str, cause: str) -> None:
    assert [item.name for item in diagnose(read_text(text)).hypotheses] == [cause]
