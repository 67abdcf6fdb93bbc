"""Rows for the dataset tests: Chinese and English text of varying length, and a number that names the row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

Write = Callable[..., Path]
SCHEMA = pa.schema([("prompt", pa.string()), ("response", pa.string()), ("number", pa.int64())])


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    columns = {
        "prompt": [f"{n}: 请介绍一下第{n}个问题" for n in numbers],
        "response": [f"answer {n} " * (1 + n % 7) for n in numbers],
        "number": list(numbers),
    }
    return pa.table(columns, schema=SCHEMA)
