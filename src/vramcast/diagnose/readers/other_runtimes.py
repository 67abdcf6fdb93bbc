"""Refusals of frameworks and runtimes beside PyTorch and XLA: Paddle, MindSpore, Ascend, ggml, ONNX Runtime, SGLang.

In: a Passage. Out: Observations with the moment `failure`. They print one size and seldom more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramcast.diagnose.observation import Moment
from vramcast.diagnose.readers.cuda_libraries import device_of
from vramcast.diagnose.readers.reader import Form, Read, Reader, clause, observe
from vramcast.diagnose.readers.stream import Passage

_OF_SIZE = re.compile(
    r"(?:failed|unable|could not|cannot) to allocate [^\n]{0,80}?of size:? ?(\d{1,18})\b"
    r"|(?P<ascend>rtMalloc) fail[^\n]{0,80}?size ?[:=] ?(\d{1,18})\b",
    re.IGNORECASE,
)
_NO_ROOM = re.compile(
    r"Not enough memory\. Please try to increase --mem-fraction-static", re.IGNORECASE
)


def read_of_size(passage: Passage) -> Iterator[Read]:
    """`failed to allocate CUDA0 buffer of size 151851674624`: a size in bytes after the word."""
    text = passage.text()
    match = _OF_SIZE.search(text)
    if match is not None:
        place = device_of(text, "npu" if match["ascend"] else "cuda")
        requested = int(match.group(1) or match.group(3))
        yield _failure(passage, kind="allocation_refused", place=place, requested_bytes=requested)


def read_sglang(passage: Passage) -> Iterator[Read]:
    """Weights and activations filled the static share before the key-value pool was made."""
    if _NO_ROOM.search(passage.text()):
        yield _failure(passage, kind="sglang_startup", place="cuda")


def _failure(
    passage: Passage, *, kind: str, place: str, requested_bytes: int | None = None
) -> Read:
    observation = observe(
        passage, kind=kind, moment=Moment.FAILURE, place=place, requested_bytes=requested_bytes
    )
    return Read(observation=observation, last_line=passage.line.number)


PADDLE = Form(
    kind="paddle_oom",
    words=("out of memory error on gpu", "cannot allocate", "enforce allocating"),
    moment=Moment.FAILURE,
    device=r"on GPU (\d{1,3})",
    clauses=(
        clause("requested_bytes", r"Cannot allocate {q} (?:GPU )?memory"),
        clause("requested_bytes", r"enforce allocating <= available failed, {n} >", "B"),
        clause("allocated_bytes", r"{q} memory has been allocated"),
        clause("free_bytes", r"available memory is (?:only )?{q}"),
        clause("free_bytes", r"enforce allocating <= available failed, \d{1,18} > {n}", "B"),
    ),
    span=4,
    needs=("requested_bytes",),
)
MINDSPORE = Form(
    kind="mindspore_oom",
    words=("totalusedmemstatistics",),
    moment=Moment.FAILURE,
    place="npu",
    clauses=(
        clause("allocated_bytes", r"TotalUsedMemStatistics : {n}", "B"),
        clause("requested_bytes", r"alloc size : {n}", "B"),
        clause("capacity_bytes", r"total mem size : {n}", "B"),
    ),
    needs=("requested_bytes",),
)

READERS = (
    PADDLE.reader(),
    MINDSPORE.reader(),
    Reader(words=("of size", "rtmalloc fail"), read=read_of_size),
    Reader(words=("--mem-fraction-static",), read=read_sglang),
)
