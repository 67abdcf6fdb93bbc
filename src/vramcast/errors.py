"""What can go wrong, by who can mend it.

VramcastError            a user can act: the command line prints one line and exits with 2
  InputError             a value, file or flag is malformed
  UnsupportedError       well formed, but nothing here knows it; names what is known and a way forward
    UndescribedModelError  a model that no formula describes; the virtual GPU may run it
  SnapshotError          a memory snapshot cannot be read, or must not be
  TraceError             the virtual GPU cannot follow the script
  TraceNeededError       only a new run on the virtual GPU can answer, and this process makes none
  OutputError            the answer is known, but cannot be written
InvariantError           our own books do not add up: a bug, and it crashes loudly
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class VramcastError(Exception):
    """A user can act on this."""


class InputError(VramcastError):
    """A value, file or flag is malformed."""


class UnsupportedError(VramcastError):
    """Well formed, but unknown here."""


class UndescribedModelError(UnsupportedError):
    """A model, or a head of it, that no formula describes; the virtual GPU may run it."""


class SnapshotError(VramcastError):
    """A memory snapshot cannot be read, or must not be."""


class TraceError(VramcastError):
    """The virtual GPU cannot follow the script."""


class TraceNeededError(VramcastError):
    """Only a new run on the virtual GPU can answer, and this process makes none."""


class OutputError(VramcastError):
    """The answer is known, but cannot be written."""


class InvariantError(Exception):
    """Our own books do not add up."""


def unknown(what: str, value: str, known: Iterable[str], hint: str = "") -> UnsupportedError:
    """The error for a name outside a closed set: the value, near names, all names, a way forward."""
    names = sorted(known)
    near = get_close_matches(value, names, n=3, cutoff=0.6)
    text = f"unknown {what} {value!r}."
    if near:
        text += f" Did you mean {' or '.join(near)}?"
    if len(names) <= 40:
        text += f" Known: {', '.join(names)}."
    return UnsupportedError(f"{text} {hint}".rstrip())
