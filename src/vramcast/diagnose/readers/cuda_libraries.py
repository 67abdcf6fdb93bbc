"""Device memory that ran out behind another name: the CUDA runtime, cuBLAS, cuDNN, NCCL, vLLM, Gaudi, MLX.

In: a Passage. Out: Observations, mostly without numbers, because these libraries print none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vramcast.diagnose.observation import Figure, Moment
from vramcast.diagnose.readers.quantity import NUMBER, UNIT, to_bytes
from vramcast.diagnose.readers.reader import Form, Read, Reader, clause, observe
from vramcast.diagnose.readers.stream import Passage

_MASKED = re.compile(
    r"(?P<name>CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_NOT_INITIALIZED"
    r"|CUDNN_STATUS_EXECUTION_FAILED|CUDNN_STATUS_INTERNAL_ERROR(?!_)|best cudnn convolution algorithm"
    r"|(?:unable to find a valid|no valid) cuDNN algorithm|GET was unable to find an engine to execute "
    r"this computation"
    r"|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"
    r"|CUSPARSE_STATUS_ALLOC_FAILED"
    r"|CUFFT_ALLOC_FAILED|CURAND_STATUS_ALLOCATION_FAILED|HIPBLAS_STATUS_ALLOC_FAILED"
    r"|ROCBLAS_STATUS_MEMORY_ERROR|Create cu\w+ handle failed)",
    re.IGNORECASE,
)
_RUNTIME = re.compile(
    r"(?:cuda|hip)[\w ]{0,40}?(?:error|failed)[^\n]{0,160}?out of memory|THCudaCheck FAIL[^\n]{0,300}?out of memory"
    # Caffe compares with cudaSuccess, Paddle the other way round; Caffe's and mistral.rs's allocators name the device.
    r"|cudaSuccess[^\n]{0,80}?out of memory|Out of memory: failed to allocate \d{1,18} bytes on device"
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hip_?Error_?OutOfMemory|Error out of memory at line"
    # 1002 was hipErrorMemoryAllocation before HIP's errors had names.
    r"|failed to allocate [^\n]{1,60}? from device: hipError_t\(1002\)"
    r"|cuMem\w{3,20}.{0,60}out of memory|RMM.{0,40}out_of_memory|ggml_backend_cuda.{0,80}out of memory",
    re.IGNORECASE,
)
# Darknet, Caffe, Paddle, ggml, candle and vLLM's own allocator have no other words for a full card.
_OTHER_RUNTIME = re.compile(
    r"CUDA Error: out of memory|cudaSuccess|ggml_|cumem|DriverError|: failed to allocate \d+ bytes on "
    r"device|cudaMalloc failed|CUDA failed with error|cuMemAlloc"
)
OTHER_RUNTIME = "other runtime"
# torch up to 1.0 says no more than this when its own allocator finds the card full; later ones say that some call into
# CUDA found it full, and how to find out which.
BARE = "bare"
_BARE = re.compile(r"CUDA error: out of memory\W{0,4}$")
_LATER = re.compile(r"CUDA kernel errors might|CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA")
_THC = re.compile(r"THCudaCheck|/THC/|cuda runtime error \(2\)")
_PINNED = re.compile(r"HostAlloc|MallocHost|pinned memory", re.IGNORECASE)
_ON_DEVICE = re.compile(
    r"on device (?:ordinal )?(\d{1,3})\b|device_id ?[:=] ?(\d{1,3})\b|\b(?:CUDA|ROCm)(\d{1,3}) buffer"
)
# What ggml says of a buffer, where the line of the runtime that refused it was not pasted.
_GGML = re.compile(
    r"(?:failed|unable) to allocate (?:(?:CUDA|ROCm|HIP|Vulkan|SYCL|Metal)\d* |compute |backend )?buffers?\b",
    re.IGNORECASE,
)
_NCCL = re.compile(
    r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA calloc|NCCL.{0,80}out of memory",
    re.IGNORECASE,
)
_NCCL_SIZE = re.compile(
    rf"CUDA calloc(?: async| host)?\s+({NUMBER})\s*(bytes|{UNIT})", re.IGNORECASE
)
_CUDA_SIZE = re.compile(
    rf"(?:failed to allocate|allocating)\s+({NUMBER})\s*({UNIT})(?:\s*\((\d{{1,18}}) bytes\))?",
    re.IGNORECASE,
)


def device_of(text: str, name: str) -> str:
    """`cuda:1` where the text says which device, else `cuda`."""
    match = _ON_DEVICE.search(text)
    return f"{name}:{next(filter(None, match.groups()))}" if match else name


def read_masked(passage: Passage) -> Iterator[Read]:
    """cuBLAS and cuDNN cannot make their handles or workspaces when the card is full, and say so in "
    "their own words."""
    match = _MASKED.search(passage.text())
    if match:
        yield _failure(passage, kind="masked_oom", marks=(match["name"].upper(),))


