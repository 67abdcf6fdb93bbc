"""Compares two tables of parameters: what an architecture has against what a checkpoint stores."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vramcast.models.record.tape import Param


def differences(built: Sequence[Param], stored: Sequence[Param]) -> str | None:
    """One sentence on how a checkpoint departs from its config's architecture; None where it holds the same elements.

    Totals decide, because libraries rename and fuse tensors when they load them; names only explain.
    """
    num_built = sum(param.numel for param in built if param.tied_to is None)
    num_stored = sum(param.numel for param in stored if param.dtype.floating)
    if num_built == num_stored:
        return None
    totals = (
        f"the checkpoint holds {num_stored:,} elements, the config's architecture has {num_built:,} "
        f"({num_stored - num_built:+,})."
    )
    return " ".join((totals, *_explain(built, stored)))


def _explain(built: Sequence[Param], stored: Sequence[Param]) -> list[str]:
    """One sentence for each way in which names and sizes differ."""
    built_by_name = {param.name: param for param in built if param.tied_to is None}
    tied_names = {param.name for param in built if param.tied_to is not None}
    untied: list[str] = []
    extra: list[str] = []
    resized: list[str] = []
    matched: set[str] = set()
    for param in stored:
        name = _counterpart(param.name, built_by_name)
        if name is not None:
            matched.add(name)
            if param.numel != built_by_name[name].numel:
                resized.append(f"{param.name} {list(param.shape)}")
        if _counterpart(param.name, tied_names):
            untied.append(param.name)
        elif name is None:
            extra.append(param.name)
    missing = sorted(set(built_by_name) - matched)
    sentences = (
        _list_items("Stored although tied", untied),
        _list_items("Only in the checkpoint", extra),
        _list_items("Only in the architecture", missing),
        _list_items("Of another size", resized),
    )
    return list(filter(None, sentences))


PREFIXES = (
    "model",
    "transformer",
    "bert",
    "roberta",
    "gpt_neox",
    "language_model",
    "model.language_model",
    "vit",
)


def _counterpart(name: str, known: Collection[str]) -> str | None:
    """The same name, or the same but for a prefix such as `model.` or `transformer.` on either side."""
    if name in known:
        return name
    tail = name.partition(".")[2]
    if tail in known:
        return tail
    prefixed = (f"{prefix}.{name}" for prefix in PREFIXES)
    return next((full_name for full_name in prefixed if full_name in known), None)


def _list_items(label: str, items: list[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return f"{label}: {', '.join(items[:3])}{more}."
