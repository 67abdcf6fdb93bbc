"""YAML and JSON → records with the places of their values. Nothing is constructed that is not a plain value.

Nested keys are joined by dots, items of lists of mappings are numbered: `datasets.0.path`. A list of plain values
is one value. JSON is read as the YAML it nearly is: only a tab between values is no YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vramcast.configs.records import Record
from vramcast.errors import InputError

MOST_VALUES = 20_000  # of a file; aliases count as often as they are used
DEEPEST = 40
LONGEST_VALUE = 100_000  # characters; a chat template is long
NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
DEEPEST_REFERENCES = 4
LONGEST_REFERENCE = 1000  # characters, once they are filled in
REFERENCE = re.compile(r"\$\{([\w.]+)\}")
WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")


def read_yaml(text: str, file: str) -> list[Record]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents = list(yaml.compose_all(text, Loader=loader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise InputError(f"{file}{where}: not YAML ({problem})") from None
    roots = [node for node in documents if isinstance(node, yaml.MappingNode)]
    if not roots:
        raise InputError(f"{file}: no settings in it (`key: value` lines)")
    return _with_references(_Reading(file).records(roots[0]))


def _with_references(records: list[Record]) -> list[Record]:
    """`${batch_size}` stands for that key's value, as OmegaConf has it."""
    known = {record.key: record.value for record in records}
    found = []
    for record in records:
        value = _resolved(record.value, known) if isinstance(record.value, str) else record.value
        found.append(record if value is record.value else replace(record, value=value, span=None))
    return found


def _resolved(text: str, known: Mapping[str, Any]) -> Any:
    """References inside references, too; what would grow long is left as it is."""
    made: Any = text
    for _ in range(DEEPEST_REFERENCES):
        match = REFERENCE.fullmatch(made)
        if match is not None:
            made = known.get(match[1], made)
        else:
            made = REFERENCE.sub(lambda each: _short(known.get(each[1]), each[0]), made)
        if not isinstance(made, str) or len(made) > LONGEST_REFERENCE or "${" not in made:
            break
    return text if made is None or len(str(made)) > LONGEST_REFERENCE or made == text else made


def _short(value: Any, instead: str) -> str:
    return (
        str(value) if isinstance(value, str | int | float) and len(str(value)) < 1000 else instead
    )


def read_json(text: str, file: str) -> list[Record]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        problem = getattr(error, "msg", None) or type(error).__name__
        raise InputError(f"{file}{line}: not JSON ({problem})") from None
    if not isinstance(value, dict):
        raise InputError(f'{file}: no settings in it ({{"key": value}})')
    return read_yaml(text.replace("\t", " "), file)  # character for character: places stay


LONGEST_NUMBER = 400  # characters; whatever is longer is no setting


def plain(text: str) -> Any:
    """A word of a command line or an unquoted scalar as a value: `8`, `5e8`, `true`."""
    lowered = text.strip().lower()
    if lowered in WORDS:
        return WORDS[lowered]
    if len(text) > LONGEST_NUMBER or not NUMBER.fullmatch(text.strip()):
        return text
    number = text.strip().replace("_", "")
    return float(number) if any(sign in number for sign in ".eE") else int(number)


class _Reading:
    """The records of one document."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.num_values = 0

    def records(self, root: Any) -> list[Record]:
        found: list[Record] = []
        self._mapping(root, "", 0, found)
        return found

    def _mapping(self, node: Any, prefix: str, depth: int, found: list[Record]) -> None:
        import yaml

        for key, value in node.value:
            self._count(key, depth)
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{self._place(key)}: a key is one word, not a list or a mapping")
            if key.value == "<<":  # a merged mapping gives what is not said here
                self._merged(value, prefix, depth, found)
            else:
                self._value(f"{prefix}{key.value}", key, value, depth, found)

    def _merged(self, node: Any, prefix: str, depth: int, found: list[Record]) -> None:
        import yaml

        for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(each, yaml.MappingNode):
                inner: list[Record] = []
                self._mapping(each, prefix, depth + 1, inner)
                found[:0] = inner

    def _value(self, name: str, key: Any, node: Any, depth: int, found: list[Record]) -> None:
        import yaml

        self._count(node, depth)
        if isinstance(node, yaml.MappingNode) and node.value:
            return self._mapping(node, f"{name}.", depth + 1, found)
        if isinstance(node, yaml.SequenceNode):
            if not all(isinstance(item, yaml.ScalarNode) for item in node.value):
                return self._items(name, key, node, depth, found)
            value: Any = [self._scalar(item) for item in node.value]
        else:
            value = {} if isinstance(node, yaml.MappingNode) else self._scalar(node)
        span = (node.start_mark.index, node.end_mark.index)
        line = key.start_mark.line + 1
        found.append(Record(key=name, value=value, file=self.file, line=line, span=span))
        return None

    def _items(self, name: str, key: Any, node: Any, depth: int, found: list[Record]) -> None:
        for number, item in enumerate(node.value):
            self._value(f"{name}.{number}", item, item, depth + 1, found)

    def _scalar(self, node: Any) -> Any:
        self._count(node, 0)
        if len(node.value) > LONGEST_VALUE:
            raise InputError(f"{self._place(node)}: a value of {len(node.value):,} characters")
        return node.value if node.style in ("'", '"', "|", ">") else plain(node.value)

    def _count(self, node: Any, depth: int) -> None:
        self.num_values += 1
        if self.num_values > MOST_VALUES or depth > DEEPEST:
            what = f"more than {MOST_VALUES:,} values" if depth <= DEEPEST else "nested too deep"
            raise InputError(f"{self.file}: {what}; is it a configuration?")
        kind = node.tag.rpartition(":")[2]
        if kind not in PLAIN_TAGS:
            raise InputError(
                f"{self._place(node)}: the tag {node.tag!r} is not plain YAML and is not followed"
            )

    def _place(self, node: Any) -> str:
        return f"{self.file}:{node.start_mark.line + 1}"