def read_nccl(passage: Passage) -> Iterator[Read]:
    """NCCL prints the failure, then the size, on following lines: one observation."""
    if not _NCCL.search(passage.text()):
        return
    last, size = passage.line.number, None
    for line in passage.lines(5):
        text = line.clean()
        size = size or _NCCL_SIZE.search(text)
        if _NCCL.search(text):
            last = line.number
    requested = to_bytes(size.group(1), size.group(2)) if size else None
    read = _failure(passage, kind="masked_oom", requested_bytes=requested, marks=("NCCL",))
    yield Read(observation=read.observation, last_line=last)


def read_runtime(passage: Passage) -> Iterator[Read]:
    text = passage.text()
    if not _RUNTIME.search(text) or _NCCL.search(text) or _PINNED.search(text):
        return
    if (
        "memory. Tried to allocate" in text
    ):  # then it is PyTorch's own message in somebody's brackets
        return
    size = _CUDA_SIZE.search(text)
    requested = (
        (
            int(size.group(3))
            if size.group(3)
            else to_bytes(size.group(1), size.group(2), binary=True)
        )
        if size
        else None
    )
    # Up to torch 0.4 this is how its own allocator says that the card is full.
    kind = "torch_cuda_oom_truncated" if _THC.search(text) else "cuda_runtime_oom"
    marks = (OTHER_RUNTIME,) if _OTHER_RUNTIME.search(text) else _bare(text, passage)
    place = device_of(text, "cuda")
    yield _failure(passage, kind=kind, requested_bytes=requested, place=place, marks=marks)


def _bare(text: str, passage: Passage) -> tuple[str, ...]:
    is_later = any(_LATER.search(line.raw) for line in passage.following(4))
    return (BARE,) if _BARE.search(text) and not is_later else ()


def read_ggml(passage: Passage) -> Iterator[Read]:
    """A buffer that ggml could not have; the lines before usually say why, and were read then."""
    text = passage.text()
    above = " ".join(line.raw for line in passage.preceding(3)).lower()
    around = f"{above} {text.lower()}"
    if not _GGML.search(text) or "out of memory" in around or "of size" in around:
        return
    yield _failure(passage, kind="cuda_runtime_oom", marks=(OTHER_RUNTIME,))


_METAL = re.compile(
    r"\[METAL\].{0,80}Insufficient Memory|kIOGPUCommandBufferCallbackErrorOutOfMemory",
    re.IGNORECASE,
)


def read_metal(passage: Passage) -> Iterator[Read]:
    """Metal refuses a command buffer, not an allocation: no size is known."""
    if _METAL.search(passage.text()):
        yield _failure(passage, kind="mlx_oom", place="mps")


