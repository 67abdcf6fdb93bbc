"""The user's own source line, found on the Python stack."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType

Line = tuple[CodeType, int] | None

_HERE = str(Path(__file__).resolve().parents[2])  # the package
_FOLDERS = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib", "scripts")]
_INSTALLED = tuple({os.path.realpath(folder) for folder in _FOLDERS} | set(_FOLDERS))
_is_users: dict[str, bool] = {}


def source_line() -> Line:
    """Code and line of the innermost frame that is neither installed nor ours; formatted only when reported."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        users = _is_users.get(code.co_filename)
        if users is None:
            users = _is_users[code.co_filename] = _belongs_to_user(code.co_filename)
        if users:
            return code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def count_as_users(filename: str) -> None:
    """A script that is run is the user's, also where it was installed: `trl/scripts/sft.py`."""
    _is_users[filename] = True


def format_line(line: Line) -> str:
    if line is None:
        return ""
    code, number = line
    return f"{os.path.basename(code.co_filename)}:{number}"


def _belongs_to_user(filename: str) -> bool:
    return not (filename.startswith(("<", _HERE)) or filename.startswith(_INSTALLED))
