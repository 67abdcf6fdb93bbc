"""Files that a configuration inherits from: `defaults: ../base.yaml`, Hydra's lists. What is said here wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from vramcast.configs.folders import Folders, real_path
from vramcast.configs.records import Draft, Record

DEEPEST = 8  # parents of parents
ENDINGS = ("", ".yaml", ".yml")
OWN = re.compile(
    r"(ppo|sft|grpo)_(megatron_)?trainer(_engine)?(\.yaml)?"
)  # verl's, whose values its reader knows
Read = Callable[[Path], list[Record]]


def with_parents(
    records: list[Record], path: Path, folders: Folders, draft: Draft, read: Read
) -> tuple[list[Record], set[Path]]:
    """The records with those of the parents in front of them, and the files that were read for it."""
    made: list[Record] = []
    taken = {real_path(path)}
    for named in _parents(records):
        made += _of_parent(named, path, folders, draft, read, taken)
    return [*made, *records], taken - {real_path(path)}


def _of_parent(
    named: Record, path: Path, folders: Folders, draft: Draft, read: Read, taken: set[Path]
) -> list[Record]:
    parent = next(
        (
            found
            for end in ENDINGS
            if (found := folders.find(f"{named.value}{end}", path)) is not None
        ),
        None,
    )
    if parent is None or not parent.is_file():
        is_outside = any(folders.is_outside(f"{named.value}{end}", path) for end in ENDINGS)
        why = "lies outside of the given folders" if is_outside else "is not here"
        draft.gap(named, f"the file that it inherits from {why}: give it as well")
        return []
    if real_path(parent) in taken or len(taken) > DEEPEST:
        return []
    taken.add(real_path(parent))
    inner = read(parent)
    made: list[Record] = []
    for each in _parents(inner):
        made += _of_parent(each, parent, folders, draft, read, taken)
    return [*made, *inner]


def _parents(records: list[Record]) -> Iterator[Record]:
    """`_self_` and groups (`actor@actor_rollout_ref.actor: dp_actor`) name no file of this kind."""
    for record in records:
        if record.key != "defaults" and not record.key.startswith("defaults."):
            continue
        for value in record.value if isinstance(record.value, list) else [record.value]:
            is_file = record.key.count(".") < 2 and isinstance(value, str) and value != "_self_"
            if is_file and value and not OWN.fullmatch(value):
                yield Record(key=record.key, value=value, file=record.file, line=record.line)
