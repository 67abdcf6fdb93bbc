"""Streams and events of virtual cards: they order nothing, since nothing runs, but blocks remember their stream.

In come `torch.cuda.Stream`, `Event` and the functions around them; the allocator model is told which stream is current.
Does not know time: an event has happened as soon as it is recorded.
"""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

import torch

from vramcast.patches import Patches
from vramcast.virtual.state import GpuState

_numbers = count(1)


def install(gpu: GpuState, patches: Patches) -> None:
    kind = type("Stream", (VirtualStream,), {"gpu": gpu})
    event_kind = type("Event", (VirtualEvent,), {"gpu": gpu})

    def current_stream(device: Any = None) -> Any:
        index = _index(device)
        return kind(index, stream_id=gpu.memories[index].stream)

    def default_stream(device: Any = None) -> Any:
        return kind(_index(device), stream_id=0)

    def set_stream(stream: Any) -> None:
        if stream is not None:
            gpu.memories[stream.device.index].stream = stream.stream_id

    for owner in (torch.cuda, torch):
        patches.set(owner, "Stream", kind)
        patches.set(owner, "Event", event_kind)
    for owner in (torch.cuda, torch.accelerator):
        patches.set(owner, "current_stream", current_stream)
        patches.set(owner, "set_stream", set_stream)
    patches.set(torch.cuda, "default_stream", default_stream)
    patches.set(torch.cuda, "StreamContext", StreamContext)
    patches.set(torch.cuda, "stream", StreamContext)


def _index(device: Any) -> int:
    return int(torch.cuda._utils._get_device_index(device, optional=True))


class VirtualEvent:
    """Has always happened; time does not pass on a virtual card."""

    gpu: ClassVar[GpuState]

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None:
        self.gpu.complete_streams()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


class VirtualStream:
    """A stream is a number; the default one is 0."""

    gpu: ClassVar[GpuState]

    def __init__(
        self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **kwargs: Any
    ) -> None:
        self.stream_id = next(_numbers) if stream_id is None else stream_id
        self.device = torch.device("cuda", _index(device))
        self.priority = priority

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def device_index(self) -> int:
        return int(self.device.index)

    @property
    def device_type(self) -> int:
        return 1

    def record_event(self, event: Any = None) -> Any:
        return event or torch.cuda.Event()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_event(self, event: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None:
        self.gpu.complete_streams()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VirtualStream):
            return False
        return self.stream_id == other.stream_id and bool(self.device == other.device)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __enter__(self) -> VirtualStream:
        memory = self.gpu.memories[self.device.index]
        self._before = memory.stream
        memory.stream = self.stream_id
        return self

    def __exit__(self, *error: Any) -> None:
        self.gpu.memories[self.device.index].stream = self._before


class StreamContext:
    """`with torch.cuda.stream(stream):`; None leaves the stream as it is."""

    def __init__(self, stream: VirtualStream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__()
