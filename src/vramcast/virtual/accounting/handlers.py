"""Whether somebody on the Python stack would catch an out-of-memory error, read from the source of what runs.

A script may catch the error and try a smaller batch: it must get it. Where nobody does, the error would only end the
script, and the run may go on without the limit instead. In doubt the answer is yes.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from functools import cache
from types import FrameType

from vramcast.virtual.accounting.source_lines import is_ours

_CATCHING = frozenset(
    ["OutOfMemoryError", "RuntimeError", "Exception", "BaseException", "AcceleratorError"]
)
_RUNS_THE_SCRIPT = os.path.join(
    "vramcast", "virtual", "script.py"
)  # whoever calls it is not the script
_UNRELATED = (
    "site-packages/torch/",
    "<frozen ",
    "<string>",
    "/threading.py",
)  # they pass errors on


def somebody_catches() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.endswith(_RUNS_THE_SCRIPT):
            return False
        if not _is_unrelated(name) and _catches(name, frame.f_lineno):
            return True
        frame = frame.f_back
    return False


def _is_unrelated(filename: str) -> bool:
    return is_ours(filename) or any(part in filename for part in _UNRELATED)


def _catches(filename: str, line: int) -> bool:
    handlers = _handlers(filename)
    return handlers is None or any(first <= line <= last for first, last in handlers)


@cache
def _handlers(filename: str) -> list[tuple[int, int]] | None:
    """The lines that are guarded by an `except` which takes the error and keeps it; None for unreadable files."""
    source = "".join(linecache.getlines(filename))
    if not source:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    guarded = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(map(_keeps, node.handlers)):
            guarded.append((node.body[0].lineno, node.body[-1].end_lineno or sys.maxsize))
        elif isinstance(node, (ast.With, ast.AsyncWith)) and any(map(_suppresses, node.items)):
            guarded.append((node.lineno, node.end_lineno or sys.maxsize))
    return guarded


def _keeps(handler: ast.ExceptHandler) -> bool:
    if not _takes(handler.type):
        return False
    last = handler.body[-1]
    return not (isinstance(last, ast.Raise) and last.exc is None)  # else it is passed on


def _takes(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    if isinstance(kind, ast.Tuple):
        return any(map(_takes, kind.elts))
    if isinstance(kind, (ast.Name, ast.Attribute)):
        name = kind.id if isinstance(kind, ast.Name) else kind.attr
        return name in _CATCHING or not name.endswith(("Error", "Exception", "Interrupt", "Exit"))
    return True


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("suppress", "raises") and any(map(_takes, call.args))