_VLLM = re.compile(
    r"No available memory for the cache blocks|Free memory on device|larger than the maximum number of tokens"
    r"|KV cache is needed, which is larger|warming up sampler|available KV cache memory"
    r"|less than desired GPU memory utilization|the current vLLM instance can use",
    re.IGNORECASE,
)
_VLLM_FAILS = re.compile(
    r"No available memory|less than desired|larger than|out of memory|not enough", re.IGNORECASE
)
_VLLM_FREE = re.compile(
    rf"free memory on device[^(]{{0,20}}\(({NUMBER})\s*(?:{UNIT})?\s*/\s*({NUMBER})\s*({UNIT})\)",
    re.IGNORECASE,
)
_VLLM_WANTED = re.compile(
    rf"utilization[^(]{{0,6}}\((\d?\.?\d{{1,4}}),\s*({NUMBER})\s*({UNIT})\)", re.IGNORECASE
)
_VLLM_FIGURES = tuple(
    (label, unit, re.compile(pattern.replace("{q}", rf"({NUMBER})\s*({UNIT})"), re.IGNORECASE))
    for label, unit, pattern in (
        ("kv cache needed", "B", r"{q}\)? KV cache is needed"),
        (
            "kv cache available",
            "B",
            r"(?:available KV cache memory[ :(]{1,3}|reserved for KV Cache is ){q}",
        ),
        ("max seq len", "count", r"max seq len \((\d{1,12})\)"),
        ("tokens in kv cache", "count", r"stored in KV cache \((\d{1,12})\)"),
        (
            "estimated maximum model length",
            "count",
            r"estimated maximum model length is (\d{1,12})",
        ),
        ("dummy requests", "count", r"with (\d{1,9}) dummy requests"),
        ("total gpu memory", "B", r"total_gpu_memory \({q}\)"),
        ("model weights", "B", r"model weights take {q}"),
        ("non-torch memory", "B", r"non_torch_memory takes {q}"),
        ("activation peak", "B", r"activation peak memory takes {q}"),
        ("usable", "B", r"gpu_memory_utilization \([\d.]{1,6}\) = {q}"),
    )
)


def read_vllm(passage: Passage) -> Iterator[Read]:
    """What vLLM says when it starts: free and wanted memory, and the parts of its calculation."""
    first = passage.text()
    if not _VLLM.search(first):
        return
    text = _whole_sentence(passage, " ")
    glued = _whole_sentence(passage, "")  # a terminal breaks inside words
    figures = [
        figure
        for label, unit, pattern in _VLLM_FIGURES
        if (figure := _figure(label, unit, pattern.search(text) or pattern.search(glued)))
    ]
    fields = _vllm_fields(text, {item.label: item.value for item in figures})
    if (wanted := _VLLM_WANTED.search(text)) is not None:
        fields["requested_bytes"] = to_bytes(wanted.group(2), wanted.group(3), binary=True)
        figures.append(
            Figure(label="gpu_memory_utilization", value=float(wanted.group(1)), unit="share")
        )
    device = re.search(r"cuda:(\d{1,3})", text)
    observation = observe(
        passage,
        kind="vllm_startup",
        moment=Moment.FAILURE if _VLLM_FAILS.search(text) else Moment.NOW,
        place=f"cuda:{device.group(1)}" if device else "cuda",
        figures=tuple(figures),
        **fields,
    )
    yield Read(observation=observation, last_line=passage.line.number)


def _vllm_fields(text: str, printed: dict[str, int | float]) -> dict[str, Any]:
    """The card's memory, and what the cache needs, from the sentence and the figures in it."""
    fields: dict[str, Any] = {}
    if (free := _VLLM_FREE.search(text)) is not None:
        fields["free_bytes"] = to_bytes(free.group(1), free.group(3), binary=True)
        fields["capacity_bytes"] = to_bytes(free.group(2), free.group(3), binary=True)
    for field, label in (("capacity_bytes", "total gpu memory"), ("allowed_bytes", "usable")):
        fields.setdefault(field, printed.get(label))
    if "kv cache needed" in printed:
        fields["requested_bytes"] = printed["kv cache needed"]
    return fields


def _whole_sentence(passage: Passage, glue: str) -> str:
    """The line with what a paste wrapped off it: the sentence begins with `To serve` and ends with `length is N`."""
    before = [line.clean() for line in passage.preceding(1) if "max seq len" in line.raw]
    text = glue.join([*before, passage.text()])
    for line in passage.following(4):
        if text.endswith((".", "engine")) or "Traceback" in line.raw:
            break
        text += glue + line.clean()
    return text


def _figure(label: str, unit: str, match: re.Match[str] | None) -> Figure | None:
    if match is None:
        return None
    # Early vLLM printed GB for what it divided by 1024 three times.
    value = (
        int(match.group(1))
        if unit == "count"
        else to_bytes(match.group(1), match.group(2), binary=True)
    )
    return None if value is None else Figure(label=label, value=value, unit=unit)


def _failure(passage: Passage, **fields: Any) -> Read:
    fields.setdefault("place", "cuda")
    return Read(
        observation=observe(passage, moment=Moment.FAILURE, **fields), last_line=passage.line.number
    )


