"""A traced run as the pickle that torch's `_dump_snapshot` writes: plain dictionaries, for memory_viz."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from vramcast.errors import OutputError


def write_snapshot(path: str | Path, content: dict[str, Any]) -> None:
    for segment in content["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    try:
        Path(path).write_bytes(pickle.dumps(content, protocol=4))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None
