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


@given(st.integers(1, 2**40), st.integers(1, 2**40), st.sampled_from(PREFIXES))
def test_a_kernels_shared_memory_is_not_the_hosts(required: int, limit: int, prefix: str) -> None:
    text = f"{prefix}OutOfResources: out of resource: shared memory, Required: {required}, Hardware limit: {limit}."
    assert "more_shm" not in steps(text)
    assert steps(text) == ["smaller_blocks"]


ROOMY = (
    "docker run --gpus all --ipc=host trainer:latest",
    "docker run --gpus all --shm-size=64g trainer:latest",
    "Filesystem  Size  Used Avail Use% Mounted on\ntmpfs        63G  1.2G   62G   2% /dev/shm",
)
SMALL = (
    "docker run --gpus all trainer:latest",
    "docker run --gpus all --shm-size=1g trainer:latest",
    "Filesystem  Size  Used Avail Use% Mounted on\nshm          64M   64M     0 100% /dev/shm",
)
BUS_ERROR = "RuntimeError: DataLoader worker (pid {pid}) is killed by signal: Bus error."
GONE = "RuntimeError: DataLoader worker (pid(s) {pid}) exited unexpectedly"


@given(st.sampled_from((*ROOMY, *SMALL)), st.sampled_from((BUS_ERROR, GONE)), st.integers(1, 10**6))
def test_shm_that_the_text_shows_to_be_large_is_not_blamed(
    shown: str, failure: str, pid: int
) -> None:
    text = f"{shown}\n{failure.format(pid=pid)}"
    assert ("more_shm" in steps(text)) is (shown in SMALL), text


def test_a_large_shm_that_is_full_is_blamed_all_the_same() -> None:
    text = "docker run --ipc=host t\nRuntimeError: unable to write to file </torch_1_2>: No space left on device (28)"
    assert steps(text)[0] == "more_shm"
