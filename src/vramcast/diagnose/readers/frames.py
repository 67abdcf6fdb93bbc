"""The frames of a Python traceback, as Python, rich, IPython, pytest and editors print them.

In: a Passage around a failure. Out: Frames, the innermost last, and whether a frame is the user's own code. Does not
know what failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vramcast.diagnose.readers.reader import rank_of
from vramcast.diagnose.readers.stream import LINES_BEFORE, Line, Passage, clean, without_prefix

MAX_FRAMES = 8

_LIBRARIES = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python|^<frozen|^/?(?:opt/)?conda/|[/\\]torch[/\\]nn[/\\]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a Python traceback: where, and the source line if it was printed."""

    function: str
    file: str
    line: int
    source: str = ""

    def is_own(self) -> bool:
        """Not a library's: the user's own line of code."""
        return not _LIBRARIES.search(self.file)


# Python's own traceback, rich's, IPython's, pytest's.
_FRAMES = (
    re.compile(r'File "([^"]{1,400})", line (\d{1,9}), in ([\w<>.]{1,120})'),
    re.compile(r"^((?:[A-Za-z]:)?/?[\w./\\~-]{1,300}\.py):(\d{1,9}) in ([\w<>.]{1,120})"),
    re.compile(r"^File ([\w./\\~<>-]{1,300}):(\d{1,9}), in ([\w<>.]{1,120})"),
    re.compile(r"^([\w./\\~-]{1,300}\.py):(\d{1,9}): in ([\w<>.]{1,120})"),
)
# Older IPython and Colab name no line; it stands before the source: `---> 88     result = ...`.
_CELL_FRAME = re.compile(r"^\[?([\w./\\~<>-]{1,300})(?:\]\(\S{1,80}\))? in ([\w<>.]{1,120})\(")
_ARROW = re.compile(r"^(?:-{1,6}>|❱) (\d{1,9})[ │]*(.{0,200}?)[ │]*$")
# A virtual GPU raises below the line that asked; its own frames say nothing about the job.
_VIRTUAL = re.compile(r"[/\\]vramcast[/\\]virtual[/\\]")
# The message comes first: a notebook's heading, an editor's box, a logger.
_FOLLOWS = re.compile(r"traceback|^\s*File [\"“]", re.IGNORECASE)
_STRAIGHT = str.maketrans("“”„", '""' + '"')  # quotes that a forum has set
_UNDERLINE = re.compile(r"^[\^~ ]*$")


def frames_of(passage: Passage) -> tuple[Frame, ...]:
    """The frames printed just before a failure, the innermost last; some loggers print the message first."""
    frames = _frames(_of_same_rank(passage))
    around = (passage.line, *passage.after[:3])
    follows = any(_FOLLOWS.search(without_prefix(clean(line.raw))) for line in around)
    if frames or not follows:
        return frames
    is_turned = any("Exception has occurred" in line.raw for line in passage.before[-2:])
    return _frames(passage.after[:LINES_BEFORE], is_turned=is_turned)


def _of_same_rank(passage: Passage) -> tuple[Line, ...]:
    """The lines before and with a failure; where ranks share a terminal, those of the rank that failed."""
    lines = (*passage.before, passage.line)
    rank = rank_of(passage.line)
    if rank is None:
        return lines
    same = tuple(line for line in lines if rank_of(line) == rank)
    return same if _frames(same) else lines


def _frames(lines: Iterable[Line], *, is_turned: bool = False) -> tuple[Frame, ...]:
    """Frames, the innermost last, each with the source line that follows it. VS Code prints them turned round."""
    frames: list[Frame] = []
    pending = ""  # the first half of a frame that a terminal wrapped
    for line in lines:
        text = without_prefix(clean(line.raw).translate(_STRAIGHT)).removeprefix("| ")  # of a group
        match = _frame_in(text) or (_frame_in(pending + text) if pending else None)
        pending = text if 'File "' in text and match is None else ""
        if match is not None:
            frames.append(
                Frame(file=match.group(1), line=int(match.group(2)), function=match.group(3))
            )
        elif (cell := _CELL_FRAME.match(text)) is not None:
            frames.append(Frame(file=cell.group(1), line=0, function=cell.group(2)))
        elif frames:
            frames[-1] = _with_source(frames[-1], text, is_half_a_frame=bool(pending))
    return _innermost_of_job(frames[::-1] if is_turned else frames)


def _with_source(frame: Frame, text: str, *, is_half_a_frame: bool) -> Frame:
    """The frame with a source line: one that an arrow marks, else the first that is no underline."""
    arrow = _ARROW.match(text)
    if arrow is not None:
        return replace(frame, line=int(arrow.group(1)), source=arrow.group(2).strip())
    if frame.source or is_half_a_frame or _UNDERLINE.match(text):
        return frame
    return replace(frame, source=text[:200])


def _innermost_of_job(frames: list[Frame]) -> tuple[Frame, ...]:
    """The last frames, without the virtual GPU's own."""
    own = [frame for frame in frames if not _VIRTUAL.search(frame.file)]
    last = own[-MAX_FRAMES:]
    users = [frame for frame in own if frame.is_own()]
    missing = users[-1:] if users and not any(frame.is_own() for frame in last) else []
    return (*missing, *last)


def _frame_in(text: str) -> re.Match[str] | None:
    return next((match for pattern in _FRAMES if (match := pattern.search(text))), None)
