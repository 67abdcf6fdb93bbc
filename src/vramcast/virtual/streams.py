"""Streams and events of a virtual device: they order nothing, since nothing runs, but blocks remember their stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.virtual.gpu import VirtualGpu
    from vramcast.virtual.patches import Patches


def install(gpu: VirtualGpu, patches: Patches) -> None:
    counter = iter(range(1, 1 << 62))

    class Stream:
        """A stream is a number; the default one is 0."""

        stream_id: int
        device: torch.device
        priority: int

        def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
            stream = super().__new__(cls)
            stream.stream_id = kwargs["stream_id"] if "stream_id" in kwargs else next(counter)
            stream.device = torch.device("cuda", torch.cuda._utils._get_device_index(device, optional=True))
            stream.priority = priority
            return stream

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def device_index(self) -> int:
            return int(self.device.index)

        @property
        def device_type(self) -> int:
            return 1

        def record_event(self, event: Any = None) -> Any:
            return event or Event()

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def wait_event(self, event: Any) -> None: ...
        def wait_stream(self, stream: Any) -> None: ...
        def synchronize(self) -> None: ...

        def __eq__(self, other: object) -> bool:
            same = isinstance(other, Stream) and other.stream_id == self.stream_id
            return same and other.device == self.device  # type: ignore[attr-defined]

        def __hash__(self) -> int:
            return hash((self.stream_id, self.device))

        def __enter__(self) -> Any:
            self._before = current_stream(self.device)
            set_stream(self)
            return self

        def __exit__(self, *error: Any) -> None:
            set_stream(self._before)

    class Event:
        """Happens at once; time does not pass on a virtual device."""

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def record(self, stream: Any = None) -> None: ...
        def wait(self, stream: Any = None) -> None: ...
        def synchronize(self) -> None: ...

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Any) -> float:
            return 0.0

    class StreamContext:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            if self.stream is not None:
                self.stream.__enter__()

        def __exit__(self, *error: Any) -> None:
            if self.stream is not None:
                self.stream.__exit__()

    def index_of(device: Any) -> int:
        return int(torch.cuda._utils._get_device_index(device, optional=True))

    def current_stream(device: Any = None) -> Any:
        index = index_of(device)
        return Stream(index, stream_id=gpu.memories[index].stream)

    def set_stream(stream: Any) -> None:
        if stream is not None:
            gpu.memories[stream.device.index].stream = stream.stream_id

    patches.set(torch.cuda, "Stream", Stream)
    patches.set(torch.cuda, "Event", Event)
    patches.set(torch, "Stream", Stream)
    patches.set(torch, "Event", Event)
    patches.set(torch.cuda, "StreamContext", StreamContext)
    patches.set(torch.cuda, "stream", StreamContext)
    patches.set(torch.cuda, "set_stream", set_stream)
    patches.set(torch.cuda, "current_stream", current_stream)
    patches.set(torch.cuda, "default_stream", lambda device=None: Stream(index_of(device), stream_id=0))
    patches.set(torch.accelerator, "current_stream", current_stream)
    patches.set(torch.accelerator, "set_stream", set_stream)
