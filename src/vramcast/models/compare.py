"""Two tables of parameters, held side by side: what an architecture has against what a checkpoint stores."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vramcast.models.record.tape import Param


def differences(built: Sequence[Param], stored: Sequence[Param]) -> str | None:
    """One sentence on how a checkpoint departs from its config's architecture; None where it holds the same elements.

    Totals decide, because libraries rename and fuse tensors when they load them; names only explain.
    """
    has = sum(param.numel for param in built if param.tied_to is None)
    holds = sum(param.numel for param in stored if param.dtype.floating)
    if has == holds:
        return None
    text = f"the checkpoint holds {holds:,} elements, the config's architecture has {has:,} ({holds - has:+,})."
    return " ".join((text, *_explained(built, stored)))


def _explained(built: Sequence[Param], stored: Sequence[Param]) -> list[str]:
    names = {param.name: param for param in built if param.tied_to is None}
    ties = {param.name for param in built if param.tied_to is not None}
    found = {param.name: _counterpart(param.name, names) for param in stored}
    untied = [param for param in stored if _counterpart(param.name, ties)]
    extra = [param for param in stored if not found[param.name] and param not in untied]
    missing = set(names).difference(filter(None, found.values()))
    other = [p for p in stored if (name := found[p.name]) and p.numel != names[name].numel]
    return [
        text for label, items in (
            ("Stored although tied", [param.name for param in untied]),
            ("Only in the checkpoint", [param.name for param in extra]),
            ("Only in the architecture", sorted(missing)),
            ("Of another size", [f"{param.name} {list(param.shape)}" for param in other]),
        ) if (text := _listed(label, items))
    ]  # fmt: skip


PREFIXES = ("model", "transformer", "bert", "roberta", "gpt_neox", "language_model", "model.language_model", "vit")


def _counterpart(name: str, known: Collection[str]) -> str | None:
    """The same name, or the same but for a prefix such as `model.` or `transformer.` on either side."""
    if name in known:
        return name
    tail = name.partition(".")[2]
    if tail in known:
        return tail
    return next((full for prefix in PREFIXES if (full := f"{prefix}.{name}") in known), None)


def _listed(label: str, items: list[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return f"{label}: {', '.join(items[:3])}{more}."
