"""Who holds memory: live blocks grouped by the line of code that asked for them, with a guess at what they are.

The line is read off the recorded stack. The category is a heuristic over the names on the stack, and the report says
so: a snapshot records who asked, not what for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from vramcast.ledger import Category
from vramcast.snapshot.layout import LiveBlock
from vramcast.snapshot.record import Frame, Snapshot, Stack

BEFORE_RECORDING = "allocated before the recording"
NO_STACK_RECORDED = "no stack recorded"

_IN_OPTIMIZER = ("/torch/optim/",)
# The first rule with a word that occurs anywhere on the stack names the category.
_RULES: tuple[tuple[Category, tuple[str, ...]], ...] = (
    (
        Category.COMMUNICATION,
        ("c10d::", "ProcessGroupNCCL", "/torch/distributed/distributed_c10d.py"),
    ),
    (
        Category.WORKSPACE,
        (
            "CUDABlasLtWorkspace",
            "CurrentCUDABlasHandle",
            "getNewWorkspace",
            "cudnn",
            "get_workspace",
        ),
    ),
    (Category.OPTIMIZER, ("_init_group (",)),
    (Category.TEMPORARY, _IN_OPTIMIZER),
    (Category.TEMPORARY, ("/torch/amp/grad_scaler.py", "clip_grad")),
    (Category.GRADIENTS, ("AccumulateGrad",)),
    (Category.LOGITS, ("cross_entropy", "log_softmax", "nll_loss")),
    (Category.CACHE, ("/cache_utils.py", "kv_cache", "KVCache")),
    (
        Category.WEIGHTS,
        (
            "load_state_dict",
            "from_pretrained",
            "reset_parameters",
            "/torch/nn/modules/module.py:_apply (",
        ),
    ),
    (Category.INPUT, ("/torch/utils/data/", "pin_memory", "collate")),
)
_BACKWARD = (
    "torch::autograd::Engine",
    "run_backward",
    "_engine_run_backward",
    "/torch/autograd/__init__.py",
)
_FORWARD = ("_call_impl (", "forward (")
_HELPERS = re.compile(
    r"(?:^|/)(?:torch|einops|opt_einsum|jaxtyping|beartype|contextlib|functools)(?:/|\.py$)|^<frozen|^<string"
)
_NODE = re.compile(r"::(\w+)::apply\(")
_OPERATOR = re.compile(r"at::_ops::(\w+)::call\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A line of code and the memory that its live allocations take."""

    frame: str
    filename: str
    line: int
    name: str
    category: Category
    allocated_bytes: int
    blocks: int
    stack: tuple[str, ...]  # the Python lines of one of the allocations, innermost first


@dataclass(frozen=True, slots=True)
class HolderKey:
    """What blocks are grouped by."""

    frame: str
    category: Category


class Attribution:
    """Names the holder of each block, and remembers the answer for each stack."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._stacks = snapshot.stacks
        self._known: dict[tuple[int, bool, bool], HolderKey] = {}

    def key(self, block: LiveBlock) -> HolderKey:
        known = self._known.get((block.stack, block.born < 0, block.lasts))
        if known is None:
            known = self._name(block)
            self._known[(block.stack, block.born < 0, block.lasts)] = known
        return known

    def _name(self, block: LiveBlock) -> HolderKey:
        stack = self._stacks[block.stack]
        if not stack:
            return HolderKey(
                BEFORE_RECORDING if block.born < 0 else NO_STACK_RECORDED, Category.UNKNOWN
            )
        return HolderKey(str(responsible_frame(stack)), category_of(stack, lasts=block.lasts))

    def holders(self, blocks: Iterable[LiveBlock]) -> tuple[Holder, ...]:
        """All holders, largest first."""
        groups: dict[HolderKey, list[LiveBlock]] = {}
        for block in blocks:
            groups.setdefault(self.key(block), []).append(block)
        holders = [self._holder(key, members) for key, members in groups.items()]
        return tuple(sorted(holders, key=lambda holder: (-holder.allocated_bytes, holder.frame)))

    def _holder(self, key: HolderKey, members: list[LiveBlock]) -> Holder:
        stack = self._stacks[members[0].stack]
        frame = responsible_frame(stack) if stack else Frame("", 0, key.frame)
        return Holder(
            frame=key.frame,
            filename=frame.filename,
            line=frame.line,
            name=frame.name,
            category=key.category,
            allocated_bytes=sum(block.size or 0 for block in members),
            blocks=len(members),
            stack=tuple(str(line) for line in stack if _is_python(line))[:12],
        )


def responsible_frame(stack: Stack) -> Frame:
    """The innermost Python line outside torch; without Python the autograd node or the operator that ran."""
    python = [frame for frame in stack if _is_python(frame)]
    if not python:
        return _native_frame(stack)
    outside = (frame for frame in python if not _is_helper(frame))
    return next(outside, python[0])


def _native_frame(stack: Stack) -> Frame:
    """The outermost autograd node, else the outermost operator, else the outermost frame of any kind."""
    for pattern, label in ((_NODE, "autograd node"), (_OPERATOR, "operator")):
        names = [match.group(1) for frame in stack if (match := pattern.search(frame.name))]
        if names:
            return Frame("", 0, f"{label} {names[-1]}")
    return stack[-1]


def category_of(stack: Stack, *, lasts: bool) -> Category:
    """A guess from names. `lasts`: still alive at the end of the recording, as gradients and weights are."""
    for category, words in _RULES:
        if _any_mentions(stack, words):
            return Category.OPTIMIZER if lasts and words is _IN_OPTIMIZER else category
    if _any_mentions(stack, _BACKWARD):
        return Category.GRADIENTS if lasts else Category.TEMPORARY
    if _any_mentions(stack, _FORWARD):
        return Category.ACTIVATIONS
    return Category.UNKNOWN


def _any_mentions(stack: Stack, words: tuple[str, ...]) -> bool:
    return any(_mentions(frame, words) for frame in stack)


@cache
def _mentions(frame: Frame, words: tuple[str, ...]) -> bool:
    text = f"{frame.filename.replace(chr(92), '/')}:{frame.name} ("
    return any(word in text for word in words)


def _is_helper(frame: Frame) -> bool:
    """Is it a line of torch, or of a library that only passes calls on?"""
    return _HELPERS.search(frame.filename.replace("\\", "/")) is not None


def _is_python(frame: Frame) -> bool:
    return frame.filename.endswith(".py") or frame.filename.startswith("<")
