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


# ggml keeps what is not offloaded in buffers of the CPU.
_OF_THE_HOST = re.compile(r"cpu_buffer_type|allocate CPU buffer", re.IGNORECASE)


def read_of_size(passage: Passage) -> Iterator[Read]:
    """`failed to allocate CUDA0 buffer of size 151851674624`: a size in bytes after the word."""
    text = passage.text()
    match = _OF_SIZE.search(text)
    if match is not None:
        requested = int(match.group(1) or match.group(3))
        if _OF_THE_HOST.search(text):
            yield _failure(passage, kind="host_alloc_fail", place="host", requested_bytes=requested)
            return
        place = device_of(text, "npu" if match["ascend"] else "cuda")
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
    words=("out of memory error on gpu", "cannot allocate", "cannot malloc", "enforce allocating"),
    moment=Moment.FAILURE,
    device=r"on GPU (\d{1,3})",
    clauses=(
        clause("requested_bytes", r"Cannot (?:allocate|malloc) {q} (?:GPU )?memory"),
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

_MINDSPORE = re.compile(
    r"Device\(id:\d{1,3}\) memory isn't enough|Out of Memory!{1,3} Request memory size:? ?(\d{1,18})B?"
    r"|Malloc for kernel (?:in|out)put failed, Memory isn't enough",
    re.IGNORECASE,
)


def read_mindspore(passage: Passage) -> Iterator[Read]:
    """MindSpore on GPU and Ascend; only some versions print a size."""
    match = _MINDSPORE.search(passage.text())
    if match is not None:
        requested = int(match.group(1)) if match.group(1) else None
        yield _failure(passage, kind="mindspore_oom", place="npu", requested_bytes=requested)


CUPY = Form(
    kind="allocation_refused",
    words=("out of memory allocating",),
    moment=Moment.FAILURE,
    clauses=(
        clause("requested_bytes", r"Out of memory allocating {n} bytes", "B"),
        clause("allocated_bytes", r"allocated so far: {n} bytes", "B"),
    ),
    needs=("requested_bytes", "allocated_bytes"),  # XLA begins with the same words
)
JULIA = Form(
    kind="allocation_refused",
    words=("out of gpu memory",),
    moment=Moment.FAILURE,
    clauses=(clause("requested_bytes", r"Out of GPU memory trying to allocate {q}"),),
    needs=("requested_bytes",),
)
TENSORRT = Form(
    kind="allocation_refused",
    words=("requested amount of gpu memory",),
    moment=Moment.FAILURE,
    clauses=(clause("requested_bytes", r"Requested amount of GPU memory \({n} bytes\)", "B"),),
    needs=("requested_bytes",),
)
DIRECTML = Form(
    kind="allocation_refused",
    words=("could not allocate tensor",),
    moment=Moment.FAILURE,
    clauses=(clause("requested_bytes", r"Could not allocate tensor with {n} bytes", "B"),),
    needs=("requested_bytes",),
)
THEANO = Form(
    kind="allocation_refused",
    words=("bytes of device memory",),
    moment=Moment.FAILURE,
    clauses=(clause("requested_bytes", r"Error allocating {n} bytes of device memory", "B"),),
    needs=("requested_bytes",),
)
OLLAMA = Form(
    kind="host_alloc_fail",
    words=("more system memory",),
    moment=Moment.FAILURE,
    place="host",
    clauses=(
        clause("requested_bytes", r"requires more system memory \({q}\)"),
        clause("free_bytes", r"than is available \({q}\)"),
    ),
    needs=("requested_bytes",),
)
_WITHOUT_SIZE = re.compile(
    r"OUT_OF_DEVICE_MEMORY|PI_ERROR_OUT_OF_RESOURCES|ErrorOutOfDeviceMemory|CL_MEM_OBJECT_ALLOCATION_FAILURE"
    r"|CL_OUT_OF_RESOURCES|^Out of memory on device\b",
    re.IGNORECASE,
)


def read_without_size(passage: Passage) -> Iterator[Read]:
    """Level Zero, Vulkan, OpenCL and MATLAB refuse in one word."""
    if _WITHOUT_SIZE.search(passage.text()):
        yield _failure(passage, kind="allocation_refused", place="cuda")


_NO_BATCH = re.compile(r"No executable batch size found, reached zero", re.IGNORECASE)


def read_no_batch(passage: Passage) -> Iterator[Read]:
    """accelerate halved the batch until nothing was left."""
    if _NO_BATCH.search(passage.text()):
        yield _failure(passage, kind="no_batch_fits", place="cuda")


_NOT_CAPACITY = (
    (
        "on-chip memory",
        r"out of resource: shared memory|uses too much shared data|too many resources "
        r"requested for launch",
    ),
    (
        "illegal access",
        r"illegal memory access|Memory access fault by GPU|misaligned address"
        # a kernel checks its indices, and says so once per thread
        r"|device-side assert|thread: \[\d+,\d+,\d+\] Assertion",
    ),
    ("disk", r"Errno 28\b|No space left on device|Disk quota exceeded"),
)
_NOT_CAPACITY_WORDS = tuple(
    (name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _NOT_CAPACITY
)
_SHARED_FILE = re.compile(
    r"torch_\d|/dev/shm|shared memory (?:object|segment)|unable to (?:write|mmap|resize)"
)


def read_not_capacity(passage: Passage) -> Iterator[Read]:
    """What sounds like memory and is not the memory of a card or of the host."""
    text = passage.text()
    for name, pattern in _NOT_CAPACITY_WORDS:
        if pattern.search(text) and not _SHARED_FILE.search(text):
            observation = observe(
                passage, kind="not_capacity", moment=Moment.FAILURE, place="host", marks=(name,)
            )
            yield Read(observation=observation, last_line=passage.line.number)
            return


READERS = (
    *(form.reader() for form in (CUPY, JULIA, TENSORRT, DIRECTML, THEANO, OLLAMA)),
    Reader(
        words=(
            "out_of_device",
            "error_out_of_res",
            "outofdevicememory",
            "allocation_failure",
            "cl_out_of",
            "memory on device",
        ),
        read=read_without_size,
    ),
    Reader(words=("reached zero",), read=read_no_batch),
    Reader(
        words=(
            "out of resource",
            "shared data",
            "too many resources",
            "illegal memory",
            "memory access fault",
            "misaligned addr",
            "device-side assert",
            "] assertion",
            "errno 28",
            "no space left",
            "quota exceeded",
        ),
        read=read_not_capacity,
    ),
    Reader(words=("memory isn't enough", "request memory size"), read=read_mindspore),
    PADDLE.reader(),
    MINDSPORE.reader(),
    Reader(words=("of size", "rtmalloc fail"), read=read_of_size),
    Reader(words=("--mem-fraction-static",), read=read_sglang),
)