NEURON = Form(
    kind="neuron_oom",
    words=("nrt allocation failed",),
    moment=Moment.FAILURE,
    place="neuron",
    clauses=(clause("requested_bytes", r"NRT allocation failed for size\s*{n}", "B"),),
    needs=("requested_bytes",),
)
GAUDI = Form(
    kind="torch_hpu_oom",
    words=("allocation failed for size",),
    moment=Moment.FAILURE,
    place="hpu",
    clauses=(clause("requested_bytes", r"Allocation failed for size::\s*{n}", "B"),),
    needs=("requested_bytes",),
)
VLLM_ACCOUNT = Form(
    kind="vllm_startup",
    words=("total_gpu_memory",),
    span=8,  # vLLM 0.6.5 printed its account a line each
    clauses=(
        clause("capacity_bytes", r"total_gpu_memory {q}"),
        clause("allowed_bytes", r"vLLM instance can use {q}"),
        clause("+model weights", r"model weights take {q}"),
        clause("+non-torch memory", r"non_torch_memory {q}"),
        clause("+activation peak", r"activation peak memory {q}"),
        clause("+kv cache available", r"available_kv_cache_memory {q}"),
    ),
    needs=("capacity_bytes", "allowed_bytes"),
)
VLLM_WEIGHTS = Form(
    kind="vllm_startup",
    words=("model loading took", "model weights took"),
    clauses=(clause("+model weights", r"(?:Model loading|Loading model weights) took {q}"),),
)
MLX_REFUSED = Form(
    kind="mlx_oom",
    words=("attempting to allocate", "[malloc"),
    moment=Moment.FAILURE,
    place="mps",
    clauses=(
        clause("requested_bytes", r"(?:Attempting|Unable) to allocate {q}"),
        clause("allowed_bytes", r"maximum allowed buffer size of {q}"),
    ),
    needs=("requested_bytes",),
)

ALLOCATOR_WARNING = Form(
    kind="torch_cuda_oom_warning",
    words=("oom on device",),
    moment=Moment.FAILURE,
    device=r"OOM on device (\d{1,3})",
    span=2,
    clauses=(
        clause("requested_bytes", r"while trying to allocate {n}(?:\s*bytes|$)", "B"),
        clause("requested_bytes", r"while trying to allocate {q}"),
        clause("free_bytes", r"free: {n}", "B"),
        clause("capacity_bytes", r"total: {n}", "B"),
    ),
    needs=("requested_bytes",),
)
_DISPATCHED = re.compile(
    r"modules are dispatched on the CPU or the disk|You can't move a model that has some modules offloaded"
    r"|some parameters are on the meta device because they were offloaded"
    r"|had weights offloaded to the disk",
    re.IGNORECASE,
)


def read_dispatched(passage: Passage) -> Iterator[Read]:
    """accelerate found no room for all weights on the cards that it may use."""
    if _DISPATCHED.search(passage.text()):
        yield _failure(passage, kind="weights_offloaded")


READERS = (
    ALLOCATOR_WARNING.reader(),
    Reader(
        words=(
            "dispatched on the cpu",
            "were offloaded",
            "weights offloaded",
            "modules offloaded",
        ),
        read=read_dispatched,
    ),
    Reader(
        words=(
            "_alloc_failed",
            "_not_initialized",
            "allocation_failed",
            "status_memory_error",
            "handle failed",
            "_execution_failed",
            "_internal_error",
            "best cudnn",
            "cudnn algorithm",
            "find an engine",
        ),
        read=read_masked,
    ),
    Reader(words=("cuda failure", "cuda calloc", "nccl"), read=read_nccl),
    Reader(
        words=(
            "out of memory",
            "out_of_memory",
            "cudaerrormemoryallocation",
            "hiperroroutofmemory",
            "failed to allocate",
        ),
        read=read_runtime,
    ),
    Reader(words=("failed to allocate", "unable to allocate"), read=read_ggml),
    Reader(
        words=(
            "cache blocks",
            "free memory on device",
            "kv cache",
            "out of memory occurred",
            "total_gpu_memory",
        ),
        read=read_vllm,
    ),
    GAUDI.reader(),
    NEURON.reader(),
    MLX_REFUSED.reader(),
    Reader(words=("insufficient memory", "erroroutofmemory"), read=read_metal),
    VLLM_ACCOUNT.reader(),
    VLLM_WEIGHTS.reader(),
)
