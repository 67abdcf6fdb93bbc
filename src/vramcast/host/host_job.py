"""What decides the host memory of one node: the records, their defaults, and what they may hold.

In: values from flags or from a Job. Out: a HostJob that `vramcast.host.entries` turns into entries. Does not know how
many bytes libraries take (`vramcast.host.libraries`) or what is in a dataset (`vramcast.host.parquet`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.errors import InputError, unknown
from vramcast.units import KiB, MiB

if TYPE_CHECKING:
    from vramcast.host.parquet_facts import ParquetFacts

MODES = ("table", "row-groups", "mmap", "ultra")
START_METHODS = ("fork", "spawn")
FORMATS = ("safetensors", "bin")
DEFAULT_PREFETCH = 2  # DataLoader's, with workers
LARGE_BLOCK_BYTES = 128 * KiB  # glibc's first threshold between heap and mapping
ID_BYTES = 8  # token ids, masks and labels are int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOnHost:
    """How weights pass through, or stay in, host memory."""

    checkpoint_bytes: int
    weights_bytes: int  # in the dtype the model has after loading
    format: str = "safetensors"
    low_cpu_mem: bool = True  # built on the meta device; else initialised before loading
    stays_on_host: bool = False  # CPU training; else it moves to the GPU after loading
    straight_to_gpu: bool = False  # device_map: each tensor goes from the mapped file to the GPU
    rank0_only: bool = False  # the others receive it by broadcast


@dataclass(frozen=True, slots=True, kw_only=True)
class HostData:
    """A parquet dataset and the mode it is read in."""

    facts: ParquetFacts
    mode: str = "row-groups"
    budget_bytes: int = 256 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """DataLoader's settings and the tensors of one batch."""

    tensor_bytes: tuple[int, ...]  # each tensor of a batch
    workers: int = 0
    prefetch: int | None = None  # as DataLoader has it: None without workers
    pin_memory: bool = False
    start_method: str = "fork"
    accelerate: bool = False  # holds one more batch, to know which is the last
    steady: bool = False  # workers use vramcast.runtime.return_large_blocks

    @property
    def in_flight(self) -> int:
        """Batches that the workers of a rank prepare ahead."""
        prefetch = DEFAULT_PREFETCH if self.prefetch is None else self.prefetch
        return self.workers * prefetch

    @property
    def in_use(self) -> int:
        """The batch trained on; without workers the next is made while the loop still holds it."""
        batches = 1 if self.workers else 2
        return batches + self.accelerate

    @property
    def fragments(self) -> bool:
        """Whether large blocks that come and go leave holes in the heap of a worker."""
        if not self.workers or self.steady:
            return False
        return max(self.tensor_bytes) >= LARGE_BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJob:
    """Everything that decides the host memory of one node."""

    ranks: int = 1
    build: str = "cuda"
    imports: tuple[str, ...] = ("torch", "transformers", "pyarrow")
    model: ModelOnHost | None = None
    data: HostData | None = None
    loader: Loader | None = None
    offloaded_bytes: tuple[int, ...] = ()  # buffers that are kept in host memory, per rank
    offload_pinned: bool = True
    states_bytes: int = 0  # gradients and optimizer states, per rank, if training on the CPU
    activations_bytes: int = 0  # per rank, if training on the CPU
    save_bytes: int = 0  # a checkpoint gathered on the host by one rank

    @property
    def workers(self) -> int:
        """DataLoader workers of all ranks."""
        return self.ranks * (self.loader.workers if self.loader else 0)

    @property
    def readers(self) -> int:
        """Processes of the node that decode rows: the workers, or the ranks themselves."""
        return self.workers or self.ranks

    def check(self) -> None:
        """Raise InputError or UnsupportedError for values that no job can have."""
        if self.ranks < 1:
            raise InputError(f"ranks={self.ranks}: a node runs at least one process")
        if self.data is not None:
            _check_known("dataset mode", self.data.mode, MODES)
        if self.loader is not None:
            _check_known("start method", self.loader.start_method, START_METHODS)
        if self.model is not None:
            _check_known("checkpoint format", self.model.format, FORMATS)
        if self.loader and self.loader.workers == 0 and self.loader.prefetch is not None:
            raise InputError(
                f"prefetch={self.loader.prefetch} without workers: DataLoader refuses it. Leave it out."
            )


def _check_known(what: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise unknown(what, value, known)


def token_batch(batch: int, seq: int, target_seq: int | None = None) -> tuple[int, ...]:
    """Bytes of `input_ids`, `attention_mask` and `labels`."""
    label_seq = seq if target_seq is None else target_seq
    ids = batch * seq * ID_BYTES
    labels = batch * label_seq * ID_BYTES
    return ids, ids, labels
