"""What an expression of a training script stands for, as far as the text says it. Nothing is run.

A name that was given a literal stands for it. So do keys of a dictionary, fields of a class of settings, and defaults
of argparse's options, of functions' parameters and of environment variables: a script is read as if it were started
without arguments. Anything else keeps its own text, as a value that is not in the file: `$(…)`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SIGNS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
LONGEST_TEXT = 1000
MOST_ITEMS = 1000  # of a list or a dictionary, with those inside
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list,
}
# `bf16=torch.cuda.is_bf16_supported()`: of every card since 2020.
ASKS_FOR_BF16 = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
# Names that parsed arguments usually have where a function takes them as its parameter.
ARGUMENTS = ("args", "opt", "opts", "cli_args", "parsed_args")
WITHOUT_ARGUMENTS = "is read as if it were started without arguments, whose defaults hold"
WITHOUT_ENVIRONMENT = "is read as if no variables of the environment were set"
ON_NEW_CARD = "is read as if the card computes in bf16"
STORED = {"store_true": False, "store_false": True}
Scalar = (int, float, str, bool, type(None))


class Values:
    """The names of a script or notebook, learnt cell by cell."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.open_names: set[str] = set()  # given something that is not in the file
        self.options: dict[str, ast.expr] = {}  # argparse's, with their defaults
        self.parameters: dict[str, Any] = {}  # defaults that functions give them
        self.assumed: set[str] = set()  # why values were taken that another start would change
        self.small: dict[int, Any] = {}  # lists and dictionaries that were counted
        self.because: dict[str, set[str]] = {}  # the same, of a name

    # ---- learning

    def learn(self, nodes: Sequence[ast.AST]) -> None:
        """The nodes of one tree, outer ones first."""
        before = set(self.assumed)
        for node in nodes:
            if isinstance(node, ast.Call):
                self._option(node)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._fields(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._defaults(node.args)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                for name, value in _assigned(node):
                    self._assign(name, value)
        self.assumed = before  # until somebody asks for the value

    def _assign(self, name: str, node: ast.expr) -> None:
        self.assumed = set()
        found = self.value(node)
        if not is_open(found):
            self.names[name], self.because[name] = found, self.assumed
        elif name not in self.names:
            self.open_names.add(name)

    def _option(self, call: ast.Call) -> None:
        """`parser.add_argument("--batch_size", type=int, default=4)`"""
        if getattr(call.func, "attr", "") != "add_argument":
            return
        flags = [each.value for each in call.args if isinstance(each, ast.Constant)]
        named = {each.arg: each.value for each in call.keywords}
        long = [flag for flag in flags if isinstance(flag, str) and flag.startswith("--")]
        said = self.value(named["dest"]) if "dest" in named else (long or [""])[0]
        name = str(said).lstrip("-").replace("-", "_")
        action = self.value(named["action"]) if "action" in named else ""
        if "default" in named:
            self.options[name] = named["default"]
        elif action in STORED:
            self.options[name] = ast.Constant(value=STORED[str(action)])

    def _fields(self, node: ast.ClassDef) -> None:
        """A class of settings: its fields that have a literal."""
        found = {}
        for each in node.body:
            if isinstance(each, ast.AnnAssign | ast.Assign):
                found.update({name: self.value(value) for name, value in _assigned(each)})
        if found:
            self.names.setdefault(node.name, found)

    def _defaults(self, arguments: ast.arguments) -> None:
        """A default of a parameter, where every function that has one agrees."""
        plain = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            if default is None:
                continue
            value = self.value(default)
            known = self.parameters.setdefault(argument.arg, value)
            if known != value:
                self.parameters[argument.arg] = _text(default)

    # ---- values

    def value(self, node: ast.expr) -> Any:
        try:
            found = self._value(node)
            return found if self._is_small(found) else _text(node)
        except RecursionError:
            return "$(…)"

    def _is_small(self, value: Any) -> bool:
        """Lists of lists of lists grow fast while their text is short."""
        if not isinstance(value, dict | list) or id(value) in self.small:
            return True
        rest, num_items = [value], 0
        while rest and num_items <= MOST_ITEMS:
            inner = rest.pop()
            num_items += 1
            if isinstance(inner, dict | list):
                rest += inner.values() if isinstance(inner, dict) else inner
        if num_items <= MOST_ITEMS:
            self.small[id(value)] = value
        return num_items <= MOST_ITEMS

    def _value(self, node: ast.expr) -> Any:
        read = READERS.get(type(node))
        return self._literal(node) if read is None else read(self, node)

    def _literal(self, node: ast.expr) -> Any:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return _text(node)
        return list(value) if isinstance(value, tuple | set) else value

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            self.assumed |= self.because.get(node.id, set())
            return self.names[node.id]
        found = self.parameters.get(node.id)
        if found is None or is_open(found) or node.id in self.open_names:
            return _text(node)
        self.assumed.add(f"gives {node.id} only the default of a function")
        return found

    def _attribute(self, node: ast.Attribute) -> Any:
        text = _text(node)
        if text.startswith("$(torch."):
            return text[2:-1]
        owner = node.value
        known = self._value(owner) if isinstance(owner, ast.Name) else None
        if isinstance(known, dict):
            return known.get(node.attr, text)
        is_parsed = isinstance(owner, ast.Name) and owner.id in ARGUMENTS
        return self._given(node.attr, text) if is_parsed else text

    def _given(self, name: str, text: str) -> Any:
        if name not in self.options:
            return text
        self.assumed.add(WITHOUT_ARGUMENTS)
        return self._value(self.options[name])

    def _subscript(self, node: ast.Subscript) -> Any:
        owner, key = self._value(node.value), self._value(node.slice)
        if isinstance(owner, dict) and isinstance(key, str | int):
            return owner.get(str(key), _text(node))
        if isinstance(owner, list) and type(key) is int and -len(owner) <= key < len(owner):
            return owner[key]
        return _text(node)

    def _dict(self, node: ast.Dict) -> Any:
        made: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            found = self._value(value)
            if key is None and isinstance(found, dict):
                made.update(found)
            elif isinstance(key, ast.Constant):
                made[str(key.value)] = found
            else:
                return _text(node)
        return made

    def _call(self, node: ast.Call) -> Any:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else _identifier(node.func)
        if name in ASKS_FOR_BF16:
            self.assumed.add(ON_NEW_CARD)
            return True
        if name == "parse_args" or (name.startswith("parse") and name.endswith("args")):
            self.assumed.add(WITHOUT_ARGUMENTS)
            return {name: self._value(default) for name, default in self.options.items()}
        if isinstance(node.func, ast.Name):
            return self._made(name, node)
        if name in ("get", "getenv") and node.args:
            return self._looked_up(node)
        return _text(node)

    def _made(self, name: str, node: ast.Call) -> Any:
        """`int("4")`, `dict(r=8)`, `Settings(batch=2)`"""
        named = {each.arg: self._value(each.value) for each in node.keywords if each.arg}
        fields = self.names.get(name)
        if name == "dict" and not node.args:
            return named
        if isinstance(fields, dict):
            return {**fields, **named}
        convert = CONVERSIONS.get(name)
        given = self._value(node.args[0]) if len(node.args) == 1 else None
        if convert is None or is_open(given) or not isinstance(given, int | float | str | list):
            return _text(node)
        try:
            return convert(given)
        except (ValueError, OverflowError, TypeError):
            return _text(node)

    def _looked_up(self, node: ast.Call) -> Any:
        """`settings.get("r", 8)`; a variable of the environment has its default."""
        function = node.func
        assert isinstance(function, ast.Attribute)
        key, default = self._value(node.args[0]), node.args[1] if len(node.args) > 1 else None
        owner = self._value(function.value)
        if isinstance(owner, dict) and isinstance(key, str):
            absent = None if default is None else self._value(default)
            return owner.get(key, absent)
        if default is not None and _text(function.value) in ("$(os.environ)", "$(os)"):
            self.assumed.add(WITHOUT_ENVIRONMENT)
            return self._value(default)
        return _text(node)

    def _sum(self, node: ast.BinOp) -> Any:
        """`max_seq_length - max_prompt_length` of two numbers, `folder + name` of two texts."""
        left, right = self._value(node.left), self._value(node.right)
        sign = SIGNS.get(type(node.op))
        are_numbers = type(left) in (int, float) and type(right) in (int, float)
        are_texts = isinstance(left, str) and isinstance(right, str) and sign is operator.add
        if sign is None or not (are_numbers or are_texts) or is_open(left) or is_open(right):
            return _text(node)
        try:
            made = sign(left, right)
        except (ZeroDivisionError, OverflowError):
            return _text(node)
        return made if are_numbers or len(made) <= LONGEST_TEXT else _text(node)

    def _formatted(self, node: ast.JoinedStr) -> Any:
        """`f"{folder}/{name}"`"""
        made = ""
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            found = self._value(inner)
            if is_open(found) or not isinstance(found, Scalar) or len(made) > LONGEST_TEXT:
                return _text(node)
            made += str(found)
        return made if len(made) <= LONGEST_TEXT else _text(node)

    def _choice(self, node: ast.IfExp) -> Any:
        test = self._value(node.test)
        if not is_open(test):
            return self._value(node.body if test else node.orelse)
        one, other = self._value(node.body), self._value(node.orelse)
        return one if one == other else _text(node)

    def _not(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            return self._literal(node)
        found = self._value(node.operand)
        return _text(node) if is_open(found) else not found

    def _first(self, node: ast.BoolOp) -> Any:
        """`args.model or "gpt2"`, `has_bf16 and not is_old`"""
        found: Any = None
        for each in node.values:
            found = self._value(each)
            if is_open(found) or bool(found) == isinstance(node.op, ast.Or):
                return found
        return found

    def _compared(self, node: ast.Compare) -> Any:
        left, right = self._value(node.left), self._value(node.comparators[0])
        if len(node.ops) > 1 or is_open(left) or is_open(right):
            return _text(node)
        if isinstance(node.ops[0], ast.Is | ast.Eq):
            return left == right
        return left != right if isinstance(node.ops[0], ast.IsNot | ast.NotEq) else _text(node)

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        found = [self._value(each) for each in node.elts]
        return _text(node) if any(is_open(each) for each in found) else found


READERS: dict[type, Callable[[Values, Any], Any]] = {
    ast.Name: Values._name,
    ast.Attribute: Values._attribute,
    ast.Subscript: Values._subscript,
    ast.Dict: Values._dict,
    ast.Call: Values._call,
    ast.BinOp: Values._sum,
    ast.JoinedStr: Values._formatted,
    ast.IfExp: Values._choice,
    ast.UnaryOp: Values._not,
    ast.BoolOp: Values._first,
    ast.Compare: Values._compared,
    ast.List: Values._sequence,
    ast.Tuple: Values._sequence,
    ast.Set: Values._sequence,
}


def is_open(value: Any) -> bool:
    """Is it not in the file?"""
    return isinstance(value, str) and value.startswith("$(")


def _text(node: ast.AST) -> str:
    return f"$({ast.unparse(node)[:200]})"


def _identifier(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _assigned(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[str, ast.expr]]:
    """`a = 1`, `a: int = 1`, `a, b = 1, 2`"""
    if node.value is None:
        return
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for each, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(each, ast.Name):
                    yield each.id, value
