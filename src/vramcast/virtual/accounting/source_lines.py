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
_PACKAGES = tuple(f"{os.sep}{name}-packages{os.sep}" for name in ("site", "dist"))
_BELOW = tuple(  # what lies between a library's line and the allocation
    f"{os.sep}{name}{os.sep}"
    for name in ("torch", "site-packages/accelerate", "site-packages/triton")
)
_USERS, _LIBRARY, _OTHER = 2, 1, 0
_kinds: dict[str, int] = {}
_is_users: dict[str, bool] = {}


def source_lines() -> tuple[Line, Line]:
    """The user's line, and the innermost line of a library below it, if there is one: neither torch's nor Python's."""
    frame = sys._getframe(1)
    library: Line = None
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _kind_of(code.co_filename)
        if kind == _USERS:
            return (code, frame.f_lineno), library
        if kind == _LIBRARY and library is None:
            library = (code, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None, library


def source_line() -> Line:
    """Code and line of the innermost frame that is neither installed nor ours; formatted only when reported."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        users = _is_users.get(code.co_filename)
        if users or (users is None and is_users(code.co_filename)):
            return code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def is_users(filename: str) -> bool:
    """Whether a file is the user's own: neither installed nor ours."""
    users = _is_users.get(filename)
    if users is None:
        users = _is_users[filename] = _belongs_to_user(filename)
    return users


def count_as_users(filename: str) -> None:
    """A script that is run is the user's, also where it was installed: `trl/scripts/sft.py`."""
    _is_users[filename] = True
    _kinds[filename] = _USERS


def format_line(line: Line) -> str:
    if line is None:
        return ""
    code, number = line
    return f"{os.path.basename(code.co_filename)}:{number}"


def format_lines(users: Line, library: Line) -> str:
    """`modeling_llama.py:178 < train.py:20`: where it was asked for, and the user's line that led there."""
    return " < ".join(text for text in (format_line(library), format_line(users)) if text)


def _kind_of(filename: str) -> int:
    if is_users(filename):
        return _USERS
    is_package = any(part in filename for part in _PACKAGES) and not is_ours(filename)
    return _LIBRARY if is_package and not any(part in filename for part in _BELOW) else _OTHER


def is_ours(filename: str) -> bool:
    """Whether a file belongs to this package."""
    return filename.startswith(_HERE)


def _belongs_to_user(filename: str) -> bool:
    is_installed = filename.startswith(_INSTALLED) or any(part in filename for part in _PACKAGES)
    return not (filename.startswith(("<", _HERE)) or is_installed)
