"""Doors between rooms: no cycles, no private names across modules, the engine through its front door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
FACADES = ("vramcast.engine",)


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SRC / "vramcast").rglob("*.py"))}


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports_of(name: str) -> Iterator[tuple[str, str | None]]:
    """Modules of ours that a module imports, lazily or not, each with the name that is taken from it."""
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = inner in MODULES and alias.name not in public_names(node.module)
                yield (inner, None) if is_module else (node.module, alias.name)


@cache
def public_names(name: str) -> frozenset[str]:
    """A module's `__all__`; the engine has a function `estimate` and a module of that name."""
    for node in tree_of(name).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def is_for_types_only(name: str, target: str) -> bool:
    """Imported under `if TYPE_CHECKING` and nowhere else."""
    inside = types_only(name)
    found = [node for node in imports_in(name) if _names(node, target)]
    return all(id(node) in inside for node in found)


@cache
def imports_in(name: str) -> list[ast.ImportFrom | ast.Import]:
    return [
        node for node in ast.walk(tree_of(name)) if isinstance(node, ast.ImportFrom | ast.Import)
    ]


@cache
def types_only(name: str) -> frozenset[int]:
    """Everything under `if TYPE_CHECKING`, by identity."""
    branches = [node for node in ast.walk(tree_of(name)) if isinstance(node, ast.If)]
    checked = [branch for branch in branches if ast.unparse(branch.test) == "TYPE_CHECKING"]
    return frozenset(id(node) for branch in checked for node in ast.walk(branch))


def _names(node: ast.ImportFrom | ast.Import, target: str) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == target for alias in node.names)
    return node.module == target or any(
        f"{node.module}.{alias.name}" == target for alias in node.names
    )


def private_names() -> list[str]:
    return [
        f"{name} takes {target}.{taken}"
        for name in MODULES
        for target, taken in imports_of(name)
        if taken is not None and taken.startswith("_") and not taken.startswith("__")
    ]


def around_facades() -> list[str]:
    """Modules outside a package that import its inner modules."""
    return sorted(
        {
            f"{name} imports {target}"
            for facade in FACADES
            for name in MODULES
            if not f"{name}.".startswith(f"{facade}.")
            for target, _ in imports_of(name)
            if target.startswith(f"{facade}.")
        }
    )


def cycles() -> list[str]:
    """Modules that can reach themselves, by groups; what is imported for types alone does not count."""
    edges = {
        name: {
            target
            for target, _ in imports_of(name)
            if target != name and not is_for_types_only(name, target)
        }
        for name in MODULES
    }
    reached = {name: _reachable(name, edges) for name in MODULES}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in MODULES
        if name in reached[name]
    }
    return sorted(" <-> ".join(group) for group in groups)


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += edges[name]
    return found


def test_no_private_name_crosses_modules() -> None:
    assert private_names() == []


def test_the_engine_is_entered_through_its_front_door() -> None:
    assert around_facades() == []


def test_no_module_can_reach_itself() -> None:
    assert cycles() == []
