"""Which modules and parameters of a model get adapters: PEFT's rules.

In come the job's targets, out comes a predicate over a module's full name and kind. Mixtures that transformers 5 holds
with one tensor for all experts are known as peft 0.21 knows them (utils/transformers_weight_conversion.py): names of
the linear layers that experts used to be are read as names of parameters, also in `all-linear` (since PEFT's pull
request 3232 of June 2026; before that `all-linear` left experts alone). The same names then stand for no module any
more, so that dense layers and shared experts beside routed ones go without. Other mixtures (qwen2_moe, phimoe, gpt_oss)
have no such table: there adapters are on linear layers only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set

from vramcast.errors import InputError
from vramcast.job import is_regular

ALL_LINEAR = ("all-linear",)
LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")  # peft/tuners/tuners_utils.py check_target_module_exists
NUMBER = re.compile(r"(^|\.)\d+\.")
QWEN = {
    "gate": "gate",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}
MOVED: dict[str, dict[str, str]] = {
    "mixtral": {"gate": "gate", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"},
    "qwen3_moe": QWEN,
    "olmoe": QWEN,
    "deepseek_v2": QWEN,
    "deepseek_v3": QWEN,
}
NOTHING: dict[str, str] = {}


def lora_matches(
    targets: tuple[str, ...], moved: Mapping[str, str] = NOTHING
) -> Callable[[str, str], bool]:
    """`all-linear` is every linear but the head; a name matches the whole path or its end, a regular expression the
    whole path. `moved`: see MOVED."""
    if is_regular(targets):
        return _regular_matches(targets[0], moved)
    everything = targets == ALL_LINEAR
    found = moved.keys() if everything else _moved_targets(targets, moved)
    _check_joined(found, moved)
    parameters = {moved[name] for name in found}
    modules = tuple(target for target in targets if _last(target) not in moved)

    def matches(name: str, kind: str) -> bool:
        if kind == "experts" or (kind == "router" and moved):
            return _last(name) in parameters
        if everything:
            return kind == "linear" and _last(name) not in moved
        return _ends_with_any(name, modules)

    return matches


def _regular_matches(expression: str, moved: Mapping[str, str]) -> Callable[[str, str], bool]:
    """PEFT asks the names of modules, where experts held as one tensor have none."""
    pattern = re.compile(expression)

    def matches(name: str, kind: str) -> bool:
        is_parameter = kind == "experts" or (kind == "router" and bool(moved))
        return not is_parameter and pattern.fullmatch(name) is not None

    return matches


def in_layers(numbers: tuple[int, ...]) -> Callable[[str], bool]:
    """PEFT's layers_to_transform: the first number that stands between two points of a name is the layer's."""
    if not numbers:
        return lambda name: True

    def is_in(name: str) -> bool:
        found = LAYER.match(name)
        return found is not None and int(found[1]) in numbers

    return is_in


def names_layers(targets: tuple[str, ...]) -> bool:
    """May these targets choose among the layers of one stack?"""
    return is_regular(targets) or any(NUMBER.search(target) for target in targets)


def _moved_targets(targets: tuple[str, ...], moved: Mapping[str, str]) -> Set[str]:
    """Names of modules that are parts of one parameter now."""
    return moved.keys() & {_last(target) for target in targets}


def _ends_with_any(name: str, targets: tuple[str, ...]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _check_joined(found: Set[str], moved: Mapping[str, str]) -> None:
    joined = [name for name, parameter in moved.items() if parameter == "gate_up_proj"]
    named = [name for name in joined if name in found]
    if named and named != joined:
        raise InputError(
            f"lora-targets {', '.join(named)}: transformers 5 holds {' and '.join(joined)} of all experts in one "
            "tensor, so PEFT refuses one without the other. Name both."
        )


def _last(name: str) -> str:
    return name.rpartition(".")[2]
